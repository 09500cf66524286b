//! Events on their way to handlers: what a handler sees, and how a batch is worked off.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::handle::{Context, Outcome, Registered};
use super::held::{Held, Stop, Work};
use crate::caller::{self, CallerTransaction};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::model::{Event, Payload, SchemaName};

/// An event as it was published, with its place in the order of delivery.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Its place in the feed: dense, given after the commit. 0 in a relay, which has no order.
    pub position: i64,
    /// Its number of insertion; not an order of delivery.
    pub seq: i64,
    /// The publisher's id for the fact: stable over all deliveries, so a good key for effects elsewhere.
    pub id: Uuid,
    /// What happened, such as `order.placed`.
    pub event_type: String,
    /// The kind of thing it happened to.
    pub aggregate_type: String,
    /// Which one.
    pub aggregate_id: Uuid,
    /// The version of the payload's form.
    pub schema_version: i32,
    /// The payload as JSON text, as PostgreSQL prints it.
    pub payload: Payload,
    /// When it happened, by the publisher.
    pub occurred_at: Timestamp,
    /// When it was inserted, by the database's clock.
    pub recorded_at: Timestamp,
    /// The organization it belongs to.
    pub organization: Option<Uuid>,
    /// What its order is kept by, where that is not the aggregate.
    pub partition_key: Option<String>,
    /// The W3C trace context given when it was published.
    pub traceparent: Option<String>,
}

impl RecordedEvent {
    /// Reads the payload.
    ///
    /// # Errors
    /// A permanent [`Failure`] with the code `payload_invalid`, which a handler can return as it is.
    pub fn read<T: DeserializeOwned>(&self) -> std::result::Result<T, Failure> {
        serde_json::from_str(&self.payload).map_err(|error| {
            // serde's message may quote the payload, so only the type goes on the row.
            let what = format!("the payload of {} cannot be read as its type", self.event_type);
            let mut failure = Failure::permanent(what).code("payload_invalid");
            failure.detail = Some(Box::new(error));
            failure
        })
    }

    /// Reads the payload as the one of an event type, in the form of its schema version or of an earlier one.
    ///
    /// # Errors
    /// A transient [`Failure`] with the code `schema_newer` for a version that this program does not know yet: one that
    /// knows it may already run beside it. Else as for [`read`](RecordedEvent::read).
    pub fn decode<E: Event>(&self) -> std::result::Result<E, Failure> {
        if self.schema_version > E::SCHEMA_VERSION {
            let (is, knows) = (self.schema_version, E::SCHEMA_VERSION);
            let what = format!("{} has schema version {is}, this program knows {knows}", self.event_type);
            return Err(Failure::transient(what).code("schema_newer"));
        }
        self.read()
    }
}

/// Events after a cursor, and how far they are handled.
pub(crate) struct Batch {
    pub(crate) events: Vec<RecordedEvent>,
    /// Where the cursor goes when all are handled; behind the last when a filter leaves out what follows.
    pub(crate) through: i64,
    /// An event that was given back: the cursor does not move for it.
    pub(crate) unparked: bool,
    /// Whether the cursor waits at an event that fails for good, instead of setting it aside.
    pub(crate) blocks: bool,
    /// Up to here handlers have said done.
    handled: AtomicI64,
    /// Up to here they did so without a checkpoint of their own, which may not have been committed.
    certain: AtomicI64,
    /// The event that is being handled.
    at: AtomicI64,
    /// The last checkpoint that a handler has made in its own transaction.
    committed: AtomicI64,
    /// Checkpoints were made by calls that the database has answered, and not in a transaction that may not commit.
    by_call: AtomicBool,
    /// The failure is one of all its events, more than one: nothing says which.
    as_one: AtomicBool,
}

impl Batch {
    /// `events` are in order and not empty.
    pub(crate) fn new(events: Vec<RecordedEvent>, through: i64, unparked: bool, blocks: bool) -> Batch {
        let first = events.first().map_or(0, |event| event.position);
        let before = if unparked { 0 } else { first - 1 };
        let number = AtomicI64::new;
        Batch {
            events,
            through,
            unparked,
            blocks,
            handled: number(before),
            certain: number(before),
            at: number(first),
            committed: number(0),
            by_call: AtomicBool::new(false),
            as_one: AtomicBool::new(false),
        }
    }

    pub(crate) fn handled(&self) -> i64 {
        self.handled.load(Ordering::Acquire)
    }

    /// Where the cursor may go when the batch ends early: the database knows of the handlers' own checkpoints.
    pub(crate) fn certain(&self) -> i64 {
        self.certain.load(Ordering::Acquire)
    }

    /// The event at hand, which a failure is about.
    pub(crate) fn at(&self) -> i64 {
        self.at.load(Ordering::Acquire)
    }

    pub(crate) fn committed(&self) -> Option<i64> {
        Some(self.committed.load(Ordering::Acquire)).filter(|position| *position > 0)
    }

    /// Whether an event of this batch was handled before the one at hand.
    pub(crate) fn has_moved(&self) -> bool {
        self.events.first().is_some_and(|first| self.handled() >= first.position)
    }

    /// Whether the last thing done was a checkpoint in the handler's own transaction.
    pub(crate) fn ends_in_transaction(&self) -> bool {
        !self.by_call.load(Ordering::Acquire)
            && self.committed().is_some_and(|position| position == self.at())
    }

    /// Notes a checkpoint that the database has acknowledged. How far the cursor is, is from then on for the database to
    /// say: it may be another one, to which a failover has led, that lacks the last commits.
    pub(super) fn checkpoint(&self, position: i64) {
        self.begin(position);
        self.by_call.store(true, Ordering::Release);
        self.committed.store(position, Ordering::Release);
        self.handle(position);
    }

    /// Whether it failed together, so that no event may be given up for it.
    pub(crate) fn failed_as_one(&self) -> bool {
        self.as_one.load(Ordering::Acquire)
    }

    /// Notes a failure of all events from `first` to `last`. They come again one by one.
    pub(super) fn fail_as_one(&self, first: i64, last: i64) {
        self.begin(first);
        self.as_one.store(first < last, Ordering::Release);
    }

    pub(super) fn begin(&self, position: i64) {
        self.at.store(position, Ordering::Release);
    }

    /// The event at hand; a batch is never empty.
    pub(super) fn event(&self) -> &RecordedEvent {
        let at = self.at();
        let place = self.events.partition_point(|event| event.position < at);
        &self.events[place.min(self.events.len() - 1)]
    }

    pub(super) fn handle(&self, position: i64) {
        // What follows the last event and is left out by the filter goes with it.
        let last = self.events.last().is_some_and(|last| last.position == position);
        let through = if last { self.through } else { position };
        self.handled.store(through, Ordering::Release);
        if self.committed().is_none() {
            self.certain.store(through, Ordering::Release);
        }
    }
}

/// What a handler of events knows about its delivery, and how it hears that it should stop.
#[derive(Clone)]
pub struct EventContext {
    pub(super) held: Arc<Held>,
    schema: SchemaName,
    /// Cancelled when the worker begins to stop.
    pub(super) draining: CancellationToken,
}

impl EventContext {
    pub(super) fn of(cx: &Context) -> EventContext {
        let (held, schema, draining) = cx.parts();
        EventContext { held, schema, draining }
    }

    /// The event at hand as it was published, with its id and position; in a handler of batches the last one.
    pub fn event(&self) -> &RecordedEvent {
        match &self.held.work {
            Work::Event(event) => event,
            Work::Batch(batch) => batch.event(),
            Work::Job(_) => unreachable!("handlers of events are given events"),
        }
    }

    /// Which attempt this is, counted from 1. Of a subscription: at the first event that was claimed.
    pub fn attempt(&self) -> i32 {
        self.held.attempts
    }

    /// Grows with each claim and is never reset: a fencing number for systems that take one.
    pub fn claim_no(&self) -> i32 {
        self.held.claim_no
    }

    /// The token of this claim, random. Reports that name an older one change nothing.
    pub fn lease_token(&self) -> Uuid {
        self.held.token
    }

    /// Whether the handler should stop, and why.
    pub fn stop_reason(&self) -> Option<Stop> {
        self.held.stop_reason()
    }

    /// Whether the handler should stop. Blocking code asks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Resolves when the handler should stop: its lease is lost, its time is over, or the worker gives up draining.
    pub async fn cancelled(&self) -> Stop {
        self.held.stopping().await
    }

    /// Moves the cursor past the event, or past the whole batch in a handler of batches, inside a transaction of the
    /// handler's own: its effects there and the checkpoint commit together or not at all.
    ///
    /// Call it last before COMMIT, and return `Ok` after the commit. The transaction must be READ COMMITTED.
    ///
    /// # Errors
    /// [`Error::is_lease_lost`] when another worker may handle the event by now: roll back.
    /// [`Error::is_wrong_isolation`] under another isolation level. [`Error::is_config`] in a relay, which has no cursor.
    pub async fn advance_in(&self, tx: &mut impl CallerTransaction) -> Result<()> {
        let Work::Batch(batch) = &self.held.work else {
            return Err(Error::config("a relay has no cursor to advance")
                .with_hint("Use an ordered subscription for effects that commit with the checkpoint."));
        };
        let (position, after) = (batch.at(), batch.committed().unwrap_or(0));
        let held = &self.held;
        let target = if batch.events.last().is_some_and(|last| last.position == position) && !batch.unparked {
            batch.through
        } else {
            position
        };
        caller::checkpoint_in(tx, &self.schema, held.fence(), target, batch.unparked, after).await?;
        batch.committed.store(position, Ordering::Release);
        Ok(())
    }
}

/// Hands events over one by one, in order. Between two of them it stops when it is told to: what is handled is
/// checkpointed, and the rest comes again.
pub(crate) fn each<F, Fut>(queue: &str, handler: F) -> Registered
where
    F: Fn(RecordedEvent, EventContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let handler = Arc::new(handler);
    Registered::raw(queue, KIND, move |context: Context| {
        let handler = handler.clone();
        async move {
            let cx = EventContext::of(&context);
            let batch = match &cx.held.work {
                Work::Event(event) => return handler(event.as_ref().clone(), cx.clone()).await,
                Work::Batch(batch) => batch,
                Work::Job(_) => return Err(Failure::permanent("a job was given to a handler of events")),
            };
            for (n, event) in batch.events.iter().enumerate() {
                if n > 0 && (cx.is_cancelled() || cx.draining.is_cancelled()) {
                    break;
                }
                batch.begin(event.position);
                cx.held.begin();
                handler(event.clone(), cx.clone()).await?;
                batch.handle(event.position);
            }
            Ok(())
        }
    })
}

/// Hands events over together. A failure is that of the first, since nothing says more; they come again one by one then.
pub(crate) fn together<F, Fut>(queue: &str, handler: F) -> Registered
where
    F: Fn(Vec<RecordedEvent>, EventContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let handler = Arc::new(handler);
    Registered::raw(queue, KIND, move |context: Context| {
        let handler = handler.clone();
        async move {
            let cx = EventContext::of(&context);
            let Work::Batch(batch) = &cx.held.work else {
                return Err(Failure::permanent("a handler of batches was given something else"));
            };
            let (Some(first), Some(last)) = (batch.events.first(), batch.events.last()) else {
                return Ok(());
            };
            // A checkpoint inside the handler is one of the whole batch.
            batch.begin(last.position);
            let outcome = handler(batch.events.clone(), cx.clone()).await;
            match outcome {
                Ok(()) => batch.handle(last.position),
                Err(_) => batch.fail_as_one(first.position, last.position),
            }
            outcome
        }
    })
}

/// The label of all events where jobs have their type.
pub(super) const KIND: &str = "event";
