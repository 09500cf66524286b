-- share_of: the share of an organization in a queue: where the queue is fair, a number made of the organization; else 0.
-- 31 bits, so that two organizations hardly ever have one share; the queue's jobs of no organization share the 0.
-- Parameters: queue, organization_id. Index: queues_pkey. Locks: none.
create or replace function share_of(queue text, organization_id uuid) returns integer
language plpgsql stable security definer
set search_path from current
as $$ /* outhaul:share_of */
begin
  if share_of.organization_id is null or not exists (select from queues q where q.name = share_of.queue and q.fair) then
    return 0;
  end if;
  return uuid_hash(share_of.organization_id) & 2147483647;
end $$;
