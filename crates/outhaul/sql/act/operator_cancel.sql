-- operator_cancel: cancel one job as an operator, on the record.
-- Parameters: id, reason. Returns what cancel returns. Index, locks: those of cancel and audit_append.
create or replace function operator_cancel(id uuid, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_cancel */
declare
  outcome constant text := cancel(operator_cancel.id, 'cancelled');
  n bigint;
begin
  if outcome = 'cancelled' then
    n := audit_append('jobs.cancel', operator_cancel.id::text, '{}', operator_cancel.reason);
  end if;
  return outcome;
end $$;
