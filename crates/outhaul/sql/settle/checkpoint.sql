-- checkpoint: move the cursors of subscriptions to what was handled, and end their leases.
-- Parameters, parallel and with ids sorted: ids, lease_tokens and claim_nos of the subscriptions; positions, up to which
-- all is handled; unparked, the position of an event that was given back and is handled now, else NULL;
-- committed, the position of the last checkpoint that a handler made in its own transaction, if any: when that did not
-- commit nothing is moved, since its event would be lost.
-- One that was given back leaves what is known of another event that the cursor waits at.
-- A position that the cursor has passed already (a checkpoint in the handler's own transaction) changes nothing.
-- Returns a row only for ids that were not moved by this call: done when this very claim had ended before (an answer
-- was lost), else lost. Lost means that nothing was changed.
-- Fails with 55P03 after 100 ms behind a lock that somebody else holds on one of the rows.
-- Index: subscriptions_id, subscription_parked_pkey. Locks: the subscriptions' rows in the order given.
create or replace function checkpoint(ids uuid[], lease_tokens uuid[], claim_nos integer[], positions bigint[], unparked bigint[], committed bigint[] default null)
returns table (id uuid, state text)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set lock_timeout = '100ms'
as $$ /* outhaul:checkpoint */
#variable_conflict use_column
declare
  nil constant uuid := '00000000-0000-0000-0000-000000000000';
  head constant bigint := (select h.last_position from outbox_feed_head h);
  moved uuid[];
begin
  with l as materialized (
    select s.ctid as ct, s.name, u.p, u.up, coalesce(s.blocked_position <> u.up, false) as elsewhere
      from unnest(checkpoint.ids, checkpoint.lease_tokens, checkpoint.positions, checkpoint.unparked, checkpoint.committed)
           with ordinality u(i, k, p, up, c, o)
     cross join lateral (
        select x.ctid, x.name, x.blocked_position from subscriptions x
         where x.id = u.i and x.lease_token = u.k and x.lease_until > '-infinity' and x.position >= coalesce(u.c, 0)
           for no key update) s
     order by u.o
  ), m as (
    update subscriptions x
       set position = greatest(x.position, l.p), lease_until = '-infinity', lease_token = nil, locked_by = nil,
           attempts = case when l.elsewhere then x.attempts else 0 end,
           blocked_position = case when l.elsewhere then x.blocked_position end, due_at = '-infinity',
           stuck_class = case when l.elsewhere then x.stuck_class end, stuck_code = case when l.elsewhere then x.stuck_code end,
           stuck_summary = case when l.elsewhere then x.stuck_summary end,
           moved_at = case when l.up is null then clock_timestamp() else x.moved_at end,
           caught_up_at = case when greatest(x.position, l.p) >= head then clock_timestamp() else x.caught_up_at end
      from l where x.ctid = l.ct
    returning x.id, x.name, l.up
  ), p as (
    delete from subscription_parked q using m where q.subscription = m.name and q.position = m.up
  )
  select array_agg(m.id) into moved from m;
  if coalesce(cardinality(moved), 0) < cardinality(checkpoint.ids) then
    return query
      select u.i, coalesce((select 'done' from subscriptions x
                             where x.id = u.i and x.claim_no = u.c and x.lease_until = '-infinity' and x.position >= u.p
                               and case when u.up is null then x.attempts = 0
                                        else not exists (select from subscription_parked q
                                                          where q.subscription = x.name and q.position = u.up) end
                             limit 1), 'lost')
        from unnest(checkpoint.ids, checkpoint.claim_nos, checkpoint.positions, checkpoint.unparked) u(i, c, p, up)
       where u.i <> all (coalesce(moved, '{}'));
  end if;
end $$;
