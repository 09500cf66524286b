-- start_position: the position after which reading starts, from the words that people use.
-- Parameters: start: beginning, now, a position, or a time. Returns a position from 0 to the head's.
-- The beginning lies behind the last position whose event retention has removed: an event that was committed late is
-- removed by the age of its insertion, and may leave a hole among younger ones, which no reader can pass.
-- A time means the time of insertion by the database's clock, and the feed is read until it comes; one before the
-- beginning means the beginning.
-- Index: outbox_feed_pkey; outbox_feed_at for what has been removed. Locks: none.
create or replace function start_position(start text) returns bigint
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_custom_plan set jit = off
as $$ /* outhaul:start_position */
declare
  kept constant timestamptz := outbox_kept_from();
  retired constant regclass[] := array(select format('%I.%I', current_schema(), p.name)::regclass from parts('outbox_events') p where p.retired);
  head bigint;
  found_at bigint;
  oldest bigint;
begin
  select h.last_position into strict head from outbox_feed_head h;
  if start_position.start = 'now' then
    return head;
  end if;
  if start_position.start ~ '^[0-9]{1,18}$' then
    found_at := start_position.start::bigint;
    if found_at > head then
      raise exception using errcode = 'OH001', column = 'start',
        message = format('position %s lies beyond the head, which is at %s', found_at, head),
        hint = 'Use a position up to the head.';
    end if;
    return found_at;
  end if;
  oldest := coalesce(
    (select max(f.position) from outbox_feed f
      where f.at < kept
        and not exists (select from outbox_events e
                         where e.seq = f.seq and e.at = f.at and e.at < kept and e.tableoid <> all (retired))),
    (select min(f.position) - 1 from outbox_feed f), head);
  if start_position.start = 'beginning' then
    return oldest;
  end if;
  begin
    select f.position - 1 into found_at from outbox_feed f
     where f.at >= start_position.start::timestamptz order by f.position limit 1;
  exception when invalid_datetime_format or datetime_field_overflow then
    raise exception using errcode = 'OH001', column = 'start',
      message = 'the start of a subscription cannot be read',
      hint = 'Use beginning, a position such as 4711, or a time such as 2030-01-31 12:00:00+00; what is new may start with now, too.';
  end;
  return greatest(coalesce(found_at, head), oldest);
end $$;
