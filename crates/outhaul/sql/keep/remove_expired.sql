-- remove_expired: retention of what is not partitioned: keys past their time, dead letters past theirs,
-- registrations of workers that have been silent for a day, units and buckets of keys that are not used any more.
-- Parameters: n, the most rows of each kind in one call. Returns the rows removed of each kind.
-- Index: job_keys_expiry, jobs_dead_died; permits and rates are read whole. Locks: the removed rows, skipping locked ones;
-- the rows of queues whose cooldown is over.
create or replace function remove_expired(n integer) returns table (keys bigint, dead bigint, workers bigint)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:remove_expired */
#variable_conflict use_column
begin
  with c as materialized (
    select k.ctid as ct from job_keys k
     where k.expires_at < statement_timestamp() order by k.expires_at limit remove_expired.n for update skip locked
  ), d as (
    delete from job_keys k using c where k.ctid = c.ct returning 1
  ) select count(*) from d into keys;
  with c as materialized (
    select x.ctid as ct from jobs_dead x
     where x.died_at < statement_timestamp() - make_interval(secs => setting_seconds('dead_retention_seconds'))
     order by x.died_at limit remove_expired.n for update skip locked
  ), d as (
    delete from jobs_dead x using c where x.ctid = c.ct
    returning x.id, x.organization_id, x.job_type, x.idempotency_key
  ), k as (
    update job_keys k set expires_at = clock_timestamp() + make_interval(secs => setting_seconds('key_retention_seconds'))
      from d cross join lateral (
        select y.ctid as ct from job_keys y
         where y.scope = coalesce(d.organization_id, '00000000-0000-0000-0000-000000000000') and y.kind = d.job_type
           and y.key = d.idempotency_key and y.job_id = d.id offset 0) x
     where k.ctid = x.ct
  ) select count(*) from d into dead;
  with d as (
    delete from workers w where w.heartbeat_at < statement_timestamp() - interval '1 day' returning 1
  ) select count(*) from d into workers;
  -- Units and buckets of keys that nobody has used for an hour: a key may be an organization that is gone. They are made
  -- again when they are asked for.
  with c as materialized (
    select p.ctid as ct from permits p
     where p.limit_key <> '' and p.lease_until < statement_timestamp() and p.used_at < statement_timestamp() - interval '1 hour'
     limit remove_expired.n for update skip locked
  )
  delete from permits p using c where p.ctid = c.ct;
  with c as materialized (
    select r.ctid as ct from rates r
     where r.rate_key <> '' and greatest(r.refilled_at, r.cool_until, r.spread_until) < statement_timestamp() - interval '1 day'
     limit remove_expired.n for update skip locked
  )
  delete from rates r using c where r.ctid = c.ct;
  -- A cooldown that is over is no reason to look for limits.
  perform govern(q.name) from queues q
    where q.governed and not q.fair and q.cool_until < statement_timestamp()
      and coalesce(q.max_running, q.max_running_per_key, q.rate, q.key_rate) is null;
  return next;
end $$;
