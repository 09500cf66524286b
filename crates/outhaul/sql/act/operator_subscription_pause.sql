-- operator_subscription_pause: stop or resume a subscription, as an operator, on the record. A batch that is leased goes on.
-- Parameters: name; paused; reason. Returns true when this changed anything. Raises OH005 for an unknown name.
-- Index: subscriptions_pkey. Locks: the subscription's row, the audit head.
create or replace function operator_subscription_pause(name text, paused boolean, reason text default null) returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_subscription_pause */
declare
  s constant subscriptions := known_subscription(operator_subscription_pause.name);
  n bigint;
  woke boolean;
begin
  if (s.paused_at is not null) = operator_subscription_pause.paused then
    return false;
  end if;
  update subscriptions x
     set paused_at = case when operator_subscription_pause.paused then clock_timestamp() end,
         paused_reason = case when operator_subscription_pause.paused then operator_subscription_pause.reason end
   where x.name = s.name;
  n := audit_append(case when operator_subscription_pause.paused then 'subs.pause' else 'subs.resume' end, s.name, '{}',
                    operator_subscription_pause.reason);
  woke := wake(clock_timestamp());
  return true;
end $$;
