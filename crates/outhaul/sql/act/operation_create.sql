-- operation_create: fix the set of jobs that an operation will be about, as an operator, on the record. Nothing is done to them
-- yet, and what comes to match the filter later does not belong to it.
-- Parameters: name, unique; kind: replay or discard (dead letters) or cancel (live jobs); filter, see job_filter_valid, of which
-- at least one field or all must be given; per_second, the most items in a second, 1 to 10000; reason, which a discard needs.
-- Returns how many jobs it is about: 1 to 1000000. Raises OH001 for what is not valid or too much, OH002 for a name that is taken,
-- OH005 when no job matches; nothing is stored then.
-- Index: operations_name_key, those of select_jobs. Locks: the audit head.
create or replace function operation_create(name text, kind text, filter jsonb, per_second integer default 100, reason text default null)
returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operation_create */
#variable_conflict use_column
declare
  most constant integer := 1000000;
  new_id constant uuid := uuid7();
  live constant boolean := operation_create.kind = 'cancel';
  ok boolean;
  found_total bigint;
  seen jsonb;
  a bigint;
begin
  if operation_create.name is null or operation_create.name !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$' then
    raise exception using errcode = 'OH001', column = 'name', message = 'the name of an operation is not valid',
      hint = 'Use up to 100 letters, digits, dots, dashes and underscores.';
  elsif operation_create.kind is null or operation_create.kind not in ('replay', 'discard', 'cancel') then
    raise exception using errcode = 'OH001', column = 'kind', message = 'the kind of an operation is not valid', hint = 'Use replay, discard or cancel.';
  elsif operation_create.per_second is null or operation_create.per_second not between 1 and 10000 then
    raise exception using errcode = 'OH001', column = 'per_second', message = 'the speed of an operation is out of range', hint = 'Use 1 to 10000 items a second.';
  elsif operation_create.kind = 'discard' and coalesce(btrim(operation_create.reason), '') = '' then
    raise exception using errcode = 'OH001', column = 'reason',
      message = 'discarding jobs needs a reason', hint = 'Say why nobody needs these jobs; it is kept on the record.';
  end if;
  ok := job_filter_valid(operation_create.filter, live);
  if operation_create.filter = '{}' or (operation_create.filter - 'all' = '{}' and operation_create.filter -> 'all' <> 'true') then
    raise exception using errcode = 'OH001', column = 'filter', message = 'an operation without a filter needs to be told so',
      hint = 'Name a queue, a type or another field, or ask for all jobs in so many words.';
  end if;
  insert into operations (id, name, kind, filter, per_second, actor, reason)
  values (new_id, operation_create.name, operation_create.kind, operation_create.filter, operation_create.per_second, session_user, operation_create.reason)
  on conflict do nothing;
  if not found then
    raise exception using errcode = 'OH002', column = 'name', message = format('operation %s exists already', operation_create.name),
      hint = 'Use another name, or go on with that one.';
  end if;
  with f as materialized (
    select s.*, row_number() over () as n from select_jobs(operation_create.filter, live, most + 1) s
  ), i as (
    -- A set that is too large is refused before it is written.
    insert into operation_items (operation_id, n, job_id, claim_no)
    select new_id, f.n, f.id, f.claim_no from f where (select count(*) from f) <= most
  ), g as (
    select f.queue, f.job_type, f.code, count(*) as jobs from f group by 1, 2, 3 order by count(*) desc, 1, 2, 3 limit 100
  )
  select (select count(*) from f), jsonb_build_object(
           'groups', (select coalesce(jsonb_agg(to_jsonb(g) order by g.jobs desc, g.queue, g.job_type, g.code), '[]') from g),
           'sample', (select coalesce(jsonb_agg(jsonb_build_object('id', f.id, 'queue', f.queue, 'job_type', f.job_type, 'code', f.code,
                                                                   'summary', f.summary) order by f.n), '[]') from f where f.n <= 10))
    into found_total, seen;
  if found_total > most then
    raise exception using errcode = 'OH001', column = 'filter', message = format('more than %s jobs match', most),
      hint = 'Narrow the filter, by time for example, and make several operations.';
  elsif found_total = 0 then
    raise exception using errcode = 'OH005', column = 'filter', message = 'no job matches, so there is nothing to do',
      hint = 'Look at what there is: a replay or discard is about dead letters, a cancel about jobs that have not ended.';
  end if;
  update operations o set total = found_total, preview = seen where o.id = new_id;
  a := audit_append('operations.create', operation_create.name, jsonb_build_object('kind', operation_create.kind, 'filter', operation_create.filter,
    'total', found_total, 'per_second', operation_create.per_second), operation_create.reason);
  return found_total;
end $$;
