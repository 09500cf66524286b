-- operator_key_limit: a limit for one limit_key of a queue that differs from the queue's max_running_per_key, on the record.
-- Parameters: queue; limit_key; max_running, 0 to 10000 (0 lets nothing of it run), or NULL to take the exception back; reason.
-- Index: key_limits_pkey, permits_pkey. Locks: the exception's row, the queue's, free units, the audit head.
create or replace function operator_key_limit(queue text, limit_key text, max_running integer, reason text default null) returns void
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_key_limit */
#variable_conflict use_column
declare
  ok constant boolean := valid(operator_key_limit.queue, 'x', 0, null, 0, 1, null, null, null, null, null, operator_key_limit.limit_key);
  n bigint;
begin
  if operator_key_limit.limit_key is null or operator_key_limit.max_running not between 0 and 10000 then
    raise exception using errcode = 'OH001', column = 'max_running',
      message = 'a limit needs a key and a number', hint = 'Use 0 to 10000, or NULL to take the exception back.';
  end if;
  insert into queues (name) values (operator_key_limit.queue) on conflict do nothing;
  if operator_key_limit.max_running is null then
    delete from key_limits k where k.queue = operator_key_limit.queue and k.limit_key = operator_key_limit.limit_key;
  else
    insert into key_limits (queue, limit_key, max_running)
    values (operator_key_limit.queue, operator_key_limit.limit_key, operator_key_limit.max_running)
    on conflict (queue, limit_key) do update set max_running = excluded.max_running;
  end if;
  n := govern(operator_key_limit.queue);
  n := audit_append('queues.key_limit', operator_key_limit.queue,
    jsonb_build_object('limit_key', operator_key_limit.limit_key, 'max_running', operator_key_limit.max_running), operator_key_limit.reason);
end $$;
