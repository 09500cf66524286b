-- fair_lanes: lanes of a queue with fair shares, in turns: within each priority up to m shares that follow the one that
-- had its turn last, in a circle. A loose index scan, one probe a share.
-- Parameters: queue; after, the share that was served last, -1 for none; m. Index: jobs_claim. Locks: none.
create or replace function fair_lanes(queue text, after integer, m integer)
returns table (priority smallint, share integer)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:fair_lanes */
#variable_conflict use_column
declare
  p smallint;
  s integer;
  below integer := 100000;
  found_here integer;
begin
  loop
    select j.priority into p from jobs j
     where j.queue = fair_lanes.queue and not j.held and j.priority < below order by j.priority desc limit 1;
    exit when not found;
    below := p;
    found_here := 0;
    for half in 1..2 loop
      s := case half when 1 then fair_lanes.after else -1 end;
      while found_here < fair_lanes.m loop
        select j.share into s from jobs j
         where j.queue = fair_lanes.queue and not j.held and j.priority = p and j.share > s
           and j.share <= case half when 1 then 2147483647 else fair_lanes.after end
         order by j.share limit 1;
        exit when not found;
        priority := p;
        share := s;
        found_here := found_here + 1;
        return next;
      end loop;
    end loop;
  end loop;
end $$;
