-- show_outbox: the outbox in numbers: the head, what has no position yet, and what waits for the relay. Ages in
-- milliseconds, NULL for none; counts up to cap.
-- Parameters: cap, the most rows of a kind that are looked at.
-- Index: outbox_unsequenced_pkey, outbox_pending_idx. Locks: none.
create or replace function show_outbox(cap integer default 10000) returns table (
  head bigint, history_id uuid, unsequenced bigint, oldest_unsequenced_ms bigint, relay_since timestamptz, relay_pending bigint,
  relay_leased bigint, relay_parked bigint, relay_oldest_ms bigint, capped boolean
)
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:show_outbox */
  select h.last_position, h.history_id, u.n, u.oldest, r.starts_at, p.n, l.n, k.n, p.oldest, u.n > show_outbox.cap or p.n > show_outbox.cap
    from outbox_feed_head h
    left join relay r on true
   cross join lateral (
      select count(*) as n, (date_part('epoch', statement_timestamp() - min(x.at)) * 1000)::bigint as oldest
        from (select y.at from outbox_unsequenced y order by y.seq limit show_outbox.cap + 1) x) u
   cross join lateral (
      select count(*) as n, (date_part('epoch', statement_timestamp() - min(x.at)) * 1000)::bigint as oldest
        from (select e.at from outbox_events e
               where e.processed_at is null and e.available_at <= statement_timestamp() and e.at >= r.starts_at and e.lease_until is null
               order by e.available_at limit show_outbox.cap + 1) x) p
   cross join lateral (
      select count(*) as n from (select from outbox_events e where e.lease_until is not null limit show_outbox.cap + 1) x) l
   cross join lateral (
      select count(*) as n from (select from outbox_events e where e.parked_at is not null limit show_outbox.cap + 1) x) k
$$;
