-- parts: the partitions of one ranged table, and what was one.
-- Returns a row per partition: its bounds as text (NULL for minvalue and maxvalue), whether a concurrent detach of it was
-- begun and not finished, and whether it is retired: proven to hold nothing that is needed, and closed since. A row per
-- orphan: a table of this one's making that was detached to be dropped.
-- Bounds are read from text, so their form is pinned: in the style SQL a time zone is an abbreviation, and IST
-- for example names several.
-- Index: the catalogue's. Locks: none.
create or replace function parts(parent text)
returns table (name text, low text, high text, detach_pending boolean, orphan boolean, retired boolean)
language sql stable
set timezone = 'UTC' set datestyle = 'ISO'
as $$ /* outhaul:parts */
  select c.relname::text,
         substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''([^'']+)''\)'),
         substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([^'']+)''\)'),
         coalesce(i.inhdetachpending, false), i.inhrelid is null,
         exists (select from pg_constraint k where k.conrelid = c.oid and k.conname = 'retired')
    from pg_class p
    join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
    left join pg_inherits i on i.inhparent = p.oid and i.inhrelid = c.oid
   where p.relname = parts.parent and p.relnamespace = current_schema()::regnamespace
     and (i.inhrelid is not null
      or c.relname ~ ('^' || parts.parent || '_([0-9]{8}(_[0-9]{6})?|[0-9]{18}|first|past)$'))
$$;
