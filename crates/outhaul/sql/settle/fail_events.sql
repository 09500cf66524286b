-- fail_events: settle leased events that the relay did not process, each by its own verdict.
-- Parameters, parallel and sorted by seq: seqs, ats, lease_tokens, claim_nos; verdicts: retry, snooze and release keep the
-- event (snooze and release give its attempt back), dead_letter and cancel park it; delays_ms until it is available
-- again; classes, codes and summaries of the failure, of which last_error keeps the words.
-- expired_only => true settles an event only while its lease has run out, for the sweep.
-- Returns a row only for events not settled by this call: locked, done or lost, as fail does.
-- Index: outbox_events_pkey. Locks: the events' rows in the order given, skipping locked ones.
create or replace function fail_events(
  seqs bigint[], ats timestamptz[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[],
  classes text[], codes text[], summaries text[], expired_only boolean default false
) returns table (seq bigint, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:fail_events */
#variable_conflict use_column
declare
  settled bigint[];
begin
  if exists (select from unnest(fail_events.verdicts, fail_events.delays_ms) u(v, d)
              where u.v is null or u.v not in ('retry', 'snooze', 'release', 'dead_letter', 'cancel')
                 or coalesce(u.d, 0) not between 0 and 31536000000) then
    raise exception using errcode = 'OH001', column = 'verdicts',
      message = 'fail_events: a verdict or delay is not valid',
      hint = 'Verdicts are retry, snooze, release, dead_letter, cancel; delays are 0 to 31536000000 ms.';
  end if;
  with l as materialized (
    select u.* from unnest(fail_events.seqs, fail_events.ats, fail_events.lease_tokens, fail_events.verdicts, fail_events.delays_ms,
                           fail_events.classes, fail_events.codes, fail_events.summaries) with ordinality
                    u(s, a, k, v, d, class, code, summary, o)
     cross join lateral (
        select from outbox_events e
         where e.seq = u.s and e.at = u.a and e.lease_token = u.k and e.lease_until is not null
           and (not fail_events.expired_only or e.lease_until < statement_timestamp())
           for no key update skip locked) x
     order by u.o
  ), f as (
    update outbox_events e
       set lease_until = null, lease_token = null, claimed_at = null, claimed_by = null,
           attempts = case when l.v in ('snooze', 'release') then greatest(e.attempts - 1, 0) else e.attempts end,
           available_at = case when l.v in ('dead_letter', 'cancel') then 'infinity'
                               else clock_timestamp() + coalesce(l.d, 0) * interval '1 millisecond' end,
           parked_at = case when l.v in ('dead_letter', 'cancel') then clock_timestamp() end,
           last_error = case when l.v = 'release' then e.last_error
                             else left(concat_ws(': ', l.class, l.code, l.summary), 1000) end
      from l where e.seq = l.s and e.at = l.a
    returning e.seq
  )
  select array_agg(f.seq) into settled from f;
  if coalesce(cardinality(settled), 0) < cardinality(fail_events.seqs) then
    return query
      select u.s, coalesce(
               (select 'locked' from outbox_events e where not fail_events.expired_only and e.seq = u.s and e.at = u.a
                   and e.lease_token = u.k and e.lease_until is not null limit 1),
               (select 'done' from outbox_events e where e.seq = u.s and e.at = u.a and e.claim_no = u.c
                   and e.lease_until is null limit 1), 'lost')
        from unnest(fail_events.seqs, fail_events.ats, fail_events.claim_nos, fail_events.lease_tokens) u(s, a, c, k)
       where u.s <> all (coalesce(settled, '{}'));
  end if;
end $$;
