-- tail_events: events in the order of their positions, without their payload, for people who look on. It keeps no cursor
-- and gives no positions: who looks goes on from through.
-- Parameters: start, after which position to look: a position, beginning, now, or a time, as for subscribe; n, the most
-- positions to look at, 0 to 1000, where 0 only tells where start is; event_types, NULL for all.
-- Returns through, the last position that was looked at, beside each event, and in a row without an event when there is none.
-- Raises OH006 where events are missing, OH007 for a position beyond the head, and OH001 for a start that cannot be read.
-- Index: outbox_feed_pkey, outbox_events_pkey. Locks: none.
create or replace function tail_events(start text, n integer default 100, event_types text[] default null) returns table (
  through bigint, seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer,
  occurred_at timestamptz, at timestamptz, "position" bigint, relay text
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:tail_events */
#variable_conflict use_column
declare
  head constant bigint := (select h.last_position from outbox_feed_head h);
  -- A position is what is asked for again and again, and needs no look at what is kept.
  after constant bigint := case when tail_events.start ~ '^[0-9]{1,18}$' then tail_events.start::bigint
                                else start_position(coalesce(tail_events.start, 'now')) end;
  upto constant bigint := least(after + least(greatest(coalesce(tail_events.n, 100), 0), 1000), head);
begin
  if after > head then
    raise exception using errcode = 'OH007',
      message = format('position %s lies beyond the head, which is at %s', after, head),
      hint = 'Use a position up to the head, or now. One that was there before belongs to another history, for example to that before a restore.';
  end if;
  return query
    select upto, e.seq, e.id, e.event_type, e.aggregate_type, e.aggregate_id, e.schema_version, e.occurred_at, e.at, g.position,
           case when e.processed_at is not null then 'processed' when e.parked_at is not null then 'parked'
                when e.lease_until is not null then 'leased' when e.at >= (select r.starts_at from relay r) then 'pending' end
      from generate_series(after + 1, upto) g(position)
      left join outbox_feed f on f.position = g.position
      left join lateral (select x.* from outbox_events x where x.seq = f.seq and x.at = f.at offset 0) e on true
     where case when e.id is null then history_truncated(g.position)
                else tail_events.event_types is null or e.event_type = any (tail_events.event_types) end
     order by g.position;
  if not found then
    return query select upto, null::bigint, null::uuid, null::text, null::text, null::uuid, null::integer, null::timestamptz,
                        null::timestamptz, null::bigint, null::text;
  end if;
end $$;
