-- show_queues: every queue that has jobs, settings, dead letters or workers, with counts that are exact up
-- to cap and age of the oldest job that could run.
-- Parameters: cap, the most rows of a queue that are looked at, so that a page never counts millions.
-- Returns capped = true where a queue has more live jobs than that; ages in milliseconds, NULL for none.
-- Index: jobs_claim (loose scan for the names), jobs_dead_queue. Locks: none.
create or replace function show_queues(cap integer default 10000) returns table (
  queue text, pending bigint, scheduled bigint, leased bigint, retrying bigint, dead bigint, capped boolean,
  oldest_pending_ms bigint, oldest_expired_lease_ms bigint, paused boolean, paused_reason text, history text,
  age_objective_ms bigint, workers bigint
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:show_queues */
#variable_conflict use_column
begin
  return query
    with recursive live(name) as (
      (select j.queue from jobs j where not j.held order by j.queue limit 1)
      union all
      select (select j.queue from jobs j where not j.held and j.queue > live.name order by j.queue limit 1)
        from live where live.name is not null
    ), dead_names(name) as (
      (select x.queue from jobs_dead x order by x.queue limit 1)
      union all
      select (select x.queue from jobs_dead x where x.queue > dead_names.name order by x.queue limit 1)
        from dead_names where dead_names.name is not null
    ), alive as (
      select w.id, k.key as name from workers w
       cross join lateral jsonb_object_keys(case jsonb_typeof(w.queues) when 'object' then w.queues else '{}' end) k(key)
       where w.heartbeat_at > statement_timestamp() - interval '30 seconds'
    ), names as (
      select n.name from live n where n.name is not null
      union select n.name from dead_names n where n.name is not null
      union select q.name from queues q
      union select a.name from alive a
    )
    select n.name, c.pending, c.scheduled, c.leased, c.retrying, d.dead, c.seen > show_queues.cap,
           o.oldest, c.expired, q.paused_at is not null, q.paused_reason, coalesce(q.history, 'row'),
           (date_part('epoch', q.age_objective) * 1000)::bigint,
           (select count(*) from alive a where a.name = n.name)
      from names n
      left join queues q on q.name = n.name
     cross join lateral (
        select count(*) as seen,
               count(*) filter (where s.status = 'pending' and s.run_at <= statement_timestamp()) as pending,
               count(*) filter (where s.status = 'pending' and s.run_at > statement_timestamp()) as scheduled,
               count(*) filter (where s.status = 'leased') as leased,
               count(*) filter (where s.status = 'retrying') as retrying,
               max((date_part('epoch', statement_timestamp() - s.lease_until) * 1000)::bigint)
                 filter (where s.lease_until > '-infinity' and s.lease_until < statement_timestamp()) as expired
          from (select j.status, j.run_at, j.lease_until from jobs j
                 where j.queue = n.name and not j.held
                 order by j.priority desc, j.share, j.run_at limit show_queues.cap + 1) s) c
     cross join lateral (
        select count(*) as dead from (select from jobs_dead x where x.queue = n.name limit show_queues.cap + 1) s) d
     cross join lateral (
        select (date_part('epoch', statement_timestamp() - min(x.run_at)) * 1000)::bigint as oldest
          from lanes(n.name) l
         cross join lateral (
            select j.run_at from jobs j
             where j.queue = n.name and not j.held and j.priority = l.priority and j.share = l.share
               and j.run_at <= statement_timestamp() and j.lease_until = '-infinity'
             order by j.run_at limit 1) x) o
     order by n.name;
end $$;
