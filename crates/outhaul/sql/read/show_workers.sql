-- show_workers: registered worker processes, last heartbeat first. Index: none needed. Locks: none.
create or replace function show_workers() returns table (
  id uuid, host text, pid integer, version text, schema_version integer, queues text, started_at timestamptz,
  heartbeat_at timestamptz, silent_ms bigint, stopping_at timestamptz, listener_pid integer, listener_state text, running integer
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_workers */
  select w.id, w.host, w.pid, w.version, w.schema_version, w.queues::text, w.started_at, w.heartbeat_at,
         (date_part('epoch', statement_timestamp() - w.heartbeat_at) * 1000)::bigint, w.stopping_at,
         w.listener_pid, w.listener_state, w.running
    from workers w order by w.heartbeat_at desc
$$;
