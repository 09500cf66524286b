-- subscribe: make sure that a named subscription exists, and that it wants what its consumer declares.
-- Parameters: name; start, for a new one: beginning (the oldest event that is kept), now, a position (everything
-- after it follows) or a time (everything inserted from it on follows), as text; event_types and aggregate_types,
-- NULL for all; policy, block or park; gone_after, how long its consumer may be away before that is
-- reported; max_attempts, after how many failures in a row park sets an event aside.
-- An existing one keeps its position: a changed filter holds for what comes. When it waits after a failure it is due at
-- once: the program that asks may be the one in which the cause was mended.
-- Returns its id.
-- Index: subscriptions_pkey; outbox_feed_pkey for the start. Locks: the subscription's row.
create or replace function subscribe(
  name text, start text default 'now', event_types text[] default null, aggregate_types text[] default null,
  policy text default 'block', gone_after interval default '1 day', max_attempts integer default 10
) returns uuid
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:subscribe */
declare
  s subscriptions;
  head outbox_feed_head;
  at_position bigint;
begin
  if subscribe.name is null or octet_length(subscribe.name) > 63 or subscribe.name !~ '^[A-Za-z][A-Za-z0-9_.:-]*$' then
    raise exception using errcode = 'OH001', column = 'name',
      message = 'subscription name is not valid',
      hint = 'Use 1 to 63 characters: a letter, then letters, digits, and _ . : -';
  end if;
  if subscribe.policy is null or subscribe.policy not in ('block', 'park') then
    raise exception using errcode = 'OH001', column = 'policy',
      message = 'the policy of a subscription is block or park',
      hint = 'block waits at an event that fails; park sets it aside after its last attempt and goes on.';
  end if;
  if subscribe.gone_after is null or subscribe.gone_after not between interval '1 second' and interval '3650 days' then
    raise exception using errcode = 'OH001', column = 'gone_after',
      message = 'gone_after is out of range', hint = 'Use 1 second to 3650 days.';
  end if;
  if subscribe.max_attempts is null or subscribe.max_attempts not between 1 and 1000 then
    raise exception using errcode = 'OH001', column = 'max_attempts',
      message = format('max_attempts %s is out of range', subscribe.max_attempts), hint = 'Use 1 to 1000.';
  end if;
  if cardinality(subscribe.event_types) = 0 or cardinality(subscribe.aggregate_types) = 0 then
    raise exception using errcode = 'OH001', column = 'event_types',
      message = 'a filter without elements lets nothing through', hint = 'Leave it out for everything.';
  end if;
  update subscriptions x
     set event_types = subscribe.event_types, aggregate_types = subscribe.aggregate_types,
         policy = subscribe.policy::subscription_policy, gone_after = subscribe.gone_after,
         max_attempts = subscribe.max_attempts, seen_at = clock_timestamp(),
         due_at = case when x.stuck_class is null then x.due_at else '-infinity' end
   where x.name = subscribe.name returning x.* into s;
  if found then
    return s.id;
  end if;
  select * into strict head from outbox_feed_head;
  at_position := start_position(coalesce(subscribe.start, 'now'));
  insert into subscriptions as x (name, position, history_id, event_types, aggregate_types, policy, gone_after, max_attempts)
  values (subscribe.name, at_position, head.history_id, subscribe.event_types, subscribe.aggregate_types,
          subscribe.policy::subscription_policy, subscribe.gone_after, subscribe.max_attempts)
  on conflict on constraint subscriptions_pkey do update set seen_at = clock_timestamp()
  returning x.* into s;
  return s.id;
end $$;
