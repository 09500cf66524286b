-- lane_next: make the next job of an ordering key claimable, after the head has gone.
-- Its snapshot is taken after the head's row was locked and deleted, so it sees every job of the lane that anybody has
-- taken notice of while the head was alive (advance_lanes locks the head for that). Whoever commits later is fresh, finds
-- no head, and is let in by advance_lanes.
-- Nothing is waited for, and nobody is passed over: where the next job is locked by somebody (an open cancel), the lane is
-- left without a head and with a mark, and the next claim looks again.
-- Parameters: queue, ordering_key. Index: ordering_lanes_pkey, jobs_pkey. Locks: the next job's rows.
create or replace function lane_next(queue text, ordering_key text) returns void
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off
as $$ /* outhaul:lane_next */
declare
  place bigint;
  next uuid;
  due boolean;
  woke boolean;
begin
  select l.seq, l.job_id into place, next from ordering_lanes l
   where l.queue = lane_next.queue and l.ordering_key = lane_next.ordering_key and l.job_id is not null
   order by l.seq limit 1;
  if not found then
    return;
  end if;
  perform from ordering_lanes l
    where l.queue = lane_next.queue and l.ordering_key = lane_next.ordering_key and l.seq = place for update skip locked;
  if found then
    perform from jobs j where j.id = next for no key update skip locked;
  end if;
  if not found then
    insert into ordering_lanes (queue, ordering_key) values (lane_next.queue, lane_next.ordering_key);
    woke := wake(clock_timestamp());
    return;
  end if;
  update ordering_lanes l set head = true, fresh = false
   where l.queue = lane_next.queue and l.ordering_key = lane_next.ordering_key and l.seq = place;
  -- Above every scan floor; a time in the future stays.
  update jobs j set held = false, held_for = null, run_at = greatest(j.run_at, clock_timestamp())
   where j.id = next returning j.run_at <= clock_timestamp() into due;
  if due then
    woke := wake(clock_timestamp());
  end if;
end $$;
