-- show_waits: everything that a live job waits for besides its own time, one row each; none for a job that runs, may run now,
-- or has ended.
-- Parameters: id. Returns: reason and key: lane (its ordering key: job_id and job_status of the lane's head, ahead, the jobs before it, counted up to
-- 1000), permit (its limit_key) and limit (the queue's) with running of max_running, cooldown and rate (a rate_key, or the
-- whole queue without one) with until, paused with the time since as until.
-- Index: jobs_pkey, ordering_jobs, ordering_lanes_pkey, permits_pkey, rates_pkey, queues_pkey, key_limits_pkey. Locks: none.
create or replace function show_waits(id uuid) returns table (
  reason text, key text, job_id uuid, job_status text, ahead bigint, running bigint, max_running integer, until timestamptz
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:show_waits */
#variable_conflict use_column
declare
  t constant timestamptz := statement_timestamp();
  j record;
  q queues;
  place bigint;
  filled double precision;
begin
  select x.queue, x.held_for, x.ordering_key, x.limit_key, x.rate_key, x.rate_slot = x.run_at and x.run_at > t as placed, x.run_at
    into j from jobs x where x.id = show_waits.id and x.lease_until = '-infinity';
  if not found then
    return;
  end if;
  select x.* into q from queues x where x.name = j.queue;
  if q.paused_at is not null then
    return query select 'paused', null::text, null::uuid, null::text, null::bigint, null::bigint, null::integer, q.paused_at;
  end if;
  if j.held_for = 'lane' then
    select l.seq into place from ordering_lanes l where l.job_id = show_waits.id;
    return query
      select 'lane', j.ordering_key, h.id, h.status::text,
             (select count(*) from (select from ordering_lanes l
                where l.queue = j.queue and l.ordering_key = j.ordering_key and l.seq < place and l.job_id is not null limit 1000) s),
             null::bigint, null::integer, case when h.lease_until = '-infinity' and h.run_at > t then h.run_at end
        from (select) one
        left join lateral (
          select l.job_id from ordering_lanes l
           where l.queue = j.queue and l.ordering_key = j.ordering_key and l.job_id is not null and l.seq < place
           order by l.seq limit 1) f on true
        left join jobs h on h.id = f.job_id;
    return;
  end if;
  if j.held_for = 'permit' then
    return query
      select 'permit', j.limit_key, null::uuid, null::text, null::bigint,
             (select count(*) from permits p where p.queue = j.queue and p.limit_key = j.limit_key and p.lease_until >= t),
             coalesce((select k.max_running from key_limits k where k.queue = j.queue and k.limit_key = j.limit_key), q.max_running_per_key),
             null::timestamptz;
  end if;
  if q.cool_until > t then
    return query select 'cooldown', null::text, null::uuid, null::text, null::bigint, null::bigint, null::integer, q.cool_until;
  end if;
  if j.placed then
    return query
      select case when exists (select from rates r where r.queue = j.queue and r.rate_key = j.rate_key and r.cool_until > t)
                  then 'cooldown' else 'rate' end,
             j.rate_key, null::uuid, null::text, null::bigint, null::bigint, null::integer, j.run_at;
  end if;
  if j.held_for is null and j.run_at <= t and q.max_running is not null then
    return query
      select 'limit', null::text, null::uuid, null::text, null::bigint, x.n, q.max_running, null::timestamptz
        from (select count(*) as n from permits p where p.queue = j.queue and p.limit_key = '' and p.lease_until >= t) x
       where x.n >= q.max_running;
  end if;
  if j.held_for is null and j.run_at <= t and q.rate is not null then
    select r.tokens + greatest(0, date_part('epoch', t - r.refilled_at)) * q.rate / date_part('epoch', q.rate_per) into filled
      from rates r where r.queue = j.queue and r.rate_key = '' and r.refilled_at > '-infinity';
    if filled < 1 then
      return query
        select 'rate', null::text, null::uuid, null::text, null::bigint, null::bigint, null::integer,
               t + q.rate_per / q.rate * (1 - filled);
    end if;
  end if;
end $$;
