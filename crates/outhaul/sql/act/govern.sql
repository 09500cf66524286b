-- govern: after a change of settings: whether claims of a queue have to look at limits, units that no limit needs any more,
-- and jobs that a limit which is gone or higher holds back. Part of the operator's functions and of upkeep.
-- Parameters: queue. Returns how many jobs were let in.
-- Index: queues_pkey, permits_pkey, rates_pkey, jobs_waiting. Locks: the queue's row, free units, the jobs let in.
create or replace function govern(queue text) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:govern */
declare
  woke boolean;
begin
  update queues q
     set governed = q.fair or q.cool_until > statement_timestamp()
           or coalesce(q.max_running, q.max_running_per_key, q.rate, q.key_rate) is not null
           or exists (select from key_limits k where k.queue = q.name)
           or exists (select from rates r where r.queue = q.name and greatest(r.cool_until, r.spread_until) > statement_timestamp())
   where q.name = govern.queue;
  with gone as materialized (
    select p.ctid as ct from permits p
      join queues q on q.name = p.queue
      left join key_limits k on k.queue = p.queue and k.limit_key = p.limit_key
     where p.queue = govern.queue and p.lease_until < statement_timestamp()
       and p.n > coalesce(case when p.limit_key = '' then q.max_running else coalesce(k.max_running, q.max_running_per_key) end, 0)
       for update of p skip locked
  )
  delete from permits p using gone where p.ctid = gone.ct;
  woke := wake(clock_timestamp());
  return promote_waiting(govern.queue);
end $$;
