-- operator_subscription_rewind: set a cursor back, as an operator, on the record: what follows is delivered again.
-- The epoch rises, a lease ends (its late reports change nothing), and the subscription joins the present history.
-- Never forward over events that are kept, which would skip them: skip names them one by one.
-- Parameters: name; start: beginning, a position, or a time, as for subscribe; reason.
-- Returns the position from now on. Index: subscriptions_pkey. Locks: the subscription's row, the audit head.
create or replace function operator_subscription_rewind(name text, start text, reason text default null) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_rewind */
declare
  s constant subscriptions := known_subscription(operator_subscription_rewind.name);
  head constant outbox_feed_head := (select h from outbox_feed_head h);
  target constant bigint := start_position(operator_subscription_rewind.start);
  oldest constant bigint := start_position('beginning');
  n bigint;
  woke boolean;
begin
  if target < oldest then
    raise exception using errcode = 'OH006',
      message = format('position %s is not kept any more, the oldest is %s', target, oldest),
      hint = 'Rewind to beginning for the oldest event that is kept.';
  end if;
  if s.history_id = head.history_id and s.position <= head.last_position and target > greatest(s.position, oldest) then
    raise exception using errcode = 'OH001', column = 'start',
      message = format('position %s lies ahead of the cursor, which is at %s: events would be skipped', target, s.position),
      hint = 'Use skip, which records the event that it leaves out.';
  end if;
  update subscriptions x
     set position = target, history_id = head.history_id, epoch = x.epoch + 1, attempts = 0, blocked_position = null,
         lease_until = '-infinity', lease_token = '00000000-0000-0000-0000-000000000000', due_at = '-infinity',
         locked_by = '00000000-0000-0000-0000-000000000000',
         stuck_class = null, stuck_code = null, stuck_summary = null, moved_at = clock_timestamp()
   where x.name = s.name;
  n := audit_append('subs.rewind', s.name, jsonb_build_object('from', s.position, 'to', target, 'epoch', s.epoch + 1),
                    operator_subscription_rewind.reason);
  woke := wake(clock_timestamp());
  return target;
end $$;
