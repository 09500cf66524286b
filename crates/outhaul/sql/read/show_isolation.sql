-- show_isolation: what holds queues apart: settings, units in use, cooldowns, and jobs that wait outside of the claim index.
-- Parameters: queue, NULL for every one that has settings, waiting jobs or workers, else one row for that name; cap, the most
-- rows of each kind that are looked at in a queue, so that a page never counts millions.
-- Returns: settings as operator_queue_set does; running, the units of the queue's limit in use; waiting_lane, jobs behind
-- another of their ordering key or not looked at yet; waiting_permit, jobs without a unit of their limit_key; waiting_rate, jobs that a rate
-- or a cooldown has given a later time; capped where there may be more of them; oldest_waiting_ms, the age of the oldest
-- of the first two; cooling_ms of the whole queue; cooling_keys, its partitions that wait; key_limits, how many exceptions
-- there are; roles, live workers by role.
-- Index: ordering_lanes_pkey and jobs_waiting (loose scans for the names), jobs_pkey, jobs_claim, permits_pkey, rates_pkey. Locks: none.
create or replace function show_isolation(queue text default null, cap integer default 10000) returns table (
  name text, settings text, running bigint, waiting_lane bigint, waiting_permit bigint, waiting_rate bigint, capped boolean,
  oldest_waiting_ms bigint, cooling_ms bigint, cooling_keys bigint, key_limits bigint, roles text
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:show_isolation */
#variable_conflict use_column
begin
  return query
    with recursive lane_names(name) as (
      (select l.queue from ordering_lanes l order by l.queue limit 1)
      union all
      select (select l.queue from ordering_lanes l where l.queue > lane_names.name order by l.queue limit 1)
        from lane_names where lane_names.name is not null
    ), permit_names(name) as (
      (select j.queue from jobs j where j.held_for = 'permit' order by j.queue limit 1)
      union all
      select (select j.queue from jobs j where j.held_for = 'permit' and j.queue > permit_names.name order by j.queue limit 1)
        from permit_names where permit_names.name is not null
    ), alive as (
      select k.key as name, coalesce(w.role, '') as role, count(*) as n from workers w
       cross join lateral jsonb_object_keys(case jsonb_typeof(w.queues) when 'object' then w.queues else '{}' end) k(key)
       where w.heartbeat_at > statement_timestamp() - interval '30 seconds'
       group by 1, 2
    ), names as (
      select n.name from (
        select l.name from lane_names l where l.name is not null
        union select p.name from permit_names p where p.name is not null
        union select q.name from queues q
        union select a.name from alive a
        union select show_isolation.queue) n
       where n.name = coalesce(show_isolation.queue, n.name)
    )
    select n.name, queue_settings(n.name)::text, u.running, l.waiting, p.waiting, r.waiting,
           greatest(l.seen, p.seen, r.seen, c.seen) > show_isolation.cap,
           greatest(0, date_part('epoch', statement_timestamp() - least(l.oldest, p.oldest)) * 1000)::bigint,
           case when q.cool_until > statement_timestamp()
                then ceil(date_part('epoch', q.cool_until - statement_timestamp()) * 1000)::bigint end,
           c.cooling, (select count(*) from key_limits k where k.queue = n.name),
           (select coalesce(jsonb_object_agg(a.role, a.n), '{}')::text from alive a where a.name = n.name)
      from names n
      left join queues q on q.name = n.name
     cross join lateral (
        select count(*) as running from permits x
         where x.queue = n.name and x.limit_key = '' and x.lease_until >= statement_timestamp()) u
     cross join lateral (
        select count(*) as seen, count(*) filter (where not s.head) as waiting, min(j.run_at) as oldest
          from (select x.head, x.job_id from ordering_lanes x
                 where x.queue = n.name and x.job_id is not null
                 order by x.ordering_key, x.seq limit show_isolation.cap + 1) s
          left join lateral (select y.run_at from jobs y where y.id = s.job_id and not s.head) j on true) l
     cross join lateral (
        select count(*) as seen, count(*) as waiting, min(s.run_at) as oldest
          from (select x.run_at from jobs x
                 where x.queue = n.name and x.held_for = 'permit'
                 order by x.limit_key, x.priority desc, x.run_at limit show_isolation.cap + 1) s) p
     cross join lateral (
        -- Only claims that look for limits give places in time.
        select count(*) as seen, count(*) filter (where s.rate_slot = s.run_at and s.run_at > statement_timestamp()) as waiting
          from (select x.rate_slot, x.run_at from jobs x
                 where q.governed and x.queue = n.name and not x.held
                 order by x.priority desc, x.share, x.run_at limit show_isolation.cap + 1) s) r
     cross join lateral (
        select count(*) as seen, count(*) filter (where s.cool_until > statement_timestamp()) as cooling
          from (select x.cool_until from rates x
                 where x.queue = n.name and x.rate_key > ''
                 order by x.rate_key limit show_isolation.cap + 1) s) c
     order by n.name;
end $$;
