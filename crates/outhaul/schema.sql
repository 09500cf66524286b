-- The schema that the migrations make, to read and to compare: pg_dump without owners, without partitions, and
-- without the bodies of the functions, which are the files of sql/. A test keeps it up to date:
--   OUTHAUL_REFRESH=1 cargo test -p outhaul --test it schema::

CREATE SCHEMA outhaul;

CREATE TYPE outhaul.end_status AS ENUM (
    'completed',
    'cancelled'
);

CREATE TYPE outhaul.ended_job AS (
	id uuid,
	queue text,
	ordering_key text,
	limit_key text,
	permit integer,
	key_permit integer,
	lease_token uuid
);

CREATE TYPE outhaul.job_status AS ENUM (
    'pending',
    'leased',
    'retrying'
);

CREATE TYPE outhaul.subscription_policy AS ENUM (
    'block',
    'park'
);

CREATE FUNCTION outhaul.advance_lanes(queue text, n integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.audit_append(action text, object text, details jsonb, reason text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.audit_hash(prev bytea, seq bigint, at timestamp with time zone, actor text, action text, object text, details jsonb, reason text) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS '...';

CREATE FUNCTION outhaul.audit_verify(n integer DEFAULT 10) RETURNS TABLE(seq bigint, finding text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.canary(channel text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.cancel(id uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.cancel_jobs(ids uuid[], reason text) RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.cancel_key(job_type text, key text, organization_id uuid DEFAULT NULL::uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS '...';

CREATE FUNCTION outhaul.checkpoint(ids uuid[], lease_tokens uuid[], claim_nos integer[], positions bigint[], unparked bigint[], committed bigint[] DEFAULT NULL::bigint[]) RETURNS TABLE(id uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '100ms'
    AS '...';

CREATE FUNCTION outhaul.checkpoint_in(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean DEFAULT false, after bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.claim(queue text, n integer, worker uuid, lease interval, priorities smallint[] DEFAULT NULL::smallint[], shares integer[] DEFAULT NULL::integer[], run_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], behind_ms bigint[] DEFAULT NULL::bigint[], each integer DEFAULT NULL::integer, discover boolean DEFAULT false, skip_types text[] DEFAULT '{}'::text[], tell boolean DEFAULT false, after_share integer DEFAULT NULL::integer) RETURNS TABLE(id uuid, lease_token uuid, job_type text, payload text, attempts integer, claim_no integer, max_attempts integer, priority smallint, share integer, run_at timestamp with time zone, created_at timestamp with time zone, organization_id uuid, timeout_ms bigint, traceparent text, history text, locked_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.claim_events(n integer, worker uuid, lease interval) RETURNS TABLE(seq bigint, at timestamp with time zone, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, id uuid, organization_id uuid, aggregate_type text, aggregate_id uuid, event_type text, schema_version integer, payload text, occurred_at timestamp with time zone, available_at timestamp with time zone, partition_key text, traceparent text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.claim_governed(queue text, n integer, worker uuid, lease interval, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[], skip_types text[], after_share integer, keeps text) RETURNS TABLE(id uuid, lease_token uuid, job_type text, payload text, attempts integer, claim_no integer, max_attempts integer, priority smallint, share integer, run_at timestamp with time zone, created_at timestamp with time zone, organization_id uuid, timeout_ms bigint, traceparent text, history text, locked_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.claim_subscription(name text, n integer, worker uuid, lease interval) RETURNS TABLE(subscription_id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, policy text, through bigint, unparked boolean, "position" bigint, seq bigint, at timestamp with time zone, id uuid, organization_id uuid, aggregate_type text, aggregate_id uuid, event_type text, schema_version integer, payload text, occurred_at timestamp with time zone, partition_key text, traceparent text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.complete(ids uuid[], lease_tokens uuid[], claim_nos integer[], history text DEFAULT 'row'::text) RETURNS TABLE(id uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '100ms'
    AS '...';

CREATE FUNCTION outhaul.complete_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[]) RETURNS TABLE(seq bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '100ms'
    AS '...';

CREATE FUNCTION outhaul.complete_in(id uuid, lease_token uuid, claim_no integer, history text DEFAULT 'row'::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.cool_down(queues text[], rate_keys text[], delays_ms bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.discard_dead(ids uuid[], claim_nos integer[]) RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.enqueue(queue text, job_type text, payload jsonb DEFAULT '{}'::jsonb, id uuid DEFAULT NULL::uuid, idempotency_key text DEFAULT NULL::text, organization_id uuid DEFAULT NULL::uuid, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT 10, timeout interval DEFAULT NULL::interval, traceparent text DEFAULT NULL::text, notify boolean DEFAULT true, ordering_key text DEFAULT NULL::text, limit_key text DEFAULT NULL::text, rate_key text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.enqueue_many(queue text, job_type text, payloads text[], ids uuid[], idempotency_keys text[] DEFAULT NULL::text[], organization_ids uuid[] DEFAULT NULL::uuid[], run_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], priority integer DEFAULT 0, max_attempts integer DEFAULT 10, timeout interval DEFAULT NULL::interval, traceparent text DEFAULT NULL::text, notify boolean DEFAULT true, ordering_keys text[] DEFAULT NULL::text[], limit_keys text[] DEFAULT NULL::text[], rate_keys text[] DEFAULT NULL::text[]) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.event_valid(event_type text, aggregate_type text, aggregate_id uuid, bytes integer, schema_version integer, occurred_at timestamp with time zone, available_at timestamp with time zone, partition_key text, idempotency_key text, traceparent text, organization_id uuid) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS '...';

CREATE FUNCTION outhaul.events_due() RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.expired(queue text, n integer, priorities smallint[] DEFAULT NULL::smallint[], shares integer[] DEFAULT NULL::integer[], run_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], behind_ms bigint[] DEFAULT NULL::bigint[]) RETURNS TABLE(id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, job_type text, locked_by uuid, overdue_ms bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.expired_events(n integer) RETURNS TABLE(seq bigint, at timestamp with time zone, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, event_type text, claimed_by text, overdue_ms bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.expired_subscriptions(n integer) RETURNS TABLE(id uuid, lease_token uuid, claim_no integer, attempts integer, max_attempts integer, policy text, name text, locked_by uuid, overdue_ms bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.fail(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean DEFAULT false) RETURNS TABLE(id uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.fail_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean DEFAULT false) RETURNS TABLE(seq bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.fair_lanes(queue text, after integer, m integer) RETURNS TABLE(priority smallint, share integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.feed_edge() RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.floors(queue text) RETURNS TABLE(priorities smallint[], shares integer[], run_ats timestamp with time zone[])
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.free_units(queue text, limit_key text, max_running integer, n integer) RETURNS integer[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.given_back(subscription text, before timestamp with time zone DEFAULT 'infinity'::timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE
    AS '...';

CREATE FUNCTION outhaul.govern(queue text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.history_truncated("position" bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS '...';

CREATE FUNCTION outhaul.hold(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], handled bigint[], failed bigint[], unparked boolean[], expired_only boolean DEFAULT false) RETURNS TABLE(id uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.job_ended() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.job_filter_valid(filter jsonb, live boolean) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS '...';

CREATE FUNCTION outhaul.job_insert() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.jobs_ended(ended outhaul.ended_job[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.uuid7() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    AS '...';

CREATE TABLE outhaul.subscriptions (
    "position" bigint NOT NULL,
    lease_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    locked_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    due_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    moved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    caught_up_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    lease_token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    locked_by uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    claim_no integer DEFAULT 0 NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    blocked_position bigint,
    id uuid DEFAULT outhaul.uuid7() NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    history_id uuid NOT NULL,
    event_types text[],
    aggregate_types text[],
    policy outhaul.subscription_policy DEFAULT 'block'::outhaul.subscription_policy NOT NULL,
    gone_after interval DEFAULT '1 day'::interval NOT NULL,
    max_attempts integer DEFAULT 10 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    paused_at timestamp with time zone,
    paused_reason text,
    stuck_class text,
    stuck_code text,
    stuck_summary text
)
WITH (fillfactor='30', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outhaul.subscriptions."position" IS 'Everything up to here has been handled, parked or skipped.';

COMMENT ON COLUMN outhaul.subscriptions.epoch IS 'Raised by every rewind: only within an epoch does the position never move back.';

COMMENT ON COLUMN outhaul.subscriptions.attempts IS 'Failures in a row at blocked_position.';

CREATE FUNCTION outhaul.known_subscription(name text) RETURNS outhaul.subscriptions
    LANGUAGE plpgsql
    AS '...';

CREATE FUNCTION outhaul.lane_insert() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.lanes(queue text, priorities smallint[] DEFAULT NULL::smallint[], shares integer[] DEFAULT NULL::integer[]) RETURNS TABLE(priority smallint, share integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.next_due(queue text, priorities smallint[] DEFAULT NULL::smallint[], shares integer[] DEFAULT NULL::integer[]) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.next_event(after bigint, event_types text[], aggregate_types text[]) RETURNS TABLE("position" bigint, seq bigint, at timestamp with time zone)
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS '...';

CREATE FUNCTION outhaul.operation_create(name text, kind text, filter jsonb, per_second integer DEFAULT 100, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operation_step(name text DEFAULT NULL::text) RETURNS TABLE(operation text, state text, total bigint, done bigint, skipped bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '1s'
    AS '...';

CREATE FUNCTION outhaul.operation_switch(name text, action text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_cancel(id uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_cancel_key(job_type text, key text, organization_id uuid DEFAULT NULL::uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_discard(id uuid, reason text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS '...';

CREATE FUNCTION outhaul.operator_history(queue text, history text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_key_limit(queue text, limit_key text, max_running integer, reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_pause(queue text, paused boolean, reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_queue_set(queue text, settings jsonb DEFAULT '{}'::jsonb, reason text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_relay_retry(id uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.operator_retry(id uuid, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.operator_rotate_history(reason text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_subscription_drop(name text, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_subscription_pause(name text, paused boolean, reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_subscription_rewind(name text, start text, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_subscription_skip(name text, "position" bigint, reason text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.operator_subscription_unpark(name text, "position" bigint, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.outbox_edge(keep interval) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.outbox_insert() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.outbox_kept_from() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS '...';

CREATE FUNCTION outhaul.pace_keys(keys text[], placed boolean[], rate_keys text[], tokens double precision[], cool_untils timestamp with time zone[], spread_untils timestamp with time zone[], step interval, at timestamp with time zone) RETURNS timestamp with time zone[]
    LANGUAGE sql IMMUTABLE
    SET enable_hashjoin TO 'on'
    AS '...';

CREATE FUNCTION outhaul.pair_units(keys text[], unit_keys text[], units integer[]) RETURNS integer[]
    LANGUAGE sql IMMUTABLE
    SET enable_hashjoin TO 'on'
    AS '...';

CREATE FUNCTION outhaul.park(subscription text, "position" bigint, attempts integer, how text, class text, code text, summary text) RETURNS void
    LANGUAGE sql
    AS '...';

CREATE FUNCTION outhaul.partitions() RETURNS TABLE(parent text, name text, low timestamp with time zone, high timestamp with time zone, detach_pending boolean, step_seconds bigint, ahead integer, keep_seconds bigint, now timestamp with time zone, orphan boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO'
    AS '...';

CREATE FUNCTION outhaul.parts(parent text) RETURNS TABLE(name text, low text, high text, detach_pending boolean, orphan boolean, retired boolean)
    LANGUAGE sql STABLE
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO'
    AS '...';

CREATE FUNCTION outhaul.project(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint, ids uuid[], queues text[], job_types text[], payloads text[], idempotency_keys text[], organization_ids uuid[], priorities integer[], run_ats timestamp with time zone[], max_attempts integer[], timeouts_ms bigint[], traceparents text[], source_event_ids uuid[], ordering_keys text[] DEFAULT NULL::text[], limit_keys text[] DEFAULT NULL::text[], rate_keys text[] DEFAULT NULL::text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.promote_waiting(queue text, n integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.publish(event_type text, aggregate_type text, aggregate_id uuid, payload jsonb DEFAULT '{}'::jsonb, id uuid DEFAULT NULL::uuid, schema_version integer DEFAULT 1, occurred_at timestamp with time zone DEFAULT NULL::timestamp with time zone, available_at timestamp with time zone DEFAULT NULL::timestamp with time zone, partition_key text DEFAULT NULL::text, organization_id uuid DEFAULT NULL::uuid, traceparent text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text, notify boolean DEFAULT true) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.publish_floors(queue text, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.publish_many(event_types text[], aggregate_types text[], aggregate_ids uuid[], payloads text[], ids uuid[], schema_versions integer[] DEFAULT NULL::integer[], occurred_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], available_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], partition_keys text[] DEFAULT NULL::text[], organization_ids uuid[] DEFAULT NULL::uuid[], traceparents text[] DEFAULT NULL::text[], idempotency_keys text[] DEFAULT NULL::text[], notify boolean DEFAULT true) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.queue_setting_valid(name text, value jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS '...';

CREATE FUNCTION outhaul.queue_settings(queue text) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.ranges() RETURNS TABLE(parent text, name text, by_time boolean, low bigint, high bigint, detach_pending boolean, step bigint, ahead integer, now bigint, edge bigint, orphan boolean, retired boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.read(after bigint, n integer, event_types text[] DEFAULT NULL::text[], aggregate_types text[] DEFAULT NULL::text[]) RETURNS TABLE("position" bigint, seq bigint, at timestamp with time zone, id uuid, organization_id uuid, aggregate_type text, aggregate_id uuid, event_type text, schema_version integer, payload text, occurred_at timestamp with time zone, partition_key text, traceparent text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.reconcile_outbox(n integer DEFAULT 100) RETURNS TABLE(finding text, seq bigint, "position" bigint, subscription text, details text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.refill_rate(queue text, rate_key text, rate integer, per interval, burst integer) RETURNS double precision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.register_relay(start text DEFAULT 'now'::text, max_attempts integer DEFAULT 10) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.remove_expired(n integer) RETURNS TABLE(keys bigint, dead bigint, workers bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.remove_operations(n integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS '...';

CREATE FUNCTION outhaul.renew(ids uuid[], lease_tokens uuid[], lease interval) RETURNS TABLE(id uuid, state text, cancelled boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.renew_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], lease interval) RETURNS TABLE(seq bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.renew_subscriptions(ids uuid[], lease_tokens uuid[], lease interval) RETURNS TABLE(id uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.replay_dead(ids uuid[], claim_nos integer[]) RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.schema_state() RETURNS TABLE(version integer, serves_from integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.select_jobs(filter jsonb, live boolean, n integer) RETURNS TABLE(id uuid, claim_no integer, queue text, job_type text, code text, summary text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.sequence(n integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.setting_seconds(name text) RETURNS double precision
    LANGUAGE sql STABLE
    AS '...';

CREATE FUNCTION outhaul.share_of(queue text, organization_id uuid) RETURNS integer
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_attempts(job_id uuid) RETURNS TABLE(claim_no integer, attempt integer, worker_id uuid, started_at timestamp with time zone, ended_at timestamp with time zone, outcome text, error_class text, error_code text, error_summary text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_audit(before bigint DEFAULT NULL::bigint, n integer DEFAULT 50) RETURNS TABLE(seq bigint, at timestamp with time zone, actor text, action text, object text, details text, reason text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_dead(filter jsonb DEFAULT '{}'::jsonb, before_at timestamp with time zone DEFAULT NULL::timestamp with time zone, before_id uuid DEFAULT NULL::uuid, n integer DEFAULT 50) RETURNS TABLE(id uuid, organization_id uuid, queue text, job_type text, attempts integer, max_attempts integer, claim_no integer, error_class text, error_code text, error_summary text, idempotency_key text, ordering_key text, created_at timestamp with time zone, died_at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_dead_groups(filter jsonb DEFAULT '{}'::jsonb, n integer DEFAULT 100) RETURNS TABLE(queue text, job_type text, error_code text, jobs bigint, oldest_at timestamp with time zone, newest_at timestamp with time zone, sample_id uuid, sample_summary text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_dispositions(id uuid) RETURNS TABLE(subscription text, "position" bigint, event_id uuid, event_type text, aggregate_type text, aggregate_id uuid, parked_at timestamp with time zone, how text, attempts integer, error_class text, error_code text, error_summary text, unparked_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_event(id uuid) RETURNS TABLE(seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer, occurred_at timestamp with time zone, at timestamp with time zone, "position" bigint, relay text, organization_id uuid, partition_key text, traceparent text, available_at timestamp with time zone, attempts integer, processed_at timestamp with time zone, last_error text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_event_payload(id uuid) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_events(before bigint DEFAULT NULL::bigint, n integer DEFAULT 100, event_type text DEFAULT NULL::text, aggregate_type text DEFAULT NULL::text, aggregate_id uuid DEFAULT NULL::uuid, only_parked boolean DEFAULT false) RETURNS TABLE(seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer, occurred_at timestamp with time zone, at timestamp with time zone, "position" bigint, relay text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_isolation(queue text DEFAULT NULL::text, cap integer DEFAULT 10000) RETURNS TABLE(name text, settings text, running bigint, waiting_lane bigint, waiting_permit bigint, waiting_rate bigint, capped boolean, oldest_waiting_ms bigint, cooling_ms bigint, cooling_keys bigint, key_limits bigint, roles text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_job(id uuid) RETURNS TABLE(id uuid, organization_id uuid, queue text, job_type text, status text, priority integer, run_at timestamp with time zone, attempts integer, max_attempts integer, locked_at timestamp with time zone, locked_by text, last_error_code text, last_error_summary text, ended_at timestamp with time zone, created_at timestamp with time zone, claim_no integer, lease_until timestamp with time zone, idempotency_key text, traceparent text, timeout_ms bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_jobs(statuses text[] DEFAULT NULL::text[], queue text DEFAULT NULL::text, job_type text DEFAULT NULL::text, before uuid DEFAULT NULL::uuid, n integer DEFAULT 50) RETURNS TABLE(id uuid, organization_id uuid, queue text, job_type text, status text, priority integer, run_at timestamp with time zone, attempts integer, max_attempts integer, locked_at timestamp with time zone, locked_by text, last_error_code text, last_error_summary text, ended_at timestamp with time zone, created_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_notifications() RETURNS double precision
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_operation_items(name text, after bigint DEFAULT 0, with_outcome text DEFAULT NULL::text, most integer DEFAULT 50) RETURNS TABLE(n bigint, job_id uuid, outcome text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_operations(operation text DEFAULT NULL::text, n integer DEFAULT 100) RETURNS TABLE(id uuid, name text, kind text, filter text, state text, per_second integer, total bigint, done bigint, skipped bigint, outcomes text, preview text, created_at timestamp with time zone, started_at timestamp with time zone, stopped_at timestamp with time zone, finished_at timestamp with time zone, actor text, reason text, error text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_outbox(cap integer DEFAULT 10000) RETURNS TABLE(head bigint, history_id uuid, unsequenced bigint, oldest_unsequenced_ms bigint, relay_since timestamp with time zone, relay_pending bigint, relay_leased bigint, relay_parked bigint, relay_oldest_ms bigint, capped boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_parked(name text, before bigint DEFAULT NULL::bigint, n integer DEFAULT 100) RETURNS TABLE("position" bigint, event_id uuid, event_type text, aggregate_type text, aggregate_id uuid, parked_at timestamp with time zone, how text, attempts integer, error_class text, error_code text, error_summary text, unparked_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_payload(id uuid) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_queues(cap integer DEFAULT 10000) RETURNS TABLE(queue text, pending bigint, scheduled bigint, leased bigint, retrying bigint, dead bigint, capped boolean, oldest_pending_ms bigint, oldest_expired_lease_ms bigint, paused boolean, paused_reason text, history text, age_objective_ms bigint, workers bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_set_aside(subscription text) RETURNS TABLE(parked bigint, skipped bigint, given_back bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_subscriptions(subscription text DEFAULT NULL::text) RETURNS TABLE(name text, id uuid, "position" bigint, head bigint, behind bigint, oldest_ms bigint, policy text, event_types text[], aggregate_types text[], epoch integer, attempts integer, blocked_position bigint, due_at timestamp with time zone, leased_by uuid, lease_until timestamp with time zone, moved_at timestamp with time zone, caught_up_at timestamp with time zone, seen_at timestamp with time zone, paused_reason text, stuck_class text, stuck_code text, stuck_summary text, parked bigint, holds text, moved_ms bigint, caught_up_ms bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_upkeep() RETURNS TABLE(task text, last_run_at timestamp with time zone, duration_ms bigint, findings text, error text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.show_waiting(queue text, cap integer DEFAULT 10000, n integer DEFAULT 20) RETURNS TABLE(reason text, key text, waiting bigint, job_id uuid, job_status text, running bigint, max_running integer, until timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_material TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_waits(id uuid) RETURNS TABLE(reason text, key text, job_id uuid, job_status text, ahead bigint, running bigint, max_running integer, until timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.show_workers() RETURNS TABLE(id uuid, host text, pid integer, version text, schema_version integer, queues text, started_at timestamp with time zone, heartbeat_at timestamp with time zone, silent_ms bigint, stopping_at timestamp with time zone, listener_pid integer, listener_state text, running integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.snooze(id uuid, lease_token uuid, claim_no integer, delay interval) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.start_position(start text) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.subscribe(name text, start text DEFAULT 'now'::text, event_types text[] DEFAULT NULL::text[], aggregate_types text[] DEFAULT NULL::text[], policy text DEFAULT 'block'::text, gone_after interval DEFAULT '1 day'::interval, max_attempts integer DEFAULT 10) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.subscription_due(name text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.tail_events(start text, n integer DEFAULT 100, event_types text[] DEFAULT NULL::text[]) RETURNS TABLE(through bigint, seq bigint, id uuid, event_type text, aggregate_type text, aggregate_id uuid, schema_version integer, occurred_at timestamp with time zone, at timestamp with time zone, "position" bigint, relay text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.take_event_key(new_id uuid, organization_id uuid, event_type text, idempotency_key text, body text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.take_key(new_id uuid, organization_id uuid, job_type text, idempotency_key text, body text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS '...';

CREATE FUNCTION outhaul.take_key_units(queue text, keys text[], cts tid[], max_running integer, OUT units integer[], OUT held tid[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.take_rate_slots(queue text, rate_keys text[], placed boolean[], rate integer, per interval, burst integer) RETURNS timestamp with time zone[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS '...';

CREATE FUNCTION outhaul.take_sweep(queue text, every interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.upkeep_due(task text, every interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.upkeep_report(task text, duration_ms bigint, findings jsonb, error text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.valid(queue text, job_type text, bytes integer, idempotency_key text, priority integer, max_attempts integer, run_at timestamp with time zone, timeout interval, traceparent text, organization_id uuid, ordering_key text DEFAULT NULL::text, limit_key text DEFAULT NULL::text, rate_key text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS '...';

CREATE FUNCTION outhaul.wake(at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS '...';

CREATE FUNCTION outhaul.worker_beat(id uuid, host text, pid integer, version text, schema_version integer, queues jsonb, listener_pid integer, listener_state text, running integer, stopping boolean, role text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE FUNCTION outhaul.worker_gone(id uuid) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'outhaul', 'pg_catalog', 'pg_temp'
    AS '...';

CREATE TABLE outhaul.jobs (
    lease_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    locked_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    lease_token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    locked_by uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    status outhaul.job_status DEFAULT 'pending'::outhaul.job_status NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    claim_no integer DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 10 NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    share integer DEFAULT 0 NOT NULL,
    held boolean DEFAULT false NOT NULL,
    run_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    id uuid DEFAULT outhaul.uuid7() NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    job_type text NOT NULL COLLATE pg_catalog."C",
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    organization_id uuid,
    idempotency_key text COLLATE pg_catalog."C",
    timeout interval,
    ordering_key text COLLATE pg_catalog."C",
    limit_key text COLLATE pg_catalog."C",
    rate_key text COLLATE pg_catalog."C",
    traceparent text COLLATE pg_catalog."C",
    source_event_id uuid,
    last_error_code text,
    last_error_summary text,
    permit integer,
    key_permit integer,
    held_for text COLLATE pg_catalog."C",
    rate_slot timestamp with time zone
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000');

COMMENT ON TABLE outhaul.jobs IS 'Live jobs only: a row leaves when its job ends.';

COMMENT ON COLUMN outhaul.jobs.lease_token IS 'Random per claim; every later change of the lease must name it.';

COMMENT ON COLUMN outhaul.jobs.status IS 'For people; no claim or index depends on it.';

COMMENT ON COLUMN outhaul.jobs.claim_no IS 'Grows with each claim and is never reset, unlike attempts.';

COMMENT ON COLUMN outhaul.jobs.held IS 'Waits for something else than its time (see held_for), outside of the claim index.';

COMMENT ON COLUMN outhaul.jobs.permit IS 'The unit of the queue''s limit that its lease holds.';

COMMENT ON COLUMN outhaul.jobs.key_permit IS 'The unit of its limit_key that its lease holds.';

COMMENT ON COLUMN outhaul.jobs.held_for IS 'lane: another job of its ordering key is before it. permit: its limit_key is used up.';

COMMENT ON COLUMN outhaul.jobs.rate_slot IS 'Equal to run_at while a rate or a cooldown has put it there.';

CREATE TABLE outhaul.jobs_dead (
    died_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    id uuid NOT NULL,
    organization_id uuid,
    attempts integer NOT NULL,
    claim_no integer NOT NULL,
    max_attempts smallint NOT NULL,
    priority smallint NOT NULL,
    share integer NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    job_type text NOT NULL COLLATE pg_catalog."C",
    payload jsonb NOT NULL,
    idempotency_key text COLLATE pg_catalog."C",
    timeout interval,
    ordering_key text COLLATE pg_catalog."C",
    limit_key text COLLATE pg_catalog."C",
    rate_key text COLLATE pg_catalog."C",
    traceparent text COLLATE pg_catalog."C",
    source_event_id uuid,
    locked_by uuid NOT NULL,
    last_error_class text NOT NULL,
    last_error_code text,
    last_error_summary text
);

CREATE TABLE outhaul.jobs_finished (
    finished_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone NOT NULL,
    id uuid NOT NULL,
    organization_id uuid,
    attempts integer NOT NULL,
    claim_no integer NOT NULL,
    max_attempts smallint NOT NULL,
    priority smallint NOT NULL,
    status outhaul.end_status NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    job_type text NOT NULL COLLATE pg_catalog."C",
    error_code text,
    payload jsonb
)
PARTITION BY RANGE (finished_at);

CREATE VIEW outhaul.all_jobs AS
 SELECT id,
    organization_id,
    queue,
    job_type,
    payload,
    idempotency_key,
    (status)::text AS status,
    (priority)::integer AS priority,
    run_at,
    attempts,
    (max_attempts)::integer AS max_attempts,
    NULLIF(locked_at, '-infinity'::timestamp with time zone) AS locked_at,
        CASE
            WHEN (locked_by <> '00000000-0000-0000-0000-000000000000'::uuid) THEN (locked_by)::text
            ELSE NULL::text
        END AS locked_by,
    last_error_code,
    last_error_summary,
    NULL::timestamp with time zone AS completed_at,
    created_at
   FROM outhaul.jobs
UNION ALL
 SELECT id,
    organization_id,
    queue,
    job_type,
    payload,
    NULL::text AS idempotency_key,
    (status)::text AS status,
    (priority)::integer AS priority,
    NULL::timestamp with time zone AS run_at,
    attempts,
    (max_attempts)::integer AS max_attempts,
    started_at AS locked_at,
    NULL::text AS locked_by,
    error_code AS last_error_code,
    NULL::text AS last_error_summary,
    finished_at AS completed_at,
    created_at
   FROM outhaul.jobs_finished
UNION ALL
 SELECT id,
    organization_id,
    queue,
    job_type,
    payload,
    idempotency_key,
    'dead_letter'::text AS status,
    (priority)::integer AS priority,
    run_at,
    attempts,
    (max_attempts)::integer AS max_attempts,
    NULL::timestamp with time zone AS locked_at,
    (locked_by)::text AS locked_by,
    last_error_code,
    last_error_summary,
    died_at AS completed_at,
    created_at
   FROM outhaul.jobs_dead;

CREATE TABLE outhaul.audit_head (
    one boolean DEFAULT true NOT NULL,
    last_seq bigint DEFAULT 0 NOT NULL,
    hash bytea DEFAULT '\x'::bytea NOT NULL,
    CONSTRAINT audit_head_one_check CHECK (one)
);

CREATE TABLE outhaul.audit_log (
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL,
    action text NOT NULL COLLATE pg_catalog."C",
    object text NOT NULL,
    details jsonb NOT NULL,
    reason text,
    prev_hash bytea NOT NULL,
    hash bytea NOT NULL
);

CREATE TABLE outhaul.job_attempts (
    ended_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    started_at timestamp with time zone NOT NULL,
    job_id uuid NOT NULL,
    claim_no integer NOT NULL,
    attempt integer NOT NULL,
    worker_id uuid NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    error_class text NOT NULL COLLATE pg_catalog."C",
    error_code text,
    error_summary text
)
PARTITION BY RANGE (ended_at);

COMMENT ON COLUMN outhaul.job_attempts.outcome IS 'What followed: retry, dead_letter, cancelled, snoozed or released.';

CREATE TABLE outhaul.job_keys (
    scope uuid NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    job_id uuid NOT NULL,
    digest bigint NOT NULL,
    expires_at timestamp with time zone
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outhaul.job_keys.scope IS 'The organization, or the nil UUID for none: no organization is one scope.';

COMMENT ON COLUMN outhaul.job_keys.digest IS 'hashtextextended of the payload text: another payload under the same key is refused.';

CREATE TABLE outhaul.key_limits (
    queue text NOT NULL COLLATE pg_catalog."C",
    limit_key text NOT NULL COLLATE pg_catalog."C",
    max_running integer NOT NULL,
    CONSTRAINT key_limits_max_running_check CHECK (((max_running >= 0) AND (max_running <= 10000)))
);

COMMENT ON TABLE outhaul.key_limits IS 'Limits of single keys that differ from max_running_per_key of their queue; 0 stops a key.';

CREATE TABLE outhaul.operation_items (
    operation_id uuid NOT NULL,
    n bigint NOT NULL,
    job_id uuid NOT NULL,
    claim_no integer,
    outcome text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outhaul.operation_items.claim_no IS 'Of a dead letter: the claim it died of. A job that has died again is not the one that was chosen.';

CREATE TABLE outhaul.operations (
    id uuid DEFAULT outhaul.uuid7() NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    filter jsonb NOT NULL,
    preview jsonb DEFAULT '{}'::jsonb NOT NULL,
    state text DEFAULT 'ready'::text NOT NULL COLLATE pg_catalog."C",
    per_second integer NOT NULL,
    total bigint DEFAULT 0 NOT NULL,
    done bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    outcomes jsonb DEFAULT '{}'::jsonb NOT NULL,
    passed bigint DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    started_at timestamp with time zone,
    stopped_at timestamp with time zone,
    finished_at timestamp with time zone,
    actor text NOT NULL,
    reason text,
    error text,
    CONSTRAINT operations_kind_check CHECK ((kind = ANY (ARRAY['replay'::text, 'discard'::text, 'cancel'::text]))),
    CONSTRAINT operations_per_second_check CHECK (((per_second >= 1) AND (per_second <= 10000))),
    CONSTRAINT operations_state_check CHECK ((state = ANY (ARRAY['ready'::text, 'running'::text, 'stopped'::text, 'done'::text])))
)
WITH (fillfactor='50');

COMMENT ON COLUMN outhaul.operations.preview IS 'Counts by queue, type and code of the very set, and the first of it, as they were when it was fixed.';

COMMENT ON COLUMN outhaul.operations.outcomes IS 'How many items have had each outcome.';

COMMENT ON COLUMN outhaul.operations.passed IS 'The last item of this pass; those that were locked are left for another one.';

COMMENT ON COLUMN outhaul.operations.due_at IS 'When the next item may be acted on: the throttle.';

COMMENT ON COLUMN outhaul.operations.error IS 'Why the last step failed; it is tried again.';

CREATE TABLE outhaul.ordering_lanes (
    queue text NOT NULL COLLATE pg_catalog."C",
    ordering_key text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    job_id uuid,
    head boolean DEFAULT false NOT NULL,
    fresh boolean DEFAULT true NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outhaul.ordering_lanes.fresh IS 'No look at its lane has taken notice of it yet; see advance_lanes.';

ALTER TABLE outhaul.ordering_lanes ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outhaul.ordering_lanes_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outhaul.outbox_events (
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seq bigint NOT NULL,
    id uuid DEFAULT outhaul.uuid7() NOT NULL,
    organization_id uuid,
    aggregate_type text NOT NULL COLLATE pg_catalog."C",
    aggregate_id uuid NOT NULL,
    event_type text NOT NULL COLLATE pg_catalog."C",
    schema_version integer DEFAULT 1 NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    available_at timestamp with time zone DEFAULT now() NOT NULL,
    partition_key text COLLATE pg_catalog."C",
    traceparent text COLLATE pg_catalog."C",
    claimed_at timestamp with time zone,
    claimed_by text,
    lease_until timestamp with time zone,
    lease_token uuid,
    attempts integer DEFAULT 0 NOT NULL,
    claim_no integer DEFAULT 0 NOT NULL,
    processed_at timestamp with time zone,
    parked_at timestamp with time zone,
    last_error text
)
PARTITION BY RANGE (at);

COMMENT ON TABLE outhaul.outbox_events IS 'Facts that have happened, not commands. Insert after the aggregate''s row is locked.';

COMMENT ON COLUMN outhaul.outbox_events.available_at IS 'When the relay may take it; ordered subscriptions ignore it.';

COMMENT ON COLUMN outhaul.outbox_events.claimed_at IS 'When the relay took or last renewed it.';

COMMENT ON COLUMN outhaul.outbox_events.parked_at IS 'The relay has given it up; available_at is then infinity, so that no claim finds it.';

ALTER TABLE outhaul.outbox_events ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outhaul.outbox_events_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outhaul.outbox_feed (
    "position" bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL
)
PARTITION BY RANGE ("position");

CREATE TABLE outhaul.outbox_feed_head (
    one boolean DEFAULT true NOT NULL,
    last_position bigint DEFAULT 0 NOT NULL,
    history_id uuid DEFAULT gen_random_uuid() NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    next_floor bigint DEFAULT 0 NOT NULL,
    next_floor_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    looked_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    look_cost interval DEFAULT '00:00:00'::interval NOT NULL,
    CONSTRAINT outbox_feed_head_one_check CHECK (one)
)
WITH (fillfactor='20');

COMMENT ON COLUMN outhaul.outbox_feed_head.history_id IS 'Names this history of positions; rotate_history makes a new one after a restore elsewhere.';

CREATE TABLE outhaul.outbox_unsequenced (
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

CREATE TABLE outhaul.permits (
    queue text NOT NULL COLLATE pg_catalog."C",
    limit_key text NOT NULL COLLATE pg_catalog."C",
    n integer NOT NULL,
    lease_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    lease_token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    used_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE outhaul.queue_floors (
    queue text NOT NULL COLLATE pg_catalog."C",
    priorities smallint[] DEFAULT '{}'::smallint[] NOT NULL,
    shares integer[] DEFAULT '{}'::integer[] NOT NULL,
    run_ats timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[] NOT NULL,
    floored_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    swept_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    promoted_key text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C"
)
WITH (fillfactor='50');

COMMENT ON COLUMN outhaul.queue_floors.promoted_key IS 'Where promote_waiting goes on.';

CREATE TABLE outhaul.queues (
    name text NOT NULL COLLATE pg_catalog."C",
    paused_at timestamp with time zone,
    paused_reason text,
    history text DEFAULT 'row'::text NOT NULL,
    age_objective interval,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    max_running integer,
    max_running_per_key integer,
    rate integer,
    rate_per interval,
    rate_burst integer,
    key_rate integer,
    key_rate_per interval,
    key_rate_burst integer,
    fair boolean DEFAULT false NOT NULL,
    cool_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    governed boolean DEFAULT false NOT NULL,
    CONSTRAINT key_rate_has_a_period CHECK (((key_rate IS NULL) = (key_rate_per IS NULL))),
    CONSTRAINT queues_history_check CHECK ((history = ANY (ARRAY['none'::text, 'row'::text, 'payload'::text]))),
    CONSTRAINT queues_key_rate_burst_check CHECK (((key_rate_burst >= 1) AND (key_rate_burst <= 1000000))),
    CONSTRAINT queues_key_rate_check CHECK (((key_rate >= 1) AND (key_rate <= 1000000))),
    CONSTRAINT queues_key_rate_per_check CHECK (((key_rate_per >= '00:00:01'::interval) AND (key_rate_per <= '1 day'::interval))),
    CONSTRAINT queues_max_running_check CHECK (((max_running >= 1) AND (max_running <= 10000))),
    CONSTRAINT queues_max_running_per_key_check CHECK (((max_running_per_key >= 1) AND (max_running_per_key <= 10000))),
    CONSTRAINT queues_rate_burst_check CHECK (((rate_burst >= 1) AND (rate_burst <= 1000000))),
    CONSTRAINT queues_rate_check CHECK (((rate >= 1) AND (rate <= 1000000))),
    CONSTRAINT queues_rate_per_check CHECK (((rate_per >= '00:00:01'::interval) AND (rate_per <= '1 day'::interval))),
    CONSTRAINT rate_has_a_period CHECK (((rate IS NULL) = (rate_per IS NULL)))
);

COMMENT ON COLUMN outhaul.queues.history IS 'What stays of a completed job: nothing, its row, or its row with the payload.';

COMMENT ON COLUMN outhaul.queues.max_running IS 'Most jobs of the queue that are leased at the same time, in the whole cluster.';

COMMENT ON COLUMN outhaul.queues.max_running_per_key IS 'The same for each limit_key of the queue; key_limits has the exceptions.';

COMMENT ON COLUMN outhaul.queues.rate IS 'Most claims within rate_per; rate_burst of them at once.';

COMMENT ON COLUMN outhaul.queues.fair IS 'Organizations take turns: a job''s share is made of its organization.';

COMMENT ON COLUMN outhaul.queues.cool_until IS 'A job without a rate_key was told to come back then: until then nothing is claimed.';

COMMENT ON COLUMN outhaul.queues.governed IS 'Something of all this holds, or a cooldown has been seen: claims look for it.';

CREATE TABLE outhaul.ranged_tables (
    name text NOT NULL COLLATE pg_catalog."C",
    step interval,
    ahead integer NOT NULL,
    keep interval,
    positions bigint,
    CONSTRAINT ranged_tables_ahead_check CHECK (((ahead >= 2) AND (ahead <= 400))),
    CONSTRAINT ranged_tables_positions_check CHECK ((positions > 0)),
    CONSTRAINT ranged_tables_step CHECK (((step IS NULL) <> (positions IS NULL)))
);

CREATE TABLE outhaul.rates (
    queue text NOT NULL COLLATE pg_catalog."C",
    rate_key text NOT NULL COLLATE pg_catalog."C",
    tokens double precision DEFAULT 0 NOT NULL,
    refilled_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    cool_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    spread_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outhaul.rates.spread_until IS 'The last place in time that was given to a job of this partition.';

CREATE TABLE outhaul.relay (
    one boolean DEFAULT true NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    max_attempts integer DEFAULT 10 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT relay_one_check CHECK (one)
);

CREATE TABLE outhaul.schema_functions (
    name text NOT NULL,
    digest text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE outhaul.schema_migrations (
    version integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    serves_from integer NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE outhaul.settings (
    name text NOT NULL COLLATE pg_catalog."C",
    value jsonb NOT NULL
);

CREATE TABLE outhaul.subscription_parked (
    subscription text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL,
    parked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    event_id uuid NOT NULL,
    organization_id uuid,
    aggregate_type text NOT NULL COLLATE pg_catalog."C",
    aggregate_id uuid NOT NULL,
    event_type text NOT NULL COLLATE pg_catalog."C",
    schema_version integer NOT NULL,
    payload jsonb NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    partition_key text COLLATE pg_catalog."C",
    traceparent text COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    attempts integer NOT NULL,
    how text NOT NULL,
    error_class text,
    error_code text,
    error_summary text,
    unparked_at timestamp with time zone,
    CONSTRAINT subscription_parked_how_check CHECK ((how = ANY (ARRAY['parked'::text, 'skipped'::text])))
);

CREATE TABLE outhaul.upkeep (
    task text NOT NULL COLLATE pg_catalog."C",
    last_run_at timestamp with time zone,
    duration_ms bigint,
    findings jsonb DEFAULT '{}'::jsonb NOT NULL,
    error text
)
WITH (fillfactor='50');

CREATE SEQUENCE outhaul.wake_gate
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE outhaul.workers (
    id uuid NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    schema_version integer NOT NULL,
    queues jsonb NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    stopping_at timestamp with time zone,
    listener_pid integer,
    listener_state text DEFAULT 'connecting'::text NOT NULL,
    running integer DEFAULT 0 NOT NULL,
    role text COLLATE pg_catalog."C"
)
WITH (fillfactor='50');

COMMENT ON COLUMN outhaul.workers.role IS 'What the process was started as, for people; its queues say what it does.';

ALTER TABLE ONLY outhaul.audit_head
    ADD CONSTRAINT audit_head_pkey PRIMARY KEY (one);

ALTER TABLE ONLY outhaul.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outhaul.job_keys
    ADD CONSTRAINT job_keys_pkey PRIMARY KEY (scope, kind, key);

ALTER TABLE ONLY outhaul.jobs_dead
    ADD CONSTRAINT jobs_dead_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outhaul.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outhaul.key_limits
    ADD CONSTRAINT key_limits_pkey PRIMARY KEY (queue, limit_key);

ALTER TABLE ONLY outhaul.operation_items
    ADD CONSTRAINT operation_items_pkey PRIMARY KEY (operation_id, n);

ALTER TABLE ONLY outhaul.operations
    ADD CONSTRAINT operations_name_key UNIQUE (name);

ALTER TABLE ONLY outhaul.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outhaul.ordering_lanes
    ADD CONSTRAINT ordering_lanes_pkey PRIMARY KEY (queue, ordering_key, seq);

ALTER TABLE ONLY outhaul.outbox_events
    ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (seq, at);

ALTER TABLE ONLY outhaul.outbox_feed_head
    ADD CONSTRAINT outbox_feed_head_pkey PRIMARY KEY (one);

ALTER TABLE ONLY outhaul.outbox_feed
    ADD CONSTRAINT outbox_feed_pkey PRIMARY KEY ("position");

ALTER TABLE ONLY outhaul.outbox_unsequenced
    ADD CONSTRAINT outbox_unsequenced_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outhaul.permits
    ADD CONSTRAINT permits_pkey PRIMARY KEY (queue, limit_key, n);

ALTER TABLE ONLY outhaul.queue_floors
    ADD CONSTRAINT queue_floors_pkey PRIMARY KEY (queue);

ALTER TABLE ONLY outhaul.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outhaul.ranged_tables
    ADD CONSTRAINT ranged_tables_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outhaul.rates
    ADD CONSTRAINT rates_pkey PRIMARY KEY (queue, rate_key);

ALTER TABLE ONLY outhaul.relay
    ADD CONSTRAINT relay_pkey PRIMARY KEY (one);

ALTER TABLE ONLY outhaul.schema_functions
    ADD CONSTRAINT schema_functions_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outhaul.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY outhaul.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outhaul.subscription_parked
    ADD CONSTRAINT subscription_parked_pkey PRIMARY KEY (subscription, "position");

ALTER TABLE ONLY outhaul.subscriptions
    ADD CONSTRAINT subscriptions_id UNIQUE (id);

ALTER TABLE ONLY outhaul.subscriptions
    ADD CONSTRAINT subscriptions_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outhaul.upkeep
    ADD CONSTRAINT upkeep_pkey PRIMARY KEY (task);

ALTER TABLE ONLY outhaul.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

CREATE INDEX job_attempts_job ON ONLY outhaul.job_attempts USING btree (job_id, claim_no);

CREATE INDEX job_keys_expiry ON outhaul.job_keys USING btree (expires_at) WHERE (expires_at IS NOT NULL);

CREATE INDEX jobs_claim ON outhaul.jobs USING btree (queue, priority DESC, share, run_at, id) WHERE (NOT held);

CREATE INDEX jobs_dead_code ON outhaul.jobs_dead USING btree (last_error_code, died_at, id);

CREATE INDEX jobs_dead_died ON outhaul.jobs_dead USING btree (died_at, id);

CREATE INDEX jobs_dead_group ON outhaul.jobs_dead USING btree (queue, job_type, last_error_code, died_at);

CREATE INDEX jobs_dead_organization ON outhaul.jobs_dead USING btree (organization_id, died_at, id) WHERE (organization_id IS NOT NULL);

CREATE INDEX jobs_dead_queue ON outhaul.jobs_dead USING btree (queue, died_at, id);

CREATE INDEX jobs_dead_type ON outhaul.jobs_dead USING btree (job_type, died_at, id);

CREATE INDEX jobs_finished_id ON ONLY outhaul.jobs_finished USING btree (id);

CREATE INDEX jobs_waiting ON outhaul.jobs USING btree (queue, limit_key, priority DESC, run_at, id) WHERE (held_for = 'permit'::text);

CREATE INDEX operation_items_open ON outhaul.operation_items USING btree (operation_id, n) WHERE (outcome IS NULL);

CREATE INDEX ordering_fresh ON outhaul.ordering_lanes USING btree (queue, seq) WHERE fresh;

CREATE UNIQUE INDEX ordering_heads ON outhaul.ordering_lanes USING btree (queue, ordering_key) WHERE head;

CREATE UNIQUE INDEX ordering_jobs ON outhaul.ordering_lanes USING btree (job_id) WHERE (job_id IS NOT NULL);

CREATE INDEX outbox_events_id ON ONLY outhaul.outbox_events USING btree (id);

CREATE INDEX outbox_feed_at ON ONLY outhaul.outbox_feed USING brin (at);

CREATE INDEX outbox_feed_seq ON ONLY outhaul.outbox_feed USING btree (seq);

CREATE INDEX outbox_leased ON ONLY outhaul.outbox_events USING btree (lease_until) WHERE (lease_until IS NOT NULL);

CREATE INDEX outbox_parked ON ONLY outhaul.outbox_events USING btree (parked_at) WHERE (parked_at IS NOT NULL);

CREATE INDEX outbox_pending_idx ON ONLY outhaul.outbox_events USING btree (available_at, occurred_at) WHERE (processed_at IS NULL);

CREATE TRIGGER job_ended AFTER DELETE ON outhaul.jobs FOR EACH ROW WHEN ((((old.ordering_key IS NOT NULL) OR (old.permit IS NOT NULL) OR (old.limit_key IS NOT NULL)) AND (current_setting('outhaul_call.settles'::text, true) IS DISTINCT FROM 'on'::text))) EXECUTE FUNCTION outhaul.job_ended();

CREATE TRIGGER job_insert BEFORE INSERT ON outhaul.jobs FOR EACH ROW WHEN ((CURRENT_USER <> 'outhaul_owner'::name)) EXECUTE FUNCTION outhaul.job_insert();

CREATE TRIGGER lane_insert BEFORE INSERT ON outhaul.jobs FOR EACH ROW WHEN ((new.ordering_key IS NOT NULL)) EXECUTE FUNCTION outhaul.lane_insert();

CREATE TRIGGER outbox_insert AFTER INSERT ON outhaul.outbox_events FOR EACH ROW WHEN ((CURRENT_USER <> 'outhaul_owner'::name)) EXECUTE FUNCTION outhaul.outbox_insert();

ALTER TABLE ONLY outhaul.subscription_parked
    ADD CONSTRAINT subscription_parked_subscription_fkey FOREIGN KEY (subscription) REFERENCES outhaul.subscriptions(name) ON DELETE CASCADE;

GRANT USAGE ON SCHEMA outhaul TO outhaul_producer;
GRANT USAGE ON SCHEMA outhaul TO outhaul_worker;
GRANT USAGE ON SCHEMA outhaul TO outhaul_observer;
GRANT USAGE ON SCHEMA outhaul TO outhaul_operator;

REVOKE ALL ON TYPE outhaul.end_status FROM PUBLIC;
GRANT ALL ON TYPE outhaul.end_status TO outhaul_producer;
GRANT ALL ON TYPE outhaul.end_status TO outhaul_operator;

REVOKE ALL ON TYPE outhaul.job_status FROM PUBLIC;
GRANT ALL ON TYPE outhaul.job_status TO outhaul_producer;
GRANT ALL ON TYPE outhaul.job_status TO outhaul_operator;

REVOKE ALL ON TYPE outhaul.subscription_policy FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.advance_lanes(queue text, n integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.audit_append(action text, object text, details jsonb, reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.audit_hash(prev bytea, seq bigint, at timestamp with time zone, actor text, action text, object text, details jsonb, reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.audit_verify(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.audit_verify(n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.canary(channel text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.canary(channel text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.cancel(id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.cancel(id uuid, reason text) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.cancel_jobs(ids uuid[], reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.cancel_key(job_type text, key text, organization_id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.cancel_key(job_type text, key text, organization_id uuid, reason text) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.checkpoint(ids uuid[], lease_tokens uuid[], claim_nos integer[], positions bigint[], unparked bigint[], committed bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.checkpoint(ids uuid[], lease_tokens uuid[], claim_nos integer[], positions bigint[], unparked bigint[], committed bigint[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.checkpoint_in(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.checkpoint_in(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.claim(queue text, n integer, worker uuid, lease interval, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[], each integer, discover boolean, skip_types text[], tell boolean, after_share integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.claim(queue text, n integer, worker uuid, lease interval, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[], each integer, discover boolean, skip_types text[], tell boolean, after_share integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.claim_events(n integer, worker uuid, lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.claim_events(n integer, worker uuid, lease interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.claim_governed(queue text, n integer, worker uuid, lease interval, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[], skip_types text[], after_share integer, keeps text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.claim_subscription(name text, n integer, worker uuid, lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.claim_subscription(name text, n integer, worker uuid, lease interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.complete(ids uuid[], lease_tokens uuid[], claim_nos integer[], history text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.complete(ids uuid[], lease_tokens uuid[], claim_nos integer[], history text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.complete_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.complete_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.complete_in(id uuid, lease_token uuid, claim_no integer, history text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.complete_in(id uuid, lease_token uuid, claim_no integer, history text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.cool_down(queues text[], rate_keys text[], delays_ms bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.discard_dead(ids uuid[], claim_nos integer[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.enqueue(queue text, job_type text, payload jsonb, id uuid, idempotency_key text, organization_id uuid, priority integer, run_at timestamp with time zone, max_attempts integer, timeout interval, traceparent text, notify boolean, ordering_key text, limit_key text, rate_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.enqueue(queue text, job_type text, payload jsonb, id uuid, idempotency_key text, organization_id uuid, priority integer, run_at timestamp with time zone, max_attempts integer, timeout interval, traceparent text, notify boolean, ordering_key text, limit_key text, rate_key text) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.enqueue_many(queue text, job_type text, payloads text[], ids uuid[], idempotency_keys text[], organization_ids uuid[], run_ats timestamp with time zone[], priority integer, max_attempts integer, timeout interval, traceparent text, notify boolean, ordering_keys text[], limit_keys text[], rate_keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.enqueue_many(queue text, job_type text, payloads text[], ids uuid[], idempotency_keys text[], organization_ids uuid[], run_ats timestamp with time zone[], priority integer, max_attempts integer, timeout interval, traceparent text, notify boolean, ordering_keys text[], limit_keys text[], rate_keys text[]) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.event_valid(event_type text, aggregate_type text, aggregate_id uuid, bytes integer, schema_version integer, occurred_at timestamp with time zone, available_at timestamp with time zone, partition_key text, idempotency_key text, traceparent text, organization_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.events_due() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.events_due() TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.expired(queue text, n integer, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.expired(queue text, n integer, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.expired_events(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.expired_events(n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.expired_subscriptions(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.expired_subscriptions(n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.fail(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.fail(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.fail_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.fail_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], expired_only boolean) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.fair_lanes(queue text, after integer, m integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.feed_edge() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.floors(queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.floors(queue text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.free_units(queue text, limit_key text, max_running integer, n integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.given_back(subscription text, before timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.govern(queue text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.history_truncated("position" bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.hold(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], handled bigint[], failed bigint[], unparked boolean[], expired_only boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.hold(ids uuid[], lease_tokens uuid[], claim_nos integer[], verdicts text[], delays_ms bigint[], classes text[], codes text[], summaries text[], handled bigint[], failed bigint[], unparked boolean[], expired_only boolean) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.job_ended() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.job_filter_valid(filter jsonb, live boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.job_insert() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.jobs_ended(ended outhaul.ended_job[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.uuid7() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.uuid7() TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.known_subscription(name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.lane_insert() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.lanes(queue text, priorities smallint[], shares integer[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.next_due(queue text, priorities smallint[], shares integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.next_due(queue text, priorities smallint[], shares integer[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.next_event(after bigint, event_types text[], aggregate_types text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.operation_create(name text, kind text, filter jsonb, per_second integer, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operation_create(name text, kind text, filter jsonb, per_second integer, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operation_step(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operation_step(name text) TO outhaul_worker;
GRANT ALL ON FUNCTION outhaul.operation_step(name text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operation_switch(name text, action text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operation_switch(name text, action text, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_cancel(id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_cancel(id uuid, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_cancel_key(job_type text, key text, organization_id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_cancel_key(job_type text, key text, organization_id uuid, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_discard(id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_discard(id uuid, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_history(queue text, history text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_history(queue text, history text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_key_limit(queue text, limit_key text, max_running integer, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_key_limit(queue text, limit_key text, max_running integer, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_pause(queue text, paused boolean, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_pause(queue text, paused boolean, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_queue_set(queue text, settings jsonb, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_queue_set(queue text, settings jsonb, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_relay_retry(id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_relay_retry(id uuid, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_retry(id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_retry(id uuid, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_rotate_history(reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_rotate_history(reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_subscription_drop(name text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_subscription_drop(name text, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_subscription_pause(name text, paused boolean, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_subscription_pause(name text, paused boolean, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_subscription_rewind(name text, start text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_subscription_rewind(name text, start text, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_subscription_skip(name text, "position" bigint, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_subscription_skip(name text, "position" bigint, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.operator_subscription_unpark(name text, "position" bigint, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.operator_subscription_unpark(name text, "position" bigint, reason text) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.outbox_edge(keep interval) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.outbox_insert() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.outbox_kept_from() FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.pace_keys(keys text[], placed boolean[], rate_keys text[], tokens double precision[], cool_untils timestamp with time zone[], spread_untils timestamp with time zone[], step interval, at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.pair_units(keys text[], unit_keys text[], units integer[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.park(subscription text, "position" bigint, attempts integer, how text, class text, code text, summary text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.partitions() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.partitions() TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.parts(parent text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.project(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint, ids uuid[], queues text[], job_types text[], payloads text[], idempotency_keys text[], organization_ids uuid[], priorities integer[], run_ats timestamp with time zone[], max_attempts integer[], timeouts_ms bigint[], traceparents text[], source_event_ids uuid[], ordering_keys text[], limit_keys text[], rate_keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.project(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean, after bigint, ids uuid[], queues text[], job_types text[], payloads text[], idempotency_keys text[], organization_ids uuid[], priorities integer[], run_ats timestamp with time zone[], max_attempts integer[], timeouts_ms bigint[], traceparents text[], source_event_ids uuid[], ordering_keys text[], limit_keys text[], rate_keys text[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.promote_waiting(queue text, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.promote_waiting(queue text, n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.publish(event_type text, aggregate_type text, aggregate_id uuid, payload jsonb, id uuid, schema_version integer, occurred_at timestamp with time zone, available_at timestamp with time zone, partition_key text, organization_id uuid, traceparent text, idempotency_key text, notify boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.publish(event_type text, aggregate_type text, aggregate_id uuid, payload jsonb, id uuid, schema_version integer, occurred_at timestamp with time zone, available_at timestamp with time zone, partition_key text, organization_id uuid, traceparent text, idempotency_key text, notify boolean) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.publish_floors(queue text, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.publish_floors(queue text, priorities smallint[], shares integer[], run_ats timestamp with time zone[], behind_ms bigint[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.publish_many(event_types text[], aggregate_types text[], aggregate_ids uuid[], payloads text[], ids uuid[], schema_versions integer[], occurred_ats timestamp with time zone[], available_ats timestamp with time zone[], partition_keys text[], organization_ids uuid[], traceparents text[], idempotency_keys text[], notify boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.publish_many(event_types text[], aggregate_types text[], aggregate_ids uuid[], payloads text[], ids uuid[], schema_versions integer[], occurred_ats timestamp with time zone[], available_ats timestamp with time zone[], partition_keys text[], organization_ids uuid[], traceparents text[], idempotency_keys text[], notify boolean) TO outhaul_producer;

REVOKE ALL ON FUNCTION outhaul.queue_setting_valid(name text, value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.queue_settings(queue text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.ranges() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.ranges() TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.read(after bigint, n integer, event_types text[], aggregate_types text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.read(after bigint, n integer, event_types text[], aggregate_types text[]) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.reconcile_outbox(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.reconcile_outbox(n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.refill_rate(queue text, rate_key text, rate integer, per interval, burst integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.register_relay(start text, max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.register_relay(start text, max_attempts integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.remove_expired(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.remove_expired(n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.remove_operations(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.remove_operations(n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.renew(ids uuid[], lease_tokens uuid[], lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.renew(ids uuid[], lease_tokens uuid[], lease interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.renew_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.renew_events(seqs bigint[], ats timestamp with time zone[], lease_tokens uuid[], lease interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.renew_subscriptions(ids uuid[], lease_tokens uuid[], lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.renew_subscriptions(ids uuid[], lease_tokens uuid[], lease interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.replay_dead(ids uuid[], claim_nos integer[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.schema_state() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.schema_state() TO outhaul_producer;
GRANT ALL ON FUNCTION outhaul.schema_state() TO outhaul_worker;
GRANT ALL ON FUNCTION outhaul.schema_state() TO outhaul_observer;
GRANT ALL ON FUNCTION outhaul.schema_state() TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.select_jobs(filter jsonb, live boolean, n integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.sequence(n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.sequence(n integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.setting_seconds(name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.share_of(queue text, organization_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.show_attempts(job_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_attempts(job_id uuid) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_audit(before bigint, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_audit(before bigint, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_dead(filter jsonb, before_at timestamp with time zone, before_id uuid, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_dead(filter jsonb, before_at timestamp with time zone, before_id uuid, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_dead_groups(filter jsonb, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_dead_groups(filter jsonb, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_dispositions(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_dispositions(id uuid) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_event(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_event(id uuid) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_event_payload(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_event_payload(id uuid) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.show_events(before bigint, n integer, event_type text, aggregate_type text, aggregate_id uuid, only_parked boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_events(before bigint, n integer, event_type text, aggregate_type text, aggregate_id uuid, only_parked boolean) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_isolation(queue text, cap integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_isolation(queue text, cap integer) TO outhaul_worker;
GRANT ALL ON FUNCTION outhaul.show_isolation(queue text, cap integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_job(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_job(id uuid) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_jobs(statuses text[], queue text, job_type text, before uuid, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_jobs(statuses text[], queue text, job_type text, before uuid, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_notifications() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_notifications() TO outhaul_worker;
GRANT ALL ON FUNCTION outhaul.show_notifications() TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_operation_items(name text, after bigint, with_outcome text, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_operation_items(name text, after bigint, with_outcome text, most integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_operations(operation text, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_operations(operation text, n integer) TO outhaul_observer;
GRANT ALL ON FUNCTION outhaul.show_operations(operation text, n integer) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.show_outbox(cap integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_outbox(cap integer) TO outhaul_observer;
GRANT ALL ON FUNCTION outhaul.show_outbox(cap integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.show_parked(name text, before bigint, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_parked(name text, before bigint, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_payload(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_payload(id uuid) TO outhaul_operator;

REVOKE ALL ON FUNCTION outhaul.show_queues(cap integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_queues(cap integer) TO outhaul_worker;
GRANT ALL ON FUNCTION outhaul.show_queues(cap integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_set_aside(subscription text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_set_aside(subscription text) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_subscriptions(subscription text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_subscriptions(subscription text) TO outhaul_observer;
GRANT ALL ON FUNCTION outhaul.show_subscriptions(subscription text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.show_upkeep() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_upkeep() TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_waiting(queue text, cap integer, n integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_waiting(queue text, cap integer, n integer) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_waits(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_waits(id uuid) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.show_workers() FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.show_workers() TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.snooze(id uuid, lease_token uuid, claim_no integer, delay interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.snooze(id uuid, lease_token uuid, claim_no integer, delay interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.start_position(start text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.subscribe(name text, start text, event_types text[], aggregate_types text[], policy text, gone_after interval, max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.subscribe(name text, start text, event_types text[], aggregate_types text[], policy text, gone_after interval, max_attempts integer) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.subscription_due(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.subscription_due(name text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.tail_events(start text, n integer, event_types text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.tail_events(start text, n integer, event_types text[]) TO outhaul_observer;

REVOKE ALL ON FUNCTION outhaul.take_event_key(new_id uuid, organization_id uuid, event_type text, idempotency_key text, body text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.take_key(new_id uuid, organization_id uuid, job_type text, idempotency_key text, body text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.take_key_units(queue text, keys text[], cts tid[], max_running integer, OUT units integer[], OUT held tid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.take_rate_slots(queue text, rate_keys text[], placed boolean[], rate integer, per interval, burst integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.take_sweep(queue text, every interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.take_sweep(queue text, every interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.upkeep_due(task text, every interval) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.upkeep_due(task text, every interval) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.upkeep_report(task text, duration_ms bigint, findings jsonb, error text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.upkeep_report(task text, duration_ms bigint, findings jsonb, error text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.valid(queue text, job_type text, bytes integer, idempotency_key text, priority integer, max_attempts integer, run_at timestamp with time zone, timeout interval, traceparent text, organization_id uuid, ordering_key text, limit_key text, rate_key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.wake(at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outhaul.worker_beat(id uuid, host text, pid integer, version text, schema_version integer, queues jsonb, listener_pid integer, listener_state text, running integer, stopping boolean, role text) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.worker_beat(id uuid, host text, pid integer, version text, schema_version integer, queues jsonb, listener_pid integer, listener_state text, running integer, stopping boolean, role text) TO outhaul_worker;

REVOKE ALL ON FUNCTION outhaul.worker_gone(id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION outhaul.worker_gone(id uuid) TO outhaul_worker;

GRANT INSERT(max_attempts) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(priority) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(run_at) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(id) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(queue) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(job_type) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(payload) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(organization_id) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(idempotency_key) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(timeout) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(ordering_key) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(limit_key) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(rate_key) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT INSERT(traceparent) ON TABLE outhaul.jobs TO outhaul_producer;

GRANT SELECT ON TABLE outhaul.all_jobs TO outhaul_operator;

GRANT INSERT(id) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(organization_id) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(aggregate_type) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(aggregate_id) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(event_type) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(schema_version) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(payload) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(occurred_at) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(available_at) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(partition_key) ON TABLE outhaul.outbox_events TO outhaul_producer;

GRANT INSERT(traceparent) ON TABLE outhaul.outbox_events TO outhaul_producer;
