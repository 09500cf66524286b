-- enqueue: one job, in the caller's transaction.
-- Parameters: the job's columns. A run_at in the past means now; notify => false leaves out the wake-up.
-- Returns the id of the job: the caller's (or a new one), or, when the idempotency key is in use, that
-- of the job which has it. Another payload under the same key raises OH002.
-- Index: job_keys_pkey. Locks: the key's row, against a concurrent caller with the same key, until commit.
create or replace function enqueue(
  queue text, job_type text, payload jsonb default '{}', id uuid default null, idempotency_key text default null,
  organization_id uuid default null, priority integer default 0, run_at timestamptz default null,
  max_attempts integer default 10, timeout interval default null, traceparent text default null,
  notify boolean default true, ordering_key text default null, limit_key text default null, rate_key text default null
) returns uuid
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:enqueue */
declare
  ok constant boolean := valid(enqueue.queue, enqueue.job_type, octet_length(enqueue.payload::text),
    enqueue.idempotency_key, enqueue.priority, enqueue.max_attempts, enqueue.run_at, enqueue.timeout,
    enqueue.traceparent, enqueue.organization_id, enqueue.ordering_key, enqueue.limit_key, enqueue.rate_key);
  t constant timestamptz := clock_timestamp();
  share integer := 0;
  has uuid;
  woke boolean;
begin
  if enqueue.id is null then
    enqueue.id := uuid7();
  end if;
  if enqueue.idempotency_key is not null then
    has := take_key(enqueue.id, enqueue.organization_id, enqueue.job_type, enqueue.idempotency_key, enqueue.payload::text);
    if has is not null then
      return has;
    end if;
  end if;
  if enqueue.organization_id is not null then
    share := share_of(enqueue.queue, enqueue.organization_id);
  end if;
  insert into jobs (id, queue, job_type, payload, organization_id, idempotency_key, priority, share, run_at, created_at,
                    max_attempts, timeout, traceparent, ordering_key, limit_key, rate_key)
  values (enqueue.id, enqueue.queue, enqueue.job_type, enqueue.payload, enqueue.organization_id, enqueue.idempotency_key,
          enqueue.priority, share, greatest(enqueue.run_at, t), t, enqueue.max_attempts, enqueue.timeout, enqueue.traceparent,
          enqueue.ordering_key, enqueue.limit_key, enqueue.rate_key);
  -- The gate of wake, here already: most calls end at it, and a call costs more than the gate.
  if enqueue.notify and abs(pg_sequence_last_value('wake_gate') - date_part('epoch', t) * 1000) > 5 then
    woke := wake(t);
  end if;
  return enqueue.id;
end $$;
