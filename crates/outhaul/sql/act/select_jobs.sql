-- select_jobs: the jobs that an operation is about, in the order in which it acts: dead letters as they died, so that those of a
-- lane keep their order; live jobs the youngest first, so that no job of a lane begins because the one before it has gone.
-- Parameters: filter, see job_filter_valid; times are from (inclusive) and before (exclusive), an empty code is none; live; n, the most.
-- Index: one of jobs_dead; live jobs are read once through, by jobs_pkey, because an index for this would cost every enqueue. Locks: none.
create or replace function select_jobs(filter jsonb, live boolean, n integer) returns table (
  id uuid, claim_no integer, queue text, job_type text, code text, summary text
)
language plpgsql stable security definer
set search_path from current set plan_cache_mode = force_custom_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:select_jobs */
#variable_conflict use_column
declare
  ok constant boolean := job_filter_valid(filter, live);
  q constant text := filter ->> 'queue';
  t constant text := filter ->> 'job_type';
  c constant text := filter ->> 'code';
  o constant uuid := filter ->> 'organization';
  class constant text := filter ->> 'class';
  died_after constant timestamptz := filter ->> 'died_after';
  died_before constant timestamptz := filter ->> 'died_before';
  created_after constant timestamptz := filter ->> 'created_after';
  created_before constant timestamptz := filter ->> 'created_before';
  lane constant text := filter ->> 'ordering_key';
  lim constant text := filter ->> 'limit_key';
begin
  if live then
    return query
      select x.id, null::integer, x.queue, x.job_type, x.last_error_code, left(x.last_error_summary, 200) from jobs x
       where (q is null or x.queue = q) and (t is null or x.job_type = t)
         and (c is null or (c <> '' and x.last_error_code = c) or (c = '' and x.last_error_code is null))
         and (o is null or x.organization_id = o)
         and (created_after is null or x.created_at >= created_after) and (created_before is null or x.created_at < created_before)
         and (lane is null or x.ordering_key = lane) and (lim is null or x.limit_key = lim)
       order by x.created_at desc, x.id desc limit select_jobs.n;
  else
    return query
      select x.id, x.claim_no, x.queue, x.job_type, x.last_error_code, left(x.last_error_summary, 200) from jobs_dead x
       where (q is null or x.queue = q) and (t is null or x.job_type = t)
         and (c is null or (c <> '' and x.last_error_code = c) or (c = '' and x.last_error_code is null))
         and (o is null or x.organization_id = o) and (class is null or x.last_error_class = class)
         and (died_after is null or x.died_at >= died_after) and (died_before is null or x.died_at < died_before)
       order by x.died_at, x.id limit select_jobs.n;
  end if;
end $$;
