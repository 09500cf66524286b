-- expired_events: events whose lease has run out, for the sweep to settle with fail_events(expired_only => true).
-- Parameters: n, the most rows. Index: outbox_leased. Locks: none.
create or replace function expired_events(n integer) returns table (
  seq bigint, at timestamptz, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, event_type text, claimed_by text, overdue_ms bigint
)
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:expired_events */
  select e.seq, e.at, e.lease_token, e.claim_no, e.attempts, coalesce((select r.max_attempts from relay r), 10), e.event_type, e.claimed_by,
         (date_part('epoch', statement_timestamp() - e.lease_until) * 1000)::bigint
    from outbox_events e
   where e.lease_until is not null and e.lease_until < statement_timestamp()
   order by e.lease_until limit expired_events.n
$$;
