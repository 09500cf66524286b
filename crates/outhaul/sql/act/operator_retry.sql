-- operator_retry: let one job run now, as an operator, on the record. A job that waits becomes due; a dead
-- letter comes back as replay_dead says.
-- Parameters: id, reason. Returns due, replayed, leased (it is running), ended or not_found.
-- Index: jobs_pkey, jobs_dead_pkey. Locks: the job's row, the audit head.
create or replace function operator_retry(id uuid, reason text default null) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:operator_retry */
declare
  outcome text;
  n bigint;
  woke boolean;
begin
  -- Again, because somebody may replay it, or a worker give it up, between the two looks.
  for round in 1..3 loop
    -- A job that is overdue keeps its place in front.
    update jobs j set run_at = least(j.run_at, clock_timestamp()) where j.id = operator_retry.id and j.lease_until = '-infinity';
    if found then
      outcome := 'due';
      exit;
    end if;
    perform from jobs_dead d where d.id = operator_retry.id for update;
    if found then
      perform from replay_dead(array[operator_retry.id], null);
      if found then
        outcome := 'replayed';
        exit;
      end if;
    end if;
    exit when not exists (select from jobs j where j.id = operator_retry.id and j.lease_until = '-infinity')
          and not exists (select from jobs_dead d where d.id = operator_retry.id);
  end loop;
  if outcome is null then
    return case when exists (select from jobs j where j.id = operator_retry.id) then 'leased'
                when exists (select from jobs_finished f where f.id = operator_retry.id) then 'ended'
                else 'not_found' end;
  end if;
  n := audit_append('jobs.retry', operator_retry.id::text, jsonb_build_object('outcome', outcome), operator_retry.reason);
  woke := wake(clock_timestamp());
  return outcome;
end $$;
