-- lanes: the pairs (priority, share) in which a queue has jobs, best first, by a loose index scan.
-- A lane is found by one index probe, whatever its length; but under a held snapshot a probe also walks the dead
-- entries at the head of the lane. So a caller that knows lanes names them: they are returned as they are, whether they
-- have jobs or not, and only the gaps between them are probed.
-- Parameters: queue; priorities and shares, the known lanes, best first and without a repetition.
-- Index: jobs_claim. Locks: none.
-- The planner settings, here and in the other hot functions: with statistics taken while the table
-- was empty, a claim took 4 s without them and 2 ms with them; they cost nothing that can be measured.
create or replace function lanes(queue text, priorities smallint[] default null, shares integer[] default null)
returns table (priority smallint, share integer)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:lanes */
#variable_conflict use_column
declare
  known constant integer := coalesce(cardinality(lanes.priorities), 0);
  lane record;
  -- Above any lane, and below: outside of smallint.
  p integer := 100000;
  s bigint := 0;
  next_p integer;
  next_s bigint;
begin
  for i in 1 .. known + 1 loop
    next_p := case when i <= known then lanes.priorities[i] else -100000 end;
    next_s := case when i <= known then lanes.shares[i] else 0 end;
    loop
      -- The rest of this priority, the priorities in between, and the beginning of the next known one.
      select j.priority, j.share into lane from jobs j
       where j.queue = lanes.queue and not j.held and j.priority = p and j.share > s
         and j.share < case when p = next_p then next_s else 2147483648 end
       order by j.share limit 1;
      if not found and p > next_p then
        select j.priority, j.share into lane from jobs j
         where j.queue = lanes.queue and not j.held and j.priority < p and j.priority > next_p
         order by j.priority desc, j.share limit 1;
        if not found then
          select j.priority, j.share into lane from jobs j
           where j.queue = lanes.queue and not j.held and j.priority = next_p and j.share < next_s
           order by j.share limit 1;
        end if;
      end if;
      exit when not found;
      priority := lane.priority;
      share := lane.share;
      return next;
      p := lane.priority;
      s := lane.share;
    end loop;
    if i <= known then
      priority := next_p;
      share := next_s;
      return next;
      p := next_p;
      s := next_s;
    end if;
  end loop;
end $$;
