-- job_filter_valid: refuse a filter of jobs with a field that means nothing, so that a slip never selects more than was meant.
-- Parameters: filter; live, whether of live jobs or of dead letters. Returns true. Index, locks: none.
create or replace function job_filter_valid(filter jsonb, live boolean) returns boolean
language plpgsql immutable
as $$ /* outhaul:job_filter_valid */
declare
  fields constant text[] := array['queue', 'job_type', 'code', 'organization', 'all'] || case
    when live then array['created_after', 'created_before', 'ordering_key', 'limit_key']
    else array['class', 'died_after', 'died_before'] end;
  wrong text;
begin
  if jsonb_typeof(filter) is distinct from 'object' then
    raise exception using errcode = 'OH001', column = 'filter', message = 'a filter of jobs is a JSON object';
  end if;
  select f.key into wrong from jsonb_each(filter) f(key, value)
   where f.key <> all (fields) or jsonb_typeof(f.value) <> case f.key when 'all' then 'boolean' else 'string' end limit 1;
  if found then
    raise exception using errcode = 'OH001', column = 'filter',
      message = format('%s is not a field of a filter of %s, or not of its type', left(wrong, 63),
        case when live then 'live jobs' else 'dead letters' end),
      hint = 'Fields are texts: ' || array_to_string(array_remove(fields, 'all'), ', ') || '; and all, which is true.';
  end if;
  return true;
end $$;
