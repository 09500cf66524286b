-- outbox_edge: up to when partitions of events may be removed: nothing younger, nothing without a position, nothing ahead
-- of a cursor, nothing that waits for the relay, and no parked event before its time.
-- What a transaction has written that is still open or prepared is not seen here: whoever removes a partition locks it
-- against writers and asks again in a new statement.
-- Parameters: keep, how long an event stays at least; NULL for ever. Returns a time of insertion, or NULL for nothing at all.
-- Only the age counts while no partition is past it: the other questions are dear where a reader is far behind.
-- Index: outbox_feed_pkey or outbox_feed_at, outbox_pending_idx and outbox_parked of old partitions. Locks: none.
create or replace function outbox_edge(keep interval) returns timestamptz
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_custom_plan set jit = off
as $$ /* outhaul:outbox_edge */
declare
  young constant timestamptz := statement_timestamp() - outbox_edge.keep;
  parked constant timestamptz := statement_timestamp() - make_interval(secs => setting_seconds('dead_retention_seconds'));
  starts constant timestamptz := (select r.starts_at from relay r);
  cursor_at constant bigint := (select min(s.position) from subscriptions s);
begin
  if young is null
     or not exists (select from parts('outbox_events') p where not p.orphan and p.high::timestamptz <= young and p.name !~ '_past$') then
    return young;
  end if;
  return least(young,
    (select min(u.at) from outbox_unsequenced u),
    (select min(f.at) from outbox_feed f where f.position > cursor_at and f.at < young),
    (select min(e.at) from outbox_events e
      where starts is not null and e.processed_at is null and e.parked_at is null and e.at >= starts and e.at < young),
    (select min(e.at) from outbox_events e where e.parked_at > parked and e.at < young));
end $$;
