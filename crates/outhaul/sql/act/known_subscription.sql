-- known_subscription: the row of a subscription, locked for an operator's action.
-- Parameters: name. Raises OH005 when there is none. Index: subscriptions_pkey. Locks: the row until commit.
create or replace function known_subscription(name text) returns subscriptions
language plpgsql volatile
as $$ /* outhaul:known_subscription */
declare
  s subscriptions;
begin
  select x.* into s from subscriptions x where x.name = known_subscription.name for update;
  if not found then
    raise exception using errcode = 'OH005',
      message = format('subscription %s does not exist', known_subscription.name),
      hint = 'See the list of subscriptions for their names.';
  end if;
  return s;
end $$;
