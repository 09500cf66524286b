-- show_event: one event with what became of it, without its payload: more than one row when an id was published twice.
-- Parameters: id. Index: outbox_events_id, outbox_feed_seq. Locks: none.
create or replace function show_event(id uuid) returns table (
  seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer, occurred_at timestamptz,
  at timestamptz, "position" bigint, relay text, organization_id uuid, partition_key text, traceparent text,
  available_at timestamptz, attempts integer, processed_at timestamptz, last_error text
)
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:show_event */
  select e.seq, e.id, e.event_type, e.aggregate_type, e.aggregate_id, e.schema_version, e.occurred_at, e.at,
         (select f.position from outbox_feed f where f.seq = e.seq limit 1),
         case when e.processed_at is not null then 'processed' when e.parked_at is not null then 'parked'
              when e.lease_until is not null then 'leased' when e.at >= (select r.starts_at from relay r) then 'pending' end,
         e.organization_id, e.partition_key, e.traceparent, nullif(e.available_at, 'infinity'), e.attempts, e.processed_at, e.last_error
    from outbox_events e where e.id = show_event.id order by e.seq
$$;
