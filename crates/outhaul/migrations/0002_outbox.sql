-- The outbox: facts, committed with the business change, in an order that readers can trust.
--
-- Runs inside one transaction of `migrate`, as the owning role, with
-- search_path = <schema>, pg_catalog, pg_temp. Nothing here names the schema.

-- What a claim of the relay writes is fixed-width or short. `at` is the insert time by the database's clock and
-- decides the partition; `seq` is taken when the row is inserted, which under a lock on the aggregate is the order
-- of its changes. Neither is the order of commits: that is what outbox_feed is for. CACHE 1, because with a
-- larger cache a session hands out numbers below those that another has handed out already.
create table outbox_events (
  at              timestamptz not null default clock_timestamp(),
  seq             bigint      not null generated always as identity (cache 1),
  id              uuid        not null default uuid7(),
  organization_id uuid,
  aggregate_type  text collate "C" not null,
  aggregate_id    uuid        not null,
  event_type      text collate "C" not null,
  schema_version  integer     not null default 1,
  payload         jsonb       not null default '{}',
  occurred_at     timestamptz not null default now(),
  available_at    timestamptz not null default now(),
  partition_key   text collate "C",
  traceparent     text collate "C",
  claimed_at      timestamptz,
  claimed_by      text,
  lease_until     timestamptz,
  lease_token     uuid,
  attempts        integer     not null default 0,
  claim_no        integer     not null default 0,
  processed_at    timestamptz,
  parked_at       timestamptz,
  last_error      text,
  constraint outbox_events_pkey primary key (seq, at)
) partition by range (at);
comment on table outbox_events is 'Facts that have happened, not commands. Insert after the aggregate''s row is locked.';
comment on column outbox_events.available_at is 'When the relay may take it; ordered subscriptions ignore it.';
comment on column outbox_events.claimed_at is 'When the relay took or last renewed it.';
comment on column outbox_events.parked_at is 'The relay has given it up; available_at is then infinity, so that no claim finds it.';

create index outbox_events_id on outbox_events (id);
create index outbox_pending_idx on outbox_events (available_at, occurred_at) where processed_at is null;
create index outbox_leased on outbox_events (lease_until) where lease_until is not null;
create index outbox_parked on outbox_events (parked_at) where parked_at is not null;

-- Events whose transactions have written them and that have no position yet. A row becomes visible with its
-- event's commit, and the DELETE that takes it is what gives the event its position, once.
create table outbox_unsequenced (
  seq bigint      not null,
  at  timestamptz not null,
  constraint outbox_unsequenced_pkey primary key (seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- The order of delivery: dense positions, given after the commit.
create table outbox_feed (
  position bigint      not null,
  seq      bigint      not null,
  at       timestamptz not null,
  constraint outbox_feed_pkey primary key (position)
) partition by range (position);
create index outbox_feed_seq on outbox_feed (seq);
-- Retention looks for old events among late positions: times grow with positions but for the few that committed late.
create index outbox_feed_at on outbox_feed using brin (at);

-- The one lock under which positions are given, and where the next turn starts to look. The floor is only a hint:
-- dead rows under a held snapshot make the beginning of outbox_unsequenced dear to read.
create table outbox_feed_head (
  one           boolean primary key default true check (one),
  last_position bigint not null default 0,
  history_id    uuid not null default gen_random_uuid(),
  floor         bigint not null default 0,
  next_floor    bigint not null default 0,
  next_floor_at timestamptz not null default '-infinity',
  looked_at     timestamptz not null default '-infinity',
  look_cost     interval not null default '0'
) with (fillfactor = 20);
insert into outbox_feed_head default values;
comment on column outbox_feed_head.history_id is 'Names this history of positions; rotate_history makes a new one after a restore elsewhere.';

create type subscription_policy as enum ('block', 'park');

-- What a claim and a checkpoint write is fixed-width, in no index, and leaves room on the page.
create table subscriptions (
  position         bigint      not null,
  lease_until      timestamptz not null default '-infinity',
  locked_at        timestamptz not null default '-infinity',
  due_at           timestamptz not null default '-infinity',
  moved_at         timestamptz not null default clock_timestamp(),
  caught_up_at     timestamptz not null default '-infinity',
  lease_token      uuid        not null default '00000000-0000-0000-0000-000000000000',
  locked_by        uuid        not null default '00000000-0000-0000-0000-000000000000',
  claim_no         integer     not null default 0,
  epoch            integer     not null default 0,
  attempts         integer     not null default 0,
  blocked_position bigint,
  id               uuid        not null default uuid7(),
  name             text collate "C" not null,
  history_id       uuid        not null,
  event_types      text[],
  aggregate_types  text[],
  policy           subscription_policy not null default 'block',
  gone_after       interval    not null default '1 day',
  max_attempts     integer     not null default 10,
  created_at       timestamptz not null default clock_timestamp(),
  seen_at          timestamptz not null default clock_timestamp(),
  paused_at        timestamptz,
  paused_reason    text,
  stuck_class      text,
  stuck_code       text,
  stuck_summary    text,
  constraint subscriptions_pkey primary key (name),
  constraint subscriptions_id unique (id)
) with (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
comment on column subscriptions.position is 'Everything up to here has been handled, parked or skipped.';
comment on column subscriptions.epoch is 'Raised by every rewind: only within an epoch does the position never move back.';
comment on column subscriptions.attempts is 'Failures in a row at blocked_position.';

-- Events that a subscription went past without handling, with the fact itself, which outlives its partition here.
create table subscription_parked (
  subscription    text collate "C" not null references subscriptions (name) on delete cascade,
  position        bigint not null,
  parked_at       timestamptz not null default clock_timestamp(),
  event_id        uuid not null,
  organization_id uuid,
  aggregate_type  text collate "C" not null,
  aggregate_id    uuid not null,
  event_type      text collate "C" not null,
  schema_version  integer not null,
  payload         jsonb not null,
  occurred_at     timestamptz not null,
  partition_key   text collate "C",
  traceparent     text collate "C",
  seq             bigint not null,
  at              timestamptz not null,
  attempts        integer not null,
  how             text not null check (how in ('parked', 'skipped')),
  error_class     text,
  error_code      text,
  error_summary   text,
  -- Given back by an operator: handled by itself, out of order, before what is new.
  unparked_at     timestamptz,
  constraint subscription_parked_pkey primary key (subscription, position)
);

-- Since when events wait for the relay; no row while none is registered.
create table relay (
  one        boolean primary key default true check (one),
  starts_at  timestamptz not null,
  max_attempts integer not null default 10,
  created_at timestamptz not null default clock_timestamp()
);

-- How a ranged table is cut: by a time, or by a number; keep is NULL where something else decides.
alter table ranged_tables
  alter column step drop not null,
  alter column keep drop not null,
  add column positions bigint check (positions > 0),
  add constraint ranged_tables_step check ((step is null) <> (positions is null));
insert into ranged_tables (name, step, positions, ahead, keep) values
  ('outbox_events', '1 day', null, 14, '7 days'),
  ('outbox_feed', null, 1000000, 4, null);

do $$
declare
  edge text := to_char(date_trunc('day', clock_timestamp() at time zone 'UTC') + interval '2 days', 'YYYY-MM-DD') || ' 00:00:00+00';
begin
  execute format('create table outbox_events_first partition of outbox_events for values from (minvalue) to (%L)', edge);
  execute format('create table outbox_events_tail partition of outbox_events for values from (%L) to (maxvalue)', edge);
  create table outbox_feed_first partition of outbox_feed for values from (minvalue) to (2000000);
  create table outbox_feed_tail partition of outbox_feed for values from (2000000) to (maxvalue);
end $$;
