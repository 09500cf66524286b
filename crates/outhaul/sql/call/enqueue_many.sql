-- enqueue_many: any number of jobs of one queue and type, in the caller's transaction, all or none.
-- Parameters: ids and payloads, one each per job; idempotency_keys, organization_ids, run_ats, ordering_keys, limit_keys,
-- rate_keys, if given, likewise (NULL elements mean none); the rest holds for all.
-- Returns the ids in the order given: where a key was in use, that of the job which has it.
-- Index: job_keys_pkey. Locks: key rows in the order of (scope, key), so that two overlapping calls wait
-- for one another instead of deadlocking.
create or replace function enqueue_many(
  queue text, job_type text, payloads text[], ids uuid[], idempotency_keys text[] default null,
  organization_ids uuid[] default null, run_ats timestamptz[] default null, priority integer default 0,
  max_attempts integer default 10, timeout interval default null, traceparent text default null,
  notify boolean default true, ordering_keys text[] default null, limit_keys text[] default null, rate_keys text[] default null
) returns uuid[]
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:enqueue_many */
declare
  n constant integer := cardinality(enqueue_many.ids);
  t constant timestamptz := clock_timestamp();
  ok constant boolean := valid(enqueue_many.queue, enqueue_many.job_type, 0, null, enqueue_many.priority,
    enqueue_many.max_attempts, null, enqueue_many.timeout, enqueue_many.traceparent, null);
  fair constant boolean := exists (select from queues q where q.name = enqueue_many.queue and q.fair);
  keyed boolean := coalesce(enqueue_many.ordering_keys, enqueue_many.limit_keys, enqueue_many.rate_keys) is not null;
  nil constant uuid := '00000000-0000-0000-0000-000000000000';
  result uuid[] := enqueue_many.ids;
  added uuid[];
  j record;
  woke boolean;
begin
  if n is null or cardinality(enqueue_many.payloads) is distinct from n
     or coalesce(cardinality(enqueue_many.idempotency_keys), n) <> n
     or coalesce(cardinality(enqueue_many.organization_ids), n) <> n
     or coalesce(cardinality(enqueue_many.run_ats), n) <> n
     or coalesce(cardinality(enqueue_many.ordering_keys), n) <> n
     or coalesce(cardinality(enqueue_many.limit_keys), n) <> n
     or coalesce(cardinality(enqueue_many.rate_keys), n) <> n then
    raise exception using errcode = 'OH001', column = 'ids',
      message = 'the arrays of enqueue_many differ in length', hint = 'Give one element per job in each array.';
  end if;
  if array_position(enqueue_many.ids, null) is not null then
    raise exception using errcode = 'OH001', column = 'ids',
      message = 'an id of enqueue_many is missing', hint = 'Make one for each job, with gen_random_uuid() for example.';
  end if;

  -- Raises for the first that is not valid.
  keyed := keyed and (select bool_and(valid(enqueue_many.queue, enqueue_many.job_type, 0, null, 0, 1, null, null, null, null,
                                            u.ordering_key, u.limit_key, u.rate_key))
                        from unnest(enqueue_many.ordering_keys, enqueue_many.limit_keys, enqueue_many.rate_keys)
                             u(ordering_key, limit_key, rate_key));

  if enqueue_many.idempotency_keys is null then
    insert into jobs (id, queue, job_type, payload, organization_id, priority, share, run_at, created_at,
                      max_attempts, timeout, traceparent, ordering_key, limit_key, rate_key)
    select u.id, enqueue_many.queue, enqueue_many.job_type, u.payload, u.organization_id, enqueue_many.priority,
           case when fair and u.organization_id is not null then uuid_hash(u.organization_id) & 2147483647 else 0 end,
           greatest(u.run_at, t), t, enqueue_many.max_attempts, enqueue_many.timeout, enqueue_many.traceparent,
           u.ordering_key, u.limit_key, u.rate_key
      from (select a.id, a.body::jsonb as payload, a.organization_id, a.run_at, a.ordering_key, a.limit_key, a.rate_key
              from unnest(enqueue_many.ids, enqueue_many.payloads, enqueue_many.organization_ids, enqueue_many.run_ats,
                          enqueue_many.ordering_keys, enqueue_many.limit_keys, enqueue_many.rate_keys)
                   as a(id, body, organization_id, run_at, ordering_key, limit_key, rate_key)
            -- Without it the planner merges the levels, and parses each payload once for every use.
            offset 0) u
           -- valid() runs for a row only when the cheap test fails, to raise its error.
     where (octet_length(u.payload::text) <= 262144 and u.run_at is null and u.organization_id is distinct from nil)
        or valid(enqueue_many.queue, enqueue_many.job_type, octet_length(u.payload::text), null, 0, 1, u.run_at, null, null,
                 u.organization_id);
  else
    with r as materialized (
      select a.id, a.body::jsonb as payload, a.key, a.organization_id, a.run_at, a.ordering_key, a.limit_key, a.rate_key,
             coalesce(a.organization_id, nil) as scope, a.place
        from unnest(enqueue_many.ids, enqueue_many.payloads, enqueue_many.idempotency_keys,
                    enqueue_many.organization_ids, enqueue_many.run_ats,
                    enqueue_many.ordering_keys, enqueue_many.limit_keys, enqueue_many.rate_keys)
             with ordinality as a(id, body, key, organization_id, run_at, ordering_key, limit_key, rate_key, place)
    ), k as (
      insert into job_keys (scope, kind, key, job_id, digest)
      select r.scope, enqueue_many.job_type, r.key, r.id, hashtextextended(r.payload::text, 0)
        from r
       where r.key is not null and r.payload is not null
         -- Before the index sees it, which cannot hold a very long one.
         and (octet_length(r.key) between 1 and 255
              or valid(enqueue_many.queue, enqueue_many.job_type, 0, r.key, 0, 1, null, null, null, null))
       order by r.scope, r.key
      on conflict do nothing
      returning job_id
    ), i as (
      insert into jobs (id, queue, job_type, payload, organization_id, idempotency_key, priority, share, run_at, created_at,
                        max_attempts, timeout, traceparent, ordering_key, limit_key, rate_key)
      select r.id, enqueue_many.queue, enqueue_many.job_type, r.payload, r.organization_id, r.key, enqueue_many.priority,
             case when fair and r.organization_id is not null then uuid_hash(r.organization_id) & 2147483647 else 0 end,
             greatest(r.run_at, t), t, enqueue_many.max_attempts, enqueue_many.timeout, enqueue_many.traceparent,
             r.ordering_key, r.limit_key, r.rate_key
        from r left join k on k.job_id = r.id
       where (r.key is null or k.job_id is not null)
         and ((octet_length(r.payload::text) <= 262144 and r.run_at is null and r.organization_id is distinct from nil)
              or valid(enqueue_many.queue, enqueue_many.job_type, octet_length(r.payload::text), null, 0, 1, r.run_at, null, null,
                       r.organization_id))
       -- The places in their lanes are given in this order.
       order by r.place
      returning id
    )
    select array_agg(i.id) into added from i;
    -- Whatever is left has a key that was in use: settle each by itself, with the rules of a single enqueue.
    if coalesce(cardinality(added), 0) < n then
      for j in
        select a.* from unnest(enqueue_many.ids, enqueue_many.payloads, enqueue_many.idempotency_keys,
                               enqueue_many.organization_ids, enqueue_many.run_ats,
                               enqueue_many.ordering_keys, enqueue_many.limit_keys, enqueue_many.rate_keys)
               with ordinality as a(id, body, key, organization_id, run_at, ordering_key, limit_key, rate_key, place)
          left join unnest(added) d(id) on d.id = a.id
         where d.id is null
         order by coalesce(a.organization_id, nil), a.key, a.place
      loop
        result[j.place] := enqueue(enqueue_many.queue, enqueue_many.job_type, j.body::jsonb, j.id, j.key,
          j.organization_id, enqueue_many.priority, j.run_at, enqueue_many.max_attempts, enqueue_many.timeout,
          enqueue_many.traceparent, false, j.ordering_key, j.limit_key, j.rate_key);
      end loop;
    end if;
  end if;

  if enqueue_many.notify and n > 0 then
    woke := wake(t);
  end if;
  return result;
end $$;
