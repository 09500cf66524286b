-- queue_settings: the settings of a queue as one object, with the defaults where it has none. Part of what shows and sets them.
-- Parameters: queue. Index: queues_pkey. Locks: none.
create or replace function queue_settings(queue text) returns jsonb
language sql stable
set search_path from current
as $$ /* outhaul:queue_settings */
  select jsonb_build_object('history', coalesce(q.history, 'row'), 'objective_seconds', date_part('epoch', q.age_objective),
    'max_running', q.max_running, 'max_running_per_key', q.max_running_per_key,
    'rate', q.rate, 'rate_per_seconds', date_part('epoch', q.rate_per), 'rate_burst', q.rate_burst,
    'key_rate', q.key_rate, 'key_rate_per_seconds', date_part('epoch', q.key_rate_per), 'key_rate_burst', q.key_rate_burst,
    'fair', coalesce(q.fair, false),
    'cool_until', case when q.cool_until > statement_timestamp() then to_jsonb(q.cool_until) end)
    from (select) one left join queues q on q.name = queue_settings.queue
$$;
