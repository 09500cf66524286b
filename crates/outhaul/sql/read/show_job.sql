-- show_job: one job, live, finished or dead, with what only its own table knows.
-- Parameters: id. Returns no row when there is none. The payload has a function of its own, show_payload,
-- because looking at payloads is a right of its own.
-- Index: the primary keys and jobs_finished_id. Locks: none.
create or replace function show_job(id uuid) returns table (
  id uuid, organization_id uuid, queue text, job_type text, status text, priority integer, run_at timestamptz,
  attempts integer, max_attempts integer, locked_at timestamptz, locked_by text, last_error_code text,
  last_error_summary text, ended_at timestamptz, created_at timestamptz,
  claim_no integer, lease_until timestamptz, idempotency_key text, traceparent text, timeout_ms bigint
)
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:show_job */
  select a.id, a.organization_id, a.queue, a.job_type, a.status, a.priority, a.run_at, a.attempts, a.max_attempts,
         a.locked_at, a.locked_by, a.last_error_code, a.last_error_summary, a.completed_at, a.created_at,
         coalesce(j.claim_no, d.claim_no, (select max(f.claim_no) from jobs_finished f where f.id = a.id)),
         nullif(j.lease_until, '-infinity'), a.idempotency_key,
         coalesce(j.traceparent, d.traceparent),
         (date_part('epoch', coalesce(j.timeout, d.timeout)) * 1000)::bigint
    from all_jobs a
    left join jobs j on j.id = a.id
    left join jobs_dead d on d.id = a.id
   where a.id = show_job.id
   order by a.completed_at nulls first
   limit 1
$$;
