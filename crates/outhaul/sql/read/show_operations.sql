-- show_operations: operations, the last one made first.
-- Parameters: operation, its name, NULL for all; n, the most. Index: operations_name_key. Locks: none.
create or replace function show_operations(operation text default null, n integer default 100) returns table (
  id uuid, name text, kind text, filter text, state text, per_second integer, total bigint, done bigint, skipped bigint,
  outcomes text, preview text, created_at timestamptz, started_at timestamptz, stopped_at timestamptz, finished_at timestamptz,
  actor text, reason text, error text
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_operations */
  select o.id, o.name, o.kind, o.filter::text, o.state, o.per_second, o.total, o.done, o.skipped, o.outcomes::text, o.preview::text,
         o.created_at, o.started_at, o.stopped_at, o.finished_at, o.actor, o.reason, o.error
    from operations o
   where show_operations.operation is null or o.name = show_operations.operation
   order by o.created_at desc, o.id desc limit least(greatest(show_operations.n, 1), 1000)
$$;
