-- outbox_edge: up to when events may be removed: nothing younger, nothing without a position, nothing ahead of a cursor,
-- nothing that waits for the relay, and no parked event before its time.
-- Parameters: keep, how long an event stays at least. Returns a time of insertion.
-- Index: outbox_feed_pkey from the last cursor on, outbox_pending_idx of old partitions. Locks: none.
create or replace function outbox_edge(keep interval) returns timestamptz
language plpgsql stable security definer
set search_path from current
as $$ /* outhaul:outbox_edge */
declare
  young constant timestamptz := statement_timestamp() - outbox_edge.keep;
  parked constant timestamptz := statement_timestamp() - make_interval(secs => setting_seconds('dead_retention_seconds'));
  starts constant timestamptz := (select r.starts_at from relay r);
begin
  return least(young,
    (select min(u.at) from outbox_unsequenced u),
    (select min(f.at) from outbox_feed f where f.position > (select min(s.position) from subscriptions s) and f.at < young),
    (select min(e.at) from outbox_events e
      where starts is not null and e.processed_at is null and e.parked_at is null and e.at >= starts and e.at < young),
    (select min(e.at) from outbox_events e where e.parked_at > parked and e.at < young));
end $$;
