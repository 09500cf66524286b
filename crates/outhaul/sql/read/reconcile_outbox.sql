-- reconcile_outbox: compare events, feed, dispositions and checkpoints, and name everything that does not fit.
-- Reads both tables whole: a check for an operator, not for a loop. It sees one snapshot, so nothing that is under way is
-- taken for damage.
-- Parameters: n, the most findings of each kind.
-- Returns the kind of finding, what it is about, and what to do:
-- event_without_position, position_without_event, hole_in_feed, event_with_two_positions, head_off_feed, position_missing_for_long,
-- event_without_disposition, checkpoint_beyond_head, checkpoint_of_another_history, checkpoint_truncated, parked_beyond_cursor.
-- Index: none; whole tables. Locks: none.
create or replace function reconcile_outbox(n integer default 100) returns table (
  finding text, seq bigint, "position" bigint, subscription text, details text
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:reconcile_outbox */
  (select 'event_without_position', e.seq, null::bigint, null::text,
          'no subscription will get it; it was written past the trigger, or its place in the feed was removed'
     from outbox_events e
    where not exists (select from outbox_unsequenced u where u.seq = e.seq)
      and not exists (select from outbox_feed f where f.seq = e.seq)
    order by e.seq limit reconcile_outbox.n)
  union all
  (select 'position_without_event', f.seq, f.position, null, 'its event was removed by hand: readers stop here'
     from outbox_feed f
    -- Asked once and not for each row, at a millisecond each.
    where f.at >= (select coalesce(outbox_kept_from(), '-infinity'))
      and not exists (select from outbox_events e where e.seq = f.seq and e.at = f.at)
    order by f.position limit reconcile_outbox.n)
  union all
  (select 'hole_in_feed', null, g.after + 1, null, format('%s positions are missing', g.next - g.after - 1)
     from (select f.position as after, lead(f.position) over (order by f.position) as next from outbox_feed f) g
    where g.next > g.after + 1
    order by g.after limit reconcile_outbox.n)
  union all
  (select 'event_with_two_positions', f.seq, min(f.position), null, format('it has %s', count(*))
     from outbox_feed f group by f.seq having count(*) > 1 order by f.seq limit reconcile_outbox.n)
  union all
  (select 'head_off_feed', null, h.last_position, null, format('the last position in the feed is %s', m.last)
     from outbox_feed_head h cross join (select max(f.position) as last from outbox_feed f) m
    -- After retention the feed may be empty; an event that has lost its place in it is named above.
    where m.last <> h.last_position)
  union all
  (select 'position_missing_for_long', u.seq, null, null,
          format('committed or not, it was written %s ago: no reader turns the sequencer, or the row is without its event', statement_timestamp() - u.at)
     from outbox_unsequenced u
    where u.at < statement_timestamp() - interval '10 minutes'
    order by u.seq limit reconcile_outbox.n)
  union all
  (select 'event_without_disposition', e.seq, null, null, 'the relay neither has it, nor will take it, nor has parked it'
     from outbox_events e
    where e.processed_at is null and e.parked_at is null and e.lease_until is null and e.available_at = 'infinity'
    order by e.seq limit reconcile_outbox.n)
  union all
  select case when s.history_id <> h.history_id then 'checkpoint_of_another_history' else 'checkpoint_beyond_head' end,
         null, s.position, s.name, format('the head is at %s: rewind it to where it shall go on', h.last_position)
    from subscriptions s cross join outbox_feed_head h
   where s.history_id <> h.history_id or s.position > h.last_position
  union all
  select 'checkpoint_truncated', null, s.position, s.name, format('the oldest position that is kept is %s', m.first)
    from subscriptions s cross join (select min(f.position) as first from outbox_feed f) m
   where s.position + 1 < m.first
  union all
  (select 'parked_beyond_cursor', p.seq, p.position, p.subscription, format('its cursor is at %s and will deliver it again', s.position)
     from subscription_parked p join subscriptions s on s.name = p.subscription
    where p.position > s.position and p.unparked_at is null
      -- What the filter leaves out, no cursor brings again.
      and (s.event_types is null or p.event_type = any (s.event_types))
      and (s.aggregate_types is null or p.aggregate_type = any (s.aggregate_types))
    order by p.position limit reconcile_outbox.n)
$$;
