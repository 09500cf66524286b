-- park: keep an event that a subscription goes past without having handled it, with all that is known of it.
-- Parameters: subscription; position of the event; attempts made; how: parked (it failed) or skipped (somebody decided);
-- class, code and summary of the failure. Does not move the cursor.
-- Index: outbox_feed_pkey, outbox_events_pkey. Locks: the new row.
create or replace function park(
  subscription text, "position" bigint, attempts integer, how text, class text, code text, summary text
) returns void
language sql volatile
as $$ /* outhaul:park */
  insert into subscription_parked (subscription, position, event_id, organization_id, aggregate_type, aggregate_id, event_type,
      schema_version, payload, occurred_at, partition_key, traceparent, seq, at, attempts, how, error_class, error_code, error_summary)
  select park.subscription, f.position, e.id, e.organization_id, e.aggregate_type, e.aggregate_id, e.event_type, e.schema_version,
         e.payload, e.occurred_at, e.partition_key, e.traceparent, e.seq, e.at, park.attempts, park.how, park.class,
         left(park.code, 64), left(park.summary, 1000)
    from outbox_feed f join outbox_events e on e.seq = f.seq and e.at = f.at
   where f.position = park."position"
  on conflict on constraint subscription_parked_pkey do update
     set parked_at = clock_timestamp(), attempts = excluded.attempts, how = excluded.how, error_class = excluded.error_class,
         error_code = excluded.error_code, error_summary = excluded.error_summary, unparked_at = null
$$;
