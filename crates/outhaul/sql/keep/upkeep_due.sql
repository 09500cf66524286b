-- upkeep_due: whether a background task has not been run for an interval, and if so take the turn.
-- A time ahead of the clock means that the clock was set back: it is due at once. Turns are taken as in
-- take_sweep, over another table; one function for both would have to plan its statements anew at each turn.
-- Parameters: task; every. Index: upkeep_pkey. Locks: that row, skipped when locked.
create or replace function upkeep_due(task text, every interval) returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:upkeep_due */
begin
  update upkeep u set last_run_at = clock_timestamp()
   where u.ctid = (select v.ctid from upkeep v
                    where v.task = upkeep_due.task
                      and (v.last_run_at is null or v.last_run_at <= clock_timestamp() - upkeep_due.every
                           or v.last_run_at > clock_timestamp())
                      for no key update skip locked);
  if found then
    return true;
  end if;
  insert into upkeep (task, last_run_at) values (upkeep_due.task, clock_timestamp()) on conflict do nothing;
  return found;
end $$;
