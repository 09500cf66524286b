//! From a claimed job to its handler and back: decoding, time limit, panics, cancellation.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::events::Batch;
use super::held::{Held, JobRow, Stop, Work};
use super::vital::panic_message;
use crate::caller::{self, CallerTransaction};
use crate::decide::words;
use crate::error::Result;
use crate::failure::Failure;
use crate::model::{FailureClass, Job, JobId, SchemaName};
use crate::telemetry::TypeMetrics;

/// What a handler answers: done, or how it failed.
pub type Outcome = std::result::Result<(), Failure>;

type Handler = dyn Fn(Context) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync;

/// A job type with its handler.
pub(crate) struct Registered {
    pub(crate) job_type: String,
    pub(crate) queue: String,
    handler: Box<Handler>,
    pub(crate) metrics: TypeMetrics,
}

impl Registered {
    pub(crate) fn typed<J, F, Fut>(queue: &str, handler: Arc<F>) -> Registered
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Registered::raw(queue, J::TYPE, move |cx: Context| {
            let handler = handler.clone();
            async move {
                let job = serde_json::from_str::<J>(cx.payload()).map_err(|error| {
                    // serde's message may quote the payload, so only the kind of the mistake goes on the row.
                    let what = match error.classify() {
                        serde_json::error::Category::Data => "does not have the fields of",
                        _ => "is not JSON for",
                    };
                    let mut failure =
                        Failure::permanent(format!("the payload {what} {}", J::TYPE)).code("payload_invalid");
                    failure.detail = Some(Box::new(error));
                    failure
                })?;
                handler(job, cx).await
            }
        })
    }

    pub(crate) fn raw<F, Fut>(queue: &str, job_type: &str, handler: F) -> Registered
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Registered {
            job_type: job_type.to_owned(),
            queue: queue.to_owned(),
            handler: Box::new(move |cx| Box::pin(handler(cx))),
            metrics: TypeMetrics::new(queue, job_type),
        }
    }

    /// The same handler for another queue, so that metrics are kept apart.
    pub(crate) fn in_queue(self: &Arc<Registered>, queue: &str) -> Registered {
        let inner = self.clone();
        Registered {
            job_type: self.job_type.clone(),
            queue: queue.to_owned(),
            handler: Box::new(move |cx| (inner.handler)(cx)),
            metrics: TypeMetrics::new(queue, &self.job_type),
        }
    }
}

/// What a handler knows about its job, and how it hears that it should stop.
#[derive(Clone)]
pub struct Context {
    held: Arc<Held>,
    schema: SchemaName,
    draining: CancellationToken,
}

impl Context {
    /// For handlers of events, which are shown something else.
    pub(crate) fn parts(&self) -> (Arc<Held>, SchemaName, CancellationToken) {
        (self.held.clone(), self.schema.clone(), self.draining.clone())
    }

    fn job(&self) -> &JobRow {
        match &self.held.work {
            Work::Job(job) => job,
            _ => unreachable!("handlers of jobs are given jobs"),
        }
    }

    /// The job's id: stable over all attempts, so a good key for effects elsewhere.
    pub fn id(&self) -> JobId {
        JobId(self.held.id)
    }

    /// The name of the job's type.
    pub fn job_type(&self) -> &str {
        &self.held.registered.job_type
    }

    /// The queue it was claimed from.
    pub fn queue(&self) -> &str {
        &self.held.registered.queue
    }

    /// The payload as JSON text, as PostgreSQL prints it.
    pub fn payload(&self) -> &str {
        &self.job().payload
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> i32 {
        self.held.attempts
    }

    /// After how many attempts the job becomes a dead letter.
    pub fn max_attempts(&self) -> i32 {
        self.held.max_attempts
    }

    /// Grows with each claim of the job and is never reset: a fencing number for systems that take one.
    pub fn claim_no(&self) -> i32 {
        self.held.claim_no
    }

    /// The token of this claim, random. Reports that name an older one change nothing.
    pub fn lease_token(&self) -> Uuid {
        self.held.token
    }

    /// The organization the job belongs to.
    pub fn organization(&self) -> Option<Uuid> {
        self.job().organization
    }

    /// When the job was enqueued, by the database's clock.
    pub fn created_at(&self) -> Timestamp {
        self.job().created_at
    }

    /// When the job was due, by the database's clock.
    pub fn run_at(&self) -> Timestamp {
        self.job().run_at
    }

    /// The W3C trace context given at the enqueue.
    pub fn traceparent(&self) -> Option<&str> {
        self.job().traceparent.as_deref()
    }

    /// When the handler's time is over; it is dropped then.
    pub fn deadline(&self) -> Instant {
        self.held.deadline()
    }

    /// Whether the handler should stop, and why.
    pub fn stop_reason(&self) -> Option<Stop> {
        self.held.stop_reason()
    }

    /// Whether the handler should stop. Blocking code asks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Resolves when the handler should stop: its job was cancelled, its lease is lost, its time is over, or the worker gives up draining.
    ///
    /// At its time limit the future of the handler is dropped at once, at its next await; else a little later. A handler
    /// that blocks its thread is told of its time limit up to a second and a twelfth of the lease late.
    pub async fn cancelled(&self) -> Stop {
        self.held.stopping().await
    }

    /// Completes the job inside a transaction of the handler's own, so that its effects there and the end of
    /// the job commit together or not at all.
    ///
    /// Call it last before COMMIT, and return `Ok` after the commit. The transaction must be READ COMMITTED.
    ///
    /// # Errors
    /// [`crate::Error::is_lease_lost`] when another worker may own the job by now: roll back.
    /// [`crate::Error::is_wrong_isolation`] under another isolation level.
    pub async fn complete_in(&self, tx: &mut impl CallerTransaction) -> Result<()> {
        let held = &self.held;
        caller::complete_in(tx, &self.schema, held.fence(), held.history().as_str()).await?;
        held.completed_in.store(true, Ordering::Release);
        Ok(())
    }
}

/// How a handler's run ended.
#[derive(Debug)]
pub(crate) enum Ran {
    Done,
    /// It says done and has called `complete_in`, or ended with `advance_in`: whether that committed is for the database
    /// to say.
    DoneInTransaction,
    Failed(Failure),
    /// It was dropped because the worker stops; the attempt is given back.
    Abandoned,
}

/// How long a handler may go on that was asked to stop.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    pub(crate) time: Duration,
    /// Cancelled when no time is left at all.
    pub(crate) over: CancellationToken,
    /// Cancelled when the worker begins to stop: a batch ends after the event at hand.
    pub(crate) draining: CancellationToken,
}

/// Runs one handler to its end. Never panics and always ends: at the handler's time limit, or with its
/// grace after it was asked to stop.
pub(crate) async fn run(held: &Arc<Held>, schema: &SchemaName, grace: &Grace) -> Ran {
    // Code of the user also runs when a handler's future is dropped and when an error is shown or dropped.
    let attempt = AssertUnwindSafe(async {
        match attempt(held, schema, grace).await {
            Ran::Failed(mut failure) => {
                say(held, &failure);
                failure.detail = None;
                Ran::Failed(failure)
            }
            ran => ran,
        }
    });
    attempt.catch_unwind().await.unwrap_or_else(|panic| interpret(held, panicked(&*panic)))
}

async fn attempt(held: &Arc<Held>, schema: &SchemaName, grace: &Grace) -> Ran {
    held.begin();
    let cx = Context { held: held.clone(), schema: schema.clone(), draining: grace.draining.clone() };
    let handler = AssertUnwindSafe(async { (held.registered.handler)(cx).await }).catch_unwind();
    tokio::pin!(handler);
    let ended = tokio::select! {
        biased;
        result = &mut handler => Some(result),
        () = out_of_time(held) => {
            held.stop(Stop::TimedOut);
            None
        }
        _ = held.stopping() => tokio::select! {
            biased;
            result = &mut handler => Some(result),
            () = tokio::time::sleep(grace.time) => None,
            () = grace.over.cancelled() => None,
        },
    };
    match ended {
        Some(Ok(Ok(()))) if ended_in_transaction(held) => Ran::DoneInTransaction,
        Some(Ok(Ok(()))) => Ran::Done,
        Some(Ok(Err(failure))) => interpret(held, failure),
        Some(Err(panic)) => interpret(held, panicked(&*panic)),
        None if held.stop_reason() == Some(Stop::TimedOut) => Ran::Failed(
            Failure::of_class(
                FailureClass::Transient,
                format!("the handler ran longer than {:?}", held.timeout),
            )
            .code("timeout"),
        ),
        None => Ran::Abandoned,
    }
}

/// Each event of a batch has the time limit for itself.
async fn out_of_time(held: &Held) {
    while Instant::now() < held.deadline() {
        tokio::time::sleep_until(held.deadline().into()).await;
    }
}

fn ended_in_transaction(held: &Held) -> bool {
    held.completed_in.load(Ordering::Acquire) || held.batch().is_some_and(Batch::ends_in_transaction)
}

/// A handler that was asked to stop often ends with some error of its own; that is no failure of the job. What it
/// has chosen to say counts.
fn interpret(held: &Held, failure: Failure) -> Ran {
    let told_to_stop = matches!(held.stop_reason(), Some(Stop::Draining | Stop::LeaseLost | Stop::Cancelled));
    let says_nothing = !failure.chosen || failure.class() == Some(FailureClass::Unknown);
    if told_to_stop && says_nothing { Ran::Abandoned } else { Ran::Failed(failure) }
}

/// The full detail of a failure goes to the log, here, once, under the names by which its kind of work is looked for.
fn say(held: &Held, failure: &Failure) {
    let Some(class) = failure.class() else { return };
    let (class, code, error) = (class.as_str(), failure.error_code(), words::summary(&failure.summary));
    let detail = failure.detail.as_ref().map(|detail| format!("{detail:?}"));
    let (attempt, max_attempts) = (held.attempt(), held.max_attempts);
    match &held.work {
        Work::Job(_) => tracing::warn!(
            job_id = %held.id, job_type = held.registered.job_type, queue = held.registered.queue,
            attempt, max_attempts, class, code, error, detail, "attempt failed"
        ),
        Work::Event(event) => tracing::warn!(
            relay = true, event_id = %event.id, event_type = event.event_type, seq = event.seq,
            aggregate_type = event.aggregate_type, aggregate_id = %event.aggregate_id,
            attempt, max_attempts, class, code, error, detail, "attempt failed"
        ),
        Work::Batch(batch) => {
            let event = batch.event();
            // A cursor that blocks tries for as long as it takes.
            let max_attempts = (!batch.blocks).then_some(max_attempts);
            tracing::warn!(
                subscription = held.registered.queue.trim_start_matches('@'), rule = failure.rule.as_deref(),
                position = event.position, event_id = %event.id, event_type = event.event_type,
                aggregate_type = event.aggregate_type, aggregate_id = %event.aggregate_id, given_back = batch.unparked,
                attempt, max_attempts, class, code, error, detail, "attempt failed"
            )
        }
    }
}

/// The failure of a handler that panicked.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let message = format!("the handler panicked: {}", panic_message(panic));
    Failure::of_class(FailureClass::Unknown, message).code("panic")
}
