-- subscription_due: how long until a subscription that waits after a failure may be claimed again, for an idle worker's sleep.
-- Parameters: name. Returns milliseconds from now (0 or more), NULL when it does not wait. Index: subscriptions_pkey. Locks: none.
create or replace function subscription_due(name text) returns bigint
language sql stable security definer
set search_path from current
as $$ /* outhaul:subscription_due */
  select greatest(0, ceil(date_part('epoch', s.due_at - clock_timestamp()) * 1000))::bigint
    from subscriptions s
   where s.name = subscription_due.name and s.due_at > '-infinity' and s.paused_at is null and s.lease_until = '-infinity'
$$;
