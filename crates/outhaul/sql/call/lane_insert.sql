-- lane_insert: a job with an ordering key gets its place at the end of its lane and waits, whatever door it comes through.
-- Nothing is looked up here and no row is shared, so that producers of one key do not wait for one another; the next
-- claim makes the first of a lane claimable (advance_lanes). Places are given by a sequence: of two enqueues, the second
-- of which began after the first had committed, the first is before the second.
-- Index: ordering_lanes_pkey. Locks: none.
create or replace function lane_insert() returns trigger
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:lane_insert */
begin
  insert into ordering_lanes (queue, ordering_key, job_id) values (new.queue, new.ordering_key, new.id);
  new.held := true;
  new.held_for := 'lane';
  return new;
end $$;
