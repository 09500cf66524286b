-- show_payload: the payload of one job, for those who may see it. NULL when the job or its payload is gone.
-- Parameters: id. Index: the primary keys and jobs_finished_id. Locks: none.
create or replace function show_payload(id uuid) returns text
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:show_payload */
  select a.payload::text from all_jobs a where a.id = show_payload.id and a.payload is not null limit 1
$$;
