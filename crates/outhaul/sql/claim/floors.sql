-- floors: the scan floors last published for a queue, so that a fresh process does not begin at zero.
-- Parameters: queue. Index: queue_floors_pkey. Locks: none.
create or replace function floors(queue text)
returns table (priorities smallint[], shares integer[], run_ats timestamptz[])
language sql stable security definer
set search_path from current
as $$ /* outhaul:floors */
  select f.priorities, f.shares, f.run_ats from queue_floors f where f.queue = floors.queue
$$;
