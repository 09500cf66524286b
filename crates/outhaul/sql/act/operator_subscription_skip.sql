-- operator_subscription_skip: leave out one event, as an operator, on the record: the one that is delivered next, or the one that the
-- subscription waits at. That is an event that was given back, if there is one, and else the one after the cursor, which goes
-- past it. The event is kept among the parked ones as skipped, with what is known of its own failures, and can be given back from
-- there. A lease ends: the handler's late report changes nothing.
-- Parameters: name; position of the event, so that nobody skips another than the one seen; reason.
-- Returns the position of the cursor from now on. Index: subscriptions_pkey, subscription_parked_pkey, outbox_feed_pkey.
-- Locks: the subscription's row, the parked row, the audit head.
create or replace function operator_subscription_skip(name text, "position" bigint, reason text) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_skip */
declare
  s constant subscriptions := known_subscription(operator_subscription_skip.name);
  skipped constant bigint := operator_subscription_skip."position";
  first constant bigint := given_back(s.name);
  returned constant boolean := exists (select from subscription_parked p
                                        where p.subscription = s.name and p.position = skipped and p.unparked_at is not null);
  failed constant boolean := s.blocked_position is not distinct from skipped;
  stands bigint := s.position;
  following bigint;
  elsewhere boolean;
  n bigint;
  woke boolean;
begin
  if coalesce(btrim(operator_subscription_skip.reason), '') = '' then
    raise exception using errcode = 'OH001', column = 'reason',
      message = 'skipping an event needs a reason', hint = 'Say why nobody needs this event; it is kept on the record.';
  end if;
  select e.position into following from next_event(s.position, s.event_types, s.aggregate_types) e;
  if skipped is distinct from coalesce(first, following)
     and not (failed and (returned or skipped is not distinct from following)) then
    raise exception using errcode = 'OH002', column = 'position',
      message = case when coalesce(first, following) is null then format('subscription %s has no next event: none that it wants has a position', s.name)
                     else format('the next event of %s is at position %s, not %s', s.name, coalesce(first, following), skipped) end,
      hint = 'Look at the subscription again, and name the event that is next.';
  end if;
  if returned then
    update subscription_parked p
       set unparked_at = null, parked_at = clock_timestamp(), how = 'skipped',
           attempts = p.attempts + case when failed then s.attempts else 0 end,
           error_class = case when failed then s.stuck_class else p.error_class end,
           error_code = case when failed then s.stuck_code else p.error_code end,
           error_summary = left(operator_subscription_skip.reason, 1000)
     where p.subscription = s.name and p.position = skipped;
  else
    perform park(s.name, skipped, case when failed then s.attempts else 0 end, 'skipped', case when failed then s.stuck_class end,
                 case when failed then s.stuck_code end, operator_subscription_skip.reason);
    stands := skipped;
  end if;
  -- What is known of another event that it waits at stays true.
  elsewhere := not failed and (s.blocked_position > stands or exists (
    select from subscription_parked p where p.subscription = s.name and p.position = s.blocked_position and p.unparked_at is not null));
  update subscriptions x
     set position = stands, lease_until = '-infinity', lease_token = '00000000-0000-0000-0000-000000000000',
         locked_by = '00000000-0000-0000-0000-000000000000',
         moved_at = case when stands > x.position then clock_timestamp() else x.moved_at end,
         attempts = case when elsewhere then x.attempts else 0 end,
         blocked_position = case when elsewhere then x.blocked_position end,
         due_at = case when elsewhere then x.due_at else '-infinity' end,
         stuck_class = case when elsewhere then x.stuck_class end,
         stuck_code = case when elsewhere then x.stuck_code end,
         stuck_summary = case when elsewhere then x.stuck_summary end
   where x.name = s.name;
  n := audit_append('subs.skip', s.name, jsonb_build_object('position', skipped)
                      || case when returned then '{"given_back": true}'::jsonb else '{}' end, operator_subscription_skip.reason);
  woke := wake(clock_timestamp());
  return stands;
end $$;
