-- sequence: give positions to committed events. Any reader may take the turn; there is no leader.
-- Call it as one autocommit statement: the turn is held until the caller's transaction ends.
-- Two statements, each with a snapshot of its own: first the turn, then the events. The head's lock is let go after
-- the turn's commit is visible, so whoever sees a position sees all before it. In one statement the snapshot would
-- be older than the wait for the lock, and positions would be given twice.
-- An event that was written before another's transaction began (the aggregate's row was locked) is visible wherever
-- the other is, and has the smaller seq: it gets the smaller position, in this turn or in an earlier one.
-- The floor: events below it had a second to commit when it was set. Later ones, and dead rows, are looked for from
-- the beginning at every turn while that is cheap, and else after 20 times its cost. Locks of others are never waited
-- for, so a transaction that stays open or prepared delays nobody; its events get their positions when they commit.
-- Parameters: n, the most events of this turn, 1 to 10000.
-- Returns how many got a position, or -1 when somebody else has the turn.
-- Index: outbox_unsequenced_pkey. Locks: the head's row until the caller's transaction ends, skipped when locked.
create or replace function sequence(n integer) returns integer
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off
as $$ /* outhaul:sequence */
declare
  head outbox_feed_head;
  began constant timestamptz := clock_timestamp();
  whole boolean;
  settled boolean;
  low bigint;
  given integer;
  greatest_seq bigint;
  cost interval;
begin
  if sequence.n is null or sequence.n not between 1 and 10000 then
    raise exception using errcode = 'OH001', column = 'n', message = 'sequence takes 1 to 10000 events a turn';
  end if;
  select * into head from outbox_feed_head for no key update skip locked;
  if not found then
    return -1;
  end if;
  whole := head.look_cost < interval '2 milliseconds' or head.looked_at > began
           or head.looked_at < began - greatest(interval '500 milliseconds', head.look_cost * 20);
  settled := head.next_floor_at > began or head.next_floor_at < began - interval '1 second';
  low := case when whole then 0 else head.floor end;
  with d as (
    delete from outbox_unsequenced u
     where u.seq = any (array(select x.seq from outbox_unsequenced x where x.seq > low order by x.seq limit sequence.n))
    returning u.seq, u.at
  ), i as (
    insert into outbox_feed (position, seq, at)
    select head.last_position + row_number() over (order by d.seq), d.seq, d.at from d
    returning seq
  )
  select count(*), max(i.seq) into given, greatest_seq from i;
  cost := clock_timestamp() - began;
  if given = 0 and not (whole and (cost >= interval '2 milliseconds' or head.look_cost >= interval '2 milliseconds')) then
    return 0;
  end if;
  update outbox_feed_head h
     set last_position = head.last_position + given,
         floor = case when settled then greatest(head.floor, head.next_floor) else head.floor end,
         next_floor = case when settled then coalesce(greatest_seq, head.next_floor) else head.next_floor end,
         next_floor_at = case when settled then began else head.next_floor_at end,
         looked_at = case when whole then began else head.looked_at end,
         -- What many events cost says nothing about dead rows.
         look_cost = case when whole then case when given > 100 then least(head.look_cost, cost) else cost end else head.look_cost end;
  return given;
end $$;
