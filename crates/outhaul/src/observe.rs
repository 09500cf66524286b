//! The read-model: what people and programs look at. It changes nothing.
//!
//! Queues, jobs and workers are here; what holds queues apart in [`isolation`], dead letters and operations in [`dead`],
//! events and subscriptions in [`outbox`].

mod dead;
mod gauges;
mod isolation;
mod outbox;

pub(crate) use dead::operation_view;
pub use dead::{DeadGroup, DeadView, OperationItem, OperationView};
pub use isolation::{IsolationView, WaitReason, WaitView, Waiting};
pub use outbox::{
    Disposition, EventDetail, EventFilter, EventView, Hold, OutboxFinding, OutboxView, ParkedView, RelayView,
    SetAside, SubscriptionView, TailView,
};

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::engine::link::{Db, Link, Purpose};
use crate::error::Result;
use crate::model::{JobId, JobStatus, SchemaName};
use crate::store::dsn::Dsn;
use crate::store::migrate;
use crate::store::statement::{
    AUDIT_VERIFY, SHOW_ATTEMPTS, SHOW_AUDIT, SHOW_JOB, SHOW_JOBS, SHOW_NOTIFICATIONS, SHOW_PAYLOAD,
    SHOW_QUEUES, SHOW_UPKEEP, SHOW_WORKERS, Statement,
};

/// How long a question may take; an answer that comes later helps nobody who is looking.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks an installation about its queues, jobs, workers, events and subscriptions.
///
/// The role `outhaul_observer` is enough, but for payloads, which are the operator's.
#[derive(Clone)]
pub struct Observer {
    db: Db,
}

/// A queue as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct QueueView {
    /// The name.
    pub queue: String,
    /// Jobs that could be claimed now. With the other counts, of at most 10,000 live jobs; see `capped`.
    pub pending: i64,
    /// Jobs whose time has not come.
    pub scheduled: i64,
    /// Jobs that workers hold.
    pub leased: i64,
    /// Jobs that failed and wait.
    pub retrying: i64,
    /// Dead letters, up to 10,001.
    pub dead_letter: i64,
    /// Whether there are more live jobs than were counted.
    pub capped: bool,
    /// Age of the oldest job that could run now, in milliseconds.
    pub oldest_pending_ms: Option<i64>,
    /// How long the longest overdue lease is over, in milliseconds; more than a few seconds means that no sweep runs.
    pub oldest_expired_lease_ms: Option<i64>,
    /// Whether claims are stopped.
    pub paused: bool,
    /// Why, as the operator said.
    pub paused_reason: Option<String>,
    /// What stays of completed jobs: none, row or payload.
    pub history: String,
    /// The age the oldest pending job should stay under, in milliseconds.
    pub age_objective_ms: Option<i64>,
    /// Worker processes heard of in the last 30 s that serve the queue.
    pub workers: i64,
}

/// A job as lists show it.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// The id.
    pub id: JobId,
    /// The organization, if any.
    pub organization_id: Option<Uuid>,
    /// The queue.
    pub queue: String,
    /// The type.
    pub job_type: String,
    /// Where it is in its life.
    pub status: JobStatus,
    /// Larger runs sooner.
    pub priority: i32,
    /// When it is or was due.
    pub run_at: Option<Timestamp>,
    /// Attempts spent.
    pub attempts: i32,
    /// Attempts after which it becomes a dead letter.
    pub max_attempts: i32,
    /// When it was claimed last.
    pub locked_at: Option<Timestamp>,
    /// The worker that holds or held it.
    pub locked_by: Option<String>,
    /// Code of the last failure.
    pub last_error_code: Option<String>,
    /// Summary of the last failure.
    pub last_error_summary: Option<String>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
}

/// A job with what only one page shows.
#[derive(Clone, Debug, Serialize)]
pub struct JobDetail {
    /// As in lists.
    #[serde(flatten)]
    pub job: JobView,
    /// Claims ever made.
    pub claim_no: Option<i32>,
    /// When its lease ends.
    pub lease_until: Option<Timestamp>,
    /// Its idempotency key; kept while it is live or a dead letter.
    pub idempotency_key: Option<String>,
    /// The trace context of its creation.
    pub traceparent: Option<String>,
    /// Its own time limit, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// Claims that did not end in completion, oldest first.
    pub attempt_history: Vec<AttemptView>,
}

/// A claim that did not end in completion.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptView {
    /// The claim's number.
    pub claim_no: i32,
    /// The attempt it was.
    pub attempt: i32,
    /// Who held it.
    pub worker_id: Uuid,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When it was settled.
    pub ended_at: Timestamp,
    /// What followed: retry, dead_letter, cancelled, snoozed or released.
    pub outcome: String,
    /// The class of the failure.
    pub error_class: String,
    /// Its code.
    pub error_code: Option<String>,
    /// Its summary.
    pub error_summary: Option<String>,
}

/// A worker process as it registered itself.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerView {
    /// The id that stands in `jobs.locked_by`.
    pub id: Uuid,
    /// Its host.
    pub host: String,
    /// Its process there.
    pub pid: i32,
    /// Its version.
    pub version: String,
    /// The schema version it was made for.
    pub schema_version: i32,
    /// Its queues with their limits.
    pub queues: serde_json::Value,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was heard of last.
    pub heartbeat_at: Timestamp,
    /// Milliseconds since then.
    pub silent_ms: i64,
    /// When it began to stop.
    pub stopping_at: Option<Timestamp>,
    /// The server process of its listener.
    pub listener_pid: Option<i32>,
    /// How its listener does.
    pub listener_state: String,
    /// Jobs it holds.
    pub running: i32,
}

/// The last run of a background task.
#[derive(Clone, Debug, Serialize)]
pub struct UpkeepView {
    /// The task.
    pub task: String,
    /// When it ran.
    pub last_run_at: Option<Timestamp>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// What it did.
    pub findings: serde_json::Value,
    /// How it failed.
    pub error: Option<String>,
}

/// An operator's action.
#[derive(Clone, Debug, Serialize)]
pub struct AuditView {
    /// Its place in the chain.
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// The database role that acted.
    pub actor: String,
    /// What it did.
    pub action: String,
    /// To what.
    pub object: String,
    /// With which particulars.
    pub details: serde_json::Value,
    /// Why.
    pub reason: Option<String>,
}

/// A place where the audit chain does not hold.
#[derive(Clone, Debug, Serialize)]
pub struct AuditFinding {
    /// The row's number.
    pub seq: i64,
    /// What is wrong there.
    pub finding: String,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// In one of these states; any when empty.
    pub statuses: Vec<JobStatus>,
    /// In this queue.
    pub queue: Option<String>,
    /// Of this type.
    pub job_type: Option<String>,
    /// Older than this id: the last one of the page before.
    pub before: Option<JobId>,
    /// At most this many: 1 to 1000; 50 when 0.
    pub limit: i32,
}

impl Observer {
    /// Connects and checks the schema.
    ///
    /// # Errors
    /// [`crate::Error::is_unavailable`] or [`crate::Error::is_schema_mismatch`].
    pub async fn connect(dsn: &Dsn, schema: &SchemaName) -> Result<Observer> {
        let link = Link::new(dsn.clone(), Purpose::Tool);
        let conn = link.connect_once(Duration::from_secs(10)).await?;
        migrate::check(conn.client(), schema).await?;
        Ok(Observer { db: Db::new(link, schema) })
    }

    /// Every queue that has jobs, settings, dead letters or workers.
    pub async fn queues(&self) -> Result<Vec<QueueView>> {
        Ok(self.ask(&SHOW_QUEUES, &[&10_000i32]).await?.iter().map(queue_view).collect())
    }

    /// A page of jobs, newest id first.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobView>> {
        let statuses: Vec<&str> = filter.statuses.iter().map(|status| status.as_str()).collect();
        let statuses = (!statuses.is_empty()).then_some(statuses);
        let limit = if filter.limit == 0 { 50 } else { filter.limit };
        let before = filter.before.map(|id| id.0);
        let rows =
            self.ask(&SHOW_JOBS, &[&statuses, &filter.queue, &filter.job_type, &before, &limit]).await?;
        rows.iter().map(job_view).collect()
    }

    /// One job, or `None`.
    pub async fn job(&self, id: JobId) -> Result<Option<JobDetail>> {
        let rows = self.ask(&SHOW_JOB, &[&id.0]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let attempts = self.ask(&SHOW_ATTEMPTS, &[&id.0]).await?;
        Ok(Some(JobDetail {
            job: job_view(row)?,
            claim_no: row.get(15),
            lease_until: row.get(16),
            idempotency_key: row.get(17),
            traceparent: row.get(18),
            timeout_ms: row.get(19),
            attempt_history: attempts.iter().map(attempt_view).collect(),
        }))
    }

    /// The payload of a job as JSON text. Needs the operator's role.
    pub async fn payload(&self, id: JobId) -> Result<Option<String>> {
        Ok(self.ask(&SHOW_PAYLOAD, &[&id.0]).await?.first().and_then(|row| row.get(0)))
    }

    /// Registered workers, the one heard of last first.
    pub async fn workers(&self) -> Result<Vec<WorkerView>> {
        Ok(self.ask(&SHOW_WORKERS, &[]).await?.iter().map(worker_view).collect())
    }

    /// The last run of each background task.
    pub async fn upkeep(&self) -> Result<Vec<UpkeepView>> {
        let view = |row: &Row| UpkeepView {
            task: row.get(0),
            last_run_at: row.get(1),
            duration_ms: row.get(2),
            findings: json(row.get(3)),
            error: row.get(4),
        };
        Ok(self.ask(&SHOW_UPKEEP, &[]).await?.iter().map(view).collect())
    }

    /// How full the server's notification queue is, 0 to 1.
    pub async fn notification_queue_usage(&self) -> Result<f64> {
        Ok(self.ask(&SHOW_NOTIFICATIONS, &[]).await?.first().map_or(0.0, |row| row.get(0)))
    }

    /// Operator actions before a place in the chain, newest first.
    pub async fn audit(&self, before: Option<i64>, limit: i32) -> Result<Vec<AuditView>> {
        let view = |row: &Row| AuditView {
            seq: row.get(0),
            at: row.get(1),
            actor: row.get(2),
            action: row.get(3),
            object: row.get(4),
            details: json(row.get(5)),
            reason: row.get(6),
        };
        Ok(self.ask(&SHOW_AUDIT, &[&before, &limit]).await?.iter().map(view).collect())
    }

    /// Where the audit chain does not hold; empty when it does.
    pub async fn verify_audit(&self) -> Result<Vec<AuditFinding>> {
        let rows = self.ask(&AUDIT_VERIFY, &[&10i32]).await?;
        Ok(rows.iter().map(|row| AuditFinding { seq: row.get(0), finding: row.get(1) }).collect())
    }

    async fn ask(&self, statement: &Statement, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.db.rows_once(statement, params, PATIENCE).await
    }
}

fn queue_view(row: &Row) -> QueueView {
    QueueView {
        queue: row.get(0),
        pending: row.get(1),
        scheduled: row.get(2),
        leased: row.get(3),
        retrying: row.get(4),
        dead_letter: row.get(5),
        capped: row.get(6),
        oldest_pending_ms: row.get(7),
        oldest_expired_lease_ms: row.get(8),
        paused: row.get(9),
        paused_reason: row.get(10),
        history: row.get(11),
        age_objective_ms: row.get(12),
        workers: row.get(13),
    }
}

fn job_view(row: &Row) -> Result<JobView> {
    Ok(JobView {
        id: JobId(row.get(0)),
        organization_id: row.get(1),
        queue: row.get(2),
        job_type: row.get(3),
        status: row.get::<_, &str>(4).parse()?,
        priority: row.get(5),
        run_at: row.get(6),
        attempts: row.get(7),
        max_attempts: row.get(8),
        locked_at: row.get(9),
        locked_by: row.get(10),
        last_error_code: row.get(11),
        last_error_summary: row.get(12),
        ended_at: row.get(13),
        created_at: row.get(14),
    })
}

fn attempt_view(row: &Row) -> AttemptView {
    AttemptView {
        claim_no: row.get(0),
        attempt: row.get(1),
        worker_id: row.get(2),
        started_at: row.get(3),
        ended_at: row.get(4),
        outcome: row.get(5),
        error_class: row.get(6),
        error_code: row.get(7),
        error_summary: row.get(8),
    }
}

fn worker_view(row: &Row) -> WorkerView {
    WorkerView {
        id: row.get(0),
        host: row.get(1),
        pid: row.get(2),
        version: row.get(3),
        schema_version: row.get(4),
        queues: json(row.get(5)),
        started_at: row.get(6),
        heartbeat_at: row.get(7),
        silent_ms: row.get(8),
        stopping_at: row.get(9),
        listener_pid: row.get(10),
        listener_state: row.get(11),
        running: row.get(12),
    }
}

fn json(text: Option<&str>) -> serde_json::Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
