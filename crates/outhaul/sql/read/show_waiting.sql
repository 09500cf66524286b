-- show_waiting: the keys of a queue that jobs wait for, those with the most first, exceptions from its limits, and partitions
-- that cool down.
-- Parameters: queue; cap, the most waiting jobs that are looked at; n, the most keys of each reason.
-- Returns: reason lane, permit or cooldown; key; waiting, how many jobs were seen to wait, NULL where that is not counted; for a lane job_id
-- and job_status of its head, and until where that waits for its time; for a permit running of max_running; for a cooldown until.
-- Index: ordering_lanes_pkey, ordering_heads, jobs_pkey, jobs_waiting, permits_pkey, key_limits_pkey, rates_pkey. Locks: none.
create or replace function show_waiting(queue text, cap integer default 10000, n integer default 20) returns table (
  reason text, key text, waiting bigint, job_id uuid, job_status text, running bigint, max_running integer, until timestamptz
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:show_waiting */
#variable_conflict use_column
begin
  return query
    with lane as materialized (
      select s.ordering_key as key, count(*) filter (where not s.head) as waiting
        from (select x.ordering_key, x.head from ordering_lanes x
               where x.queue = show_waiting.queue and x.job_id is not null
               order by x.ordering_key, x.seq limit show_waiting.cap) s
       group by s.ordering_key having count(*) filter (where not s.head) > 0
       order by 2 desc, 1 limit show_waiting.n
    )
    select 'lane', l.key, l.waiting, j.id, j.status::text, null::bigint, null::integer,
           case when j.lease_until = '-infinity' and j.run_at > statement_timestamp() then j.run_at end
      from lane l
      left join ordering_lanes h on h.queue = show_waiting.queue and h.ordering_key = l.key and h.head
      left join jobs j on j.id = h.job_id
     order by l.waiting desc, l.key;
  return query
    with wait as materialized (
      select s.limit_key as key, count(*) as waiting
        from (select x.limit_key from jobs x
               where x.queue = show_waiting.queue and x.held_for = 'permit'
               order by x.limit_key, x.priority desc, x.run_at limit show_waiting.cap) s
       group by s.limit_key order by 2 desc, 1 limit show_waiting.n
    ), exception as materialized (
      select k.limit_key as key from key_limits k where k.queue = show_waiting.queue order by k.limit_key limit show_waiting.n
    )
    select 'permit', a.key, coalesce(w.waiting, 0), null::uuid, null::text,
           (select count(*) from permits p
             where p.queue = show_waiting.queue and p.limit_key = a.key and p.lease_until >= statement_timestamp()),
           coalesce((select k.max_running from key_limits k where k.queue = show_waiting.queue and k.limit_key = a.key),
                    (select q.max_running_per_key from queues q where q.name = show_waiting.queue)),
           null::timestamptz
      from (select w.key from wait w union select e.key from exception e) a
      left join wait w on w.key = a.key
     order by 3 desc, 2;
  return query
    select 'cooldown', s.rate_key, null::bigint, null::uuid, null::text, null::bigint, null::integer, s.cool_until
      from (select x.rate_key, x.cool_until from rates x
             where x.queue = show_waiting.queue and x.rate_key > '' order by x.rate_key limit show_waiting.cap) s
     where s.cool_until > statement_timestamp()
     order by s.cool_until desc, s.rate_key limit show_waiting.n;
end $$;
