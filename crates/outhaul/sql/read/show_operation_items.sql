-- show_operation_items: a page of the items of an operation, in the order in which it acts on them.
-- Parameters: name; after, the last item of the page before; with_outcome, the outcome to show, NULL for any; most.
-- Index: operation_items_pkey. A page costs what the outcome makes it skip. Locks: none.
create or replace function show_operation_items(name text, after bigint default 0, with_outcome text default null, most integer default 50) returns table (
  n bigint, job_id uuid, outcome text
)
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
as $$ /* outhaul:show_operation_items */
  select i.n, i.job_id, i.outcome from operation_items i
   where i.operation_id = (select o.id from operations o where o.name = show_operation_items.name)
     and i.n > show_operation_items.after
     and (show_operation_items.with_outcome is null or i.outcome = show_operation_items.with_outcome)
   order by i.n limit least(greatest(show_operation_items.most, 1), 1000)
$$;
