-- complete_in: complete one leased job inside the handler's own transaction, so that the effects written
-- there and the end of the job commit together or not at all. Best called last before COMMIT: the
-- job's row stays locked from here on.
-- Parameters: id, lease_token, claim_no; history as in complete.
-- Raises OH003 when the lease is lost, which rolls the caller's effects back, and OH004 under an isolation
-- level other than READ COMMITTED, where a job that was leased again since the snapshot would look unchanged.
-- Index: jobs_pkey. Locks: the job's row until the caller's transaction ends.
create or replace function complete_in(id uuid, lease_token uuid, claim_no integer, history text default 'row')
returns void
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:complete_in */
declare
  missing text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'OH004',
      message = format('complete_in needs READ COMMITTED, this transaction is %s', upper(current_setting('transaction_isolation'))),
      hint = 'Begin the transaction that completes a job with ISOLATION LEVEL READ COMMITTED.';
  end if;
  -- Waits as long as the caller's lock_timeout says, and not as short as complete.
  perform from jobs j where j.id = complete_in.id and j.lease_token = complete_in.lease_token for update;
  select c.state into missing
    from complete(array[complete_in.id], array[complete_in.lease_token], array[complete_in.claim_no], complete_in.history) c;
  if found then
    raise exception using errcode = 'OH003',
      message = format('the lease on job %s is lost', complete_in.id),
      hint = 'Another worker may run this job now, or it was cancelled; roll back and do nothing more for it.';
  end if;
end $$;
