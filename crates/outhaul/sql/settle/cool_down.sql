-- cool_down: let nothing of a partition, or of a queue, begin for a while, because a service said so.
-- A later end stands, so that twenty answers to twenty jobs cool once.
-- Parameters, parallel: queues; rate_keys, NULL for the whole queue; delays_ms, from now.
-- Index: rates_pkey, queues_pkey. Locks: those rows, in order; a claim of the queue is waited for.
create or replace function cool_down(queues text[], rate_keys text[], delays_ms bigint[]) returns void
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:cool_down */
begin
  insert into queues as q (name, cool_until, governed)
  select c.queue, coalesce(c.until, '-infinity'), true
    from (select u.queue, max(clock_timestamp() + u.ms * interval '1 millisecond') filter (where u.key is null) as until
            from unnest(cool_down.queues, cool_down.rate_keys, cool_down.delays_ms) u(queue, key, ms)
           group by u.queue order by u.queue) c
  on conflict (name) do update set cool_until = greatest(q.cool_until, excluded.cool_until), governed = true
    where not q.governed or q.cool_until < excluded.cool_until;
  insert into rates as r (queue, rate_key, cool_until)
  select u.queue, u.key, max(clock_timestamp() + u.ms * interval '1 millisecond')
    from unnest(cool_down.queues, cool_down.rate_keys, cool_down.delays_ms) u(queue, key, ms)
   where u.key is not null
   group by u.queue, u.key order by u.queue, u.key
  on conflict (queue, rate_key) do update set cool_until = excluded.cool_until where r.cool_until < excluded.cool_until;
end $$;
