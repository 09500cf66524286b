-- complete_events: mark leased events as processed by the relay.
-- Parameters: seqs, ats, lease_tokens and claim_nos, parallel and sorted by seq.
-- Returns a row only for events that were not completed by this call: done when this very claim had completed it before,
-- else lost. Lost means that nothing was changed.
-- Fails with 55P03 after 100 ms behind a lock that somebody else holds on one of the rows.
-- Index: outbox_events_pkey. Locks: the events' rows in the order given.
create or replace function complete_events(seqs bigint[], ats timestamptz[], lease_tokens uuid[], claim_nos integer[])
returns table (seq bigint, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set lock_timeout = '100ms'
as $$ /* outhaul:complete_events */
#variable_conflict use_column
declare
  ended bigint[];
begin
  with l as materialized (
    select u.s, u.a from unnest(complete_events.seqs, complete_events.ats, complete_events.lease_tokens) with ordinality u(s, a, k, o)
     cross join lateral (
        select from outbox_events e
         where e.seq = u.s and e.at = u.a and e.lease_token = u.k and e.lease_until is not null for no key update) x
     order by u.o
  ), d as (
    update outbox_events e
       set processed_at = clock_timestamp(), lease_until = null, lease_token = null, last_error = null
      from l where e.seq = l.s and e.at = l.a
    returning e.seq
  )
  select array_agg(d.seq) into ended from d;
  if coalesce(cardinality(ended), 0) < cardinality(complete_events.seqs) then
    return query
      select u.s, coalesce((select 'done' from outbox_events e
                             where e.seq = u.s and e.at = u.a and e.claim_no = u.c and e.processed_at is not null limit 1), 'lost')
        from unnest(complete_events.seqs, complete_events.ats, complete_events.claim_nos) u(s, a, c)
       where u.s <> all (coalesce(ended, '{}'));
  end if;
end $$;
