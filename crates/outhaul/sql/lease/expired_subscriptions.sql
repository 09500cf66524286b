-- expired_subscriptions: subscriptions whose lease has run out, for the sweep to settle with hold(expired_only => true).
-- Parameters: n, the most rows. Index: none, a subscription is a row; subscription_parked_pkey. Locks: none.
create or replace function expired_subscriptions(n integer) returns table (
  id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, policy text, name text, locked_by uuid, overdue_ms bigint
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:expired_subscriptions */
  -- The attempt that was under way counts, and failures before it when they were those of the event at hand.
  select s.id, s.lease_token, s.claim_no,
         case when coalesce(s.blocked_position = given_back(s.name, s.locked_at), s.blocked_position > s.position) then s.attempts + 1 else 1 end, s.max_attempts, s.policy::text, s.name, s.locked_by,
         (date_part('epoch', statement_timestamp() - s.lease_until) * 1000)::bigint
    from subscriptions s
   where s.lease_until > '-infinity' and s.lease_until < statement_timestamp()
   order by s.name limit expired_subscriptions.n
$$;
