-- advance_lanes: take notice of jobs with ordering keys that have been enqueued, and let in the first of each lane that has
-- no head. Called by each claim that finds such jobs, before it looks for work.
-- Late commits need no more than this: a job becomes visible with its commit, is fresh then, and takes its place.
-- One caller at a time for each queue, the others leave it to him; so only jobs_ended can change a head meanwhile, and it
-- deletes the old head first, on which this waits for nobody: a head that cannot be locked is left for the next call.
-- Parameters: queue; n, the most jobs. Returns how many became claimable.
-- Index: ordering_fresh, ordering_heads, ordering_lanes_pkey, jobs_pkey. Locks: an advisory lock of the transaction; the
-- fresh rows, the heads of their lanes and the jobs let in, skipping locked ones.
create or replace function advance_lanes(queue text, n integer default 1000) returns integer
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:advance_lanes */
declare
  places bigint[];
  keys text[];
  alive text[];
  let_in text[];
begin
  if not pg_try_advisory_xact_lock('ordering_lanes'::regclass::oid::integer, hashtext(advance_lanes.queue)) then
    return 0;
  end if;
  with f as materialized (
    select l.seq, l.ordering_key from ordering_lanes l
     where l.queue = advance_lanes.queue and l.fresh order by l.seq limit advance_lanes.n for update skip locked
  )
  select array_agg(f.seq), array_agg(f.ordering_key) into places, keys from f;
  if places is null then
    return 0;
  end if;
  -- Held until the end of the transaction: the head's successor is chosen after it, and sees these rows.
  with h as materialized (
    select l.ordering_key from (select distinct u.k from unnest(keys) u(k)) k
     cross join lateral (
        select x.ordering_key from ordering_lanes x
         where x.queue = advance_lanes.queue and x.ordering_key = k.k and x.head for share skip locked) l
  )
  select coalesce(array_agg(h.ordering_key), '{}') into alive from h;
  with lane as materialized (
    select distinct u.k from unnest(keys) u(k)
     where u.k <> all (alive)
       and not exists (select from ordering_lanes x where x.queue = advance_lanes.queue and x.ordering_key = u.k and x.head)
  ), first as materialized (
    select l.seq, l.ordering_key, l.job_id from lane
     cross join lateral (
        select x.seq, x.ordering_key, x.job_id from ordering_lanes x
         where x.queue = advance_lanes.queue and x.ordering_key = lane.k and x.job_id is not null
         order by x.seq limit 1) l
  ), got as materialized (
    select f.seq, f.ordering_key, j.ct from first f
     cross join lateral (
        select x.seq from ordering_lanes x
         where x.queue = advance_lanes.queue and x.ordering_key = f.ordering_key and x.seq = f.seq for update skip locked) l
     cross join lateral (
        select y.ctid as ct from jobs y where y.id = f.job_id for no key update skip locked) j
  ), heads as (
    update ordering_lanes l set head = true, fresh = false from got
     where l.queue = advance_lanes.queue and l.ordering_key = got.ordering_key and l.seq = got.seq
  ), jobs_in as (
    -- Not later than the claim that asked, which can take it at once.
    update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, statement_timestamp())
      from got where j.ctid = got.ct
  ), orphans as (
    -- A job that went away without its trigger (TRUNCATE) leaves its lane to the others.
    delete from ordering_lanes l using first f
     where l.queue = advance_lanes.queue and l.ordering_key = f.ordering_key and l.seq = f.seq
       and not exists (select from jobs y where y.id = f.job_id)
  )
  select coalesce(array_agg(got.ordering_key), '{}') into let_in from got;
  -- Taken notice of: those with a head. An empty lane needs no mark either.
  with seen as materialized (
    select u.s, u.k from unnest(places, keys) u(s, k)
     where u.k = any (alive) or u.k = any (let_in)
        or not exists (select from ordering_lanes x where x.queue = advance_lanes.queue and x.ordering_key = u.k and x.job_id is not null)
  ), marks as (
    delete from ordering_lanes l using seen
     where l.queue = advance_lanes.queue and l.ordering_key = seen.k and l.seq = seen.s and l.job_id is null
  )
  update ordering_lanes l set fresh = false from seen
   where l.queue = advance_lanes.queue and l.ordering_key = seen.k and l.seq = seen.s and l.job_id is not null and l.fresh;
  return cardinality(let_in);
end $$;
