-- operator_subscription_unpark: give a parked or skipped event back to its subscription, as an operator, on the record. It is
-- handled by itself before what is new, so later events of its aggregate may have been handled already. It does not wait behind
-- the failure of another event: the subscription is due at once.
-- Parameters: name; position of the event; reason. Returns unparked or not_found.
-- Index: subscription_parked_pkey. Locks: the parked row, the subscription's row, the audit head.
create or replace function operator_subscription_unpark(name text, "position" bigint, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_unpark */
declare
  s constant subscriptions := known_subscription(operator_subscription_unpark.name);
  n bigint;
  woke boolean;
begin
  update subscription_parked p set unparked_at = clock_timestamp()
   where p.subscription = s.name and p.position = operator_subscription_unpark."position" and p.unparked_at is null;
  if not found then
    return 'not_found';
  end if;
  update subscriptions x set due_at = '-infinity' where x.name = s.name;
  n := audit_append('subs.unpark', s.name, jsonb_build_object('position', operator_subscription_unpark."position"),
                    operator_subscription_unpark.reason);
  woke := wake(clock_timestamp());
  return 'unparked';
end $$;
