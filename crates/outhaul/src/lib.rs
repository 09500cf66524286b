//! Durable asynchronous work inside PostgreSQL.

mod caller;
mod decide;
mod engine;
mod error;
mod json;
mod model;
mod observe;
mod operate;
mod store;
pub mod telemetry;
mod worker;

pub use caller::{CallerTransaction, Cancelled, Producer, enqueue, enqueue_many};
pub use decide::retry::Backoff;
pub use decide::verdict::RetryPolicy;
pub use engine::handle::{Context, Outcome};
pub use engine::held::Stop;
pub use engine::wake::ListenerState;
pub use error::{Error, Result};
pub use model::{Enqueued, Failure, FailureClass, Job, JobId, JobStatus, NewJob, SchemaName, limits};
pub use observe::{
    AttemptView, AuditFinding, AuditView, JobDetail, JobFilter, JobView, Observer, QueueView, UpkeepView,
    WorkerView,
};
pub use operate::{Operator, Retried, migrate, migration_sql, migration_status};
pub use store::dsn::Dsn;
pub use store::migrate::{MigrateOptions, Migrated, SchemaStatus};
pub use worker::{Plan, Stopper, Worker, WorkerBuilder, WorkerOptions};
