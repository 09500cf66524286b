-- events_due: how long until the next event is available to the relay, for an idle worker's sleep.
-- Returns milliseconds from now (0 or more), NULL when nothing waits. Index: outbox_pending_idx. Locks: none.
create or replace function events_due() returns bigint
language sql stable security definer
set search_path from current set enable_seqscan = off set jit = off
as $$ /* outhaul:events_due */
  select case when min(x.available_at) < 'infinity'
              then greatest(0, ceil(date_part('epoch', min(x.available_at) - clock_timestamp()) * 1000))::bigint end
    from (select e.available_at from outbox_events e
           where e.processed_at is null and e.available_at > statement_timestamp() and e.lease_until is null
             and e.at >= (select r.starts_at from relay r)
           order by e.available_at limit 1) x
$$;
