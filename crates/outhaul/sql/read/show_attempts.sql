-- show_attempts: the claims of one job that did not end in completion, oldest first.
-- Parameters: job_id. Index: job_attempts_job. Locks: none.
create or replace function show_attempts(job_id uuid) returns table (
  claim_no integer, attempt integer, worker_id uuid, started_at timestamptz, ended_at timestamptz, outcome text,
  error_class text, error_code text, error_summary text
)
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:show_attempts */
  select a.claim_no, a.attempt, a.worker_id, a.started_at, a.ended_at, a.outcome, a.error_class, a.error_code, a.error_summary
    from job_attempts a where a.job_id = show_attempts.job_id order by a.claim_no
$$;
