-- job_insert: what enqueue does, for a plain INSERT INTO jobs: check, register the key, wake.
-- The functions of this schema run as its owner and have done all this already, so the trigger is
-- created with WHEN (current_user <> owner). Without roles (migrate --no-roles) there is no such
-- condition: a job that comes with a key of its own, and is in no table and has not ended, is theirs.
-- ON CONFLICT is not supported with a plain INSERT: a row that it leaves out has registered its key all the
-- same. Use enqueue, which returns the id of the job that has the key.
-- Index: job_keys_pkey. Locks: the key's row until commit.
create or replace function job_insert() returns trigger
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:job_insert */
declare
  body constant text := new.payload;
  ok constant boolean := valid(new.queue, new.job_type, octet_length(body), new.idempotency_key,
    new.priority::integer, new.max_attempts::integer, new.run_at, new.timeout, new.traceparent, new.organization_id,
    new.ordering_key, new.limit_key, new.rate_key);
  has uuid;
  free boolean;
  woke boolean;
begin
  new.run_at := greatest(new.run_at, new.created_at);
  if new.organization_id is not null then
    new.share := share_of(new.queue, new.organization_id);
  end if;
  if new.idempotency_key is not null then
    begin
      has := take_key(new.id, new.organization_id, new.job_type, new.idempotency_key, body);
      free := has is null or (has = new.id
        and not exists (select from jobs j where j.id = new.id)
        and not exists (select from jobs_dead x where x.id = new.id)
        and exists (select from job_keys k
                     where k.scope = coalesce(new.organization_id, '00000000-0000-0000-0000-000000000000')
                       and k.kind = new.job_type and k.key = new.idempotency_key and k.expires_at is null));
    exception when sqlstate 'OH002' then
      free := false;
    end;
    if not free then
      raise exception using errcode = 'unique_violation', constraint = 'job_keys_pkey', table = 'jobs',
        message = 'idempotency key is in use' || coalesce(' by job ' || has, ' with another payload'),
        hint = 'Call enqueue(...), which returns the id of the job that has the key.';
    end if;
  end if;
  woke := wake(clock_timestamp());
  return new;
end $$;
