-- complete: end leased jobs as completed. The caller sends ids sorted, so that two batches never
-- wait for one another in a circle.
-- Parameters: ids, lease_tokens and claim_nos, parallel; history, what to keep: none, row or payload.
-- Returns a row only for ids that were not completed by this call: done when this very claim had been
-- completed before (an answer was lost), cancelled when somebody has cancelled the job under it, else lost. Cancelled and lost
-- mean that nothing was changed.
-- Fails with 55P03 after 100 ms behind a lock that somebody else holds on one of the rows (an open cancel):
-- the caller then sends the others without that one, instead of making them all wait.
-- Index: jobs_pkey, then by ctid; job_keys_pkey. Locks: the jobs' rows in the order given, then their keys' rows, and what
-- jobs_ended locks.
create or replace function complete(ids uuid[], lease_tokens uuid[], claim_nos integer[], history text default 'row')
returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off set lock_timeout = '100ms'
as $$ /* outhaul:complete */
#variable_conflict use_column
declare
  -- The trigger of the jobs (job_ended) leaves what concerns others to this function, until it takes this back.
  settles text := set_config('outhaul_call.settles', 'on', true);
  ended uuid[] := '{}';
  now_ended uuid[];
  concerned ended_job[];
begin
  -- A row that is being renewed is a new version when its lock is had, and this statement's snapshot does not
  -- contain it: it is passed over, and found by the next round, whose snapshot does. Locking first would cost
  -- every job what only these need (0.9 us and 56 B of WAL).
  for round in 1..3 loop
    with d as (
      -- By place, found by one index probe of each id: LATERAL leaves the planner no other way. A join that was
      -- planned while the table was empty read the whole of it from then on.
      delete from jobs j
       where j.ctid = any (array(
         select x.ct from unnest(complete.ids, complete.lease_tokens) u(i, k)
          cross join lateral (
            select y.ctid as ct from jobs y
             where y.id = u.i and y.lease_token = u.k
               and y.lease_until > '-infinity'  -- a job that nobody holds has a token too: the nil UUID
             offset 0) x
          where round = 1 or u.i <> all (ended)))
      returning j.id, j.created_at, j.locked_at, j.organization_id, j.attempts, j.claim_no, j.max_attempts, j.priority,
                j.queue, j.job_type, j.idempotency_key, j.ordering_key, j.limit_key, j.permit, j.key_permit, j.lease_token,
                case when complete.history = 'payload' then j.payload end as payload
    ), f as (
      insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                                 status, queue, job_type, payload)
      select d.created_at, d.locked_at, d.id, d.organization_id, d.attempts, d.claim_no, d.max_attempts, d.priority,
             'completed', d.queue, d.job_type, d.payload
        from d where complete.history <> 'none'
    ), k as (
      update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
        from d cross join lateral (
          select y.ctid as ct from job_keys y
           where y.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000') and y.kind = d.job_type
             and y.key = d.idempotency_key and y.job_id = d.id offset 0) x
       where k.ctid = x.ct
    )
    select coalesce(array_agg(d.id), '{}'),
           array_agg(row(d.id, d.queue, d.ordering_key, d.limit_key, d.permit, d.key_permit, d.lease_token)::ended_job)
             filter (where coalesce(d.permit, d.key_permit) is not null or d.ordering_key is not null)
      into now_ended, concerned from d;
    if concerned is not null then
      perform jobs_ended(concerned);
    end if;
    ended := ended || now_ended;
    exit when cardinality(ended) >= cardinality(complete.ids) or (round > 1 and now_ended = '{}');
  end loop;
  settles := set_config('outhaul_call.settles', '', true);
  if cardinality(ended) < cardinality(complete.ids) then
    return query
      -- LIMIT: an EXISTS may be answered by hashing the whole table.
      select u.i, coalesce((select 'done' from jobs_finished f
                             where f.id = u.i and f.claim_no = u.c and f.status = 'completed' limit 1),
                            (select 'cancelled' from job_attempts a
                              where a.job_id = u.i and a.claim_no = u.c and a.outcome = 'cancelled' and a.error_class = 'revoked' limit 1), 'lost')
        from unnest(complete.ids, complete.claim_nos) u(i, c)
       where u.i <> all (ended);
  end if;
end $$;
