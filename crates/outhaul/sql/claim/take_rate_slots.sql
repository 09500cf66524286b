-- take_rate_slots: tokens for the candidates of partitions with a rate, and places in time for those that get none or whose
-- partition is told to wait.
-- Parameters, parallel and in order: rate_keys (NULL for a candidate that asks for nothing) and placed, as for pace_keys;
-- rate, per and burst of each partition, NULL where the queue has none and only cooldowns count. Places are then 10 ms
-- apart: after a cooldown a partition starts again with a hundred a second.
-- Returns for each candidate NULL (it may run) or its place. Index: rates_pkey. Locks: the partitions, in order.
create or replace function take_rate_slots(
  queue text, rate_keys text[], placed boolean[], rate integer, per interval, burst integer
) returns timestamptz[]
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:take_rate_slots */
declare
  t constant timestamptz := clock_timestamp();
  keys text[];
  tokens double precision[] := '{}';
  cools timestamptz[];
  spreads timestamptz[];
  slots timestamptz[];
  k text;
begin
  select array_agg(distinct u.k order by u.k) into keys from unnest(take_rate_slots.rate_keys) u(k)
   where u.k is not null
     and (take_rate_slots.rate is not null
          or exists (select from rates r where r.queue = take_rate_slots.queue and r.rate_key = u.k
                        and greatest(r.cool_until, r.spread_until) > t));
  if keys is null then
    return null;
  end if;
  if take_rate_slots.rate is not null then
    foreach k in array keys loop
      tokens := tokens || refill_rate(take_rate_slots.queue, k, take_rate_slots.rate, take_rate_slots.per, take_rate_slots.burst);
    end loop;
  else
    perform from rates r where r.queue = take_rate_slots.queue and r.rate_key = any (keys) order by r.rate_key for no key update;
    tokens := array_fill(1e9::double precision, array[cardinality(keys)]);
  end if;
  select array_agg(r.cool_until order by r.rate_key), array_agg(r.spread_until order by r.rate_key) into cools, spreads
    from rates r where r.queue = take_rate_slots.queue and r.rate_key = any (keys);
  slots := pace_keys(take_rate_slots.rate_keys, take_rate_slots.placed, keys, tokens, cools, spreads,
    coalesce(take_rate_slots.per / take_rate_slots.rate, interval '10 milliseconds'), t);
  update rates r
     set tokens = case when take_rate_slots.rate is null then r.tokens else r.tokens - x.n end,
         spread_until = greatest(r.spread_until, x.last)
    from (select u.k, count(*) filter (where u.slot is null) as n, max(u.slot) filter (where not u.placed) as last
            from unnest(take_rate_slots.rate_keys, slots, take_rate_slots.placed) u(k, slot, placed)
           where u.k = any (keys) group by u.k) x
   where r.queue = take_rate_slots.queue and r.rate_key = x.k;
  return slots;
end $$;
