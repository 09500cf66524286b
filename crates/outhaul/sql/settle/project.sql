-- project: store the jobs that rules have made of events and move the cursor past those events, in one transaction.
-- A job's key names its rule and its event. Where the key is in use nothing is stored, whatever that job was made of: an
-- event that is delivered again, after a rewind for example, makes no second job for as long as the key is kept.
-- Parameters: id, lease_token, claim_no, position, unparked and after, as for checkpoint_in; and for each job one element in
-- each of the arrays: ids, queues, job_types, payloads, idempotency_keys, organization_ids, priorities, run_ats,
-- max_attempts, timeouts_ms, traceparents, source_event_ids, ordering_keys, limit_keys, rate_keys. Jobs take their places in lanes
-- in the order of the arrays.
-- Returns how many jobs are new. Raises OH003 when the lease is lost, and OH001 for a job that breaks a limit.
-- Index: subscriptions_id, job_keys_pkey. Locks: the subscription's row, then key rows in the order of (scope, kind, key).
create or replace function project(
  id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint, ids uuid[], queues text[],
  job_types text[], payloads text[], idempotency_keys text[], organization_ids uuid[], priorities integer[],
  run_ats timestamptz[], max_attempts integer[], timeouts_ms bigint[], traceparents text[], source_event_ids uuid[],
  ordering_keys text[] default null, limit_keys text[] default null, rate_keys text[] default null
) returns bigint
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:project */
declare
  t constant timestamptz := clock_timestamp();
  n constant integer := coalesce(cardinality(project.ids), 0);
  made bigint;
  due boolean;
  woke boolean;
begin
  if exists (select from (values (cardinality(project.queues)), (cardinality(project.job_types)), (cardinality(project.payloads)),
               (cardinality(project.idempotency_keys)), (cardinality(project.organization_ids)), (cardinality(project.priorities)),
               (cardinality(project.run_ats)), (cardinality(project.max_attempts)), (cardinality(project.timeouts_ms)),
               (cardinality(project.traceparents)), (cardinality(project.source_event_ids))) c(length)
              where coalesce(c.length, 0) <> n)
     or exists (select from (values (cardinality(project.ordering_keys)), (cardinality(project.limit_keys)),
               (cardinality(project.rate_keys))) c(length) where c.length <> n)
     or array_position(project.ids, null) is not null or array_position(project.idempotency_keys, null) is not null then
    raise exception using errcode = 'OH001', column = 'ids',
      message = 'the arrays of project differ in length, or a job has no id or no key',
      hint = 'Give one element per job in each array.';
  end if;
  perform checkpoint_in(project.id, project.lease_token, project.claim_no, project."position", project.unparked, project.after);
  if n = 0 then
    return 0;
  end if;
  with r as materialized (
    -- An event that was published twice under one id is one event.
    select distinct on (a.scope, a.job_type, a.key) a.*
      from (select u.id, u.queue, u.job_type, u.body::jsonb as payload, u.key, u.organization_id, u.priority, u.run_at,
                   u.max_attempts, u.ms * interval '1 millisecond' as timeout, u.traceparent, u.event, u.place,
                   u.ordering_key, u.limit_key, u.rate_key,
                   coalesce(u.organization_id, '00000000-0000-0000-0000-000000000000') as scope
              from unnest(project.ids, project.queues, project.job_types, project.payloads, project.idempotency_keys,
                          project.organization_ids, project.priorities, project.run_ats, project.max_attempts,
                          project.timeouts_ms, project.traceparents, project.source_event_ids, project.ordering_keys, project.limit_keys,
                          project.rate_keys) with ordinality
                   as u(id, queue, job_type, body, key, organization_id, priority, run_at, max_attempts, ms, traceparent, event,
                        ordering_key, limit_key, rate_key, place)
            -- Without it the planner merges the levels, and parses each payload once for every use.
            offset 0) a
     where valid(a.queue, a.job_type, octet_length(a.payload::text), a.key, a.priority, a.max_attempts, a.run_at, a.timeout,
                 a.traceparent, a.organization_id, a.ordering_key, a.limit_key, a.rate_key)
     order by a.scope, a.job_type, a.key, a.place
  ), k as (
    insert into job_keys as x (scope, kind, key, job_id, digest)
    select r.scope, r.job_type, r.key, r.id, hashtextextended(r.payload::text, 0)
      from r order by r.scope, r.job_type, r.key
    on conflict (scope, kind, key) do update set job_id = excluded.job_id, digest = excluded.digest, expires_at = null
      -- A key past its time counts as free even before upkeep has removed it.
      where x.expires_at < statement_timestamp()
    returning x.job_id
  ), i as (
    insert into jobs (id, queue, job_type, payload, organization_id, idempotency_key, priority, share, run_at, created_at,
                      max_attempts, timeout, traceparent, source_event_id, ordering_key, limit_key, rate_key)
    select r.id, r.queue, r.job_type, r.payload, r.organization_id, r.key, r.priority,
           case when r.organization_id is null then 0 else share_of(r.queue, r.organization_id) end, greatest(r.run_at, t), t,
           r.max_attempts, r.timeout, r.traceparent, r.event, r.ordering_key, r.limit_key, r.rate_key
      from r join k on k.job_id = r.id
     order by r.place
    returning run_at
  )
  select count(*), coalesce(bool_or(i.run_at <= t), false) into made, due from i;
  if due then
    woke := wake(t);
  end if;
  return made;
end $$;
