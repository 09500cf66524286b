-- show_jobs: a page of jobs, newest id first, over live, finished and dead ones.
-- Parameters: statuses, queue and job_type, NULL for any; before, the last id of the page before; n.
-- Returns the columns of all_jobs without the payload. A page costs what the filter makes it skip.
-- Index: the primary keys and jobs_finished_id, backwards. Locks: none.
create or replace function show_jobs(
  statuses text[] default null, queue text default null, job_type text default null, before uuid default null,
  n integer default 50
) returns table (
  id uuid, organization_id uuid, queue text, job_type text, status text, priority integer, run_at timestamptz,
  attempts integer, max_attempts integer, locked_at timestamptz, locked_by text, last_error_code text,
  last_error_summary text, ended_at timestamptz, created_at timestamptz
)
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:show_jobs */
  select a.id, a.organization_id, a.queue, a.job_type, a.status, a.priority, a.run_at, a.attempts, a.max_attempts,
         a.locked_at, a.locked_by, a.last_error_code, a.last_error_summary, a.completed_at, a.created_at
    from all_jobs a
   where (show_jobs.statuses is null or a.status = any (show_jobs.statuses))
     and (show_jobs.queue is null or a.queue = show_jobs.queue)
     and (show_jobs.job_type is null or a.job_type = show_jobs.job_type)
     and (show_jobs.before is null or a.id < show_jobs.before)
     -- The line above cannot begin an index scan, this one can.
     and a.id <= coalesce(show_jobs.before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   order by a.id desc
   limit least(greatest(show_jobs.n, 1), 1000)
$$;
