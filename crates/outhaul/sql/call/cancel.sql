-- cancel: end a job that has not ended, in the caller's transaction.
-- A leased job's row goes away as well: its lease token then matches nothing, so the running handler
-- is told by the next renewal and its report changes nothing. Effects it has already made stay.
-- Parameters: id; reason, a short code kept with the finished job.
-- Returns cancelled, ended (it had ended before) or not_found.
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
  with d as (
    delete from jobs j where j.id = cancel.id returning j.*
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from d cross join lateral (
        select y.ctid as ct from job_keys y
         where y.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000') and y.kind = d.job_type
           and y.key = d.idempotency_key and y.job_id = d.id offset 0) x
     where k.ctid = x.ct
  ), a as (
    insert into job_attempts (started_at, job_id, claim_no, attempt, worker_id, outcome, error_class, error_code)
    select d.locked_at, d.id, d.claim_no, d.attempts, d.locked_by, 'cancelled', 'revoked', cancel.reason
      from d where d.status = 'leased'
  )
  insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                             status, queue, job_type, error_code)
  select d.created_at, greatest(d.locked_at, d.created_at), d.id, d.organization_id, d.attempts, d.claim_no,
         d.max_attempts, d.priority, 'cancelled', d.queue, d.job_type, cancel.reason
    from d;
  if found then
    return 'cancelled';
  elsif exists (select from jobs_finished f where f.id = cancel.id)
     or exists (select from jobs_dead x where x.id = cancel.id) then
    return 'ended';
  end if;
  return 'not_found';
end $$;
