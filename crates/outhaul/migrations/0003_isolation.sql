-- Isolation: limits, rates, order and fair shares, for the queues that ask for them.
--
-- Runs inside one transaction of `migrate`, as the owning role, with
-- search_path = <schema>, pg_catalog, pg_temp. Nothing here names the schema.

-- The functions that take more parameters from here on: an old signature beside the new one would be ambiguous.
drop function if exists enqueue(text, text, jsonb, uuid, text, uuid, integer, timestamptz, integer, interval, text, boolean);
drop function if exists enqueue_many(text, text, text[], uuid[], text[], uuid[], timestamptz[], integer, integer, interval, text, boolean);
drop function if exists claim(text, integer, uuid, interval, smallint[], integer[], timestamptz[], bigint[], integer, boolean, text[]);
drop function if exists valid(text, text, integer, text, integer, integer, timestamptz, interval, text, uuid);
drop function if exists project(uuid, uuid, integer, bigint, boolean, bigint, uuid[], text[], text[], text[], text[], uuid[], integer[],
  timestamptz[], integer[], bigint[], text[], uuid[]);
drop function if exists worker_beat(uuid, text, integer, text, integer, jsonb, integer, text, integer, boolean);

-- The units that a leased job holds, what a job outside of the claim index waits for, and the place in time that a
-- rate has given it.
alter table jobs
  add column permit integer,
  add column key_permit integer,
  add column held_for text collate "C",
  add column rate_slot timestamptz;
comment on column jobs.held is 'Waits for something else than its time (see held_for), outside of the claim index.';
comment on column jobs.held_for is 'lane: another job of its ordering key is before it. permit: its limit_key is used up.';
comment on column jobs.permit is 'The unit of the queue''s limit that its lease holds.';
comment on column jobs.key_permit is 'The unit of its limit_key that its lease holds.';
comment on column jobs.rate_slot is 'Equal to run_at while a rate or a cooldown has put it there.';
-- What others have to know of a lease that has ended; see jobs_ended.
create type ended_job as (
  id uuid, queue text, ordering_key text, limit_key text, permit integer, key_permit integer, lease_token uuid
);
create index jobs_waiting on jobs (queue, limit_key, priority desc, run_at, id) where held_for = 'permit';

alter table queues
  add column max_running integer check (max_running between 1 and 10000),
  add column max_running_per_key integer check (max_running_per_key between 1 and 10000),
  add column rate integer check (rate between 1 and 1000000),
  add column rate_per interval check (rate_per between interval '1 second' and interval '1 day'),
  add column rate_burst integer check (rate_burst between 1 and 1000000),
  add column key_rate integer check (key_rate between 1 and 1000000),
  add column key_rate_per interval check (key_rate_per between interval '1 second' and interval '1 day'),
  add column key_rate_burst integer check (key_rate_burst between 1 and 1000000),
  add column fair boolean not null default false,
  add column cool_until timestamptz not null default '-infinity',
  add column governed boolean not null default false,
  add constraint rate_has_a_period check ((rate is null) = (rate_per is null)),
  add constraint key_rate_has_a_period check ((key_rate is null) = (key_rate_per is null));
comment on column queues.max_running is 'Most jobs of the queue that are leased at the same time, in the whole cluster.';
comment on column queues.max_running_per_key is 'The same for each limit_key of the queue; key_limits has the exceptions.';
comment on column queues.rate is 'Most claims within rate_per; rate_burst of them at once.';
comment on column queues.fair is 'Organizations take turns: a job''s share is made of its organization.';
comment on column queues.cool_until is 'A job without a rate_key was told to come back then: until then nothing is claimed.';
comment on column queues.governed is 'Something of all this holds, or a cooldown has been seen: claims look for it.';

alter table workers add column role text collate "C";
comment on column workers.role is 'What the process was started as, for people; its queues say what it does.';

-- The seven queues of a usual platform. Objectives are what an alert compares the oldest waiting job with.
insert into queues (name, age_objective) values
  ('critical_alerts', '10 seconds'), ('notifications', '1 minute'), ('webhooks', '2 minutes'),
  ('location_derivation', '5 minutes'), ('reports', '1 hour'), ('exports', '1 hour'), ('maintenance', '6 hours')
on conflict (name) do update set age_objective = coalesce(queues.age_objective, excluded.age_objective);

create table key_limits (
  queue       text collate "C" not null,
  limit_key   text collate "C" not null,
  max_running integer not null check (max_running between 0 and 10000),
  primary key (queue, limit_key)
);
alter table queue_floors add column promoted_key text collate "C" not null default '';
comment on column queue_floors.promoted_key is 'Where promote_waiting goes on.';

comment on table key_limits is 'Limits of single keys that differ from max_running_per_key of their queue; 0 stops a key.';

-- One row for each unit of a limit: free while its lease_until has passed, which is why the slot of a holder that was
-- killed is free when the lease ends, by itself. The limit_key '' is the queue's own limit.
create table permits (
  queue       text collate "C" not null,
  limit_key   text collate "C" not null,
  n           integer not null,
  lease_until timestamptz not null default '-infinity',
  lease_token uuid not null default '00000000-0000-0000-0000-000000000000',
  used_at     timestamptz not null default '-infinity',
  constraint permits_pkey primary key (queue, limit_key, n)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- A token bucket for a queue (rate_key '') or a partition of it, and the partition's cooldown.
create table rates (
  queue        text collate "C" not null,
  rate_key     text collate "C" not null,
  tokens       double precision not null default 0,
  refilled_at  timestamptz not null default '-infinity',
  cool_until   timestamptz not null default '-infinity',
  spread_until timestamptz not null default '-infinity',
  constraint rates_pkey primary key (queue, rate_key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on column rates.spread_until is 'The last place in time that was given to a job of this partition.';

-- Jobs with an ordering key that have not ended, in the order in which they were enqueued. The head of a lane is the one
-- that can be claimed. A row without a job asks for a look at its lane. CACHE 1 for the reason that outbox_events gives.
create table ordering_lanes (
  queue        text collate "C" not null,
  ordering_key text collate "C" not null,
  seq          bigint not null generated always as identity (cache 1),
  job_id       uuid,
  head         boolean not null default false,
  fresh        boolean not null default true,
  constraint ordering_lanes_pkey primary key (queue, ordering_key, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create unique index ordering_heads on ordering_lanes (queue, ordering_key) where head;
create unique index ordering_jobs on ordering_lanes (job_id) where job_id is not null;
create index ordering_fresh on ordering_lanes (queue, seq) where fresh;
comment on column ordering_lanes.fresh is 'No look at its lane has taken notice of it yet; see advance_lanes.';
