-- operator_queue_set: change the settings of a queue, as an operator, on the record.
-- Parameters: queue; settings, an object of which each field changes one setting and null takes it back: history (none, row or
-- payload), objective_seconds, max_running, max_running_per_key, rate and rate_per_seconds (together), rate_burst, key_rate and
-- key_rate_per_seconds (together), key_rate_burst, fair, cool_until (null only: ends a cooldown of the queue); reason.
-- Returns the settings after that; without a field nothing is changed and nothing recorded.
-- A limit counts what is claimed from now on; what runs without a unit already is not counted. A lower limit removes free units
-- only: whatever runs goes on. A queue that becomes fair shares out what is enqueued from then on.
-- Index: queues_pkey, permits_pkey. Locks: the queue's row, free units, the audit head.
create or replace function operator_queue_set(queue text, settings jsonb default '{}', reason text default null) returns jsonb
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_queue_set */
declare
  ok constant boolean := valid(operator_queue_set.queue, 'x', 0, null, 0, 1, null, null, null, null);
  s constant jsonb := operator_queue_set.settings;
  fields constant text[] := array['history', 'objective_seconds', 'max_running', 'max_running_per_key', 'rate', 'rate_per_seconds',
    'rate_burst', 'key_rate', 'key_rate_per_seconds', 'key_rate_burst', 'fair', 'cool_until'];
  unknown text;
  n bigint;
begin
  if jsonb_typeof(s) is distinct from 'object' then
    raise exception using errcode = 'OH001', column = 'settings', message = 'the settings of a queue are a JSON object';
  end if;
  select k.key into unknown from jsonb_object_keys(s) k(key) where k.key <> all (fields) limit 1;
  if found then
    raise exception using errcode = 'OH001', column = 'settings',
      message = format('a queue has no setting %s', left(unknown, 63)), hint = 'Settings are ' || array_to_string(fields, ', ') || '.';
  end if;
  perform queue_setting_valid(k.key, k.value) from jsonb_each(s) k(key, value);
  if s <> '{}' then
    insert into queues (name) values (operator_queue_set.queue) on conflict do nothing;
    update queues q
       set history = case when s ? 'history' then coalesce(s ->> 'history', 'row') else q.history end,
           age_objective = case when s ? 'objective_seconds' then make_interval(secs => (s ->> 'objective_seconds')::double precision) else q.age_objective end,
           max_running = case when s ? 'max_running' then (s ->> 'max_running')::integer else q.max_running end,
           max_running_per_key = case when s ? 'max_running_per_key' then (s ->> 'max_running_per_key')::integer else q.max_running_per_key end,
           rate = case when s ? 'rate' then (s ->> 'rate')::integer else q.rate end,
           rate_per = case when s ? 'rate_per_seconds' then make_interval(secs => (s ->> 'rate_per_seconds')::double precision)
                           when s ? 'rate' and s ->> 'rate' is null then null else q.rate_per end,
           rate_burst = case when s ? 'rate_burst' then (s ->> 'rate_burst')::integer else q.rate_burst end,
           key_rate = case when s ? 'key_rate' then (s ->> 'key_rate')::integer else q.key_rate end,
           key_rate_per = case when s ? 'key_rate_per_seconds' then make_interval(secs => (s ->> 'key_rate_per_seconds')::double precision)
                               when s ? 'key_rate' and s ->> 'key_rate' is null then null else q.key_rate_per end,
           key_rate_burst = case when s ? 'key_rate_burst' then (s ->> 'key_rate_burst')::integer else q.key_rate_burst end,
           fair = case when s ? 'fair' then coalesce((s ->> 'fair')::boolean, false) else q.fair end,
           cool_until = case when s ? 'cool_until' then '-infinity' else q.cool_until end,
           updated_at = clock_timestamp()
     where q.name = operator_queue_set.queue;
    n := govern(operator_queue_set.queue);
    n := audit_append('queues.set', operator_queue_set.queue, s, operator_queue_set.reason);
  end if;
  return queue_settings(operator_queue_set.queue);
end $$;
