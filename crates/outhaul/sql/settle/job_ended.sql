-- job_ended: what others have of the end of a job, however it ended: its lane goes on, its permits are free.
-- A trigger, so that no way of ending a job can forget it: completion, also in a handler's own transaction, dead letter,
-- cancellation, or a row deleted by hand. It fires only for jobs that have a key or hold a permit.
-- Index: ordering_jobs, permits_pkey. Locks: the rows of its lane and its permits, until the transaction ends.
create or replace function job_ended() returns trigger
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off
as $$ /* outhaul:job_ended */
declare
  was_head boolean;
begin
  if old.ordering_key is not null then
    delete from ordering_lanes l where l.job_id = old.id returning l.head into was_head;
    if was_head then
      perform lane_next(old.queue, old.ordering_key);
    end if;
  end if;
  perform release_permits(array[old.queue], array[old.limit_key], array[old.permit], array[old.key_permit],
    -- A job that was let out of the waiting room and never claimed leaves its chance to the next.
    array[old.lease_token], old.limit_key is not null and old.held_for is null);
  return null;
end $$;
