//! What this process holds: claimed work, from the claim to the acknowledged settlement.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use super::events::{Batch, RecordedEvent};
use super::handle::Registered;

/// What stays of a completed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum History {
    None,
    Row,
    Payload,
}

impl History {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            History::None => "none",
            History::Row => "row",
            History::Payload => "payload",
        }
    }

    pub(crate) fn parse(text: &str) -> History {
        match text {
            "none" => History::None,
            "payload" => History::Payload,
            _ => History::Row,
        }
    }
}

/// Why a handler is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// The lease is gone, or may be: another worker may run the job.
    LeaseLost = 1,
    /// The handler's time is over.
    TimedOut = 2,
    /// The worker shuts down and the drain limit has passed; the job is given back without spending an attempt.
    Draining = 3,
    /// The job was cancelled. What the handler has done stays; nothing that it reports changes anything.
    Cancelled = 4,
}

/// What is leased: each kind has a table, and functions, of its own.
pub(crate) enum Work {
    Job(JobRow),
    /// One event, for the relay.
    Event(Box<RecordedEvent>),
    /// Events after the cursor of a subscription; what is leased is the cursor.
    Batch(Batch),
}

/// A claimed job, as its handler sees it.
pub(crate) struct JobRow {
    pub(crate) payload: String,
    pub(crate) organization: Option<Uuid>,
    pub(crate) run_at: Timestamp,
    pub(crate) created_at: Timestamp,
    pub(crate) traceparent: Option<String>,
    pub(crate) history: History,
}

/// Where leases of a kind are renewed, settled and swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Plane {
    Jobs,
    Relay,
    Subscriptions,
}

/// A lease by name, as every later report of it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: Uuid,
    pub(crate) token: Uuid,
    pub(crate) claim_no: i32,
    /// When an event was inserted: with its number it is the key of its row.
    pub(crate) at: Timestamp,
}

/// One claimed job, event, or batch of events.
pub(crate) struct Held {
    /// Of the job or the subscription; of an event for the relay its number, as [`event_key`] gives it.
    pub(crate) id: Uuid,
    pub(crate) token: Uuid,
    pub(crate) claim_no: i32,
    pub(crate) attempts: i32,
    pub(crate) max_attempts: i32,
    pub(crate) registered: Arc<Registered>,
    pub(crate) timeout: Duration,
    /// How long a claim or renewal holds it.
    pub(crate) lease: Duration,
    pub(crate) work: Work,
    /// The process's own zero; `since` counts from it.
    epoch: Instant,
    /// Microseconds from `epoch` to the instant before the claim or the last good renewal was sent.
    since: AtomicU64,
    stop: AtomicU8,
    stopped: Notify,
    /// The handler has ended, and only its report is on the way.
    ended: AtomicBool,
    /// The handler has called `complete_in` with success.
    pub(crate) completed_in: AtomicBool,
    /// Microseconds from `epoch` to when the event at hand was begun, each of which has the whole time limit.
    begun: AtomicU64,
}

/// The number of an event as a key among all that is held; sorted as the numbers are.
pub(crate) fn event_key(seq: i64) -> Uuid {
    Uuid::from_u128(seq as u128)
}

/// The number behind [`event_key`].
pub(crate) fn event_seq(key: Uuid) -> i64 {
    key.as_u128() as i64
}

/// What a claimed row says, for [`Held::new`].
pub(crate) struct Claimed {
    pub(crate) id: Uuid,
    pub(crate) token: Uuid,
    pub(crate) claim_no: i32,
    pub(crate) attempts: i32,
    pub(crate) max_attempts: i32,
    pub(crate) timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) work: Work,
}

impl Held {
    /// `epoch` is the process's zero, `sent` the instant before the claim was sent.
    pub(crate) fn new(row: Claimed, registered: Arc<Registered>, epoch: Instant, sent: Instant) -> Held {
        Held {
            id: row.id,
            token: row.token,
            claim_no: row.claim_no,
            attempts: row.attempts,
            max_attempts: row.max_attempts,
            registered,
            timeout: row.timeout,
            lease: row.lease,
            work: row.work,
            epoch,
            since: AtomicU64::new(micros(sent, epoch)),
            stop: AtomicU8::new(0),
            stopped: Notify::new(),
            ended: AtomicBool::new(false),
            completed_in: AtomicBool::new(false),
            begun: AtomicU64::new(0),
        }
    }

    pub(crate) fn plane(&self) -> Plane {
        match self.work {
            Work::Job(_) => Plane::Jobs,
            Work::Event(_) => Plane::Relay,
            Work::Batch(_) => Plane::Subscriptions,
        }
    }

    pub(crate) fn named(&self) -> Lease {
        let at = match &self.work {
            Work::Event(event) => event.recorded_at,
            _ => Timestamp::UNIX_EPOCH,
        };
        Lease { id: self.id, token: self.token, claim_no: self.claim_no, at }
    }

    /// What a call in the handler's own transaction names.
    pub(crate) fn fence(&self) -> (Uuid, Uuid, i32) {
        (self.id, self.token, self.claim_no)
    }

    /// What stays when it is completed; of events everything.
    pub(crate) fn history(&self) -> History {
        match &self.work {
            Work::Job(job) => job.history,
            _ => History::Row,
        }
    }

    /// Which attempt it is of what is at hand: in a batch not of an event before it, which had failed.
    pub(crate) fn attempt(&self) -> i32 {
        if self.batch().is_some_and(Batch::has_moved) { 1 } else { self.attempts }
    }

    pub(crate) fn batch(&self) -> Option<&Batch> {
        match &self.work {
            Work::Batch(batch) => Some(batch),
            _ => None,
        }
    }

    /// How many jobs or events it is.
    pub(crate) fn len(&self) -> usize {
        self.batch().map_or(1, |batch| batch.events.len())
    }

    /// The time limit starts anew: the next event of a batch is begun.
    pub(crate) fn begin(&self) {
        self.begun.store(micros(Instant::now(), self.epoch), Ordering::Release);
    }

    /// Whether its handler was begun, has not ended, and has been out of time for so long.
    pub(crate) fn is_overdue(&self, now: Instant, by: Duration) -> bool {
        let begun = self.begun.load(Ordering::Acquire) > 0;
        begun && !self.has_ended() && self.stop_reason().is_none() && now > self.deadline() + by
    }

    /// When the time of what is being handled is over.
    pub(crate) fn deadline(&self) -> Instant {
        self.epoch + Duration::from_micros(self.begun.load(Ordering::Acquire)) + self.timeout
    }

    /// The instant before the lease was last known to begin.
    pub(crate) fn since(&self) -> Instant {
        self.epoch + Duration::from_micros(self.since.load(Ordering::Acquire))
    }

    pub(crate) fn renewed(&self, sent: Instant) {
        self.since.store(micros(sent, self.epoch), Ordering::Release);
    }

    /// Asks the handler to stop; the first reason stands.
    pub(crate) fn stop(&self, why: Stop) {
        if self.stop.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.stopped.notify_waiters();
        }
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether there is no handler any more that could be told anything.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        match self.stop.load(Ordering::Acquire) {
            1 => Some(Stop::LeaseLost),
            2 => Some(Stop::TimedOut),
            3 => Some(Stop::Draining),
            4 => Some(Stop::Cancelled),
            _ => None,
        }
    }

    /// Resolves when the handler should stop.
    pub(crate) async fn stopping(&self) -> Stop {
        loop {
            let notified = self.stopped.notified();
            tokio::pin!(notified);
            // Registered before the check, so that a stop between the two is not missed.
            notified.as_mut().enable();
            if let Some(why) = self.stop_reason() {
                return why;
            }
            notified.await;
        }
    }
}

fn micros(at: Instant, epoch: Instant) -> u64 {
    at.saturating_duration_since(epoch).as_micros() as u64
}

/// Everything held, by id: what the pulse renews.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<Uuid, Arc<Held>>>);

impl Registry {
    pub(crate) fn insert(&self, held: &[Arc<Held>]) {
        let mut map = self.lock();
        for held in held {
            if let Some(older) = map.insert(held.id, held.clone()) {
                // This process has the job twice: the older lease had ended before anybody noticed. From here
                // on nothing else reaches its handler.
                older.stop(Stop::LeaseLost);
            }
        }
    }

    /// Removes claims that are settled. A newer claim of the same job by this process stays.
    pub(crate) fn remove<'a>(&self, settled: impl Iterator<Item = &'a Arc<Held>>) {
        let mut map = self.lock();
        for held in settled {
            if map.get(&held.id).is_some_and(|kept| kept.token == held.token) {
                map.remove(&held.id);
            }
        }
    }

    /// Whether this claim has run here and is not settled yet.
    pub(crate) fn awaits_report(&self, id: Uuid, token: Uuid) -> bool {
        self.lock().get(&id).is_some_and(|held| held.token == token && held.has_ended())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// All held jobs that `keep` accepts, sorted by id.
    pub(crate) fn select(&self, keep: impl Fn(&Held) -> bool) -> Vec<Arc<Held>> {
        let mut found: Vec<_> = self.lock().values().filter(|held| keep(held)).cloned().collect();
        found.sort_unstable_by_key(|held| held.id);
        found
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Held>>> {
        // A handler's panic cannot happen under this lock; a poisoned map is still a map.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
