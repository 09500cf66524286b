-- renew_subscriptions: prolong the leases on cursors, with the rules of renew.
-- Parameters: ids and lease_tokens, parallel; lease, counted from now.
-- Returns only ids that were not renewed: lost, or locked when the row was skipped and the lease still stands.
-- Index: subscriptions_id. Locks: NO KEY UPDATE in the order given, skipping locked rows.
create or replace function renew_subscriptions(ids uuid[], lease_tokens uuid[], lease interval)
returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:renew_subscriptions */
#variable_conflict use_column
declare
  renewed uuid[];
begin
  if renew_subscriptions.lease is null or renew_subscriptions.lease not between interval '1 second' and interval '24 hours' then
    raise exception using errcode = 'OH001', column = 'lease', message = 'a lease lasts 1 second to 24 hours';
  end if;
  with l as materialized (
    select x.ct from unnest(renew_subscriptions.ids, renew_subscriptions.lease_tokens) u(i, k)
     cross join lateral (
        select s.ctid as ct from subscriptions s
         where s.id = u.i and s.lease_token = u.k and s.lease_until > '-infinity'
           for no key update skip locked) x
  ), r as (
    update subscriptions s set lease_until = clock_timestamp() + renew_subscriptions.lease from l where s.ctid = l.ct returning s.id
  )
  select array_agg(r.id) into renewed from r;
  if coalesce(cardinality(renewed), 0) < cardinality(renew_subscriptions.ids) then
    return query
      select u.i, coalesce((select 'locked' from subscriptions s
                             where s.id = u.i and s.lease_token = u.k and s.lease_until > '-infinity' limit 1), 'lost')
        from unnest(renew_subscriptions.ids, renew_subscriptions.lease_tokens) u(i, k)
       where u.i <> all (coalesce(renewed, '{}'));
  end if;
end $$;
