-- discard_dead: end dead letters for good, those that nobody else has locked. Part of operator_discard and of operations.
-- They are recorded as cancelled with the code discarded; their keys are kept as after any end.
-- Parameters: ids; claim_nos, parallel: the claims they died of, NULL for any. Returns the ids that were discarded.
-- Index: jobs_dead_pkey, job_keys_pkey. Locks: the dead letters' rows in the order given, skipping locked ones, their keys' rows.
create or replace function discard_dead(ids uuid[], claim_nos integer[]) returns setof uuid
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:discard_dead */
begin
  return query
  with c as materialized (
    select x.ct from unnest(discard_dead.ids, discard_dead.claim_nos) u(i, c)
     cross join lateral (
        select d.ctid as ct from jobs_dead d
         where d.id = u.i and (u.c is null or d.claim_no = u.c) for update skip locked) x
  ), d as (
    delete from jobs_dead x using c where x.ctid = c.ct returning x.*
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from d cross join lateral (
        select y.ctid as ct from job_keys y
         where y.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000') and y.kind = d.job_type
           and y.key = d.idempotency_key and y.job_id = d.id offset 0) x
     where k.ctid = x.ct
  ), f as (
    -- A dead letter does not know when its last attempt began; when that was due comes closest.
    insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                               status, queue, job_type, error_code)
    select d.created_at, greatest(d.run_at, d.created_at), d.id, d.organization_id, d.attempts, d.claim_no,
           d.max_attempts, d.priority, 'cancelled', d.queue, d.job_type, 'discarded'
      from d
  )
  select d.id from d;
end $$;
