-- show_dead: a page of dead letters, the last one that died first.
-- Parameters: filter, see job_filter_valid; before_at and before_id, when the last one of the page before died, and its id; n.
-- Index: one of jobs_dead. A page costs what the filter makes it skip. Locks: none.
create or replace function show_dead(
  filter jsonb default '{}', before_at timestamptz default null, before_id uuid default null, n integer default 50
) returns table (
  id uuid, organization_id uuid, queue text, job_type text, attempts integer, max_attempts integer, claim_no integer,
  error_class text, error_code text, error_summary text, idempotency_key text, ordering_key text, created_at timestamptz,
  died_at timestamptz
)
language plpgsql stable security definer
set search_path from current set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off set jit = off
as $$ /* outhaul:show_dead */
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
    select x.id, x.organization_id, x.queue, x.job_type, x.attempts, x.max_attempts::integer, x.claim_no, x.last_error_class,
           x.last_error_code, x.last_error_summary, x.idempotency_key, x.ordering_key, x.created_at, x.died_at
      from jobs_dead x
     where (q is null or x.queue = q) and (t is null or x.job_type = t)
       and (c is null or (c <> '' and x.last_error_code = c) or (c = '' and x.last_error_code is null))
       and (o is null or x.organization_id = o) and (class is null or x.last_error_class = class)
       and (died_after is null or x.died_at >= died_after) and (died_before is null or x.died_at < died_before)
       and (show_dead.before_at is null or (x.died_at <= show_dead.before_at and (x.died_at, x.id) < (show_dead.before_at, show_dead.before_id)))
     order by x.died_at desc, x.id desc
     limit least(greatest(show_dead.n, 1), 1000);
end $$;
