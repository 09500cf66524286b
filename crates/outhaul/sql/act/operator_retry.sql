-- operator_retry: let one job run now, as an operator, on the record. A job that waits becomes due; a dead
-- letter comes back under its own id with its attempts at zero and its claim number going on, so that a
-- report from before cannot match. Its idempotency key was kept all the time.
-- Parameters: id, reason. Returns due, replayed, leased (it is running), ended or not_found.
-- Index: jobs_pkey, jobs_dead_pkey. Locks: the job's row, the audit head.
create or replace function operator_retry(id uuid, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:operator_retry */
declare
  outcome text;
  n bigint;
  woke boolean;
begin
  -- A job that is overdue keeps its place in front.
  update jobs j set run_at = least(j.run_at, clock_timestamp()) where j.id = operator_retry.id and j.lease_until = '-infinity';
  if found then
    outcome := 'due';
  else
    with d as (
      delete from jobs_dead x where x.id = operator_retry.id returning x.*
    )
    insert into jobs (id, queue, job_type, payload, organization_id, idempotency_key, priority, share, created_at,
                      max_attempts, claim_no, status, timeout, ordering_key, limit_key, rate_key, traceparent,
                      source_event_id, last_error_code, last_error_summary)
    select d.id, d.queue, d.job_type, d.payload, d.organization_id, d.idempotency_key, d.priority, d.share, d.created_at,
           d.max_attempts, d.claim_no, 'retrying', d.timeout, d.ordering_key, d.limit_key, d.rate_key, d.traceparent,
           d.source_event_id, d.last_error_code, d.last_error_summary
      from d;
    if found then
      outcome := 'replayed';
    elsif exists (select from jobs j where j.id = operator_retry.id) then
      return 'leased';
    elsif exists (select from jobs_finished f where f.id = operator_retry.id) then
      return 'ended';
    else
      return 'not_found';
    end if;
  end if;
  n := audit_append('jobs.retry', operator_retry.id::text, jsonb_build_object('outcome', outcome), operator_retry.reason);
  woke := wake(clock_timestamp());
  return outcome;
end $$;
