-- jobs_ended: what others have of leases that ended: units are free, jobs that wait for them are let in, and lanes go on.
-- Units: one that a later claim has taken (the lease had run out before) is left alone: its token is another. A claim that
-- sends a job to wait locks all units of its key first, so either it comes before this and the job is found here, or after
-- this and it finds the unit free.
-- Lanes: the snapshot in which the next job is chosen is taken after the head's row was locked and deleted, so it contains
-- every job of the lane that anybody has taken notice of while the head was alive (advance_lanes locks the head for that).
-- Whoever commits later is fresh, finds no head, and is let in by advance_lanes. Nothing is waited for and nobody is passed
-- over: where the next job is locked by somebody (an open cancel), the lane is left without a head and with a mark, and the
-- next claim looks again.
-- Parameters: ended, a row for each lease; id and ordering_key only where the job has ended with it; a lease_token of nil
-- says that the job had been let in and was never claimed.
-- Index: permits_pkey, jobs_waiting, ordering_jobs, ordering_lanes_pkey, jobs_pkey. Locks: the units; the jobs let in; the
-- rows of the lanes' heads and next jobs.
create or replace function jobs_ended(ended ended_job[]) returns void
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:jobs_ended */
declare
  freed bigint;
  due bigint;
  queues text[];
  keys text[];
  woke boolean;
begin
  with u as materialized (
    select e.queue, y.k, y.n, e.lease_token
      from unnest(jobs_ended.ended) e cross join lateral (values ('', e.permit), (e.limit_key, e.key_permit)) y(k, n)
     where y.n is not null order by e.queue, y.k, y.n
  ), f as (
    update permits p set lease_until = '-infinity', used_at = clock_timestamp()
      from u where p.queue = u.queue and p.limit_key = u.k and p.n = u.n and p.lease_token = u.lease_token
  )
  select count(*) into freed from u;
  with k as materialized (
    select e.queue, e.limit_key, count(*) as n from unnest(jobs_ended.ended) e
     where e.limit_key is not null
       and (e.key_permit is not null or e.lease_token = '00000000-0000-0000-0000-000000000000')
     group by e.queue, e.limit_key
  ), w as materialized (
    select j.ct from k
     cross join lateral (
        select y.ctid as ct from jobs y
         where y.queue = k.queue and y.limit_key = k.limit_key and y.held_for = 'permit'
         order by y.priority desc, y.run_at, y.id limit k.n for no key update skip locked) j
  ), i as (
    update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, clock_timestamp())
      from w where j.ctid = w.ct returning 1
  )
  select count(*) into due from i;
  with h as (
    delete from ordering_lanes l
     where l.ctid = any (array(
       select x.ct from unnest(jobs_ended.ended) e
        cross join lateral (select y.ctid as ct from ordering_lanes y where y.job_id = e.id offset 0) x
        where e.ordering_key is not null))
    returning l.queue, l.ordering_key, l.head
  )
  select array_agg(h.queue), array_agg(h.ordering_key) into queues, keys from h where h.head;
  if keys is not null then
    with first as materialized (
      select l.* from unnest(queues, keys) h(q, k)
       cross join lateral (
          select x.queue, x.ordering_key, x.seq, x.job_id from ordering_lanes x
           where x.queue = h.q and x.ordering_key = h.k and x.job_id is not null order by x.seq limit 1) l
    ), got as materialized (
      select f.queue, f.ordering_key, f.seq, l.ct as lane, j.ct as job from first f
       cross join lateral (
          select x.ctid as ct from ordering_lanes x
           where x.queue = f.queue and x.ordering_key = f.ordering_key and x.seq = f.seq for update skip locked) l
       cross join lateral (select y.ctid as ct from jobs y where y.id = f.job_id for no key update skip locked) j
    ), heads as (
      update ordering_lanes l set head = true, fresh = false from got where l.ctid = got.lane
    ), marks as (
      insert into ordering_lanes (queue, ordering_key)
      select f.queue, f.ordering_key from first f
       where not exists (select from got where got.queue = f.queue and got.ordering_key = f.ordering_key)
      returning 1
    ), i as (
      -- Above every scan floor; a time in the future stays.
      update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, clock_timestamp())
        from got where j.ctid = got.job returning j.run_at <= clock_timestamp() as now
    )
    select due + (select count(*) from i where i.now) + (select count(*) from marks) into due;
  end if;
  if freed + due > 0 then
    woke := wake(clock_timestamp());
  end if;
end $$;
