-- take_key_units: a unit of its key for each candidate that needs one.
-- Parameters, parallel: keys and cts of the candidates in order; max_running, what holds for a key without a limit of its own.
-- Returns units: for each candidate the number, 0 when it has to go without, -1 when no limit holds for it; and held: the
-- candidates that are to wait, because every unit of their key is in use. A key whose units somebody else is
-- changing just now is neither served nor sent to wait: that somebody would not find the job (see jobs_ended).
-- Index: key_limits_pkey, permits_pkey. Locks: the units taken, and all units of the keys in use, skipping locked ones.
create or replace function take_key_units(
  queue text, keys text[], cts tid[], max_running integer, out units integer[], out held tid[]
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:take_key_units */
declare
  k record;
  free integer[];
  unit_keys text[] := '{}';
  unit_ns integer[] := '{}';
  limited text[] := '{}';
  full_keys text[] := '{}';
  made integer;
  locked integer;
  in_use integer;
begin
  for k in
    select w.key, w.n, coalesce(l.max_running, take_key_units.max_running) as most
      from (select u.key, count(*)::integer as n from unnest(take_key_units.keys) u(key) where u.key is not null group by u.key) w
      left join key_limits l on l.queue = take_key_units.queue and l.limit_key = w.key
     where coalesce(l.max_running, take_key_units.max_running) is not null
     order by w.key
  loop
    limited := limited || k.key;
    free := free_units(take_key_units.queue, k.key, k.most, k.n);
    unit_ns := unit_ns || free;
    unit_keys := unit_keys || array_fill(k.key, array[coalesce(cardinality(free), 0)]);
    continue when coalesce(cardinality(free), 0) >= k.n;
    with u as materialized (
      select p.n, p.lease_until from permits p
       where p.queue = take_key_units.queue and p.limit_key = k.key and p.n <= k.most for update skip locked
    )
    select count(*), count(*) filter (where u.lease_until >= statement_timestamp()) into locked, in_use from u;
    select count(*) into made from permits p
     where p.queue = take_key_units.queue and p.limit_key = k.key and p.n <= k.most;
    if locked = made and made = k.most and in_use + coalesce(cardinality(free), 0) >= made then
      full_keys := full_keys || k.key;
    end if;
  end loop;
  with c as materialized (
    select u.o, u.ct, u.key, u.unit
      from unnest(take_key_units.keys, take_key_units.cts, pair_units(take_key_units.keys, unit_keys, unit_ns))
           with ordinality u(key, ct, unit, o)
  )
  select array_agg(case when c.key is null or c.key <> all (limited) then -1 else coalesce(c.unit, 0) end order by c.o),
         array_agg(c.ct) filter (where c.unit is null and c.key = any (full_keys))
    into units, held
    from c;
end $$;
