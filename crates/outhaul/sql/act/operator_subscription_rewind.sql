-- operator_subscription_rewind: set a cursor back, as an operator, on the record: what follows is delivered again.
-- The epoch rises, a lease ends (its late reports change nothing), and the subscription joins the present history.
-- What was parked, skipped or given back after the new position comes again with the rest, in its place: it is aside no more, and so
-- is delivered once. What the filter leaves out stays aside, and what was given back up to the new position still comes first.
-- Never forward over events that are kept, which would skip them: skip names them one by one.
-- Parameters: name; start: beginning, a position, or a time, as for subscribe; reason.
-- Returns the position from now on. Index: subscriptions_pkey, subscription_parked_pkey, outbox_feed_pkey.
-- Locks: the subscription's row and its parked rows, the audit head.
create or replace function operator_subscription_rewind(name text, start text, reason text default null) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_rewind */
declare
  s constant subscriptions := known_subscription(operator_subscription_rewind.name);
  head constant outbox_feed_head := (select h from outbox_feed_head h);
  target constant bigint := start_position(operator_subscription_rewind.start);
  oldest constant bigint := start_position('beginning');
  again bigint;
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
  with d as (
    delete from subscription_parked p using outbox_feed f
     where p.subscription = s.name and p.position > target and f.position = p.position and f.seq = p.seq
       and (s.event_types is null or p.event_type = any (s.event_types))
       and (s.aggregate_types is null or p.aggregate_type = any (s.aggregate_types))
       -- A copy of what is not kept any more is all that is left of it.
       and exists (select from outbox_events e where e.seq = f.seq and e.at = f.at)
    returning p.position
  )
  select count(*) into again from d;
  update subscriptions x
     set position = target, history_id = head.history_id, epoch = x.epoch + 1, attempts = 0, blocked_position = null,
         lease_until = '-infinity', lease_token = '00000000-0000-0000-0000-000000000000', due_at = '-infinity',
         locked_by = '00000000-0000-0000-0000-000000000000',
         stuck_class = null, stuck_code = null, stuck_summary = null, moved_at = clock_timestamp()
   where x.name = s.name;
  n := audit_append('subs.rewind', s.name, jsonb_build_object('from', s.position, 'to', target, 'epoch', s.epoch + 1)
                      || case when again > 0 then jsonb_build_object('set_aside', again) else '{}' end,
                    operator_subscription_rewind.reason);
  woke := wake(clock_timestamp());
  return target;
end $$;
