-- show_event_payload: the payload of one event, for operators. Parameters: id. Index: outbox_events_id. Locks: none.
create or replace function show_event_payload(id uuid) returns text
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:show_event_payload */
  select e.payload::text from outbox_events e where e.id = show_event_payload.id order by e.seq limit 1
$$;
