-- show_subscriptions: every subscription: where it stands, how far behind, and what holds it back.
-- behind counts positions after the cursor, of whatever type, those that its filter leaves out too; unsequenced events and those that were
-- given back come on top. parked counts what has failed and was not given back. Ages in milliseconds.
-- holds: paused, blocked, truncated, diverged, gone (no consumer has asked for longer than its limit), idle_consumer (none for 30 s), or NULL.
-- Parameters: subscription, a name, or NULL for all.
-- Index: subscriptions_pkey; a subscription is a row. Locks: none.
create or replace function show_subscriptions(subscription text default null) returns table (
  name text, id uuid, "position" bigint, head bigint, behind bigint, oldest_ms bigint, policy text, event_types text[],
  aggregate_types text[], epoch integer, attempts integer, blocked_position bigint, due_at timestamptz, leased_by uuid,
  lease_until timestamptz, moved_at timestamptz, caught_up_at timestamptz, seen_at timestamptz, paused_reason text,
  stuck_class text, stuck_code text, stuck_summary text, parked bigint, holds text, moved_ms bigint, caught_up_ms bigint
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_subscriptions */
  select s.name, s.id, s.position, h.last_position, greatest(h.last_position - s.position, 0),
         (select (date_part('epoch', statement_timestamp() - f.at) * 1000)::bigint from outbox_feed f where f.position = s.position + 1),
         s.policy::text, s.event_types, s.aggregate_types, s.epoch, s.attempts, s.blocked_position,
         nullif(s.due_at, '-infinity'), case when s.lease_until > '-infinity' then s.locked_by end, nullif(s.lease_until, '-infinity'),
         s.moved_at, nullif(s.caught_up_at, '-infinity'), s.seen_at, s.paused_reason,
         s.stuck_class, s.stuck_code, s.stuck_summary,
         (select count(*) from subscription_parked p where p.subscription = s.name and p.how = 'parked' and p.unparked_at is null),
         case when s.history_id <> h.history_id or s.position > h.last_position then 'diverged'
              when s.position < h.last_position
                   and not exists (select from outbox_feed f join outbox_events e on e.seq = f.seq and e.at = f.at
                                    where f.position = s.position + 1) then 'truncated'
              when s.paused_at is not null then 'paused'
              when s.seen_at < statement_timestamp() - s.gone_after then 'gone'
              when s.stuck_class is not null then 'blocked'
              when s.seen_at < statement_timestamp() - interval '30 seconds' and s.lease_until = '-infinity' then 'idle_consumer'
         end,
         (date_part('epoch', statement_timestamp() - s.moved_at) * 1000)::bigint,
         case when s.caught_up_at > '-infinity' then (date_part('epoch', statement_timestamp() - s.caught_up_at) * 1000)::bigint end
    from subscriptions s cross join outbox_feed_head h
   where show_subscriptions.subscription is null or s.name = show_subscriptions.subscription
   order by s.name
$$;
