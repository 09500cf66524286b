-- hold: end leases of subscriptions whose batch was not handled to its end, each by its own verdict.
-- Parameters, parallel and with ids sorted: ids, lease_tokens, claim_nos of the subscriptions; verdicts: retry (the
-- cursor waits at the event), snooze and release (the same, at no cost), dead_letter (the event is parked, and the
-- cursor goes on behind it) and cancel (likewise, recorded as skipped); delays_ms until it is due again; classes, codes and
-- summaries of the failure; handled, the position up to which all was handled; failed, the position of the event that
-- failed, or NULL for the one after handled; unparked, true for an event that had been given back.
-- expired_only => true settles a lease only when it has run out, for the sweep, which does not know what was at hand: the event that
-- had been given back before the claim, if there is one.
-- Returns a row only for ids not settled by this call: locked when somebody else holds the row's lock just now, done when
-- this very claim was settled before, else lost. Lost means that nothing was changed and that nothing will be.
-- Index: subscriptions_id, subscription_parked_pkey, outbox_feed_pkey. Locks: the subscriptions' rows in the order given, skipping locked ones.
create or replace function hold(
  ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[],
  summaries text[], handled bigint[], failed bigint[], unparked boolean[], expired_only boolean default false
) returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:hold */
#variable_conflict use_column
declare
  nil constant uuid := '00000000-0000-0000-0000-000000000000';
  settled uuid[] := '{}';
  u record;
  s subscriptions;
  stands bigint;
  failing bigint;
  following bigint;
  elsewhere boolean;
begin
  if exists (select from unnest(hold.verdicts, hold.delays_ms) x(v, d)
              where x.v is null or x.v not in ('retry', 'snooze', 'release', 'dead_letter', 'cancel')
                 or coalesce(x.d, 0) not between 0 and 31536000000) then
    raise exception using errcode = 'OH001', column = 'verdicts',
      message = 'hold: a verdict or delay is not valid',
      hint = 'Verdicts are retry, snooze, release, dead_letter, cancel; delays are 0 to 31536000000 ms.';
  end if;
  for u in
    select * from unnest(hold.ids, hold.lease_tokens, hold.verdicts, hold.delays_ms, hold.classes, hold.codes, hold.summaries,
                         hold.handled, hold.failed, hold.unparked) x(i, k, v, d, class, code, summary, h, f, up)
  loop
    select x.* into s from subscriptions x
     where x.id = u.i and x.lease_token = u.k and x.lease_until > '-infinity'
       and (not hold.expired_only or x.lease_until < statement_timestamp())
       for no key update skip locked;
    continue when not found;
    settled := settled || u.i;
    failing := u.f;
    if hold.expired_only and failing is null then
      failing := given_back(s.name, s.locked_at);
      u.up := failing is not null;
    end if;
    -- What was given back does not move the cursor.
    stands := case when coalesce(u.up, false) then s.position else greatest(s.position, coalesce(u.h, s.position)) end;
    if u.v in ('retry', 'dead_letter', 'cancel') and (case when coalesce(u.up, false)
         then not exists (select from subscription_parked p where p.subscription = s.name and p.position = failing)
         else failing <= s.position end) then
      -- The handler's own transaction had checkpointed the event that was thought to have failed.
      u.v := 'release';
    end if;
    if u.v in ('retry', 'dead_letter', 'cancel') and not coalesce(u.up, false) then
      select r.position into following from next_event(stands, s.event_types, s.aggregate_types) r;
      if failing > following then
        -- An event before it was said to be done, and its checkpoint never committed: going past it would lose that one.
        u.v := 'retry';
        failing := following;
      end if;
      failing := coalesce(failing, following);
      if failing is null then
        -- The last event had been checkpointed, and only the report of it is missing.
        u.v := 'release';
      end if;
    end if;
    if u.v in ('dead_letter', 'cancel') and coalesce(u.up, false) then
      update subscription_parked p
         set unparked_at = null, parked_at = clock_timestamp(),
             attempts = p.attempts + case when s.blocked_position = failing then s.attempts + 1 else 1 end, error_class = u.class,
             error_code = left(u.code, 64), error_summary = left(u.summary, 1000),
             how = case u.v when 'cancel' then 'skipped' else 'parked' end
       where p.subscription = s.name and p.position = failing;
    elsif u.v in ('dead_letter', 'cancel') then
      -- Durably beside it first; the cursor moves in the same transaction.
      perform park(s.name, failing, case when s.blocked_position = failing then s.attempts + 1 else 1 end,
                   case u.v when 'cancel' then 'skipped' else 'parked' end, u.class, u.code, u.summary);
      stands := failing;
    end if;
    -- Nothing is said about what the cursor waits at.
    elsewhere := u.v in ('snooze', 'release')
      or u.v in ('dead_letter', 'cancel') and coalesce(u.up, false) and s.blocked_position is distinct from failing;
    update subscriptions x
       set position = stands, lease_until = '-infinity', lease_token = nil, locked_by = nil,
           moved_at = case when stands > x.position then clock_timestamp() else x.moved_at end,
           due_at = case when u.v in ('retry', 'snooze') then clock_timestamp() + coalesce(u.d, 0) * interval '1 millisecond'
                         else '-infinity' end,
           attempts = case when elsewhere then case when stands > x.position then 0 else x.attempts end
                           when u.v <> 'retry' then 0
                           when x.blocked_position = failing then x.attempts + 1 else 1 end,
           blocked_position = case when elsewhere then case when stands > x.position then null else x.blocked_position end
                                   when u.v = 'retry' then failing end,
           stuck_class = case when u.v = 'retry' then u.class when elsewhere and stands = x.position then x.stuck_class end,
           stuck_code = case when u.v = 'retry' then left(u.code, 64) when elsewhere and stands = x.position then x.stuck_code end,
           stuck_summary = case when u.v = 'retry' then left(u.summary, 1000) when elsewhere and stands = x.position then x.stuck_summary end
     where x.name = s.name;
  end loop;
  if cardinality(settled) < cardinality(hold.ids) then
    return query
      select x.i, coalesce(
               (select 'locked' from subscriptions y where not hold.expired_only and y.id = x.i and y.lease_token = x.k
                   and y.lease_until > '-infinity' limit 1),
               (select 'done' from subscriptions y where y.id = x.i and y.claim_no = x.c and y.lease_until = '-infinity' limit 1),
               'lost')
        from unnest(hold.ids, hold.claim_nos, hold.lease_tokens) x(i, c, k)
       where x.i <> all (settled);
  end if;
end $$;
