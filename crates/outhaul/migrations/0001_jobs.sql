-- Jobs: live rows in one plain table, ends and failures beside it.
--
-- Runs inside one transaction of `migrate`, as the owning role, with
-- search_path = <schema>, pg_catalog, pg_temp. Nothing here names the schema.

create type job_status as enum ('pending', 'leased', 'retrying');
create type end_status as enum ('completed', 'cancelled');

-- A time-ordered id for callers that bring none. The same layout as RFC 9562
-- version 7; it shows the time of creation and is not a delivery order.
-- Everything is named in full: as the default of a column it runs with the rights and the search_path of
-- whoever inserts, and a SET clause would cost more than the rest.
create function uuid7() returns uuid
language sql volatile parallel safe
as $$
  select pg_catalog.encode(
    pg_catalog.set_bit(pg_catalog.set_bit(
      pg_catalog.overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
        pg_catalog.substring(pg_catalog.int8send(
          (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::bigint), 3),
        1, 6),
      52, 1), 53, 1), 'hex')::uuid
$$;

-- The first seven columns are all that a claim writes. They are fixed-width,
-- NOT NULL and in no index and no index predicate, so that with room on the
-- page (fillfactor 50) the claim is a heap-only update: no index entry, little
-- WAL. Adding any of them to an index costs about half of the drain rate.
-- There are no CHECK constraints: they are set up anew in every statement and
-- cost 8-15 % of a single enqueue. The functions validate; the trigger does it
-- for plain INSERTs.
create table jobs (
  lease_until        timestamptz not null default '-infinity',
  locked_at          timestamptz not null default '-infinity',
  lease_token        uuid        not null default '00000000-0000-0000-0000-000000000000',
  locked_by          uuid        not null default '00000000-0000-0000-0000-000000000000',
  status             job_status  not null default 'pending',
  attempts           integer     not null default 0,
  claim_no           integer     not null default 0,
  max_attempts       smallint    not null default 10,
  priority           smallint    not null default 0,
  share              integer     not null default 0,
  held               boolean     not null default false,
  run_at             timestamptz not null default clock_timestamp(),
  created_at         timestamptz not null default clock_timestamp(),
  id                 uuid        not null default uuid7(),
  queue              text collate "C" not null,
  job_type           text collate "C" not null,
  payload            jsonb       not null default '{}',
  organization_id    uuid,
  idempotency_key    text collate "C",
  timeout            interval,
  ordering_key       text collate "C",
  limit_key          text collate "C",
  rate_key           text collate "C",
  traceparent        text collate "C",
  source_event_id    uuid,
  last_error_code    text,
  last_error_summary text,
  constraint jobs_pkey primary key (id)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 50000
);
comment on table jobs is 'Live jobs only: a row leaves when its job ends.';
comment on column jobs.lease_token is 'Random per claim; every later change of the lease must name it.';
comment on column jobs.claim_no is 'Grows with each claim and is never reset, unlike attempts.';
comment on column jobs.status is 'For people; no claim or index depends on it.';

create index jobs_claim on jobs (queue, priority desc, share, run_at, id) where not held;

-- One row for every idempotency key in use. It outlives the job by the key's
-- retention, and is what makes "one job per key" a constraint: a unique index
-- on jobs would free the key when the job ends.
create table job_keys (
  scope      uuid not null,
  kind       text collate "C" not null,
  key        text collate "C" not null,
  job_id     uuid not null,
  digest     bigint not null,
  expires_at timestamptz,
  constraint job_keys_pkey primary key (scope, kind, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index job_keys_expiry on job_keys (expires_at) where expires_at is not null;
comment on column job_keys.scope is 'The organization, or the nil UUID for none: no organization is one scope.';
comment on column job_keys.digest is 'hashtextextended of the payload text: another payload under the same key is refused.';

create table jobs_finished (
  finished_at     timestamptz not null default clock_timestamp(),
  created_at      timestamptz not null,
  started_at      timestamptz not null,
  id              uuid not null,
  organization_id uuid,
  attempts        integer not null,
  claim_no        integer not null,
  max_attempts    smallint not null,
  priority        smallint not null,
  status          end_status not null,
  queue           text collate "C" not null,
  job_type        text collate "C" not null,
  error_code      text,
  payload         jsonb
) partition by range (finished_at);
create index jobs_finished_id on jobs_finished (id);

create table jobs_dead (
  died_at            timestamptz not null default clock_timestamp(),
  created_at         timestamptz not null,
  run_at             timestamptz not null,
  id                 uuid not null,
  organization_id    uuid,
  attempts           integer not null,
  claim_no           integer not null,
  max_attempts       smallint not null,
  priority           smallint not null,
  share              integer not null,
  queue              text collate "C" not null,
  job_type           text collate "C" not null,
  payload            jsonb not null,
  idempotency_key    text collate "C",
  timeout            interval,
  ordering_key       text collate "C",
  limit_key          text collate "C",
  rate_key           text collate "C",
  traceparent        text collate "C",
  source_event_id    uuid,
  locked_by          uuid not null,
  last_error_class   text not null,
  last_error_code    text,
  last_error_summary text,
  constraint jobs_dead_pkey primary key (id)
);
create index jobs_dead_queue on jobs_dead (queue, died_at, id);
create index jobs_dead_died on jobs_dead (died_at);
create index jobs_dead_code on jobs_dead (last_error_code, job_type, id);

-- One row for each claim that did not end in completion, by claim number.
create table job_attempts (
  ended_at      timestamptz not null default clock_timestamp(),
  started_at    timestamptz not null,
  job_id        uuid not null,
  claim_no      integer not null,
  attempt       integer not null,
  worker_id     uuid not null,
  outcome       text collate "C" not null,
  error_class   text collate "C" not null,
  error_code    text,
  error_summary text
) partition by range (ended_at);
create index job_attempts_job on job_attempts (job_id, claim_no);
comment on column job_attempts.outcome is 'What followed: retry, dead_letter, cancelled, snoozed or released.';

-- Everything that has ever been enqueued and not yet removed by retention,
-- with the columns people expect of a jobs table.
create view all_jobs as
  select id, organization_id, queue, job_type, payload, idempotency_key,
         status::text as status, priority::integer as priority, run_at, attempts,
         max_attempts::integer as max_attempts,
         nullif(locked_at, '-infinity') as locked_at,
         case when locked_by <> '00000000-0000-0000-0000-000000000000' then locked_by::text end as locked_by,
         last_error_code, last_error_summary,
         null::timestamptz as completed_at, created_at
    from jobs
  union all
  select id, organization_id, queue, job_type, payload, null,
         status::text, priority::integer, null, attempts, max_attempts::integer, started_at, null,
         error_code, null, finished_at, created_at
    from jobs_finished
  union all
  select id, organization_id, queue, job_type, payload, idempotency_key,
         'dead_letter', priority::integer, run_at, attempts, max_attempts::integer, null, locked_by::text,
         last_error_code, last_error_summary, died_at, created_at
    from jobs_dead;

-- What people set for a queue. A queue needs no row to exist.
create table queues (
  name          text collate "C" primary key,
  paused_at     timestamptz,
  paused_reason text,
  history       text not null default 'row' check (history in ('none', 'row', 'payload')),
  age_objective interval,
  updated_at    timestamptz not null default clock_timestamp()
);
comment on column queues.history is 'What stays of a completed job: nothing, its row, or its row with the payload.';

-- Where the next claim of a fresh process may start, and who sweeps next.
-- Only a hint: everything below a floor is found by the rescans.
create table queue_floors (
  queue      text collate "C" primary key,
  priorities smallint[] not null default '{}',
  shares     integer[] not null default '{}',
  run_ats    timestamptz[] not null default '{}',
  floored_at timestamptz not null default '-infinity',
  swept_at   timestamptz not null default '-infinity'
) with (fillfactor = 50);

create table workers (
  id             uuid primary key,
  host           text not null,
  pid            integer not null,
  version        text not null,
  schema_version integer not null,
  queues         jsonb not null,
  started_at     timestamptz not null default clock_timestamp(),
  heartbeat_at   timestamptz not null default clock_timestamp(),
  stopping_at    timestamptz,
  listener_pid   integer,
  listener_state text not null default 'connecting',
  running        integer not null default 0
) with (fillfactor = 50);

create table upkeep (
  task        text collate "C" primary key,
  last_run_at timestamptz,
  duration_ms bigint,
  findings    jsonb not null default '{}',
  error       text
) with (fillfactor = 50);

-- Ranged tables and how long their partitions are kept; see keep/partitions.
create table ranged_tables (
  name  text collate "C" primary key,
  step  interval not null,
  ahead integer not null check (ahead between 2 and 400),
  keep  interval not null
);
insert into ranged_tables (name, step, ahead, keep) values
  ('jobs_finished', '1 day', 14, '1 day'),
  ('job_attempts', '1 day', 14, '30 days');

-- Hash-chained: each row's hash covers the row and the hash before it, so a
-- changed, removed, inserted or reordered row breaks the chain. The head row
-- is the one lock under which rows are appended.
create table audit_log (
  seq       bigint primary key,
  at        timestamptz not null,
  actor     text not null,
  action    text collate "C" not null,
  object    text not null,
  details   jsonb not null,
  reason    text,
  prev_hash bytea not null,
  hash      bytea not null
);
create table audit_head (
  one      boolean primary key default true check (one),
  last_seq bigint not null default 0,
  hash     bytea not null default '\x'
);
insert into audit_head default values;

create table settings (
  name  text collate "C" primary key,
  value jsonb not null
);
insert into settings (name, value) values
  ('key_retention_seconds', '604800'),
  ('dead_retention_seconds', '2592000');

-- The gate of notifications holds a time in milliseconds; see call/wake.
create sequence wake_gate as bigint minvalue 1;
select setval('wake_gate', 1);

-- Two ranges to start with, so that nothing depends on upkeep having run: all
-- until two days from now, and the empty tail without an end. Upkeep carves
-- days out of the tail; there is no DEFAULT partition, which could not be
-- detached without blocking writers.
do $$
declare
  edge text := to_char(date_trunc('day', clock_timestamp() at time zone 'UTC') + interval '2 days', 'YYYY-MM-DD') || ' 00:00:00+00';
  t text;
begin
  foreach t in array array['jobs_finished', 'job_attempts'] loop
    execute format('create table %I partition of %I for values from (minvalue) to (%L)', t || '_first', t, edge);
    execute format('create table %I partition of %I for values from (%L) to (maxvalue)', t || '_tail', t, edge);
  end loop;
end $$;
