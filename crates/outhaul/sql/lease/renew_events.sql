-- renew_events: prolong the leases of the relay, with the rules of renew.
-- Parameters: seqs, ats and lease_tokens, parallel; lease, counted from now.
-- Returns only events that were not renewed: lost, or locked when the row was skipped and the lease still stands.
-- Index: outbox_events_pkey. Locks: NO KEY UPDATE in the order given, skipping locked rows.
create or replace function renew_events(seqs bigint[], ats timestamptz[], lease_tokens uuid[], lease interval)
returns table (seq bigint, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:renew_events */
#variable_conflict use_column
declare
  renewed bigint[];
begin
  if renew_events.lease is null or renew_events.lease not between interval '1 second' and interval '24 hours' then
    raise exception using errcode = 'OH001', column = 'lease', message = 'a lease lasts 1 second to 24 hours';
  end if;
  with l as materialized (
    select u.s, u.a from unnest(renew_events.seqs, renew_events.ats, renew_events.lease_tokens) u(s, a, k)
     cross join lateral (
        select from outbox_events e
         where e.seq = u.s and e.at = u.a and e.lease_token = u.k and e.lease_until is not null
           for no key update skip locked) x
  ), r as (
    update outbox_events e set lease_until = clock_timestamp() + renew_events.lease, claimed_at = clock_timestamp()
      from l where e.seq = l.s and e.at = l.a returning e.seq
  )
  select array_agg(r.seq) into renewed from r;
  if coalesce(cardinality(renewed), 0) < cardinality(renew_events.seqs) then
    return query
      select u.s, coalesce((select 'locked' from outbox_events e
                             where e.seq = u.s and e.at = u.a and e.lease_token = u.k and e.lease_until is not null limit 1), 'lost')
        from unnest(renew_events.seqs, renew_events.ats, renew_events.lease_tokens) u(s, a, k)
       where u.s <> all (coalesce(renewed, '{}'));
  end if;
end $$;
