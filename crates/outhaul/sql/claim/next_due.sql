-- next_due: how long until the next job of a queue is due, for an idle worker's sleep.
-- Parameters: queue; priorities and shares, the lanes that the caller knows, as for lanes. Returns milliseconds from now (0 or more), NULL when nothing waits.
-- Index: jobs_claim, one probe a lane. Locks: none.
create or replace function next_due(queue text, priorities smallint[] default null, shares integer[] default null) returns bigint
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:next_due */
begin
  return (
    select case when count(*) > 0  -- greatest() would turn "nothing waits" into 0
                then greatest(0, ceil(date_part('epoch', min(x.run_at) - clock_timestamp()) * 1000))::bigint end
      from lanes(next_due.queue, next_due.priorities, next_due.shares) l
     cross join lateral (
        select j.run_at from jobs j
         where j.queue = next_due.queue and not j.held and j.priority = l.priority and j.share = l.share
           and j.run_at > statement_timestamp()
         order by j.run_at limit 1) x);
end $$;
