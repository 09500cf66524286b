-- claim_events: lease up to n events for the relay, oldest first, without order between competing relays.
-- What the plain statement of a relay in SQL took counts as taken for a minute; what this took is shown to it by
-- claimed_at, which every renewal moves.
-- Parameters: n; worker, the caller's id; lease, its length.
-- Returns nothing while no relay is registered. Events inserted before its start are none of its business.
-- Index: outbox_pending_idx. Locks: NO KEY UPDATE on the claimed rows, skipping those locked by others.
create or replace function claim_events(n integer, worker uuid, lease interval)
returns table (
  seq bigint, at timestamptz, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, id uuid, organization_id uuid,
  aggregate_type text, aggregate_id uuid, event_type text, schema_version integer, payload text, occurred_at timestamptz,
  available_at timestamptz, partition_key text, traceparent text
)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:claim_events */
#variable_conflict use_column
declare
  token constant uuid := gen_random_uuid();
  starts timestamptz;
  most integer;
begin
  if claim_events.n is null or claim_events.n not between 1 and 10000 or claim_events.lease is null
     or claim_events.lease not between interval '1 second' and interval '24 hours' or claim_events.worker is null then
    raise exception using errcode = 'OH001', column = 'n',
      message = 'claim_events needs a worker, n of 1 to 10000 and a lease of 1 second to 24 hours';
  end if;
  select r.starts_at, r.max_attempts into starts, most from relay r;
  if not found then
    return;
  end if;
  return query
    with c as materialized (
      select o.seq, o.at from outbox_events o
       where o.processed_at is null and o.available_at <= statement_timestamp() and o.at >= starts
         and o.lease_until is null
         and (o.claimed_at is null or o.claimed_at < statement_timestamp() - interval '1 minute')
       order by o.available_at, o.occurred_at
       limit claim_events.n
         for no key update skip locked
    )
    update outbox_events o
       set claimed_at = clock_timestamp(), claimed_by = claim_events.worker::text, lease_token = token,
           lease_until = clock_timestamp() + claim_events.lease, attempts = o.attempts + 1, claim_no = o.claim_no + 1
      from c where o.seq = c.seq and o.at = c.at
    returning o.seq, o.at, token, o.claim_no, o.attempts, most, o.id, o.organization_id, o.aggregate_type, o.aggregate_id, o.event_type,
              o.schema_version, o.payload::text, o.occurred_at, o.available_at, o.partition_key, o.traceparent;
end $$;
