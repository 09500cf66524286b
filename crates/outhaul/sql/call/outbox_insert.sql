-- outbox_insert: what publish does, for a plain INSERT INTO outbox_events: check, queue for a position, wake.
-- The functions of this schema run as its owner and have done all this already, so the trigger is created with
-- WHEN (current_user <> owner); without roles (migrate --no-roles) it runs for all, and repeats nothing.
-- Index: outbox_unsequenced_pkey. Locks: none.
create or replace function outbox_insert() returns trigger
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:outbox_insert */
declare
  ok constant boolean := event_valid(new.event_type, new.aggregate_type, new.aggregate_id, octet_length(new.payload::text),
    new.schema_version, new.occurred_at, new.available_at, new.partition_key, null, new.traceparent, new.organization_id);
  woke boolean;
begin
  insert into outbox_unsequenced (seq, at) values (new.seq, new.at) on conflict do nothing;
  woke := wake(clock_timestamp());
  return null;
end $$;
