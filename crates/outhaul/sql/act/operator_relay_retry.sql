-- operator_relay_retry: give an event that the relay has parked another round of attempts, as an operator, on the record.
-- Parameters: id of the event; reason. Returns due, or not_found when no event of this id is parked.
-- Index: outbox_events_id. Locks: the event's row, the audit head.
create or replace function operator_relay_retry(id uuid, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:operator_relay_retry */
declare
  n bigint;
  woke boolean;
begin
  update outbox_events e set parked_at = null, available_at = clock_timestamp(), attempts = 0
   where e.id = operator_relay_retry.id and e.parked_at is not null;
  if not found then
    return 'not_found';
  end if;
  n := audit_append('outbox.retry', operator_relay_retry.id::text, '{}', operator_relay_retry.reason);
  woke := wake(clock_timestamp());
  return 'due';
end $$;
