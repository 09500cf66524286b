-- free_units: lock units of a limit that are free, making those that are missing.
-- After a limit was lowered the units above it run out by themselves. Until then each of them counts against a free one,
-- for every caller, which errs on the side of the limit.
-- Parameters: queue; limit_key, '' for the queue's own; max_running; n, the most. Returns their numbers, NULL for none.
-- Index: permits_pkey. Locks: the units returned, skipping locked ones.
create or replace function free_units(queue text, limit_key text, max_running integer, n integer) returns integer[]
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:free_units */
declare
  -- One probe when nothing lies above the limit, which is nearly always.
  surplus constant integer := (
    select count(*) from permits p
     where p.queue = free_units.queue and p.limit_key = free_units.limit_key and p.n > free_units.max_running
       and p.lease_until >= statement_timestamp());
  wanted constant integer := free_units.n + surplus;
  made integer;
  free integer[];
begin
  for attempt in 1..2 loop
    with f as materialized (
      select p.n from permits p
       where p.queue = free_units.queue and p.limit_key = free_units.limit_key and p.n <= free_units.max_running
         and p.lease_until < statement_timestamp()
       order by p.n limit wanted for update skip locked
    )
    select array_agg(f.n order by f.n) into free from f;
    exit when coalesce(cardinality(free), 0) >= wanted or attempt = 2;
    made := coalesce((select p.n from permits p where p.queue = free_units.queue and p.limit_key = free_units.limit_key
                       order by p.n desc limit 1), 0);
    exit when made >= free_units.max_running;
    insert into permits (queue, limit_key, n)
    select free_units.queue, free_units.limit_key, g
      from generate_series(made + 1, least(free_units.max_running, made + wanted)) g
    on conflict do nothing;
  end loop;
  return free[1 : greatest(0, cardinality(free) - surplus)];
end $$;
