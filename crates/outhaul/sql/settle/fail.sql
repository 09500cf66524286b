-- fail: settle leased jobs that did not complete, each by its own verdict.
-- Parameters, parallel and with ids sorted: ids, lease_tokens, claim_nos; verdicts: retry, snooze and
-- release keep the job (snooze and release give its attempt back), dead_letter and cancel end it;
-- delays_ms until it is due again; classes, codes and summaries of the failure, cut to 64 and 1,000 characters.
-- expired_only => true settles a job only while its lease has run out, for the sweep.
-- A job that is retried or snoozed as rate_limited cools its partition down for its delay, or its queue when it has no
-- rate_key, so that the others do not spend their attempts on the same answer.
-- A release wakes listeners: the job is due, and another worker may have room for it.
-- Returns a row only for ids not settled by this call: locked when somebody else holds the row's lock just
-- now (an open complete_in or cancel), done when this very claim was settled before, cancelled when it was ended by a cancellation,
-- else lost. Cancelled and lost mean that nothing was changed and that nothing will be.
-- Index: jobs_pkey, then by ctid. Locks: the jobs' rows in the order given, skipping locked ones, because one open transaction
-- must not hold up the reports of all other jobs, nor their recovery; then their keys' rows.
create or replace function fail(
  ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[],
  classes text[], codes text[], summaries text[], expired_only boolean default false
) returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:fail */
#variable_conflict use_column
declare
  -- The trigger of the jobs (job_ended) leaves what concerns others to this function, until it takes this back.
  settles text := set_config('outhaul_call.settles', 'on', true);
  nil constant uuid := '00000000-0000-0000-0000-000000000000';
  locked tid[];
  settled uuid[];
  concerned ended_job[];
  cool_queues text[];
  cool_keys text[];
  cool_delays bigint[];
  woke boolean;
begin
  if exists (select from unnest(fail.verdicts, fail.delays_ms) u(v, d)
              where u.v is null or u.v not in ('retry', 'snooze', 'release', 'dead_letter', 'cancel')
                 or coalesce(u.d, 0) not between 0 and 31536000000) then
    raise exception using errcode = 'OH001', column = 'verdicts',
      message = 'fail: a verdict or delay is not valid',
      hint = 'Verdicts are retry, snooze, release, dead_letter, cancel; delays are 0 to 31536000000 ms.';
  end if;
  -- Two statements and LATERAL for the reasons that complete gives. NULL stands for a row that is not had.
  select array_agg(x.ct order by u.o) into locked
    from unnest(fail.ids, fail.lease_tokens) with ordinality u(i, k, o)
    left join lateral (
      select j.ctid as ct from jobs j
       where j.id = u.i and j.lease_token = u.k and j.lease_until > '-infinity'
         and (not fail.expired_only or j.lease_until < statement_timestamp())
         for no key update skip locked) x on true;
  with l as materialized (
    select u.ct, j.*, u.v, u.d, u.class, left(u.code, 64) as code, left(u.summary, 1000) as summary
      from unnest(locked, fail.verdicts, fail.delays_ms, fail.classes, fail.codes, fail.summaries)
           u(ct, v, d, class, code, summary)
     cross join lateral (
        select j.id, j.attempts, j.claim_no, j.locked_at, j.locked_by, j.queue, j.limit_key, j.permit, j.key_permit,
               j.lease_token, j.rate_key, j.ordering_key from jobs j where j.ctid = u.ct offset 0) j
  ), kept as (
    update jobs j
       set status = (case when l.v = 'retry' then 'retrying' else 'pending' end)::job_status,
           lease_until = '-infinity', lease_token = nil, locked_at = '-infinity', locked_by = nil,
           permit = null, key_permit = null,
           attempts = case when l.v = 'retry' then j.attempts else greatest(j.attempts - 1, 0) end,
           run_at = clock_timestamp() + coalesce(l.d, 0) * interval '1 millisecond',
           last_error_code = case when l.v = 'release' then j.last_error_code else l.code end,
           last_error_summary = case when l.v = 'release' then j.last_error_summary else l.summary end
      from l where j.ctid = l.ct and l.v in ('retry', 'snooze', 'release')
  ), gone as (
    delete from jobs j using l where j.ctid = l.ct and l.v in ('dead_letter', 'cancel')
    returning j.*, l.v, l.class, l.code, l.summary
  ), dead as (
    insert into jobs_dead (created_at, run_at, id, organization_id, attempts, claim_no, max_attempts, priority, share,
        queue, job_type, payload, idempotency_key, timeout, ordering_key, limit_key, rate_key, traceparent,
        source_event_id, locked_by, last_error_class, last_error_code, last_error_summary)
    select g.created_at, g.run_at, g.id, g.organization_id, g.attempts, g.claim_no, g.max_attempts, g.priority, g.share,
           g.queue, g.job_type, g.payload, g.idempotency_key, g.timeout, g.ordering_key, g.limit_key, g.rate_key,
           g.traceparent, g.source_event_id, g.locked_by, coalesce(g.class, 'unknown'), g.code, g.summary
      from gone g where g.v = 'dead_letter'
    -- A caller may have used the id of an earlier dead letter again: the later one stands, and the job ends.
    on conflict (id) do update set
      died_at = excluded.died_at, created_at = excluded.created_at, run_at = excluded.run_at,
      organization_id = excluded.organization_id, attempts = excluded.attempts, claim_no = excluded.claim_no,
      max_attempts = excluded.max_attempts, priority = excluded.priority, share = excluded.share,
      queue = excluded.queue, job_type = excluded.job_type, payload = excluded.payload,
      idempotency_key = excluded.idempotency_key, timeout = excluded.timeout, ordering_key = excluded.ordering_key,
      limit_key = excluded.limit_key, rate_key = excluded.rate_key, traceparent = excluded.traceparent,
      source_event_id = excluded.source_event_id, locked_by = excluded.locked_by,
      last_error_class = excluded.last_error_class, last_error_code = excluded.last_error_code,
      last_error_summary = excluded.last_error_summary
  ), finished as (
    insert into jobs_finished (created_at, started_at, id, organization_id, attempts, claim_no, max_attempts, priority,
                               status, queue, job_type, error_code)
    select g.created_at, g.locked_at, g.id, g.organization_id, g.attempts, g.claim_no, g.max_attempts, g.priority,
           'cancelled', g.queue, g.job_type, g.code
      from gone g where g.v = 'cancel'
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from gone g cross join lateral (
        select y.ctid as ct from job_keys y
         where y.scope = coalesce(g.organization_id, nil) and y.kind = g.job_type and y.key = g.idempotency_key
           and y.job_id = g.id offset 0) x
     where g.v = 'cancel' and k.ctid = x.ct
  ), ended as (
    -- A job that is kept keeps its lane and gives its units back.
    select array_agg(row(x.id, l.queue, x.ordering_key, l.limit_key, l.permit, l.key_permit, l.lease_token)::ended_job) as jobs
      from l cross join lateral (
        select case when l.v in ('dead_letter', 'cancel') then l.id end, case when l.v in ('dead_letter', 'cancel') then l.ordering_key end) x(id, ordering_key)
     where coalesce(l.permit, l.key_permit) is not null or x.ordering_key is not null
  ), cool as (
    select array_agg(l.queue) as queues, array_agg(l.rate_key) as keys, array_agg(l.d) as delays
      from l where l.v in ('retry', 'snooze') and l.class = 'rate_limited' and l.d > 0
  ), a as (
    insert into job_attempts (started_at, job_id, claim_no, attempt, worker_id, outcome, error_class, error_code, error_summary)
    select l.locked_at, l.id, l.claim_no, l.attempts, l.locked_by,
           case l.v when 'cancel' then 'cancelled' when 'snooze' then 'snoozed' when 'release' then 'released' else l.v end,
           coalesce(l.class, 'unknown'), l.code, l.summary
      from l
  )
  select (select array_agg(l.id) from l), ended.jobs, cool.queues, cool.keys, cool.delays
    into settled, concerned, cool_queues, cool_keys, cool_delays
    from ended, cool;
  settles := set_config('outhaul_call.settles', '', true);
  if concerned is not null then
    perform jobs_ended(concerned);
  end if;
  if cool_queues is not null then
    perform cool_down(cool_queues, cool_keys, cool_delays);
  end if;
  if 'release' = any (fail.verdicts) then
    woke := wake(clock_timestamp());
  end if;
  if coalesce(cardinality(settled), 0) < cardinality(fail.ids) then
    return query
      select u.i, coalesce(
               (select 'locked' from jobs j where not fail.expired_only and j.id = u.i and j.lease_token = u.k
                   and j.lease_until > '-infinity' limit 1),
               (select case when a.outcome = 'cancelled' and a.error_class = 'revoked' then 'cancelled' else 'done' end from job_attempts a where a.job_id = u.i and a.claim_no = u.c limit 1), 'lost')
        from unnest(fail.ids, fail.claim_nos, fail.lease_tokens) u(i, c, k)
       where u.i <> all (coalesce(settled, '{}'));
  end if;
end $$;
