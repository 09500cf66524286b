-- Operations: what is done to many jobs at once, over a set that is fixed before anything is done to it.
--
-- Runs inside one transaction of `migrate`, as the owning role, with
-- search_path = <schema>, pg_catalog, pg_temp. Nothing here names the schema.

-- Its answer has one more column from here on.
drop function if exists renew(uuid[], uuid[], interval);

create table operations (
  id          uuid primary key default uuid7(),
  name        text collate "C" not null unique,
  kind        text collate "C" not null check (kind in ('replay', 'discard', 'cancel')),
  filter      jsonb not null,
  preview     jsonb not null default '{}',
  state       text collate "C" not null default 'ready' check (state in ('ready', 'running', 'stopped', 'done')),
  per_second  integer not null check (per_second between 1 and 10000),
  total       bigint not null default 0,
  done        bigint not null default 0,
  skipped     bigint not null default 0,
  outcomes    jsonb not null default '{}',
  passed      bigint not null default 0,
  due_at      timestamptz not null default '-infinity',
  created_at  timestamptz not null default clock_timestamp(),
  started_at  timestamptz,
  stopped_at  timestamptz,
  finished_at timestamptz,
  actor       text not null,
  reason      text,
  error       text
) with (fillfactor = 50);
comment on column operations.preview is 'Counts by queue, type and code of the very set, and the first of it, as they were when it was fixed.';
comment on column operations.outcomes is 'How many items have had each outcome.';
comment on column operations.passed is 'The last item of this pass; those that were locked are left for another one.';
comment on column operations.due_at is 'When the next item may be acted on: the throttle.';
comment on column operations.error is 'Why the last step failed; it is tried again.';

-- No foreign keys: they would be looked up a million times, and a job may go while its item waits.
create table operation_items (
  operation_id uuid not null,
  n            bigint not null,
  job_id       uuid not null,
  claim_no     integer,
  outcome      text collate "C",
  constraint operation_items_pkey primary key (operation_id, n)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index operation_items_open on operation_items (operation_id, n) where outcome is null;
comment on column operation_items.claim_no is 'Of a dead letter: the claim it died of. A job that has died again is not the one that was chosen.';

-- What lists, groups and operations over dead letters look for, in the order in which they died.
drop index jobs_dead_died;
create index jobs_dead_died on jobs_dead (died_at, id);
drop index jobs_dead_code;
create index jobs_dead_code on jobs_dead (last_error_code, died_at, id);
create index jobs_dead_group on jobs_dead (queue, job_type, last_error_code, died_at);
create index jobs_dead_type on jobs_dead (job_type, died_at, id);
create index jobs_dead_organization on jobs_dead (organization_id, died_at, id) where organization_id is not null;
