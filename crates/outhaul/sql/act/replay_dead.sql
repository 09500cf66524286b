-- replay_dead: make dead letters live again, those that nobody else has locked. Part of operator_retry and of operations.
-- It is the same job: its id, its payload, its key, which was held all the time; its attempts begin at zero and its claim number
-- goes on, so that a report from before cannot match. With an ordering key it goes to the end of its lane.
-- Parameters: ids; claim_nos, parallel: the claims they died of, NULL for any. Returns the ids that are live again.
-- Index: jobs_dead_pkey, jobs_pkey. Locks: the dead letters' rows in the order given, skipping locked ones.
create or replace function replay_dead(ids uuid[], claim_nos integer[]) returns setof uuid
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:replay_dead */
begin
  return query
  with c as materialized (
    select x.ct from unnest(replay_dead.ids, replay_dead.claim_nos) u(i, c)
     cross join lateral (
        select d.ctid as ct from jobs_dead d
         where d.id = u.i and (u.c is null or d.claim_no = u.c)
           -- A caller may have used the id again: that job has to end first.
           and not exists (select from jobs j where j.id = d.id)
           for update skip locked) x
  ), d as (
    delete from jobs_dead x using c where x.ctid = c.ct returning x.*
  )
  insert into jobs (id, queue, job_type, payload, organization_id, idempotency_key, priority, share, created_at,
                    max_attempts, claim_no, status, timeout, ordering_key, limit_key, rate_key, traceparent,
                    source_event_id, last_error_code, last_error_summary)
  select d.id, d.queue, d.job_type, d.payload, d.organization_id, d.idempotency_key, d.priority, d.share, d.created_at,
         d.max_attempts, d.claim_no, 'retrying', d.timeout, d.ordering_key, d.limit_key, d.rate_key, d.traceparent,
         d.source_event_id, d.last_error_code, d.last_error_summary
    from d order by d.died_at, d.id
  returning jobs.id;
end $$;
