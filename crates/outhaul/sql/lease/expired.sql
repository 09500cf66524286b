-- expired: jobs of a queue whose lease has run out, for the sweep to settle with fail(expired_only => true).
-- Every leased row lies at or below the floor that its claimer had reached, so each lane is read up to the
-- caller's floor, and then a bounded number of rows beyond it, for what a process that is gone had claimed
-- ahead of everybody else. A long backlog is therefore never read through.
-- Parameters: queue; n, the most rows; priorities, shares, run_ats and behind_ms, parallel floors as for
-- claim, or NULL for none.
-- Index: jobs_claim. Locks: none; the settling statement checks token and time again.
create or replace function expired(
  queue text, n integer, priorities smallint[] default null, shares integer[] default null,
  run_ats timestamptz[] default null, behind_ms bigint[] default null
) returns table (
  id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, job_type text,
  locked_by uuid, overdue_ms bigint
)
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_material = off set jit = off
as $$ /* outhaul:expired */
#variable_conflict use_column
begin
  return query
    select x.id, x.lease_token, x.claim_no, x.attempts, x.max_attempts::integer, x.job_type, x.locked_by,
           (date_part('epoch', statement_timestamp() - x.lease_until) * 1000)::bigint
      from (select l.priority, l.share, coalesce(f.r, statement_timestamp() - f.b * interval '1 millisecond', '-infinity') as floor
              from lanes(expired.queue, expired.priorities, expired.shares) l
              left join unnest(expired.priorities, expired.shares, expired.run_ats, expired.behind_ms) f(p, s, r, b)
                on f.p = l.priority and f.s = l.share) l
     cross join lateral (
        (select j.id, j.lease_token, j.claim_no, j.attempts, j.max_attempts, j.job_type, j.locked_by, j.lease_until
           from jobs j
          where j.queue = expired.queue and not j.held and j.priority = l.priority and j.share = l.share
            and j.run_at <= l.floor and j.lease_until > '-infinity' and j.lease_until < statement_timestamp()
          order by j.run_at limit expired.n)
        union all
        (select b.* from (
            select j.id, j.lease_token, j.claim_no, j.attempts, j.max_attempts, j.job_type, j.locked_by, j.lease_until
              from jobs j
             where j.queue = expired.queue and not j.held and j.priority = l.priority and j.share = l.share
               and j.run_at > l.floor and j.run_at <= statement_timestamp()
             order by j.run_at limit 20000) b
          where b.lease_until > '-infinity' and b.lease_until < statement_timestamp()
          limit expired.n)) x
     limit expired.n;
end $$;
