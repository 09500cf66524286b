-- given_back: the event that an operator gave back to a subscription and that is handled first: the one with the lowest position.
-- Parameters: subscription; before, for what a claim at that time has found. A claim and an operator's action lock the
-- subscription's row, so an event that was given back after a claim is not part of it.
-- Returns its position, NULL when there is none. Index: subscription_parked_pkey. Locks: none.
create or replace function given_back(subscription text, before timestamptz default 'infinity') returns bigint
language sql stable
as $$ /* outhaul:given_back */
  select p.position from subscription_parked p
   where p.subscription = given_back.subscription and p.unparked_at < given_back.before
   order by p.position limit 1
$$;
