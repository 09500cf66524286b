-- job_ended: jobs_ended for one job, however it ended. A trigger, so that no way of ending a job can forget the others: a
-- cancellation, or a row that somebody deletes by hand. It fires only for jobs that have a key or hold a unit; complete and fail
-- do it themselves for all of their batch.
-- Index, locks: those of jobs_ended.
create or replace function job_ended() returns trigger
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:job_ended */
begin
  perform jobs_ended(array[row(old.id, old.queue, old.ordering_key,
    -- One that waited for a unit had no chance that it could leave to the next.
    case when old.held_for is null then old.limit_key end, old.permit, old.key_permit, old.lease_token)::ended_job]);
  return null;
end $$;
