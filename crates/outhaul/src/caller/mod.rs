//! Enqueuing and publishing inside the caller's transaction, whatever driver it belongs to.
//!
//! The trait is sealed and asks for one thing: send a statement of ours with text, numbers and arrays of
//! text, and give the rows of text back. Binding nothing else keeps each adapter free of the driver's
//! type features.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::model::{Due, Enqueued, JobId, NewJob, SchemaName};
use crate::store::statement::{
    CANCEL, CANCEL_KEY, CHECKPOINT_IN, COMPLETE_IN, ENQUEUE, ENQUEUE_MANY, PUBLISH, PUBLISH_MANY,
};

mod publish;
#[cfg(any(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
mod sqlx;
mod tokio_postgres;

pub use self::publish::{publish, publish_many};
pub use self::tokio_postgres::{Cached, StatementCache};

/// A transaction of the caller: `tokio_postgres::Transaction`, or with a feature `sqlx::Transaction` or `sqlx::PgConnection`.
///
/// `tokio_postgres::Client` counts as well; each call is then a transaction of its own.
pub trait CallerTransaction: sealed::Call {}

impl<T: sealed::Call> CallerTransaction for T {}

pub(crate) mod sealed {
    use super::{Arg, Future, Result};

    /// Sends one statement in the caller's transaction.
    pub trait Call: Send {
        /// Returns the first column of each row, as text.
        fn call(
            &mut self,
            sql: &str,
            args: &[Arg<'_>],
        ) -> impl Future<Output = Result<Vec<Option<String>>>> + Send;
    }
}

/// A parameter as every driver can bind it.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    Text(Option<Cow<'a, str>>),
    Texts(Option<Vec<Option<Cow<'a, str>>>>),
    Int(i32),
    BigInt(Option<i64>),
    Bool(bool),
}

impl<'a> Arg<'a> {
    fn text(text: impl Into<Cow<'a, str>>) -> Arg<'a> {
        Arg::Text(Some(text.into()))
    }

    fn some(text: Option<impl Into<Cow<'a, str>>>) -> Arg<'a> {
        Arg::Text(text.map(Into::into))
    }
}

/// Enqueues jobs and publishes events inside transactions of the caller, into one schema.
///
/// The free functions [`enqueue`], [`enqueue_many`], [`publish`] and [`publish_many`] are this with the schema `outhaul`.
#[derive(Clone, Debug)]
pub struct Producer {
    enqueue: String,
    enqueue_many: String,
    cancel: String,
    cancel_key: String,
    publish: String,
    publish_many: String,
    notify: bool,
}

impl Default for Producer {
    fn default() -> Producer {
        Producer::in_schema(&SchemaName::default())
    }
}

impl Producer {
    /// A producer for a schema.
    pub fn in_schema(schema: &SchemaName) -> Producer {
        Producer {
            enqueue: ENQUEUE.text(schema),
            enqueue_many: ENQUEUE_MANY.text(schema),
            cancel: CANCEL.text(schema),
            cancel_key: CANCEL_KEY.text(schema),
            publish: PUBLISH.text(schema),
            publish_many: PUBLISH_MANY.text(schema),
            notify: true,
        }
    }

    /// Whether to wake workers from within the transaction; on by default. Switch it off for transactions
    /// that end in `PREPARE TRANSACTION`, which cannot follow a NOTIFY; workers then find the job or event by polling.
    pub fn notify(mut self, notify: bool) -> Producer {
        self.notify = notify;
        self
    }

    /// Enqueues one job; it exists when, and only when, the transaction commits.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`] before anything is sent, or [`Error::is_conflict`] when the idempotency key is
    /// in use with another payload. After an error of the database the transaction is aborted.
    pub async fn enqueue(&self, tx: &mut impl CallerTransaction, job: &NewJob) -> Result<Enqueued> {
        job.check()?;
        let args = [
            Arg::text(&job.queue),
            Arg::text(&job.job_type),
            Arg::text(&job.payload.0),
            Arg::text(job.id.to_string()),
            Arg::some(job.idempotency_key.as_deref()),
            Arg::some(job.organization.map(|id| id.to_string())),
            Arg::Int(job.priority),
            Arg::some(due_text(job.due)),
            Arg::Int(job.max_attempts),
            Arg::BigInt(millis(job.timeout)),
            Arg::some(job.traceparent.as_deref()),
            Arg::Bool(self.notify),
            Arg::some(job.ordering_key.as_deref()),
            Arg::some(job.limit_key.as_deref()),
            Arg::some(job.rate_key.as_deref()),
        ];
        let rows = tx.call(&self.enqueue, &args).await?;
        let id = rows.into_iter().next().flatten().ok_or_else(no_answer)?;
        enqueued(job.id, &id)
    }

    /// Enqueues any number of jobs in one transaction, all or none; 100,000 in a call are fine.
    ///
    /// Jobs that agree in queue, type, priority, attempts, timeout and trace context travel together.
    ///
    /// Returns what became of each, in order.
    ///
    /// # Errors
    /// As [`Producer::enqueue`]; the message names the place of the job that was refused, counted from 0.
    pub async fn enqueue_many(
        &self,
        tx: &mut impl CallerTransaction,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        for (place, job) in jobs.iter().enumerate() {
            job.check().map_err(|error| error.context(format!("job {place} of {}", jobs.len())))?;
        }
        let mut results: Vec<Option<Enqueued>> = vec![None; jobs.len()];
        for places in groups(jobs) {
            let args = many_args(jobs, &places, self.notify);
            let ids = tx.call(&self.enqueue_many, &args).await?;
            if ids.len() != places.len() {
                return Err(no_answer());
            }
            for (place, id) in places.into_iter().zip(ids) {
                results[place] = Some(enqueued(jobs[place].id, &id.ok_or_else(no_answer)?)?);
            }
        }
        results.into_iter().collect::<Option<Vec<_>>>().ok_or_else(no_answer)
    }

    /// Cancels a job that has not ended, in the caller's transaction; a running handler is told by its next renewal.
    ///
    /// # Errors
    /// Errors of the database only; see [`Cancelled`] for what happened.
    pub async fn cancel(&self, tx: &mut impl CallerTransaction, id: JobId) -> Result<Cancelled> {
        cancelled(&tx.call(&self.cancel, &[Arg::text(id.to_string()), Arg::Text(None)]).await?)
    }

    /// Cancels the job that has an idempotency key, in the caller's transaction: for who knows the request and not the id.
    ///
    /// `organization` is what the job was enqueued with. A key that another transaction has not committed yet is not
    /// found. [`Cancelled::Ended`] also when the job's row has been removed and only its key is still kept.
    ///
    /// # Errors
    /// Errors of the database only; see [`Cancelled`] for what happened.
    pub async fn cancel_by_key(
        &self,
        tx: &mut impl CallerTransaction,
        job_type: &str,
        key: &str,
        organization: Option<Uuid>,
    ) -> Result<Cancelled> {
        let args = [
            Arg::text(job_type),
            Arg::text(key),
            Arg::some(organization.map(|id| id.to_string())),
            Arg::Text(None),
        ];
        cancelled(&tx.call(&self.cancel_key, &args).await?)
    }
}

/// What a cancellation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// The job will not run again.
    Cancelled,
    /// It had ended before, completed, cancelled, or as a dead letter; nothing was changed.
    Ended,
    /// There is no such job.
    NotFound,
}

fn cancelled(rows: &[Option<String>]) -> Result<Cancelled> {
    rows.first().and_then(Option::as_deref).and_then(Cancelled::of).ok_or_else(no_answer)
}

impl Cancelled {
    pub(crate) fn of(word: &str) -> Option<Cancelled> {
        Some(match word {
            "cancelled" => Cancelled::Cancelled,
            "ended" => Cancelled::Ended,
            "not_found" => Cancelled::NotFound,
            _ => return None,
        })
    }
}

static DEFAULT: LazyLock<Producer> = LazyLock::new(Producer::default);

/// Enqueues one job inside the caller's transaction: [`Producer::enqueue`] in the schema `outhaul`.
///
/// # Errors
/// See [`Producer::enqueue`].
pub async fn enqueue(tx: &mut impl CallerTransaction, job: &NewJob) -> Result<Enqueued> {
    DEFAULT.enqueue(tx, job).await
}

/// Enqueues many jobs inside the caller's transaction: [`Producer::enqueue_many`] in the schema `outhaul`.
///
/// # Errors
/// See [`Producer::enqueue_many`].
pub async fn enqueue_many(tx: &mut impl CallerTransaction, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    DEFAULT.enqueue_many(tx, jobs).await
}

/// Cancels the job that has an idempotency key: [`Producer::cancel_by_key`] in the schema `outhaul`.
///
/// # Errors
/// See [`Producer::cancel_by_key`].
pub async fn cancel_by_key(
    tx: &mut impl CallerTransaction,
    job_type: &str,
    key: &str,
    organization: Option<Uuid>,
) -> Result<Cancelled> {
    DEFAULT.cancel_by_key(tx, job_type, key, organization).await
}

/// Completes a leased job inside the handler's transaction.
pub(crate) async fn complete_in(
    tx: &mut impl CallerTransaction,
    schema: &SchemaName,
    (id, token, claim_no): (Uuid, Uuid, i32),
    history: &str,
) -> Result<()> {
    let args =
        [Arg::text(id.to_string()), Arg::text(token.to_string()), Arg::Int(claim_no), Arg::text(history)];
    tx.call(&COMPLETE_IN.text(schema), &args).await.map(drop)
}

/// Moves the leased cursor of a subscription inside the handler's transaction. `after` is the checkpoint before in the
/// same lease.
pub(crate) async fn checkpoint_in(
    tx: &mut impl CallerTransaction,
    schema: &SchemaName,
    (id, token, claim_no): (Uuid, Uuid, i32),
    position: i64,
    unparked: bool,
    after: i64,
) -> Result<()> {
    let args = [
        Arg::text(id.to_string()),
        Arg::text(token.to_string()),
        Arg::Int(claim_no),
        Arg::BigInt(Some(position)),
        Arg::Bool(unparked),
        Arg::BigInt(Some(after)),
    ];
    tx.call(&CHECKPOINT_IN.text(schema), &args).await.map(drop)
}

/// Places of jobs that can go in one statement. The order of the groups does not depend on that of the jobs,
/// and begins with the type, to which keys belong: overlapping calls then take their keys in the same order.
fn groups(jobs: &[NewJob]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, job) in jobs.iter().enumerate() {
        let key = (&job.job_type, &job.queue, job.priority, job.max_attempts, job.timeout, &job.traceparent);
        groups.entry(key).or_default().push(place);
    }
    groups.into_values().collect()
}

fn many_args<'a>(jobs: &'a [NewJob], places: &[usize], notify: bool) -> [Arg<'a>; 15] {
    let first = &jobs[places[0]];
    let each = || places.iter().map(|place| &jobs[*place]);
    // An array is sent only when some job has a value for it.
    let optional =
        |values: Vec<Option<Cow<'a, str>>>| Arg::Texts(values.iter().any(Option::is_some).then_some(values));
    [
        Arg::text(&first.queue),
        Arg::text(&first.job_type),
        Arg::Texts(Some(each().map(|job| Some(Cow::from(&job.payload.0))).collect())),
        Arg::Texts(Some(each().map(|job| Some(Cow::from(job.id.to_string()))).collect())),
        optional(each().map(|job| job.idempotency_key.as_deref().map(Cow::from)).collect()),
        optional(each().map(|job| job.organization.map(|id| Cow::from(id.to_string()))).collect()),
        optional(each().map(|job| due_text(job.due).map(Cow::from)).collect()),
        Arg::Int(first.priority),
        Arg::Int(first.max_attempts),
        Arg::BigInt(millis(first.timeout)),
        Arg::some(first.traceparent.as_deref()),
        Arg::Bool(notify),
        optional(each().map(|job| job.ordering_key.as_deref().map(Cow::from)).collect()),
        optional(each().map(|job| job.limit_key.as_deref().map(Cow::from)).collect()),
        optional(each().map(|job| job.rate_key.as_deref().map(Cow::from)).collect()),
    ]
}

/// When a job is due, as statements take it.
pub(crate) fn due_text(due: Due) -> Option<String> {
    match due {
        Due::Now => None,
        Due::In(delay) => Some(format!("+{}", delay.as_millis())),
        Due::At(at) => Some(at.to_string()),
    }
}

pub(crate) fn millis(duration: Option<Duration>) -> Option<i64> {
    duration.map(|duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

fn enqueued(own: JobId, answer: &str) -> Result<Enqueued> {
    let id: JobId = answer.parse()?;
    Ok(if id == own { Enqueued::New(id) } else { Enqueued::Duplicate(id) })
}

fn no_answer() -> Error {
    Error::new(Kind::Database, "the database gave no answer to a call")
        .with_hint("Check that the schema was migrated by this version.")
}
