-- show_dead_groups: dead letters by queue, type and code, the largest group first, each with one to look at: the last that died.
-- Parameters: filter, see job_filter_valid; n, the most groups.
-- Index: jobs_dead_group, which it reads through, or another one of jobs_dead. Locks: none.
create or replace function show_dead_groups(filter jsonb default '{}', n integer default 100) returns table (
  queue text, job_type text, error_code text, jobs bigint, oldest_at timestamptz, newest_at timestamptz, sample_id uuid, sample_summary text
)
language plpgsql stable security definer
set search_path from current set plan_cache_mode = force_custom_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:show_dead_groups */
#variable_conflict use_column
declare
  ok constant boolean := job_filter_valid(filter, false);
  q constant text := filter ->> 'queue';
  t constant text := filter ->> 'job_type';
  c constant text := filter ->> 'code';
  o constant uuid := filter ->> 'organization';
  class constant text := filter ->> 'class';
  died_after constant timestamptz := filter ->> 'died_after';
  died_before constant timestamptz := filter ->> 'died_before';
begin
  return query
    select g.queue, g.job_type, g.last_error_code, g.jobs, g.oldest, g.newest, s.id, s.last_error_summary
      from (
        select x.queue, x.job_type, x.last_error_code, count(*) as jobs, min(x.died_at) as oldest, max(x.died_at) as newest
          from jobs_dead x
         where (q is null or x.queue = q) and (t is null or x.job_type = t)
           and (c is null or (c <> '' and x.last_error_code = c) or (c = '' and x.last_error_code is null))
           and (o is null or x.organization_id = o) and (class is null or x.last_error_class = class)
           and (died_after is null or x.died_at >= died_after) and (died_before is null or x.died_at < died_before)
         group by x.queue, x.job_type, x.last_error_code
         order by count(*) desc, x.queue, x.job_type, x.last_error_code
         limit least(greatest(show_dead_groups.n, 1), 1000)) g
      left join lateral (
        select x.id, x.last_error_summary from jobs_dead x
         where x.queue = g.queue and x.died_at = g.newest and x.job_type = g.job_type and x.last_error_code is not distinct from g.last_error_code
           and (o is null or x.organization_id = o) and (class is null or x.last_error_class = class)
         order by x.id desc limit 1) s on true
     order by g.jobs desc, g.queue, g.job_type, g.last_error_code;
end $$;
