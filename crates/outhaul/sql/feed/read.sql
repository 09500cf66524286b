-- read: events after a position, in order, for readers that keep their own.
-- Parameters: after, the last position that was handled; n, the most positions to look at, 1 to 10000; event_types
-- and aggregate_types, NULL for all. A reader goes on from the last position it got, or, when a filter let less
-- through, from after + n as far as the head reaches.
-- Raises OH006 where events are missing, and OH007 when after lies beyond the head.
-- Index: outbox_feed_pkey, outbox_events_pkey. Locks: none.
create or replace function read(
  after bigint, n integer, event_types text[] default null, aggregate_types text[] default null
) returns table (
  "position" bigint, seq bigint, at timestamptz, id uuid, organization_id uuid, aggregate_type text, aggregate_id uuid,
  event_type text, schema_version integer, payload text, occurred_at timestamptz, partition_key text, traceparent text
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:read */
#variable_conflict use_column
declare
  head bigint;
  upto bigint;
  first_hole bigint;
begin
  if read.n is null or read.n not between 1 and 10000 or read.after is null or read.after < 0 then
    raise exception using errcode = 'OH001', column = 'n', message = 'read takes a position and 1 to 10000 positions at a time';
  end if;
  select h.last_position into strict head from outbox_feed_head h;
  if read.after > head then
    raise exception using errcode = 'OH007',
      message = format('position %s lies beyond the head, which is at %s', read.after, head),
      hint = 'These positions belong to another history, for example to the one before a restore.';
  end if;
  upto := least(read.after + read.n, head);
  if (select count(*) from outbox_feed f where f.position > read.after and f.position <= upto) < upto - read.after then
    select g into first_hole from generate_series(read.after + 1, upto) g
     where not exists (select from outbox_feed f where f.position = g) order by g limit 1;
    perform history_truncated(first_hole);
  end if;
  return query
    select f.position, f.seq, f.at, e.id, e.organization_id, e.aggregate_type, e.aggregate_id, e.event_type,
           e.schema_version, e.payload::text, e.occurred_at, e.partition_key, e.traceparent
      from outbox_feed f
      left join lateral (select x.* from outbox_events x where x.seq = f.seq and x.at = f.at offset 0) e on true
     where f.position > read.after and f.position <= upto
       and case when e.id is null then history_truncated(f.position)
                else (read.event_types is null or e.event_type = any (read.event_types))
                 and (read.aggregate_types is null or e.aggregate_type = any (read.aggregate_types)) end
     order by f.position;
end $$;
