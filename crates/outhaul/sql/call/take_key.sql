-- take_key: register an idempotency key for a job, or find the job that has it.
-- Insert and select are two statements, each with a snapshot of its own: a single statement sees
-- neither row when another transaction commits the key in between. The loop is for a key that is
-- removed between the two, and is bounded.
-- Parameters: new_id, the job that wants the key; its scope, type and key; body, its payload's text.
-- Returns NULL when the key is new_id's from now on, else the id of the job that has it: of another one, or of
-- the very same, which a caller then asks for a second time. Raises OH002 for another payload.
-- Index: job_keys_pkey. Locks: the key's row until commit, against callers with the same key.
create or replace function take_key(new_id uuid, organization_id uuid, job_type text, idempotency_key text, body text)
returns uuid
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:take_key */
declare
  in_scope uuid;
  request bigint;
  has record;
begin
  -- Most keys are new; what follows is only set up when one is not.
  insert into job_keys (scope, kind, key, job_id, digest)
  values (coalesce(take_key.organization_id, '00000000-0000-0000-0000-000000000000'), take_key.job_type,
          take_key.idempotency_key, take_key.new_id, hashtextextended(take_key.body, 0))
  on conflict do nothing;
  if found then
    return null;
  end if;
  in_scope := coalesce(take_key.organization_id, '00000000-0000-0000-0000-000000000000');
  request := hashtextextended(take_key.body, 0);
  for i in 1..5 loop
    -- A key past its time counts as free even before upkeep has removed it.
    update job_keys k set job_id = take_key.new_id, digest = request, expires_at = null
     where k.scope = in_scope and k.kind = take_key.job_type and k.key = take_key.idempotency_key
       and k.expires_at < statement_timestamp();
    if found then
      return null;
    end if;
    select k.job_id, k.digest into has from job_keys k
     where k.scope = in_scope and k.kind = take_key.job_type and k.key = take_key.idempotency_key;
    if found then
      if has.digest <> request then
        raise exception using errcode = 'OH002', column = 'idempotency_key',
          message = format('idempotency key is in use by %s %s with another payload',
            case when take_key.job_type like '@%' then 'event' else 'job' end, has.job_id),
          hint = 'Use a new key for a new request, or repeat the same payload.';
      end if;
      return has.job_id;
    end if;
    insert into job_keys (scope, kind, key, job_id, digest)
    values (in_scope, take_key.job_type, take_key.idempotency_key, take_key.new_id, request)
    on conflict do nothing;
    if found then
      return null;
    end if;
  end loop;
  raise exception using errcode = '40001',
    message = 'idempotency key kept changing hands', hint = 'Try the transaction again.';
end $$;
