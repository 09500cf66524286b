-- worker_gone: remove the registration of a worker that has stopped cleanly.
-- Parameters: id. Index: workers_pkey. Locks: that row.
create or replace function worker_gone(id uuid) returns void
language sql volatile security definer
set search_path from current
as $$ /* outhaul:worker_gone */
  delete from workers w where w.id = worker_gone.id
$$;
