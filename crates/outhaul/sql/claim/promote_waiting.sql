-- promote_waiting: let in jobs that wait for a unit of their key although some are free: because a limit was raised or
-- taken away, or because the one that had been let in was cancelled or is left alone by all workers. Part of the sweep.
-- Parameters: queue; n, the most keys looked at; the next call goes on behind them. Returns how many were let in.
-- Index: jobs_waiting, key_limits_pkey, permits_pkey. Locks: the jobs let in, skipping locked ones.
create or replace function promote_waiting(queue text, n integer default 1000) returns bigint
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:promote_waiting */
declare
  per_key integer;
  k text;
  most integer;
  busy integer;
  let_in bigint;
  total bigint := 0;
  woke boolean;
begin
  select f.promoted_key into k from queue_floors f where f.queue = promote_waiting.queue;
  k := coalesce(k, '');
  select q.max_running_per_key into per_key from queues q where q.name = promote_waiting.queue;
  for looked in 1..promote_waiting.n loop
    select j.limit_key into k from jobs j
     where j.queue = promote_waiting.queue and j.held_for = 'permit' and j.limit_key > k order by j.limit_key limit 1;
    if not found then
      k := '';
      exit;
    end if;
    most := coalesce((select l.max_running from key_limits l where l.queue = promote_waiting.queue and l.limit_key = k), per_key, 1000);
    select count(*) into busy from permits p
     where p.queue = promote_waiting.queue and p.limit_key = k and p.lease_until >= statement_timestamp();
    continue when busy >= most;
    with w as materialized (
      select j.ctid as ct from jobs j
       where j.queue = promote_waiting.queue and j.limit_key = k and j.held_for = 'permit'
       order by j.priority desc, j.run_at, j.id limit most - busy for no key update skip locked
    ), i as (
      update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, clock_timestamp())
        from w where j.ctid = w.ct returning 1
    )
    select count(*) into let_in from i;
    total := total + let_in;
  end loop;
  update queue_floors f set promoted_key = k where f.queue = promote_waiting.queue and f.promoted_key <> k;
  if total > 0 then
    woke := wake(clock_timestamp());
  end if;
  return total;
end $$;
