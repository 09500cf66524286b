-- operator_subscription_skip: go past the one event that is next, as an operator, on the record. The event is kept among the
-- parked ones as skipped, and can be given back from there. A lease ends: the handler's late report changes nothing.
-- Parameters: name; position of the event, which must be the next one, so that nobody skips another than the one seen; reason.
-- Returns the position from now on. Index: subscriptions_pkey, outbox_feed_pkey. Locks: the subscription's row, the audit head.
create or replace function operator_subscription_skip(name text, "position" bigint, reason text) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_skip */
declare
  s constant subscriptions := known_subscription(operator_subscription_skip.name);
  following bigint;
  n bigint;
  woke boolean;
begin
  if coalesce(btrim(operator_subscription_skip.reason), '') = '' then
    raise exception using errcode = 'OH001', column = 'reason',
      message = 'skipping an event needs a reason', hint = 'Say why nobody needs this event; it is kept on the record.';
  end if;
  select e.position into following from next_event(s.position, s.event_types, s.aggregate_types) e;
  if following is distinct from operator_subscription_skip."position" then
    raise exception using errcode = 'OH002', column = 'position',
      message = case when following is null then format('subscription %s has no next event: none that it wants has a position', s.name)
                     else format('the next event of %s is at position %s, not %s', s.name, following, operator_subscription_skip."position") end,
      hint = 'Look at the subscription again, and name the event that is next.';
  end if;
  perform park(s.name, following, s.attempts, 'skipped', s.stuck_class, s.stuck_code, coalesce(operator_subscription_skip.reason, s.stuck_summary));
  update subscriptions x
     set position = following, attempts = 0, blocked_position = null, lease_until = '-infinity',
         lease_token = '00000000-0000-0000-0000-000000000000', locked_by = '00000000-0000-0000-0000-000000000000',
         due_at = '-infinity', stuck_class = null, stuck_code = null, stuck_summary = null, moved_at = clock_timestamp()
   where x.name = s.name;
  n := audit_append('subs.skip', s.name, jsonb_build_object('position', following), operator_subscription_skip.reason);
  woke := wake(clock_timestamp());
  return following;
end $$;
