-- worker_beat: register a worker process or say that it is alive. For people and for the read-model only:
-- recovery depends on the lease in the job's row and never on this table.
-- Parameters: as the columns of workers. Index: workers_pkey. Locks: that row.
create or replace function worker_beat(
  id uuid, host text, pid integer, version text, schema_version integer, queues jsonb, listener_pid integer,
  listener_state text, running integer, stopping boolean, role text default null
) returns void
language sql volatile security definer
set search_path from current
as $$ /* outhaul:worker_beat */
  insert into workers as w (id, host, pid, version, schema_version, queues, listener_pid, listener_state, running, stopping_at, role)
  values (worker_beat.id, worker_beat.host, worker_beat.pid, worker_beat.version, worker_beat.schema_version,
          worker_beat.queues, worker_beat.listener_pid, worker_beat.listener_state, worker_beat.running,
          case when worker_beat.stopping then clock_timestamp() end, worker_beat.role)
  on conflict (id) do update
     set heartbeat_at = clock_timestamp(), listener_pid = excluded.listener_pid, listener_state = excluded.listener_state,
         running = excluded.running, stopping_at = coalesce(w.stopping_at, excluded.stopping_at)
$$;
