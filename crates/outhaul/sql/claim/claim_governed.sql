-- claim_governed: claim for a queue with limits, rates, cooldowns or fair shares. Called by claim, with its parameters.
-- A candidate that may not run now leaves the way at once, so that it hides nobody: to wait for a unit of its key outside
-- of the claim index, or to a later run_at that its rate or cooldown gives it. So this looks again until it has enough, has
-- seen everything, or has worked for 50 ms.
-- Parameters: those of claim; after_share, the share served last. Returns what claim returns, and one row more without an
-- id: attempts is 1 where a limit kept jobs back, timeout_ms says when to look again if no wake-up comes before, share where
-- to go on when fewer were found than asked for.
-- Index: jobs_claim, then by ctid; permits_pkey, rates_pkey, key_limits_pkey. Locks: free units of the queue, then the
-- candidates, then units of their keys, all skipping locked ones; the row of the queue's rate and those of the partitions in
-- the order of their keys, which are waited for as long as another claim lasts.
create or replace function claim_governed(
  queue text, n integer, worker uuid, lease interval, priorities smallint[], shares integer[], run_ats timestamptz[],
  behind_ms bigint[], skip_types text[], after_share integer, keeps text
) returns table (
  id uuid, lease_token uuid, job_type text, payload text, attempts integer, claim_no integer, max_attempts integer,
  priority smallint, share integer, run_at timestamptz, created_at timestamptz, organization_id uuid,
  timeout_ms bigint, traceparent text, history text, locked_at timestamptz
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:claim_governed */
#variable_conflict use_column
declare
  token constant uuid := gen_random_uuid();
  t constant timestamptz := statement_timestamp();
  until constant timestamptz := clock_timestamp() + claim_governed.lease;
  q queues;
  budget integer := claim_governed.n;
  kept_back boolean := false;
  wait timestamptz;
  bucket double precision;
  units integer[];
  used integer := 0;
  circle integer := 0;
  looks integer := 0;
  reach integer := 0;
  each integer;
  from_share constant integer := coalesce(claim_governed.after_share, -1);
  next_share integer := from_share;
  way bigint := 0;
  gone bigint;
  known_priorities constant smallint[] := claim_governed.priorities;
  known_shares constant integer[] := claim_governed.shares;
  known_run_ats constant timestamptz[] := claim_governed.run_ats;
  known_behind constant bigint[] := claim_governed.behind_ms;
  limited_keys boolean;
  cts tid[];
  keys text[];
  rate_keys text[];
  placed boolean[];
  key_units integer[];
  look integer;
  picks boolean[];
  to_wait tid[];
  slots timestamptz[];
  moved integer;
  claimed integer;
begin
  select x.* into q from queues x where x.name = claim_governed.queue;
  if q.cool_until > t then
    budget := 0;
    wait := q.cool_until;
  end if;
  if q.max_running is not null and budget > 0 then
    units := free_units(claim_governed.queue, '', q.max_running, budget);
    if coalesce(cardinality(units), 0) < budget then
      budget := coalesce(cardinality(units), 0);
      kept_back := true;
      -- The unit of a holder that was killed is free when its lease ends, and nobody says so.
      select least(wait, min(p.lease_until)) into wait from permits p
       where p.queue = claim_governed.queue and p.limit_key = '' and p.lease_until >= t;
    end if;
  end if;
  if q.rate is not null and budget > 0 then
    bucket := refill_rate(claim_governed.queue, '', q.rate, q.rate_per, q.rate_burst);
    if floor(bucket) < budget then
      budget := floor(bucket);
      kept_back := true;
      wait := least(wait, t + q.rate_per / q.rate * greatest(0, 1 - (bucket - budget)));
    end if;
  end if;
  limited_keys := q.max_running_per_key is not null
    or exists (select from key_limits k where k.queue = claim_governed.queue);

  -- Once at least: on a busy machine the time may be over before the first look.
  while budget > 0 and circle < 2 and (looks = 0 or clock_timestamp() < t + interval '50 milliseconds') loop
    looks := looks + 1;
    -- Where many stand in the way, as many are looked at as are worth a statement.
    look := greatest(budget, reach);
    if q.fair then
      select array_agg(l.priority order by l.o), array_agg(l.share order by l.o), array_agg(f.r order by l.o),
             array_agg(f.b order by l.o), max(l.share) filter (where l.last)
        into claim_governed.priorities, claim_governed.shares, claim_governed.run_ats, claim_governed.behind_ms, next_share
        from (select x.*, x.priority = first_value(x.priority) over w and x.o = max(x.o) over (partition by x.priority) as last
                from fair_lanes(claim_governed.queue, next_share, 64) with ordinality x(priority, share, o)
              window w as (order by x.o)) l
        left join unnest(known_priorities, known_shares, known_run_ats, known_behind) f(p, s, r, b)
          on f.p = l.priority and f.s = l.share;
      exit when claim_governed.shares is null;
      each := case when circle = 0 then greatest(1, budget / cardinality(claim_governed.shares)) else look end;
    else
      each := look;
    end if;
    with c as materialized (
      select x.*, f.o
        from (select u.p, u.s, u.o,
                     coalesce(u.r, t - u.b * interval '1 millisecond', '-infinity') as r
                from unnest(claim_governed.priorities, claim_governed.shares, claim_governed.run_ats, claim_governed.behind_ms)
                     with ordinality u(p, s, r, b, o)) f
       cross join lateral (
          select j.ctid as ct, j.limit_key, j.rate_key, coalesce(j.rate_slot = j.run_at, false) as placed, j.run_at, j.id from jobs j
           where j.queue = claim_governed.queue and not j.held and j.priority = f.p and j.share = f.s
             and j.run_at >= f.r and j.run_at <= t
             and j.lease_until = '-infinity' and not (j.job_type = any (claim_governed.skip_types))
           order by j.run_at, j.id
           limit each
             for no key update skip locked) x
       limit look
    )
    select array_agg(c.ct order by c.o, c.run_at, c.id), array_agg(c.limit_key order by c.o, c.run_at, c.id),
           array_agg(c.rate_key order by c.o, c.run_at, c.id), array_agg(c.placed order by c.o, c.run_at, c.id)
      into cts, keys, rate_keys, placed from c;
    if q.fair then
      -- Once round: the way from the start has become shorter.
      gone := case when next_share > from_share then next_share::bigint - from_share else next_share + 2147483648 - from_share end;
      circle := circle + case when gone <= way or cardinality(claim_governed.shares) < 64 then 1 else 0 end;
      way := gone;
    elsif cts is null then
      circle := 2;
    end if;
    continue when cts is null;

    key_units := null;
    to_wait := null;
    if limited_keys and array_length(array_remove(keys, null), 1) > 0 then
      select k.units, k.held into key_units, to_wait
        from take_key_units(claim_governed.queue, keys, cts, q.max_running_per_key) k;
      if cardinality(to_wait) > 0 then
        update jobs j set held = true, held_for = 'permit' where j.ctid = any (to_wait);
        kept_back := true;
        reach := least(1000, 4 * look);
      end if;
    end if;
    select array_agg(x.pick order by x.o) into picks
      from (select u.o, u.key_unit is distinct from 0
                   and count(*) filter (where u.key_unit is distinct from 0) over (order by u.o) <= budget as pick
              from unnest(cts, key_units) with ordinality u(ct, key_unit, o)) x;
    slots := null;
    moved := 0;
    if array_length(array_remove(rate_keys, null), 1) > 0 then
      slots := take_rate_slots(claim_governed.queue, array(
        -- Who goes without a unit of its key takes no token.
        select case when u.pick then u.k end from unnest(rate_keys, picks) with ordinality u(k, pick, o) order by u.o),
        placed, q.key_rate, q.key_rate_per, q.key_rate_burst);
      update jobs j set run_at = u.slot, rate_slot = u.slot
        from unnest(cts, slots) u(ct, slot) where j.ctid = u.ct and u.slot is not null;
      get diagnostics moved = row_count;
      if moved > 0 then
        kept_back := true;
        reach := least(1000, 4 * look);
      end if;
    end if;
    return query
      with c as materialized (
        select u.ct, nullif(u.key_unit, -1) as key_unit, u.key, row_number() over (order by u.o) + used as place
          from unnest(cts, key_units, keys, slots, picks) with ordinality u(ct, key_unit, key, slot, pick, o)
         where u.pick and u.slot is null
      ), p as (
        update permits p set lease_until = until, lease_token = token, used_at = clock_timestamp()
          from c where q.max_running is not null and p.queue = claim_governed.queue and p.limit_key = '' and p.n = units[c.place]
      ), k as (
        update permits p set lease_until = until, lease_token = token, used_at = clock_timestamp()
          from c where p.queue = claim_governed.queue and p.limit_key = c.key and p.n = c.key_unit
      )
      update jobs j
         set lease_until = until, locked_at = clock_timestamp(), lease_token = token, locked_by = claim_governed.worker,
             status = 'leased', attempts = j.attempts + 1, claim_no = j.claim_no + 1,
             permit = units[c.place], key_permit = c.key_unit
        from c where j.ctid = c.ct
      returning j.id, token, j.job_type, j.payload::text, j.attempts, j.claim_no, j.max_attempts::integer,
                j.priority, j.share, j.run_at, j.created_at, j.organization_id,
                (date_part('epoch', j.timeout) * 1000)::bigint, j.traceparent, claim_governed.keeps, j.locked_at;
    get diagnostics claimed = row_count;
    used := used + claimed;
    budget := budget - claimed;
    if claimed = 0 and moved = 0 and coalesce(cardinality(to_wait), 0) = 0 then
      -- Their units are in other hands just now, and the same candidates would come again.
      kept_back := true;
      wait := least(wait, t + interval '5 milliseconds');
      exit;
    end if;
  end loop;

  if q.rate is not null and used > 0 then
    update rates r set tokens = bucket - used where r.queue = claim_governed.queue and r.rate_key = '';
  end if;
  if budget > 0 and circle < 2 then
    -- Not enough time for all that stands in the way.
    kept_back := true;
    wait := least(wait, t);
  end if;
  -- Always, because a short claim here has not seen the end of every lane: a fair one takes a part of each.
  id := null;
  share := coalesce(next_share, from_share);
  attempts := (kept_back or wait is not null)::integer;
  -- greatest() would turn "nobody knows" into 0.
  timeout_ms := case when wait is not null then greatest(0, ceil(date_part('epoch', wait - t) * 1000)) end;
  return next;
end $$;
