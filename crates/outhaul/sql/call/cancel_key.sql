-- cancel_key: cancel the job that has an idempotency key, in the caller's transaction: for who knows the request and not the id.
-- A key whose transaction is not committed yet is not seen.
-- Parameters: job_type and key, as they were enqueued; organization_id likewise, NULL for none; reason as in cancel.
-- Returns cancelled, ended (also when retention has removed the job and its key is still kept) or not_found.
-- Index: job_keys_pkey, jobs_pkey. Locks: the job's row.
create or replace function cancel_key(job_type text, key text, organization_id uuid default null, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off
as $$ /* outhaul:cancel_key */
declare
  outcome text;
begin
  select cancel(k.job_id, cancel_key.reason) into outcome from job_keys k
   where k.scope = coalesce(cancel_key.organization_id, '00000000-0000-0000-0000-000000000000')
     -- Keys of events stand in the same table.
     and k.kind = cancel_key.job_type and cancel_key.job_type not like '@%' and k.key = cancel_key.key;
  return case when not found then 'not_found' when outcome = 'not_found' then 'ended' else outcome end;
end $$;
