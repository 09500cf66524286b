-- partitions: the ranges of the ranged tables as they are, for planning what to create and drop.
-- Returns a row per partition: its bounds (NULL for minvalue and maxvalue), and whether a concurrent
-- detach of it was begun and not finished.
-- Index: the catalogue's. Locks: none.
create or replace function partitions()
returns table (parent text, name text, low timestamptz, high timestamptz, detach_pending boolean, step_seconds bigint,
               ahead integer, keep_seconds bigint, now timestamptz)
language sql stable security definer
set search_path from current
as $$ /* outhaul:partitions */
  select r.name, c.relname::text,
         substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''([^'']+)''\)')::timestamptz,
         substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([^'']+)''\)')::timestamptz,
         i.inhdetachpending, date_part('epoch', r.step)::bigint, r.ahead, date_part('epoch', r.keep)::bigint, clock_timestamp()
    from ranged_tables r
    join pg_class p on p.relname = r.name and p.relnamespace = current_schema()::regnamespace
    join pg_inherits i on i.inhparent = p.oid
    join pg_class c on c.oid = i.inhrelid
   order by 1, 3 nulls first
$$;
