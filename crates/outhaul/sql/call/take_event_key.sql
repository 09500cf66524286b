-- take_event_key: register the idempotency key of an event, or find the event that has it.
-- An event is a fact and never ends, so its key runs out by itself, from now on.
-- Parameters: new_id, the event that wants the key; its organization, type and key; body, its payload's text.
-- Returns NULL when the key is new_id's from now on, else the id of the event that has it.
-- Index: job_keys_pkey. Locks: the key's row until commit, against callers with the same key.
create or replace function take_event_key(new_id uuid, organization_id uuid, event_type text, idempotency_key text, body text)
returns uuid
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:take_event_key */
declare
  -- No job type begins so, which keeps the keys of events and jobs apart.
  in_kind constant text := '@' || take_event_key.event_type;
  has uuid := take_key(take_event_key.new_id, take_event_key.organization_id, in_kind, take_event_key.idempotency_key, take_event_key.body);
begin
  if has is not null then
    return has;
  end if;
  update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
   where k.scope = coalesce(take_event_key.organization_id, '00000000-0000-0000-0000-000000000000')
     and k.kind = in_kind and k.key = take_event_key.idempotency_key;
  return null;
end $$;
