//! Durable asynchronous work inside PostgreSQL: jobs are committed with your business change, leased to
//! workers, retried, and never lost; notifications only make it fast.
//!
//! * [`enqueue`] and [`enqueue_many`] store jobs inside a transaction of yours, of tokio-postgres or, with a
//!   feature, of sqlx; [`publish`] and [`publish_many`] store events ([`Event`]). [`Producer`] does the same for
//!   another schema.
//! * [`Worker`] runs handlers: async functions of a typed payload ([`Job`]) and a [`Context`]. What a handler
//!   returns ([`Failure`]) decides what happens next.
//!   It also reads the outbox: ordered [`Subscription`]s, the [`Relay`], and [`Projection`]s, which turn facts into jobs.
//! * [`migrate`] brings a database's schema to this version. [`Observer`] shows what is going on, [`Operator`] retries, discards, cancels
//!   and pauses, also many jobs at once ([`NewOperation`]).
//! * [`telemetry`] lists every metric.
//!
//! # What holds
//!
//! A job exists if and only if its transaction committed. It runs at least once; a worker whose lease is lost changes
//! nothing any more; effects in the same database can commit together with the end of their job
//! ([`Context::complete_in`]). Notifications are only a wake-up.
//!
//! # Defaults
//!
//! | what | default | where |
//! | --- | --- | --- |
//! | lease, renewed at a third | 60 s | [`WorkerOptions::lease`] |
//! | poll, while notifications are proven to arrive | 1 s, 5 s | [`WorkerOptions::poll`] |
//! | handlers at once in a queue | 10 | [`WorkerBuilder::queue`] |
//! | handler timeout | 5 min | [`NewJob::timeout`], [`WorkerOptions::timeout`] |
//! | attempts; of unknown errors | 10; 3 | [`NewJob::max_attempts`], [`RetryPolicy`] |
//! | backoff | 1 s x 2^min(n-1, 10), at most 1 h, ±20 % | [`Backoff`] |
//! | a service's hint instead of it | at most 1 h, and up to 20 % more | [`RetryPolicy::max_hint`] |
//! | snoozes that cost no attempt | 100 | [`RetryPolicy::free_snoozes`] |
//! | error code, error summary | 64 bytes, 1,000 bytes | [`limits`] |
//! | drain limit, grace | 30 s, 5 s | [`WorkerOptions::drain`] |
//! | payload | 256 KiB | [`limits`] |
//! | idempotency key kept | 7 days after the end | |
//! | finished jobs, failed attempts, dead letters kept | 1 day, 30 days, 30 days | |
//! | connections | 5 | [`WorkerOptions::max_connections`] |

mod caller;
mod decide;
mod engine;
mod error;
mod failure;
mod json;
mod model;
mod observe;
mod operate;
mod projection;
mod session;
mod store;
mod subscription;
pub mod telemetry;
mod worker;

pub use caller::{
    Cached, CallerTransaction, Cancelled, Producer, StatementCache, cancel_by_key, enqueue, enqueue_many,
    publish, publish_many,
};
pub use decide::lag::Lag;
pub use decide::retry::Backoff;
pub use decide::verdict::RetryPolicy;
pub use engine::dispatch::EventHandlers;
pub use engine::events::{EventContext, RecordedEvent};
pub use engine::handle::{Context, Outcome};
pub use engine::held::Stop;
pub use engine::wake::ListenerState;
pub use error::{Error, Result};
pub use failure::Failure;
pub use model::{
    Enqueued, Event, EventId, FailureClass, Job, JobId, JobStatus, NewEvent, NewJob, Payload, Published,
    SchemaName, limits,
};
pub use observe::{
    AttemptView, AuditFinding, AuditView, DeadGroup, DeadView, Disposition, EventDetail, EventFilter,
    EventView, Hold, IsolationView, JobDetail, JobFilter, JobView, Observer, OperationItem, OperationView,
    OutboxFinding, OutboxView, ParkedView, QueueView, RelayView, SetAside, SubscriptionView, TailView,
    UpkeepView, WaitReason, WaitView, Waiting, WorkerView,
};
pub use operate::{
    Discarded, NewOperation, OperationKind, OperationState, Operator, QueueChange, QueueSettings, Retried,
    Selection, Stepped, Switch, Switched, migrate, migration_sql, migration_status,
};
pub use projection::{Projection, Rule};
pub use session::{Session, connect};
pub use store::dsn::Dsn;
pub use store::migrate::{MigrateOptions, Migrated, SchemaStatus};
/// The version of the schema that this library needs; see [`migrate`].
pub const SCHEMA_VERSION: i32 = store::source::VERSION;

pub use subscription::{Relay, Start, Subscription};
pub use worker::{Plan, Stopper, Worker, WorkerBuilder, WorkerOptions};

/// The examples of the README are compiled with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
