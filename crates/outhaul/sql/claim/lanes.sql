-- lanes: the pairs (priority, share) in which a queue has jobs, best first, by a loose index scan.
-- A lane is found by one index probe, whatever its length; under a held snapshot a probe also walks
-- the dead entries at the head of the lane, so callers keep a budget for it.
-- Parameters: queue. Index: jobs_claim. Locks: none.
-- The planner settings, here and in the other hot functions: with statistics taken while the table
-- was empty, a claim took 4 s without them and 2 ms with them; they cost nothing that can be measured.
create or replace function lanes(queue text) returns table (priority smallint, share integer)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:lanes */
#variable_conflict use_column
declare
  lane record;
  p smallint;
  s integer;
begin
  select j.priority, j.share into lane from jobs j
   where j.queue = lanes.queue and not j.held
   order by j.priority desc, j.share limit 1;
  while found loop
    -- SELECT INTO sets its target to NULL when nothing is found, so the current lane is kept apart.
    p := lane.priority;
    s := lane.share;
    priority := p;
    share := s;
    return next;
    select j.priority, j.share into lane from jobs j
     where j.queue = lanes.queue and not j.held and j.priority = p and j.share > s
     order by j.share limit 1;
    if not found then
      select j.priority, j.share into lane from jobs j
       where j.queue = lanes.queue and not j.held and j.priority < p
       order by j.priority desc, j.share limit 1;
    end if;
  end loop;
end $$;
