-- valid: refuse a job that breaks a limit, with the field named, before anything is stored.
-- One function for every door: enqueue, enqueue_many and the trigger of plain INSERTs call it.
-- Parameters: the job's columns; bytes is octet_length of the payload's text form.
-- The length is not part of the pattern: a counted repetition makes the match 20 times slower (4 us).
-- Index, locks: none. Returns true, so that a caller evaluates it as an expression and not as a
-- statement. Every expression of a plpgsql function is set up anew in each transaction (about 1.5 us), so
-- what is usual passes one expression; the rest only finds out what to say.
create or replace function valid(
  queue text, job_type text, bytes integer, idempotency_key text, priority integer,
  max_attempts integer, run_at timestamptz, timeout interval, traceparent text, organization_id uuid,
  ordering_key text default null, limit_key text default null, rate_key text default null
) returns boolean
language plpgsql immutable
as $$ /* outhaul:valid */
begin
  if octet_length(queue) <= 63 and queue ~ '^[A-Za-z][A-Za-z0-9_.:-]*$'
     and octet_length(job_type) <= 63 and job_type ~ '^[A-Za-z][A-Za-z0-9_.:-]*$'
     and bytes <= 262144 and coalesce(octet_length(idempotency_key), 1) between 1 and 255
     and priority between -10 and 10 and max_attempts between 1 and 1000
     and run_at is null and timeout is null and traceparent is null
     and organization_id is distinct from '00000000-0000-0000-0000-000000000000'
     and coalesce(ordering_key, limit_key, rate_key) is null then
    return true;
  end if;
  if queue is null or octet_length(queue) > 63 or queue !~ '^[A-Za-z][A-Za-z0-9_.:-]*$' then
    raise exception using errcode = 'OH001', column = 'queue',
      message = 'queue name is not valid',
      hint = 'Use 1 to 63 characters: a letter, then letters, digits, and _ . : -';
  end if;
  if job_type is null or octet_length(job_type) > 63 or job_type !~ '^[A-Za-z][A-Za-z0-9_.:-]*$' then
    raise exception using errcode = 'OH001', column = 'job_type',
      message = 'job type is not valid',
      hint = 'Use 1 to 63 characters: a letter, then letters, digits, and _ . : -';
  end if;
  if bytes is null or bytes > 262144 then
    raise exception using errcode = 'OH001', column = 'payload',
      message = case when bytes is null then 'payload is missing'
                     else format('payload has %s bytes, the limit is 262144', bytes) end,
      hint = 'Store large data elsewhere and pass a reference to it.';
  end if;
  if idempotency_key is not null and octet_length(idempotency_key) not between 1 and 255 then
    raise exception using errcode = 'OH001', column = 'idempotency_key',
      message = format('idempotency key has %s bytes', octet_length(idempotency_key)),
      hint = 'Use 1 to 255 bytes; hash longer keys.';
  end if;
  if priority is null or priority not between -10 and 10 then
    raise exception using errcode = 'OH001', column = 'priority',
      message = format('priority %s is out of range', priority),
      hint = 'Use -10 to 10; larger runs sooner.';
  end if;
  if max_attempts is null or max_attempts not between 1 and 1000 then
    raise exception using errcode = 'OH001', column = 'max_attempts',
      message = format('max_attempts %s is out of range', max_attempts),
      hint = 'Use 1 to 1000.';
  end if;
  -- The claim index is searched from a run_at of -infinity on, which stands for "before every job".
  if not isfinite(run_at) then
    raise exception using errcode = 'OH001', column = 'run_at',
      message = format('run_at is %s, and a job is stored with the point in time at which it is due', run_at),
      hint = 'Leave run_at out for a job that is due now; any time in the past means the same.';
  end if;
  if run_at >= timestamptz '2200-01-01 00:00:00+00' then
    raise exception using errcode = 'OH001', column = 'run_at',
      message = 'run_at is out of range',
      hint = 'Use a time before the year 2200; a time in the past means now.';
  end if;
  if timeout is not null and not (timeout >= interval '1 millisecond' and timeout <= interval '24 hours') then
    raise exception using errcode = 'OH001', column = 'timeout',
      message = 'timeout is out of range',
      hint = 'Use 1 millisecond to 24 hours.';
  end if;
  if traceparent is not null and traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
    raise exception using errcode = 'OH001', column = 'traceparent',
      message = 'traceparent is not valid',
      hint = 'Use the form of W3C Trace Context: version-traceid-parentid-flags in lower-case hexadecimal.';
  end if;
  if organization_id = '00000000-0000-0000-0000-000000000000' then
    raise exception using errcode = 'OH001', column = 'organization_id',
      message = 'the nil UUID is no organization',
      hint = 'Leave the organization out for what belongs to none.';
  end if;
  if octet_length(ordering_key) not between 1 and 255 or octet_length(limit_key) not between 1 and 255
     or octet_length(rate_key) not between 1 and 255 then
    raise exception using errcode = 'OH001',
      column = case when octet_length(ordering_key) not between 1 and 255 then 'ordering_key'
                    when octet_length(limit_key) not between 1 and 255 then 'limit_key' else 'rate_key' end,
      message = 'a key of the job has no byte or more than 255', hint = 'Use 1 to 255 bytes; hash longer keys.';
  end if;
  return true;
end $$;
