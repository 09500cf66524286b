-- ranges: the ranges of the ranged tables as they are, for planning what to create and drop.
-- A bound is a number: microseconds since 1970 for a table that is cut by time, and the position for the feed.
-- Returns a row per partition: its bounds (NULL for minvalue and maxvalue), and whether a concurrent detach of it was
-- begun and not finished; a row per orphan, a table that was detached to be dropped; step, now and edge in the same
-- numbers: what ends at the edge or before may be dropped, and nothing while it is NULL. retired is NULL for a table whose
-- partitions go by age alone; else only one that is retired, proven and closed, may be dropped.
-- Index: the catalogue's, and those of outbox_edge and feed_edge. Locks: none.
create or replace function ranges()
returns table (parent text, name text, by_time boolean, low bigint, high bigint, detach_pending boolean, step bigint,
               ahead integer, now bigint, edge bigint, orphan boolean, retired boolean)
language sql stable security definer
set search_path from current
as $$ /* outhaul:ranges */
  with t as materialized (
    select r.name, r.positions is null as by_time, r.ahead,
           coalesce(r.positions, (date_part('epoch', r.step) * 1000000)::bigint) as step,
           case when r.positions is null then (extract(epoch from clock_timestamp()) * 1000000)::bigint
                else (select h.last_position from outbox_feed_head h) end as now,
           case r.name
             when 'outbox_events' then (extract(epoch from outbox_edge(r.keep)) * 1000000)::bigint
             when 'outbox_feed' then feed_edge()
             else (extract(epoch from clock_timestamp() - r.keep) * 1000000)::bigint end as edge
      from ranged_tables r
  )
  select t.name, p.name, t.by_time,
         case when t.by_time then (extract(epoch from p.low::timestamptz) * 1000000)::bigint else p.low::bigint end,
         case when t.by_time then (extract(epoch from p.high::timestamptz) * 1000000)::bigint else p.high::bigint end,
         p.detach_pending, t.step, t.ahead, t.now, t.edge, p.orphan,
         case when t.name in ('outbox_events', 'outbox_feed') then p.retired end
    from t cross join lateral parts(t.name) p
   order by 1, 4 nulls first
$$;
