-- take_sweep: whether it is the caller's turn to sweep a queue. No leader: whoever asks first after the
-- interval has passed gets the turn, so that twenty workers sweep once a second and not twenty times.
-- Harmless when two get it: settling an expired lease names its token.
-- Parameters: queue; every, the interval. Index: queue_floors_pkey. Locks: that row, skipped when locked.
create or replace function take_sweep(queue text, every interval) returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:take_sweep */
begin
  update queue_floors f set swept_at = clock_timestamp()
   where f.ctid = (select g.ctid from queue_floors g
                    where g.queue = take_sweep.queue
                      -- A time ahead of the clock means that the clock was set back: sweep at once.
                      and (g.swept_at <= clock_timestamp() - take_sweep.every or g.swept_at > clock_timestamp())
                      for no key update skip locked);
  if found then
    return true;
  end if;
  insert into queue_floors (queue, swept_at) values (take_sweep.queue, clock_timestamp()) on conflict do nothing;
  return found;
end $$;
