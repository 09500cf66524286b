-- expired_subscriptions: subscriptions whose lease has run out, for the sweep to settle with hold(expired_only => true).
-- Parameters: n, the most rows. Index: none; a subscription is a row. Locks: none.
create or replace function expired_subscriptions(n integer) returns table (
  id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, policy text, name text, locked_by uuid, overdue_ms bigint
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:expired_subscriptions */
  -- The attempt that was under way counts.
  select s.id, s.lease_token, s.claim_no, s.attempts + 1, s.max_attempts, s.policy::text, s.name, s.locked_by,
         (date_part('epoch', statement_timestamp() - s.lease_until) * 1000)::bigint
    from subscriptions s
   where s.lease_until > '-infinity' and s.lease_until < statement_timestamp()
   order by s.name limit expired_subscriptions.n
$$;
