-- publish: one event, in the caller's transaction.
-- Call it after the row of the aggregate is locked by the change itself: events of one aggregate are then
-- delivered in the order of its changes. A guarded UPDATE that changed no row is no fact: publish nothing.
-- Parameters: the event's columns; aggregate_id, a UUID, is the key of the thing's row or a column beside it. partition_key NULL means the aggregate's id; notify => false leaves out the
-- wake-up. With an idempotency key the fact is stored once, within its organization and type.
-- Returns the id of the event: the caller's (or a new one), or, when the key is in use, that of the event which
-- has it. Another payload under the same key raises OH002.
-- Index: outbox_unsequenced_pkey, job_keys_pkey. Locks: the key's row until commit.
create or replace function publish(
  event_type text, aggregate_type text, aggregate_id uuid, payload jsonb default '{}', id uuid default null,
  schema_version integer default 1, occurred_at timestamptz default null, available_at timestamptz default null,
  partition_key text default null, organization_id uuid default null, traceparent text default null,
  idempotency_key text default null, notify boolean default true
) returns uuid
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:publish */
declare
  ok constant boolean := event_valid(publish.event_type, publish.aggregate_type, publish.aggregate_id,
    octet_length(publish.payload::text), publish.schema_version, publish.occurred_at, publish.available_at,
    publish.partition_key, publish.idempotency_key, publish.traceparent, publish.organization_id);
  t timestamptz := clock_timestamp();
  has uuid;
  woke boolean;
begin
  if publish.id is null then
    publish.id := uuid7();
  end if;
  if publish.idempotency_key is not null then
    has := take_event_key(publish.id, publish.organization_id, publish.event_type, publish.idempotency_key, publish.payload::text);
    if has is not null then
      return has;
    end if;
    -- Somebody's open transaction may have been waited for.
    t := clock_timestamp();
  end if;
  with e as (
    insert into outbox_events (at, id, organization_id, aggregate_type, aggregate_id, event_type, schema_version, payload,
                               occurred_at, available_at, partition_key, traceparent)
    values (t, publish.id, publish.organization_id, publish.aggregate_type, publish.aggregate_id, publish.event_type,
            publish.schema_version, publish.payload, coalesce(publish.occurred_at, t), coalesce(publish.available_at, t),
            publish.partition_key, publish.traceparent)
    returning seq, at
  )
  insert into outbox_unsequenced (seq, at) select e.seq, e.at from e on conflict do nothing;
  if publish.notify and abs(pg_sequence_last_value('wake_gate') - date_part('epoch', t) * 1000) > 5 then
    woke := wake(t);
  end if;
  return publish.id;
end $$;
