-- register_relay: from now on events wait for the relay: they count as pending and are kept until it has processed them.
-- Parameters: start: beginning (whatever is kept), now, or a time of insertion, as text. A relay that is registered keeps its start;
-- max_attempts, after how many it parks an event.
-- Returns true when this registered it. Index: relay_pkey. Locks: the row.
create or replace function register_relay(start text default 'now', max_attempts integer default 10) returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:register_relay */
declare
  made timestamptz;
begin
  if register_relay.max_attempts is null or register_relay.max_attempts not between 1 and 1000 then
    raise exception using errcode = 'OH001', column = 'max_attempts',
      message = format('max_attempts %s is out of range', register_relay.max_attempts), hint = 'Use 1 to 1000.';
  end if;
  insert into relay as r (starts_at, max_attempts)
  values (case coalesce(register_relay.start, 'now') when 'beginning' then '-infinity' when 'now' then clock_timestamp()
          else register_relay.start::timestamptz end,
          register_relay.max_attempts)
  on conflict (one) do update set max_attempts = excluded.max_attempts
  returning r.created_at into made;
  return made >= statement_timestamp();
exception when invalid_datetime_format or datetime_field_overflow then
  raise exception using errcode = 'OH001', column = 'start',
    message = 'the start of the relay cannot be read', hint = 'Use beginning, now, or a time such as 2030-01-31 12:00:00+00.';
end $$;
