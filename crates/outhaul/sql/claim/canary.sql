-- canary: send a notification to one listener through an ordinary connection, to prove that it hears.
-- A demoted server still delivers notifications, so it is asked for: where nothing can be written, listening is of no use.
-- Parameters: channel. Raises 25006 on a server that is read-only. Index, locks: none.
create or replace function canary(channel text) returns void
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:canary */
begin
  if current_setting('transaction_read_only') = 'on' then
    raise exception using errcode = 'read_only_sql_transaction', message = 'the canary needs a server that can be written to';
  end if;
  perform pg_notify(canary.channel, '');
end $$;
