-- show_dispositions: the subscriptions that went past an event without having handled it, each with how and why.
-- Parameters: id of the event. Returns the subscription, and the columns of show_parked.
-- Index: outbox_events_id, outbox_feed_seq, subscription_parked_pkey; a subscription is a row. Locks: none.
create or replace function show_dispositions(id uuid) returns table (
  subscription text, "position" bigint, event_id uuid, event_type text, aggregate_type text, aggregate_id uuid, parked_at timestamptz,
  how text, attempts integer, error_class text, error_code text, error_summary text, unparked_at timestamptz
)
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:show_dispositions */
  select p.subscription, p.position, p.event_id, p.event_type, p.aggregate_type, p.aggregate_id, p.parked_at, p.how, p.attempts,
         p.error_class, p.error_code, p.error_summary, p.unparked_at
    from outbox_events e
    join outbox_feed f on f.seq = e.seq
   cross join subscriptions s
    join subscription_parked p on p.subscription = s.name and p.position = f.position and p.seq = e.seq
   where e.id = show_dispositions.id
   order by p.position, p.subscription
$$;
