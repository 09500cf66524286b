-- publish_many: any number of events, in the caller's transaction, all or none, delivered in the order given.
-- Parameters: parallel arrays of the events' columns, one element each per event; arrays with a default may be
-- left out, and their elements may be NULL.
-- Returns the ids in the order given: where a key was in use, that of the event which has it.
-- Index: outbox_unsequenced_pkey, job_keys_pkey. Locks: key rows in the order of (scope, kind, key), so that two
-- overlapping calls wait for one another instead of deadlocking.
create or replace function publish_many(
  event_types text[], aggregate_types text[], aggregate_ids uuid[], payloads text[], ids uuid[],
  schema_versions integer[] default null, occurred_ats timestamptz[] default null, available_ats timestamptz[] default null,
  partition_keys text[] default null, organization_ids uuid[] default null, traceparents text[] default null,
  idempotency_keys text[] default null, notify boolean default true
) returns uuid[]
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:publish_many */
declare
  n constant integer := cardinality(publish_many.ids);
  t timestamptz := clock_timestamp();
  result uuid[] := publish_many.ids;
  has uuid;
  keyed record;
  woke boolean;
begin
  if n is null or cardinality(publish_many.event_types) is distinct from n
     or cardinality(publish_many.aggregate_types) is distinct from n
     or cardinality(publish_many.aggregate_ids) is distinct from n
     or cardinality(publish_many.payloads) is distinct from n
     or coalesce(cardinality(publish_many.schema_versions), n) <> n
     or coalesce(cardinality(publish_many.occurred_ats), n) <> n
     or coalesce(cardinality(publish_many.available_ats), n) <> n
     or coalesce(cardinality(publish_many.partition_keys), n) <> n
     or coalesce(cardinality(publish_many.organization_ids), n) <> n
     or coalesce(cardinality(publish_many.traceparents), n) <> n
     or coalesce(cardinality(publish_many.idempotency_keys), n) <> n then
    raise exception using errcode = 'OH001', column = 'ids',
      message = 'the arrays of publish_many differ in length', hint = 'Give one element per event in each array.';
  end if;
  if array_position(publish_many.ids, null) is not null then
    raise exception using errcode = 'OH001', column = 'ids',
      message = 'an id of publish_many is missing', hint = 'Make one for each event, with gen_random_uuid() for example.';
  end if;
  if publish_many.idempotency_keys is not null then
    for keyed in
      select u.*
        from (select a.place, a.id, a.event_type, a.aggregate_type, a.aggregate_id, a.body::jsonb::text as body,
                     coalesce(a.schema_version, 1) as schema_version, a.occurred_at, a.available_at, a.partition_key,
                     a.organization_id, a.traceparent, a.key
                from unnest(publish_many.ids, publish_many.event_types, publish_many.aggregate_types,
                            publish_many.aggregate_ids, publish_many.payloads, publish_many.schema_versions,
                            publish_many.occurred_ats, publish_many.available_ats, publish_many.partition_keys,
                            publish_many.organization_ids, publish_many.traceparents, publish_many.idempotency_keys)
                     with ordinality as a(id, event_type, aggregate_type, aggregate_id, body, schema_version, occurred_at,
                                          available_at, partition_key, organization_id, traceparent, key, place)
               where a.key is not null
              offset 0) u
       -- Before its key is taken: what is wrong with an event is told as such, and not by the table of keys.
       where event_valid(u.event_type, u.aggregate_type, u.aggregate_id, octet_length(u.body), u.schema_version,
                         u.occurred_at, u.available_at, u.partition_key, u.key, u.traceparent, u.organization_id)
       order by coalesce(u.organization_id, '00000000-0000-0000-0000-000000000000'), u.event_type, u.key, u.place
    loop
      has := take_event_key(keyed.id, keyed.organization_id, keyed.event_type, keyed.key, keyed.body);
      if has is not null then
        result[keyed.place] := has;
        -- Left out below: the fact is stored already.
        publish_many.ids[keyed.place] := null;
      end if;
    end loop;
    -- Somebody's open transaction may have been waited for.
    t := clock_timestamp();
  end if;
  with e as (
    insert into outbox_events (at, id, organization_id, aggregate_type, aggregate_id, event_type, schema_version, payload,
                               occurred_at, available_at, partition_key, traceparent)
    select t, u.id, u.organization_id, u.aggregate_type, u.aggregate_id, u.event_type, u.schema_version, u.payload,
           coalesce(u.occurred_at, t), coalesce(u.available_at, t), u.partition_key, u.traceparent
      from (select a.place, a.id, a.event_type, a.aggregate_type, a.aggregate_id, a.body::jsonb as payload,
                   coalesce(a.schema_version, 1) as schema_version, a.occurred_at, a.available_at, a.partition_key,
                   a.organization_id, a.traceparent
              from unnest(publish_many.ids, publish_many.event_types, publish_many.aggregate_types,
                          publish_many.aggregate_ids, publish_many.payloads, publish_many.schema_versions,
                          publish_many.occurred_ats, publish_many.available_ats, publish_many.partition_keys,
                          publish_many.organization_ids, publish_many.traceparents)
                   with ordinality as a(id, event_type, aggregate_type, aggregate_id, body, schema_version, occurred_at,
                                        available_at, partition_key, organization_id, traceparent, place)
             where a.id is not null
            -- Without it the planner merges the levels, and parses each payload once for every use.
            offset 0) u
     where event_valid(u.event_type, u.aggregate_type, u.aggregate_id, octet_length(u.payload::text), u.schema_version,
                       u.occurred_at, u.available_at, u.partition_key, null, u.traceparent, u.organization_id)
     order by u.place
    returning seq, at
  )
  insert into outbox_unsequenced (seq, at) select e.seq, e.at from e on conflict do nothing;
  if publish_many.notify and n > 0 then
    woke := wake(t);
  end if;
  return result;
end $$;
