-- outbox_kept_from: from when on events have not been removed by retention, or NULL when it has removed nothing yet.
-- Older ones may exist: written with a clock that was set back, or in a transaction that took long; those are below
-- the first partition that has a beginning.
-- A partition that is retired counts as removed: it goes at any moment.
-- Index: the catalogue's. Locks: none.
create or replace function outbox_kept_from() returns timestamptz
language sql stable
as $$ /* outhaul:outbox_kept_from */
  select greatest(
    (select coalesce(p.low, case when p.name ~ '_past$' then p.high end)::timestamptz
       from parts('outbox_events') p where not p.orphan and not p.detach_pending
      order by p.low::timestamptz nulls first limit 1),
    (select max(p.high::timestamptz) from parts('outbox_events') p where p.retired and not p.orphan))
$$;
