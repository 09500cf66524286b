-- show_upkeep: the last run of each background task. Index: none needed. Locks: none.
create or replace function show_upkeep() returns table (
  task text, last_run_at timestamptz, duration_ms bigint, findings text, error text
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_upkeep */
  select u.task, u.last_run_at, u.duration_ms, u.findings::text, u.error from upkeep u order by u.task
$$;
