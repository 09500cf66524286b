-- operator_pause: stop or resume the claims of one queue, as an operator, on the record. What is leased goes
-- on; jobs can be enqueued all the time.
-- Parameters: queue; paused; reason. Returns true when this changed anything.
-- Index: queues_pkey. Locks: the queue's row, the audit head.
create or replace function operator_pause(queue text, paused boolean, reason text default null) returns boolean
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_pause */
declare
  ok constant boolean := valid(operator_pause.queue, 'x', 0, null, 0, 1, null, null, null, null);
  n bigint;
  woke boolean;
begin
  insert into queues as q (name, paused_at, paused_reason)
  select operator_pause.queue, case when operator_pause.paused then clock_timestamp() end,
         case when operator_pause.paused then operator_pause.reason end
   -- A queue without a row is not paused.
   where operator_pause.paused or exists (select from queues x where x.name = operator_pause.queue)
  on conflict (name) do update
     set paused_at = excluded.paused_at, paused_reason = excluded.paused_reason, updated_at = clock_timestamp()
   where (q.paused_at is not null) <> operator_pause.paused;
  if not found then
    return false;
  end if;
  n := audit_append(case when operator_pause.paused then 'queues.pause' else 'queues.resume' end,
                    operator_pause.queue, '{}', operator_pause.reason);
  woke := wake(clock_timestamp());
  return true;
end $$;
