-- complete: end leased jobs as completed. The caller sends ids sorted, so that two batches never
-- wait for one another in a circle.
-- Parameters: ids, lease_tokens and claim_nos, parallel; history, what to keep: none, row or payload.
-- Returns a row only for ids that were not completed by this call: done when this very claim had been
-- completed before (an answer was lost), else lost. Lost means that nothing was changed.
-- Fails with 55P03 after 100 ms behind a lock that somebody else holds on one of the rows (an open cancel):
-- the caller then sends the others without that one, instead of making them all wait.
-- Index: jobs_pkey, job_keys_pkey. Locks: the jobs' rows in the order given, then their keys' rows.
create or replace function complete(ids uuid[], lease_tokens uuid[], claim_nos integer[], history text default 'row')
returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off set lock_timeout = '100ms'
as $$ /* outhaul:complete */
#variable_conflict use_column
declare
  ended uuid[];
begin
  with d as (
    delete from jobs j using unnest(complete.ids, complete.lease_tokens) u(i, k)
     where j.id = u.i and j.lease_token = u.k
       and j.lease_until > '-infinity'  -- a job that nobody holds has a token too: the nil UUID
    returning j.id, j.created_at, j.locked_at, j.organization_id, j.attempts, j.claim_no, j.max_attempts, j.priority,
              j.queue, j.job_type, j.idempotency_key, case when complete.history = 'payload' then j.payload end as payload
  ), f as (
    insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                               status, queue, job_type, payload)
    select d.created_at, d.locked_at, d.id, d.organization_id, d.attempts, d.claim_no, d.max_attempts, d.priority,
           'completed', d.queue, d.job_type, d.payload
      from d where complete.history <> 'none'
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from d where d.idempotency_key is not null
       and k.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000')
       and k.kind = d.job_type and k.key = d.idempotency_key and k.job_id = d.id
  )
  select array_agg(d.id) into ended from d;
  if coalesce(cardinality(ended), 0) < cardinality(complete.ids) then
    return query
      select u.i, case when exists (select from jobs_finished f
                                     where f.id = u.i and f.claim_no = u.c and f.status = 'completed')
                       then 'done' else 'lost' end
        from unnest(complete.ids, complete.claim_nos) u(i, c)
       where u.i <> all (coalesce(ended, '{}'));
  end if;
end $$;
