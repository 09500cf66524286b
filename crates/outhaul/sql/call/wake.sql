-- wake: tell listeners that work may exist, at most once in about 5 ms for the whole database.
-- A commit with a NOTIFY takes a cluster-wide lock; one in every transaction costs 6 to 11 times the
-- commit rate. The gate is a sequence (not transactional, no row to wait for) that holds the time of
-- the last notification. abs(): a clock that steps back must not mute it. Of two transactions the one
-- that was suppressed may commit first, so listeners look again a few times after each wake.
-- Callers that use PREPARE TRANSACTION, which cannot follow a NOTIFY, pass notify => false or
-- SET LOCAL outhaul.notify = 'off'.
-- Parameters: at, the caller's clock_timestamp(). Index, locks: none.
create or replace function wake(at timestamptz) returns boolean
language plpgsql volatile
as $$ /* outhaul:wake */
declare
  ms bigint := date_part('epoch', at) * 1000;
begin
  if abs(pg_sequence_last_value('wake_gate') - ms) > 5
     and current_setting('outhaul.notify', true) is distinct from 'off' then
    perform setval('wake_gate', ms);
    perform pg_notify(current_schema(), '');
    return true;
  end if;
  return false;
end $$;
