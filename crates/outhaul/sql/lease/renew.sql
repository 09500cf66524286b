-- renew: prolong the leases that a worker holds, in one statement.
-- A row locked by somebody else is skipped and not waited for: it is most likely being settled by the
-- handler's own open transaction, and waiting would hold up the renewal of all the others.
-- Parameters: ids and lease_tokens, parallel; lease, counted from now.
-- Returns only ids that were not renewed: lost when the job ended, was cancelled or was leased anew, locked
-- when its row was skipped and the lease still stands; and whether a lost one was cancelled.
-- Index: jobs_pkey, then by ctid; permits_pkey. Locks: the jobs, then their units, NO KEY UPDATE in the order given,
-- skipping locked rows.
create or replace function renew(ids uuid[], lease_tokens uuid[], lease interval)
returns table (id uuid, state text, cancelled boolean)
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:renew */
#variable_conflict use_column
declare
  renewed uuid[];
begin
  if renew.lease is null or renew.lease not between interval '1 second' and interval '24 hours' then
    raise exception using errcode = 'OH001', column = 'lease', message = 'a lease lasts 1 second to 24 hours';
  end if;
  -- A job that holds units of limits is renewed with all of them or not at all: where one has run out and another claim
  -- has taken it, this lease is over, swept or not.
  with l as materialized (
    select x.* from unnest(renew.ids, renew.lease_tokens) u(i, k)
     cross join lateral (
        select j.ctid as ct, j.queue, j.limit_key, j.permit, j.key_permit, j.lease_token from jobs j
         where j.id = u.i and j.lease_token = u.k and j.lease_until > '-infinity'
           for no key update skip locked) x
  ), n as materialized (
    select l.ct, p.ct as unit from l
     cross join lateral (values ('', l.permit), (l.limit_key, l.key_permit)) y(k, n)
      left join lateral (
        select x.ctid as ct from permits x
         where x.queue = l.queue and x.limit_key = y.k and x.n = y.n and x.lease_token = l.lease_token
           for no key update skip locked) p on true
     where y.n is not null
  ), p as (
    update permits p set lease_until = clock_timestamp() + renew.lease from n where p.ctid = n.unit
  ), r as (
    update jobs j set lease_until = clock_timestamp() + renew.lease
      from l where j.ctid = l.ct and not exists (select from n where n.ct = l.ct and n.unit is null) returning j.id
  )
  select array_agg(r.id) into renewed from r;
  if coalesce(cardinality(renewed), 0) < cardinality(renew.ids) then
    return query
      select u.i, coalesce((select 'locked' from jobs j
                             where j.id = u.i and j.lease_token = u.k and j.lease_until > '-infinity'
                               and not exists (
                                 select from (values ('', j.permit), (j.limit_key, j.key_permit)) y(k, n)
                                  where y.n is not null
                                    and not exists (select from permits p
                                                     where p.queue = j.queue and p.limit_key = y.k and p.n = y.n
                                                       and p.lease_token = u.k))
                             limit 1), 'lost'),
             exists (select from job_attempts a where a.job_id = u.i and a.outcome = 'cancelled' and a.error_class = 'revoked')
        from unnest(renew.ids, renew.lease_tokens) u(i, k)
       where u.i <> all (coalesce(renewed, '{}'));
  end if;
end $$;
