-- show_set_aside: how many events a subscription has set aside: parked, skipped, and given back, which are counted only there.
-- Parameters: subscription. Returns one row, of zeros for a name that is not known. Index: subscription_parked_pkey. Locks: none.
create or replace function show_set_aside(subscription text) returns table (parked bigint, skipped bigint, given_back bigint)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_set_aside */
  select count(*) filter (where p.how = 'parked' and p.unparked_at is null),
         count(*) filter (where p.how = 'skipped' and p.unparked_at is null),
         count(p.unparked_at)
    from subscription_parked p where p.subscription = show_set_aside.subscription
$$;
