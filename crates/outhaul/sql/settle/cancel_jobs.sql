-- cancel_jobs: end those of the jobs that have not ended and that nobody else has locked. Part of cancel and of operations.
-- A leased job's row goes away as well: its lease token then matches nothing, so the running handler
-- is told by the next renewal and its report changes nothing. Effects it has already made stay.
-- Parameters: ids; reason, a short code kept with the finished jobs. Returns the ids that were cancelled.
-- Index: jobs_pkey, then by ctid; job_keys_pkey. Locks: the jobs' rows in the order given, skipping locked ones, their keys' rows.
create or replace function cancel_jobs(ids uuid[], reason text) returns setof uuid
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:cancel_jobs */
begin
  return query
  with c as materialized (
    select x.ct from unnest(cancel_jobs.ids) u(i)
     cross join lateral (select j.ctid as ct from jobs j where j.id = u.i for update skip locked) x
  ), d as (
    delete from jobs j using c where j.ctid = c.ct returning j.*
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from d cross join lateral (
        select y.ctid as ct from job_keys y
         where y.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000') and y.kind = d.job_type
           and y.key = d.idempotency_key and y.job_id = d.id offset 0) x
     where k.ctid = x.ct
  ), a as (
    insert into job_attempts (started_at, job_id, claim_no, attempt, worker_id, outcome, error_class, error_code)
    select d.locked_at, d.id, d.claim_no, d.attempts, d.locked_by, 'cancelled', 'revoked', cancel_jobs.reason
      from d where d.status = 'leased'
  ), f as (
    insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                               status, queue, job_type, error_code)
    select d.created_at, greatest(d.locked_at, d.created_at), d.id, d.organization_id, d.attempts, d.claim_no,
           d.max_attempts, d.priority, 'cancelled', d.queue, d.job_type, cancel_jobs.reason
      from d
  )
  select d.id from d;
end $$;
