-- grants: who may call what, for the five roles; run at the end of every migration.
-- Nothing is granted to PUBLIC. A producer may also INSERT INTO jobs, but not into the columns of the lease.
-- The table of rights is here and nowhere else; a test compares it with the catalogue. Locks: none on tables.
do $$ /* outhaul:grants */
declare
  s constant text := quote_ident(current_schema());
  r record;
begin
  execute 'revoke all on all functions in schema ' || s || ' from public';
  execute 'revoke all on all tables in schema ' || s || ' from public';
  execute 'revoke all on type job_status, end_status, subscription_policy from public';
  if current_setting('outhaul.roles') <> 'on' then
    return;
  end if;
  execute 'grant usage on schema ' || s || ' to outhaul_producer, outhaul_worker, outhaul_observer, outhaul_operator';
  execute 'grant insert (id, organization_id, queue, job_type, payload, idempotency_key, priority, run_at, max_attempts,
    timeout, traceparent, ordering_key, limit_key, rate_key) on jobs to outhaul_producer';
  execute 'grant insert (id, organization_id, aggregate_type, aggregate_id, event_type, schema_version, payload, occurred_at,
    available_at, partition_key, traceparent) on outbox_events to outhaul_producer';
  execute 'grant usage on type job_status, end_status to outhaul_producer, outhaul_operator';
  execute 'grant select on all_jobs to outhaul_operator';
  for r in
    select p.oid::regprocedure as f, g.role
      from pg_proc p
      join (values
        ('enqueue', 'producer'), ('enqueue_many', 'producer'), ('cancel', 'producer'), ('cancel_key', 'producer'),
        ('publish', 'producer'), ('publish_many', 'producer'),
        ('uuid7', 'producer'),  -- the default of jobs.id
        ('claim', 'worker'), ('canary', 'worker'), ('next_due', 'worker'), ('floors', 'worker'), ('publish_floors', 'worker'),
        ('complete', 'worker'), ('complete_in', 'worker'), ('fail', 'worker'), ('snooze', 'worker'),
        ('renew', 'worker'), ('expired', 'worker'), ('promote_waiting', 'worker'), ('take_sweep', 'worker'),
        ('sequence', 'worker'), ('subscribe', 'worker'), ('claim_subscription', 'worker'), ('read', 'worker'),
        ('checkpoint', 'worker'), ('checkpoint_in', 'worker'), ('project', 'worker'), ('hold', 'worker'), ('renew_subscriptions', 'worker'),
        ('expired_subscriptions', 'worker'),
        ('subscription_due', 'worker'), ('events_due', 'worker'), ('register_relay', 'worker'), ('claim_events', 'worker'), ('complete_events', 'worker'), ('fail_events', 'worker'),
        ('renew_events', 'worker'), ('expired_events', 'worker'),
        ('worker_beat', 'worker'), ('worker_gone', 'worker'), ('remove_expired', 'worker'), ('remove_operations', 'worker'), ('operation_step', 'worker'),
        ('upkeep_due', 'worker'), ('upkeep_report', 'worker'), ('partitions', 'worker'), ('ranges', 'worker'),
        ('schema_state', 'producer'), ('schema_state', 'worker'), ('schema_state', 'observer'), ('schema_state', 'operator'),
        ('show_queues', 'worker'), ('show_isolation', 'worker'), ('show_notifications', 'worker'),
        ('show_isolation', 'observer'), ('show_waiting', 'observer'), ('show_waits', 'observer'),
        ('show_queues', 'observer'), ('show_jobs', 'observer'), ('show_job', 'observer'), ('show_attempts', 'observer'),
        ('show_workers', 'observer'), ('show_upkeep', 'observer'), ('show_notifications', 'observer'), ('show_audit', 'observer'),
        ('show_subscriptions', 'observer'), ('show_parked', 'observer'), ('show_events', 'observer'), ('show_event', 'observer'),
        ('show_dispositions', 'observer'), ('show_set_aside', 'observer'), ('tail_events', 'observer'),
        ('show_dead', 'observer'), ('show_dead_groups', 'observer'),
        ('show_operations', 'observer'), ('show_operation_items', 'observer'),
        ('show_outbox', 'observer'), ('reconcile_outbox', 'observer'), ('show_subscriptions', 'worker'), ('show_outbox', 'worker'),
        ('show_payload', 'operator'), ('show_event_payload', 'operator'), ('audit_verify', 'observer'),
        ('operator_cancel', 'operator'), ('operator_cancel_key', 'operator'), ('operator_discard', 'operator'),
        ('operation_create', 'operator'), ('operation_switch', 'operator'), ('operation_step', 'operator'), ('show_operations', 'operator'),
        ('operator_retry', 'operator'), ('operator_pause', 'operator'),
        ('operator_history', 'operator'), ('operator_queue_set', 'operator'), ('operator_key_limit', 'operator'),
        ('operator_subscription_pause', 'operator'), ('operator_subscription_rewind', 'operator'),
        ('operator_subscription_skip', 'operator'), ('operator_subscription_unpark', 'operator'),
        ('operator_subscription_drop', 'operator'), ('operator_relay_retry', 'operator'),
        ('operator_rotate_history', 'operator')
      ) g(name, role) on g.name = p.proname
     where p.pronamespace = current_schema()::regnamespace
  loop
    execute format('grant execute on function %s to outhaul_%s', r.f, r.role);
  end loop;
end $$;
