-- show_events: events of the outbox without their payload, the latest first.
-- Parameters: before, a seq to page on, NULL for the first page; n, the most rows, 1 to 1000; event_type, aggregate_type,
-- aggregate_id, NULL for any; only_parked, true for those that the relay has given up.
-- Index: outbox_events_pkey. Locks: none.
create or replace function show_events(
  before bigint default null, n integer default 100, event_type text default null, aggregate_type text default null,
  aggregate_id uuid default null, only_parked boolean default false
) returns table (
  seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer, occurred_at timestamptz,
  at timestamptz, "position" bigint, relay text
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_events */
  select e.seq, e.id, e.event_type, e.aggregate_type, e.aggregate_id, e.schema_version, e.occurred_at, e.at,
         (select f.position from outbox_feed f where f.seq = e.seq limit 1),
         case when e.processed_at is not null then 'processed' when e.parked_at is not null then 'parked'
              when e.lease_until is not null then 'leased' when e.at >= (select r.starts_at from relay r) then 'pending' end
    from outbox_events e
   where (show_events.before is null or e.seq < show_events.before)
     and (show_events.event_type is null or e.event_type = show_events.event_type)
     and (show_events.aggregate_type is null or e.aggregate_type = show_events.aggregate_type)
     and (show_events.aggregate_id is null or e.aggregate_id = show_events.aggregate_id)
     and (not show_events.only_parked or e.parked_at is not null)
   order by e.seq desc limit least(greatest(show_events.n, 1), 1000)
$$;
