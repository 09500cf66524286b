-- release_permits: free the units that ended leases held, and let in a job that waits for each.
-- A unit that a later claim has taken (the lease had run out before) is left alone: its token is another.
-- A claim that sends a job to wait locks all units of the key first, so either it comes before this and the job is found
-- here, or after this and it finds the unit free.
-- Parameters, parallel: queues, limit_keys, permits, key_permits, lease_tokens; let_in, true to let a job in for each key
-- although no unit of it was held.
-- Index: permits_pkey, jobs_waiting. Locks: the units, the jobs let in.
create or replace function release_permits(
  queues text[], limit_keys text[], permits integer[], key_permits integer[], lease_tokens uuid[], let_in boolean default false
) returns void
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:release_permits */
declare
  freed boolean;
  waiting bigint := 0;
  woke boolean;
begin
  with u as materialized (
    select x.q, y.k, y.n, x.t
      from unnest(release_permits.queues, release_permits.limit_keys, release_permits.permits,
                  release_permits.key_permits, release_permits.lease_tokens) x(q, k, p, kp, t)
     cross join lateral (values ('', x.p), (x.k, x.kp)) y(k, n)
     where y.n is not null
     order by x.q, y.k, y.n
  ), f as (
    update permits p set lease_until = '-infinity', used_at = clock_timestamp()
      from u where p.queue = u.q and p.limit_key = u.k and p.n = u.n and p.lease_token = u.t
  )
  select exists (select from u) into freed;
  if freed or release_permits.let_in then
    with k as materialized (
      select x.q, x.k, count(*) as n
        from unnest(release_permits.queues, release_permits.limit_keys, release_permits.key_permits) x(q, k, kp)
       where x.k is not null and (x.kp is not null or release_permits.let_in)
       group by x.q, x.k
    ), w as materialized (
      select j.ct from k
       cross join lateral (
          select y.ctid as ct from jobs y
           where y.queue = k.q and y.limit_key = k.k and y.held_for = 'permit'
           order by y.priority desc, y.run_at, y.id limit k.n for no key update skip locked) j
    ), i as (
      update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, clock_timestamp())
        from w where j.ctid = w.ct returning 1
    )
    select count(*) from i into waiting;
  end if;
  if freed or waiting > 0 then
    woke := wake(clock_timestamp());
  end if;
end $$;
