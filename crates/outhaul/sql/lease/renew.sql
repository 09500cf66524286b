-- renew: prolong the leases that a worker holds, in one statement.
-- A row locked by somebody else is skipped and not waited for: it is most likely being settled by the
-- handler's own open transaction, and waiting would hold up the renewal of all the others.
-- Parameters: ids and lease_tokens, parallel; lease, counted from now.
-- Returns only ids that were not renewed: lost when the job ended, was cancelled or was leased anew, locked
-- when its row was skipped and the lease still stands.
-- Index: jobs_pkey, then by ctid. Locks: NO KEY UPDATE in the order given, skipping locked rows.
create or replace function renew(ids uuid[], lease_tokens uuid[], lease interval)
returns table (id uuid, state text)
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
  with l as materialized (
    select x.ct from unnest(renew.ids, renew.lease_tokens) u(i, k)
     cross join lateral (
        select j.ctid as ct from jobs j
         where j.id = u.i and j.lease_token = u.k and j.lease_until > '-infinity'
           for no key update skip locked) x
  ), r as (
    update jobs j set lease_until = clock_timestamp() + renew.lease from l where j.ctid = l.ct returning j.id
  )
  select array_agg(r.id) into renewed from r;
  if coalesce(cardinality(renewed), 0) < cardinality(renew.ids) then
    return query
      select u.i, coalesce((select 'locked' from jobs j
                             where j.id = u.i and j.lease_token = u.k and j.lease_until > '-infinity' limit 1), 'lost')
        from unnest(renew.ids, renew.lease_tokens) u(i, k)
       where u.i <> all (coalesce(renewed, '{}'));
  end if;
end $$;
