-- operation_switch: start, stop or resume an operation, as an operator, on the record. It waits for a step that is being made, so
-- after a stop nothing more is done.
-- Parameters: name; action: start, stop or resume; reason.
-- Returns started, stopped or resumed when this changed it, else was_ready, was_running, was_stopped or was_done.
-- Raises OH005 for an unknown name. Index: operations_name_key. Locks: the operation's row, the audit head.
create or replace function operation_switch(name text, action text, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operation_switch */
declare
  o operations;
  n bigint;
begin
  if operation_switch.action is null or operation_switch.action not in ('start', 'stop', 'resume') then
    raise exception using errcode = 'OH001', column = 'action', message = 'the action on an operation is not valid', hint = 'Use start, stop or resume.';
  end if;
  select x.* into o from operations x where x.name = operation_switch.name for update;
  if not found then
    raise exception using errcode = 'OH005', message = format('operation %s does not exist', operation_switch.name),
      hint = 'See the list of operations for their names; one that is over is kept for 30 days.';
  elsif o.state <> (case operation_switch.action when 'start' then 'ready' when 'stop' then 'running' else 'stopped' end) then
    return 'was_' || o.state;
  end if;
  update operations x
     set state = case operation_switch.action when 'stop' then 'stopped' else 'running' end,
         started_at = coalesce(x.started_at, clock_timestamp()),
         stopped_at = case operation_switch.action when 'stop' then clock_timestamp() end,
         due_at = clock_timestamp()
   where x.id = o.id;
  n := audit_append('operations.' || operation_switch.action, o.name, jsonb_build_object('done', o.done, 'skipped', o.skipped, 'total', o.total),
                    operation_switch.reason);
  return case operation_switch.action when 'start' then 'started' when 'stop' then 'stopped' else 'resumed' end;
end $$;
