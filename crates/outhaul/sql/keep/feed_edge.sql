-- feed_edge: up to which position partitions of the feed may be removed: the first one whose event is kept, or that a
-- cursor has not passed, or that is not given yet.
-- Returns that position. The events are only asked for when a partition lies wholly behind all cursors.
-- Index: outbox_feed_pkey from the oldest position on, outbox_feed_seq. Locks: none.
create or replace function feed_edge() returns bigint
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_custom_plan set jit = off
as $$ /* outhaul:feed_edge */
declare
  passed constant bigint := 1 + least((select min(s.position) from subscriptions s), (select h.last_position from outbox_feed_head h));
  kept constant timestamptz := outbox_kept_from();
begin
  if not exists (select from parts('outbox_feed') p where not p.orphan and p.high::bigint <= passed and p.name !~ '_past$') then
    return passed;
  end if;
  return least(passed,
    (select f.position from outbox_feed f where f.at >= coalesce(kept, '-infinity') order by f.position limit 1),
    (select min(f.position) from outbox_events e join outbox_feed f on f.seq = e.seq and f.at = e.at where e.at < kept));
end $$;
