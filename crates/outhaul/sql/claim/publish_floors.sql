-- publish_floors: leave the caller's scan floors for the next process of the queue.
-- The last writer wins: a floor is a hint, and rows below it are found by the rescans. A row that another
-- process is writing is left alone rather than waited for.
-- Parameters: queue; priorities, shares, run_ats and behind_ms, parallel, as for claim. Index: queue_floors_pkey. Locks: that row.
create or replace function publish_floors(queue text, priorities smallint[], shares integer[], run_ats timestamptz[], behind_ms bigint[])
returns void
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:publish_floors */
declare
  at constant timestamptz[] := (
    select coalesce(array_agg(coalesce(u.r, clock_timestamp() - u.b * interval '1 millisecond') order by u.o), '{}')
      from unnest(publish_floors.run_ats, publish_floors.behind_ms) with ordinality u(r, b, o));
begin
  update queue_floors f
     set priorities = publish_floors.priorities, shares = publish_floors.shares,
         run_ats = at, floored_at = clock_timestamp()
   where f.ctid = (select g.ctid from queue_floors g where g.queue = publish_floors.queue
                      for no key update skip locked);
  if not found then
    insert into queue_floors (queue, priorities, shares, run_ats, floored_at)
    values (publish_floors.queue, publish_floors.priorities, publish_floors.shares, at, clock_timestamp())
    on conflict do nothing;
  end if;
end $$;
