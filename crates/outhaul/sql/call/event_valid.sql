-- event_valid: refuse an event that breaks a limit, with the field named, before anything is stored.
-- One function for every door: publish, publish_many and the trigger of plain INSERTs call it. What events
-- share with jobs is asked of valid.
-- Parameters: the event's columns; bytes is octet_length of the payload's text form.
-- Index, locks: none. Returns true, so that a caller evaluates it as an expression and not as a statement.
create or replace function event_valid(
  event_type text, aggregate_type text, aggregate_id uuid, bytes integer, schema_version integer,
  occurred_at timestamptz, available_at timestamptz, partition_key text, idempotency_key text, traceparent text,
  organization_id uuid
) returns boolean
language plpgsql immutable
as $$ /* outhaul:event_valid */
begin
  if octet_length(event_type) <= 63 and event_type ~ '^[A-Za-z][A-Za-z0-9_.:-]*$'
     and octet_length(aggregate_type) <= 63 and aggregate_type ~ '^[A-Za-z][A-Za-z0-9_.:-]*$'
     and aggregate_id is not null and bytes <= 262144 and schema_version > 0
     and coalesce(octet_length(idempotency_key), 1) between 1 and 255
     and coalesce(octet_length(partition_key), 1) between 1 and 255
     and (occurred_at is null or (occurred_at > '1900-01-01 00:00:00+00' and occurred_at < '2200-01-01 00:00:00+00'))
     and (available_at is null or (available_at > '1900-01-01 00:00:00+00' and available_at < '2200-01-01 00:00:00+00'))
     and traceparent is null and organization_id is distinct from '00000000-0000-0000-0000-000000000000' then
    return true;
  end if;
  if event_type is null or octet_length(event_type) > 63 or event_type !~ '^[A-Za-z][A-Za-z0-9_.:-]*$' then
    raise exception using errcode = 'OH001', column = 'event_type',
      message = 'event type is not valid',
      hint = 'Use 1 to 63 characters: a letter, then letters, digits, and _ . : -; name the fact in the past tense.';
  end if;
  if aggregate_type is null or octet_length(aggregate_type) > 63 or aggregate_type !~ '^[A-Za-z][A-Za-z0-9_.:-]*$' then
    raise exception using errcode = 'OH001', column = 'aggregate_type',
      message = 'aggregate type is not valid',
      hint = 'Use 1 to 63 characters: a letter, then letters, digits, and _ . : -';
  end if;
  if aggregate_id is null then
    raise exception using errcode = 'OH001', column = 'aggregate_id',
      message = 'aggregate id is missing', hint = 'Give the id of the thing that the fact is about.';
  end if;
  if schema_version is null or schema_version < 1 then
    raise exception using errcode = 'OH001', column = 'schema_version',
      message = 'schema version is out of range', hint = 'Use 1 to 2147483647.';
  end if;
  if not coalesce(occurred_at > '1900-01-01 00:00:00+00' and occurred_at < '2200-01-01 00:00:00+00', true) then
    raise exception using errcode = 'OH001', column = 'occurred_at',
      message = 'occurred_at is out of range', hint = 'Use a time between the years 1900 and 2200.';
  end if;
  if not coalesce(available_at > '1900-01-01 00:00:00+00' and available_at < '2200-01-01 00:00:00+00', true) then
    raise exception using errcode = 'OH001', column = 'available_at',
      message = 'available_at is out of range', hint = 'Use a time between the years 1900 and 2200.';
  end if;
  if partition_key is not null and octet_length(partition_key) not between 1 and 255 then
    raise exception using errcode = 'OH001', column = 'partition_key',
      message = format('partition key has %s bytes', octet_length(partition_key)),
      hint = 'Use 1 to 255 bytes, or leave it out: the aggregate''s id stands for it then.';
  end if;
  return valid('x', 'x', bytes, idempotency_key, 0, 1, null, null, traceparent, organization_id);
end $$;
