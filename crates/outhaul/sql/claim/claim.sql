-- claim: lease up to n due jobs of one queue, best lane first, oldest due first within a lane.
-- Parameters: queue; n; worker, the caller's id; lease, its length; priorities, shares, run_ats and
-- behind_ms, parallel arrays of the caller's scan floors: a lane is scanned from run_at on, or where
-- that is NULL from behind_ms milliseconds before now; each, the most from one lane; discover, true to
-- look for lanes the caller does not know, which are scanned from their beginning; skip_types, types
-- that the caller has found it cannot run. Without floors the lanes are always looked for. For queues with limits or fair
-- shares (claim_governed): tell, true to be told in a last row without an id whether a limit kept due jobs back; after_share, the
-- share that was served last.
-- Returns the claimed jobs in no promised order; run_at with priority and share is what the caller
-- needs for its next floor; history is what the queue keeps of completed jobs.
-- Index: jobs_claim, then by ctid. Locks: NO KEY UPDATE on the claimed rows, in index order, skipping
-- those locked by others. FOR UPDATE would also skip jobs whose row is referenced just then.
-- READ COMMITTED, the default, is meant: under REPEATABLE READ a claim in a transaction that has looked at the
-- table before fails with 40001 when it meets another claim; run it again.
-- The CTE is materialized: as an IN (... LIMIT n) the subquery may run again and again and lease more than n.
create or replace function claim(
  queue text, n integer, worker uuid, lease interval, priorities smallint[] default null,
  shares integer[] default null, run_ats timestamptz[] default null, behind_ms bigint[] default null, each integer default null,
  discover boolean default false, skip_types text[] default '{}',
  tell boolean default false, after_share integer default null
) returns table (
  id uuid, lease_token uuid, job_type text, payload text, attempts integer, claim_no integer, max_attempts integer,
  priority smallint, share integer, run_at timestamptz, created_at timestamptz, organization_id uuid,
  timeout_ms bigint, traceparent text, history text, locked_at timestamptz
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:claim */
#variable_conflict use_column
declare
  token constant uuid := gen_random_uuid();
  keeps text := 'row';
  paused timestamptz;
  governed boolean;
  fair boolean;
  advanced integer;
  top smallint;
begin
  if claim.n is null or claim.n not between 1 and 10000 or claim.lease is null
     or claim.lease not between interval '1 second' and interval '24 hours' or claim.worker is null then
    raise exception using errcode = 'OH001', column = 'n',
      message = 'claim needs a worker, n of 1 to 10000 and a lease of 1 second to 24 hours';
  end if;
  select q.history, q.paused_at, q.governed, q.fair into keeps, paused, governed, fair from queues q where q.name = claim.queue;
  if paused is not null then
    -- A claim that writes nothing would not find out that its server is no primary any more, and never leave it.
    if current_setting('transaction_read_only') = 'on' then
      raise exception using errcode = 'read_only_sql_transaction', message = 'claim needs a server that can be written to';
    end if;
    return;
  end if;
  keeps := coalesce(keeps, 'row');
  if exists (select from ordering_lanes l where l.queue = claim.queue and l.fresh) then
    advanced := advance_lanes(claim.queue);
    -- They may be in lanes that the caller does not know.
    claim.discover := claim.discover or advanced > 0;
  end if;
  if claim.priorities is not null and not claim.discover and fair is not true then
    -- One probe above the best lane known, so that a new and more urgent one is not overlooked.
    select j.priority into top from jobs j
     where j.queue = claim.queue and not j.held
       and j.priority > coalesce(claim.priorities[1], -32768)
     order by j.priority desc limit 1;
    claim.discover := found;
  end if;
  -- A fair queue finds its lanes itself, some at a time.
  if (claim.priorities is null or claim.discover) and fair is not true then
    select array_agg(l.priority order by l.priority desc, l.share), array_agg(l.share order by l.priority desc, l.share),
           array_agg(f.r order by l.priority desc, l.share), array_agg(f.b order by l.priority desc, l.share)
      into claim.priorities, claim.shares, claim.run_ats, claim.behind_ms
      from lanes(claim.queue, claim.priorities, claim.shares) l
      left join unnest(claim.priorities, claim.shares, claim.run_ats, claim.behind_ms) f(p, s, r, b)
        on f.p = l.priority and f.s = l.share;
  end if;
  if governed then
    return query
      select g.* from claim_governed(claim.queue, claim.n, claim.worker, claim.lease, claim.priorities, claim.shares,
        claim.run_ats, claim.behind_ms, claim.skip_types, claim.after_share, keeps) g
       where g.id is not null or claim.tell;
    return;
  end if;
  return query
    with c as materialized (
      select x.ct
        from (select u.p, u.s, u.o,
                     coalesce(u.r, statement_timestamp() - u.b * interval '1 millisecond', '-infinity') as r
                from unnest(claim.priorities, claim.shares, claim.run_ats, claim.behind_ms) with ordinality u(p, s, r, b, o)) f
       cross join lateral (
          select j.ctid as ct from jobs j
           where j.queue = claim.queue and not j.held and j.priority = f.p and j.share = f.s
             and j.run_at >= f.r and j.run_at <= statement_timestamp()
             and j.lease_until = '-infinity' and not (j.job_type = any (claim.skip_types))
           order by j.run_at, j.id
           limit coalesce(claim.each, claim.n)
             for no key update skip locked) x
       limit claim.n
    )
    update jobs j
       set lease_until = clock_timestamp() + claim.lease, locked_at = clock_timestamp(), lease_token = token,
           locked_by = claim.worker, status = 'leased', attempts = j.attempts + 1, claim_no = j.claim_no + 1
      from c where j.ctid = c.ct
    returning j.id, token, j.job_type, j.payload::text, j.attempts, j.claim_no, j.max_attempts::integer,
              j.priority, j.share, j.run_at, j.created_at, j.organization_id,
              (date_part('epoch', j.timeout) * 1000)::bigint, j.traceparent, keeps, j.locked_at;
end $$;
