-- queue_setting_valid: refuse a setting of a queue that is out of range, with the setting named.
-- Parameters: name, value. Returns true. Index, locks: none.
create or replace function queue_setting_valid(name text, value jsonb) returns boolean
language plpgsql immutable
as $$ /* outhaul:queue_setting_valid */
declare
  most constant bigint := case
    when name like 'max_running%' then 10000
    when name like '%_seconds' and name like '%rate_per%' then 86400
    when name = 'objective_seconds' then 31536000
    else 1000000 end;
begin
  if value = 'null' or (name = 'history' and value in ('"none"', '"row"', '"payload"'))
     or (name = 'fair' and jsonb_typeof(value) = 'boolean') then
    return true;
  end if;
  if name not in ('history', 'fair', 'cool_until') and jsonb_typeof(value) = 'number' then
    if (value #>> '{}')::numeric between 1 and most and (value #>> '{}')::numeric % 1 = 0 then
      return true;
    end if;
  end if;
  raise exception using errcode = 'OH001', column = name, message = format('%s is not valid', name),
    hint = case name when 'history' then 'Use none, row or payload.' when 'fair' then 'Use true or false.'
                     when 'cool_until' then 'It can only be taken back, with null.'
                     else format('Use a whole number from 1 to %s, or null for none.', most) end;
end $$;
