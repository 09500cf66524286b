-- partitions: what ranges tells, for the tables and binaries of schema 1, which know only times and ages.
-- Returns a row per partition: its bounds (NULL for minvalue and maxvalue), and whether a concurrent
-- detach of it was begun and not finished; and a row per orphan, a table that was detached to be dropped.
-- Bounds are read from text, so their form is pinned: in the style SQL a time zone is an abbreviation, and IST
-- for example names several.
-- Index: the catalogue's. Locks: none.
create or replace function partitions()
returns table (parent text, name text, low timestamptz, high timestamptz, detach_pending boolean, step_seconds bigint,
               ahead integer, keep_seconds bigint, now timestamptz, orphan boolean)
language sql stable security definer
set search_path from current set timezone = 'UTC' set datestyle = 'ISO'
as $$ /* outhaul:partitions */
  select r.name, c.relname::text,
         substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''([^'']+)''\)')::timestamptz,
         substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([^'']+)''\)')::timestamptz,
         coalesce(i.inhdetachpending, false), date_part('epoch', r.step)::bigint, r.ahead,
         date_part('epoch', r.keep)::bigint, clock_timestamp(), i.inhrelid is null
    from ranged_tables r
    join pg_class p on p.relname = r.name and p.relnamespace = current_schema()::regnamespace
    join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
    left join pg_inherits i on i.inhparent = p.oid and i.inhrelid = c.oid
   where r.name in ('jobs_finished', 'job_attempts')
     and (i.inhrelid is not null
      or c.relname ~ ('^' || r.name || '_([0-9]{8}(_[0-9]{6})?|first|past)$'))
   order by 1, 3 nulls first
$$;
