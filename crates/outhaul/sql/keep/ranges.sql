-- ranges: the ranges of the ranged tables as they are, for planning what to create and drop.
-- A bound is a number: microseconds since 1970 for a table that is cut by time, and the position for the feed.
-- Returns a row per partition: its bounds (NULL for minvalue and maxvalue), and whether a concurrent detach of it was
-- begun and not finished; a row per orphan, a table that was detached to be dropped; step, now and edge in the same
-- numbers: what ends at the edge or before may be dropped.
-- Bounds are read from text, so their form is pinned: in the style SQL a time zone is an abbreviation, and IST
-- for example names several.
-- Index: the catalogue's. Locks: none.
create or replace function ranges()
returns table (parent text, name text, by_time boolean, low bigint, high bigint, detach_pending boolean, step bigint,
               ahead integer, now bigint, edge bigint, orphan boolean)
language sql stable security definer
set search_path from current set timezone = 'UTC' set datestyle = 'ISO'
as $$ /* outhaul:ranges */
  with t as (
    select r.name, r.positions is null as by_time, r.ahead,
           coalesce(r.positions, (date_part('epoch', r.step) * 1000000)::bigint) as step,
           case when r.positions is null then (extract(epoch from clock_timestamp()) * 1000000)::bigint
                else (select h.last_position from outbox_feed_head h) end as now,
           case r.name
             when 'outbox_events' then (extract(epoch from outbox_edge(r.keep)) * 1000000)::bigint
             -- Up to the first position whose event is kept, and to the slowest cursor.
             when 'outbox_feed' then least(
               (select f.position - 1 from outbox_feed f
                 where exists (select from outbox_events e where e.seq = f.seq and e.at = f.at) order by f.position limit 1),
               (select min(s.position) from subscriptions s), (select h.last_position from outbox_feed_head h))
             else (extract(epoch from clock_timestamp() - r.keep) * 1000000)::bigint end as edge
      from ranged_tables r
  ), b as (
    select t.*, c.relname::text as part, i.inhrelid is null as orphan, coalesce(i.inhdetachpending, false) as detach_pending,
           substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''([^'']+)''\)') as low,
           substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([^'']+)''\)') as high
      from t
      join pg_class p on p.relname = t.name and p.relnamespace = current_schema()::regnamespace
      join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
      left join pg_inherits i on i.inhparent = p.oid and i.inhrelid = c.oid
     where i.inhrelid is not null
        or c.relname ~ ('^' || t.name || '_([0-9]{8}(_[0-9]{6})?|[0-9]{18}|first|past)$')
  )
  select b.name, b.part, b.by_time,
         case when b.by_time then (extract(epoch from b.low::timestamptz) * 1000000)::bigint else b.low::bigint end,
         case when b.by_time then (extract(epoch from b.high::timestamptz) * 1000000)::bigint else b.high::bigint end,
         b.detach_pending, b.step, b.ahead, b.now, b.edge, b.orphan
    from b order by 1, 4 nulls first
$$;
