-- operator_subscription_drop: forget a subscription and what it has parked, as an operator, on the record. Events that only
-- it was waiting for may be removed by retention from now on.
-- Parameters: name; reason. Returns how many parked events went with it. Raises OH005 for an unknown name.
-- Index: subscriptions_pkey. Locks: the subscription's row and its parked rows, the audit head.
create or replace function operator_subscription_drop(name text, reason text default null) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_drop */
declare
  s constant subscriptions := known_subscription(operator_subscription_drop.name);
  parked constant bigint := (select count(*) from subscription_parked p where p.subscription = s.name);
  n bigint;
begin
  delete from subscriptions x where x.name = s.name;
  n := audit_append('subs.drop', s.name, jsonb_build_object('position', s.position, 'parked', parked), operator_subscription_drop.reason);
  return parked;
end $$;
