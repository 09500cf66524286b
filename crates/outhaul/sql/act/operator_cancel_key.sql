-- operator_cancel_key: cancel the job that has an idempotency key, as an operator, on the record.
-- Parameters: job_type, key, organization_id; reason. Returns what cancel_key returns.
-- Index, locks: those of cancel_key and audit_append.
create or replace function operator_cancel_key(job_type text, key text, organization_id uuid default null, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_cancel_key */
declare
  outcome constant text := cancel_key(operator_cancel_key.job_type, operator_cancel_key.key, operator_cancel_key.organization_id, 'cancelled');
  n bigint;
begin
  if outcome = 'cancelled' then
    n := audit_append('jobs.cancel_key', operator_cancel_key.key, jsonb_build_object('job_type', operator_cancel_key.job_type,
      'organization', operator_cancel_key.organization_id), operator_cancel_key.reason);
  end if;
  return outcome;
end $$;
