-- cancel: end a job that has not ended, in the caller's transaction. It waits for whoever has the job's row locked.
-- See cancel_jobs for what becomes of a job that is running.
-- Parameters: id; reason, a short code kept with the finished job.
-- Returns cancelled, ended (it had ended before, also as a dead letter) or not_found.
-- Index: jobs_pkey. Locks: the job's row.
create or replace function cancel(id uuid, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:cancel */
begin
  if octet_length(cancel.reason) > 64 then
    raise exception using errcode = 'OH001', column = 'reason',
      message = 'the reason of a cancellation has more than 64 bytes', hint = 'Use a short code.';
  end if;
  perform from jobs j where j.id = cancel.id for update;
  if found then
    perform from cancel_jobs(array[cancel.id], cancel.reason);
    return 'cancelled';
  elsif exists (select from jobs_finished f where f.id = cancel.id)
     or exists (select from jobs_dead x where x.id = cancel.id) then
    return 'ended';
  end if;
  return 'not_found';
end $$;
