-- upkeep_report: record a run of a background task, for people to see.
-- Parameters: task; duration_ms; findings, a small object; error, or NULL. Index: upkeep_pkey. Locks: that row.
create or replace function upkeep_report(task text, duration_ms bigint, findings jsonb, error text) returns void
language sql volatile security definer
set search_path from current
as $$ /* outhaul:upkeep_report */
  insert into upkeep as u (task, last_run_at, duration_ms, findings, error)
  values (upkeep_report.task, clock_timestamp(), upkeep_report.duration_ms, coalesce(upkeep_report.findings, '{}'), upkeep_report.error)
  on conflict (task) do update
     set last_run_at = excluded.last_run_at, duration_ms = excluded.duration_ms,
         findings = excluded.findings, error = excluded.error
$$;
