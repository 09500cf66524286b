-- claim_subscription: lease the cursor of a subscription, and read the events after it.
-- The lease is on the cursor: while it stands nobody else is given an event of this subscription, so order holds.
-- Events that the filter leaves out are stepped over; when nothing else follows, the cursor moves past them at once.
-- After a failure one event is given at a time, so that the next failure names its event.
-- An event that an operator gave back (unparked) comes first and by itself; the cursor does not move for it.
-- Attempts are those of the first event, and not of another that had failed before.
-- Parameters: name; n, the most events, 1 to 10000; worker, the caller's id; lease, its length.
-- Returns the events in order; through, the position to checkpoint when all are handled; unparked, true for one given
-- back. Nothing when there is nothing to do: paused, leased, waiting after a failure, or at the head.
-- Raises OH005 for a name that is not known, OH006 where events are missing, OH007 when its history is another one.
-- Index: subscriptions_pkey, outbox_feed_pkey, outbox_events_pkey. Locks: the subscription's row, skipped when locked.
create or replace function claim_subscription(name text, n integer, worker uuid, lease interval)
returns table (
  subscription_id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, policy text, through bigint, unparked boolean,
  "position" bigint, seq bigint, at timestamptz, id uuid, organization_id uuid, aggregate_type text, aggregate_id uuid,
  event_type text, schema_version integer, payload text, occurred_at timestamptz, partition_key text, traceparent text
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:claim_subscription */
#variable_conflict use_column
declare
  token constant uuid := gen_random_uuid();
  s subscriptions;
  head outbox_feed_head;
  low bigint;
  high bigint;
  got integer := 0;
begin
  if claim_subscription.n is null or claim_subscription.n not between 1 and 10000 or claim_subscription.lease is null
     or claim_subscription.lease not between interval '1 second' and interval '24 hours' or claim_subscription.worker is null then
    raise exception using errcode = 'OH001', column = 'n',
      message = 'claim_subscription needs a worker, n of 1 to 10000 and a lease of 1 second to 24 hours';
  end if;
  -- Locked only when there is something to claim: those who find it leased must not be in the way of its checkpoint.
  select x.* into s from subscriptions x
   where x.name = claim_subscription.name and x.lease_until = '-infinity' and x.paused_at is null
     and x.due_at <= statement_timestamp()
     for no key update skip locked;
  if not found then
    if not exists (select from subscriptions x where x.name = claim_subscription.name) then
      raise exception using errcode = 'OH005',
        message = format('subscription %s does not exist', claim_subscription.name),
        hint = 'It may have been dropped; subscribe creates it.';
    end if;
    -- A claim that writes nothing would not find out that its server is no primary any more, and never leave it.
    if current_setting('transaction_read_only') = 'on' then
      raise exception using errcode = 'read_only_sql_transaction',
        message = 'claim_subscription needs a server that can be written to';
    end if;
    return;
  end if;
  -- After the row's lock: with the head of an older snapshot a checkpoint in between would look like another history.
  select h.* into strict head from outbox_feed_head h;
  if s.history_id <> head.history_id or s.position > head.last_position then
    raise exception using errcode = 'OH007',
      message = format('subscription %s stands at position %s of another history', s.name, s.position),
      hint = 'The database was restored or its history was rotated: rewind the subscription to where it shall go on.';
  end if;
  if s.attempts > 0 then
    claim_subscription.n := 1;
  end if;
  return query
    select s.id, token, s.claim_no + 1, case when s.blocked_position = p.position then s.attempts + 1 else 1 end,
           s.max_attempts, s.policy::text, s.position, true, p.position, p.seq, p.at, p.event_id,
           p.organization_id, p.aggregate_type, p.aggregate_id, p.event_type, p.schema_version, p.payload::text,
           p.occurred_at, p.partition_key, p.traceparent
      from subscription_parked p
     where p.subscription = s.name and p.position = given_back(s.name);
  get diagnostics got = row_count;
  low := s.position;
  -- Bounded, so that a filter which lets little through does not make one call read a whole history.
  for window in 1..10 loop
    exit when got > 0 or low >= head.last_position;
    high := least(low + greatest(claim_subscription.n, case when s.event_types is null and s.aggregate_types is null then 1 else 1000 end),
                  head.last_position);
    return query
      select s.id, token, s.claim_no + 1, case when s.blocked_position = min(e.position) over () then s.attempts + 1 else 1 end,
           s.max_attempts, s.policy::text,
             -- As many as were asked for: there may be more before the end of the window.
             case when count(*) over () = claim_subscription.n then max(e.position) over () else high end, false,
             e.position, e.seq, e.at, e.id, e.organization_id, e.aggregate_type, e.aggregate_id, e.event_type,
             e.schema_version, e.payload, e.occurred_at, e.partition_key, e.traceparent
        from (select r.* from read(low, (high - low)::integer, s.event_types, s.aggregate_types) r
               order by r.position limit claim_subscription.n) e
       order by e.position;
    get diagnostics got = row_count;
    if got = 0 then
      low := high;
    end if;
  end loop;
  if got > 0 then
    update subscriptions x
       set lease_token = token, lease_until = clock_timestamp() + claim_subscription.lease, locked_at = clock_timestamp(),
           locked_by = claim_subscription.worker, claim_no = s.claim_no + 1, position = low, seen_at = clock_timestamp()
     where x.name = s.name;
  elsif low > s.position or s.seen_at < statement_timestamp() - interval '10 seconds' then
    update subscriptions x
       set position = low, seen_at = clock_timestamp(),
           moved_at = case when low > s.position then clock_timestamp() else x.moved_at end,
           caught_up_at = case when low >= head.last_position then clock_timestamp() else x.caught_up_at end
     where x.name = s.name;
  end if;
end $$;
