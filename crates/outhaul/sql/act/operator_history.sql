-- operator_history: choose what stays of completed jobs of a queue, as an operator, on the record.
-- Parameters: queue; history: none, row or payload. Index: queues_pkey. Locks: the queue's row, the audit head.
create or replace function operator_history(queue text, history text) returns void
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_history */
declare
  ok constant boolean := valid(operator_history.queue, 'x', 0, null, 0, 1, null, null, null, null);
  n bigint;
begin
  if operator_history.history is null or operator_history.history not in ('none', 'row', 'payload') then
    raise exception using errcode = 'OH001', column = 'history',
      message = 'history is not valid', hint = 'Use none, row or payload.';
  end if;
  insert into queues as q (name, history) values (operator_history.queue, operator_history.history)
  on conflict (name) do update set history = excluded.history, updated_at = clock_timestamp();
  n := audit_append('queues.history', operator_history.queue, jsonb_build_object('history', operator_history.history), null);
end $$;
