-- register_relay: from now on events wait for the relay: they count as pending and are kept until it has processed them.
-- Parameters: start: beginning (whatever is kept), now, or a time of insertion, as text. A relay that is registered keeps its start.
-- Returns true when this registered it. Index: relay_pkey. Locks: the row.
create or replace function register_relay(start text default 'now') returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:register_relay */
begin
  insert into relay (starts_at)
  values (case coalesce(register_relay.start, 'now') when 'beginning' then '-infinity' when 'now' then clock_timestamp()
          else register_relay.start::timestamptz end)
  on conflict do nothing;
  return found;
exception when invalid_datetime_format or datetime_field_overflow then
  raise exception using errcode = 'OH001', column = 'start',
    message = 'the start of the relay cannot be read', hint = 'Use beginning, now, or a time such as 2030-01-31 12:00:00+00.';
end $$;
