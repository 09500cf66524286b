-- next_event: the first event after a position that a filter lets through.
-- Parameters: after; event_types and aggregate_types, NULL for all. Returns no row when there is none.
-- Index: outbox_feed_pkey, outbox_events_pkey. Locks: none.
create or replace function next_event(after bigint, event_types text[], aggregate_types text[])
returns table ("position" bigint, seq bigint, at timestamptz)
language sql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
as $$ /* outhaul:next_event */
  select f.position, f.seq, f.at
    from outbox_feed f
   cross join lateral (select x.event_type, x.aggregate_type from outbox_events x where x.seq = f.seq and x.at = f.at offset 0) e
   where f.position > next_event.after
     and (next_event.event_types is null or e.event_type = any (next_event.event_types))
     and (next_event.aggregate_types is null or e.aggregate_type = any (next_event.aggregate_types))
   order by f.position limit 1
$$;
