-- remove_operations: retention of operations: those that ended, or were never started, 30 days ago. One that runs or was stopped stays.
-- Parameters: n, the most items in one call. Returns the items removed; fewer than n means that nothing is left for now.
-- Index: operation_items_pkey. Locks: the operation's row, skipping locked ones, and the removed items.
create or replace function remove_operations(n integer) returns bigint
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
as $$ /* outhaul:remove_operations */
#variable_conflict use_column
declare
  o uuid;
  removed bigint;
begin
  select x.id into o from operations x
   where (x.state = 'ready' and x.created_at < statement_timestamp() - interval '30 days')
      or (x.state = 'done' and x.finished_at < statement_timestamp() - interval '30 days')
   order by x.created_at limit 1 for update skip locked;
  if not found then
    return 0;
  end if;
  -- From now on nobody can start what is half gone.
  update operations x set state = 'done', finished_at = coalesce(x.finished_at, x.created_at) where x.id = o and x.state = 'ready';
  with c as materialized (
    select i.ctid as ct from operation_items i where i.operation_id = o order by i.n limit remove_operations.n
  ), d as (
    delete from operation_items i using c where i.ctid = c.ct returning 1
  ) select count(*) from d into removed;
  if removed < remove_operations.n then
    delete from operations x where x.id = o;
    -- There may be another one.
    return remove_operations.n;
  end if;
  return removed;
end $$;
