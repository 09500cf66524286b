-- operation_step: act on the next items of one running operation whose throttle allows it. Called again and again, by the upkeep of
-- any worker or by whoever waits for the operation: whoever gets the row makes the step.
-- Items are acted on and their outcomes recorded in this one transaction, so that no crash makes an action happen twice or be
-- forgotten. An item whose job somebody has locked is left for another pass, and one whose job is no longer what it was when the
-- set was fixed is skipped: live (it was replayed), died_again, dead_letter, ended, or gone.
-- Parameters: name, NULL for the one that has waited longest. Returns a row when a step was made.
-- Index: operations_pkey, operation_items_open, the primary keys. Locks: the operation's row, those of the action; none is waited for
-- longer than a second: the step then fails, says so, and is tried again 10 s later.
create or replace function operation_step(name text default null) returns table (operation text, state text, total bigint, done bigint, skipped bigint)
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set lock_timeout = '1s'
as $$ /* outhaul:operation_step */
#variable_conflict use_column
declare
  o operations;
  at constant timestamptz := clock_timestamp();
  ns bigint[];
  ids uuid[];
  claims integer[];
  acted uuid[];
  results text[];
  k integer;
  now_done bigint;
  now_skipped bigint;
  woke boolean;
begin
  select x.* into o from operations x
   where x.state = 'running' and x.due_at <= at and (operation_step.name is null or x.name = operation_step.name)
   order by x.due_at limit 1 for update skip locked;
  if not found then
    return;
  end if;
  -- What the time since the last step allows, but of no more than two seconds. The fraction is for what is not exact.
  o.due_at := greatest(o.due_at, at - interval '2 seconds' + interval '1 second' / o.per_second::double precision);
  k := least(500, 1 + floor(date_part('epoch', at - o.due_at) * o.per_second + 0.001))::integer;
  begin
    select array_agg(i.n order by i.n), array_agg(i.job_id order by i.n), array_agg(i.claim_no order by i.n) into ns, ids, claims
      from (select x.n, x.job_id, x.claim_no from operation_items x
             where x.operation_id = o.id and x.n > o.passed and x.outcome is null order by x.n limit k) i;
    if ns is null then
      -- The end of a pass. Items that are left were locked: they have a second.
      o.passed := 0;
      o.due_at := at + interval '1 second';
    else
      acted := case o.kind
        when 'replay' then array(select r from replay_dead(ids, claims) r)
        when 'discard' then array(select r from discard_dead(ids, claims) r)
        else array(select r from cancel_jobs(ids, 'cancelled') r) end;
      select array_agg(case
          when u.i = any (acted) then case o.kind when 'replay' then 'replayed' when 'discard' then 'discarded' else 'cancelled' end
          when o.kind = 'cancel' and exists (select from jobs j where j.id = u.i) then null
          when exists (select from jobs j where j.id = u.i) then 'live'
          when o.kind <> 'cancel' and exists (select from jobs_dead d where d.id = u.i and d.claim_no = u.c) then null
          when exists (select from jobs_dead d where d.id = u.i) then case o.kind when 'cancel' then 'dead_letter' else 'died_again' end
          when exists (select from jobs_finished f where f.id = u.i) then 'ended'
          else 'gone' end order by u.p) into results
        from unnest(ids, claims) with ordinality u(i, c, p);
      update operation_items i set outcome = u.r
        from unnest(ns, results) u(n, r)
       where i.operation_id = o.id and i.n = u.n and u.r is not null;
      now_done := cardinality(acted);
      now_skipped := (select count(r) from unnest(results) r) - now_done;
      o.done := o.done + now_done;
      o.skipped := o.skipped + now_skipped;
      o.outcomes := o.outcomes || coalesce((select jsonb_object_agg(x.r, x.n + coalesce((o.outcomes ->> x.r)::bigint, 0))
        from (select r, count(*) as n from unnest(results) r where r is not null group by r) x), '{}');
      o.passed := ns[cardinality(ns)];
      o.due_at := o.due_at + cardinality(ns) / o.per_second::double precision * interval '1 second';
      if o.kind = 'replay' and now_done > 0 then
        woke := wake(clock_timestamp());
      end if;
    end if;
    o.error := null;
  exception when others then
    -- As if the step had not been made; other operations go on meanwhile.
    select x.* into o from operations x where x.id = o.id;
    o.error := left(sqlstate || ': ' || sqlerrm, 1000);
    o.due_at := clock_timestamp() + interval '10 seconds';
  end;
  if o.done + o.skipped >= o.total then
    o.state := 'done';
    o.finished_at := clock_timestamp();
  end if;
  update operations x
     set state = o.state, done = o.done, skipped = o.skipped, outcomes = o.outcomes, passed = o.passed, due_at = o.due_at,
         finished_at = o.finished_at, error = o.error
   where x.id = o.id;
  return query select o.name, o.state, o.total, o.done, o.skipped;
end $$;
