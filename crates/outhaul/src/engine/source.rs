//! Where work comes from: jobs of a queue, events after a cursor, events for the relay.
//!
//! The loop is the same for all. A source says how to claim and when to look again; what its leases are called in
//! later reports is said in `plane`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::handle::Registered;
use super::held::{Claimed, Held};
use super::link::Db;
use crate::error::Result;
use crate::telemetry;

mod jobs;
mod relay;
mod subscription;

pub(crate) use jobs::{Jobs, LaneArrays};
pub(crate) use relay::Relay;
pub(crate) use subscription::Cursor;

/// What every source needs.
pub(crate) struct Common {
    /// The queue; of a subscription `@` and its name, of the relay `@relay`: under this name things are counted.
    pub(crate) name: String,
    pub(crate) worker: Uuid,
    pub(crate) lease: Duration,
    /// How long a handler may run when nothing else is said.
    pub(crate) timeout: Duration,
    pub(crate) epoch: Instant,
    pub(crate) db: Db,
}

impl Common {
    fn lease_ms(&self) -> i64 {
        self.lease.as_millis() as i64
    }

    fn held(&self, claimed: Claimed, registered: &Arc<Registered>, sent: Instant) -> Arc<Held> {
        Arc::new(Held::new(claimed, registered.clone(), self.epoch, sent))
    }
}

/// A source of work.
pub(crate) enum Source {
    Jobs(Jobs),
    Relay(Relay),
    Subscription(Cursor),
}

/// How much of a source a claim scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// From the floors on, in the lanes that are known.
    Ordinary,
    /// From some seconds before the floors, and looking for new lanes.
    Near,
    /// From the beginning.
    Far,
}

/// What a claim brought.
pub(crate) struct Batch {
    pub(crate) held: Vec<Arc<Held>>,
    /// Claimed, but of a type that has no handler here.
    pub(crate) unknown: Vec<Arc<Held>>,
    /// As many as were asked for: there may be more.
    pub(crate) full: bool,
    /// A limit of the queue kept due work back, so a short batch says nothing about the end of a lane.
    pub(crate) kept_back: bool,
    /// When looking again is worth it, if nobody says so before.
    pub(crate) again: Option<Duration>,
    pub(crate) took: Duration,
}

impl Batch {
    fn of(held: Vec<Arc<Held>>, full: bool, took: Duration) -> Batch {
        Batch { held, unknown: Vec::new(), full, kept_back: false, again: None, took }
    }
}

impl Source {
    pub(crate) fn common(&self) -> &Common {
        match self {
            Source::Jobs(jobs) => &jobs.common,
            Source::Relay(relay) => &relay.common,
            Source::Subscription(cursor) => &cursor.common,
        }
    }

    /// Under which name it is counted and logged.
    pub(crate) fn name(&self) -> &str {
        &self.common().name
    }

    /// Whether only one claim may be out at a time: the cursor is one lease, and order depends on it.
    pub(crate) fn is_serial(&self) -> bool {
        matches!(self, Source::Subscription(_))
    }

    /// Takes over what another process knows, if anything.
    pub(crate) async fn take_over(&self) -> Result<()> {
        match self {
            Source::Jobs(jobs) => jobs.load_floors().await,
            Source::Relay(_) | Source::Subscription(_) => Ok(()),
        }
    }

    /// Claims up to `n`. Each of our calls is one autocommit statement: when it has answered, the lease is committed
    /// and no transaction is open.
    pub(crate) async fn claim(&self, n: usize, scan: Scan) -> Result<Batch> {
        let batch = match self {
            Source::Jobs(jobs) => jobs.claim(n, scan).await?,
            Source::Relay(relay) => relay.claim(n).await?,
            Source::Subscription(cursor) => cursor.claim().await?,
        };
        self.measure(&batch);
        Ok(batch)
    }

    /// How long until something becomes due, if anything waits.
    pub(crate) async fn next_due(&self) -> Result<Option<Duration>> {
        match self {
            Source::Jobs(jobs) => jobs.next_due().await,
            Source::Relay(relay) => relay.next_due().await,
            Source::Subscription(cursor) => cursor.next_due().await,
        }
    }

    fn measure(&self, batch: &Batch) {
        let n: usize = batch.held.iter().chain(&batch.unknown).map(|held| held.len()).sum();
        let name = || self.name().to_owned();
        metrics::histogram!(telemetry::CLAIM_DURATION, "queue" => name()).record(batch.took);
        metrics::histogram!(telemetry::BATCH_DB, "phase" => "claim").record(batch.took);
        if n > 0 {
            metrics::counter!(telemetry::CLAIMED, "queue" => name()).increment(n as u64);
            let saturated = if batch.full { "true" } else { "false" };
            metrics::counter!(telemetry::BATCHES, "queue" => name(), "saturated" => saturated).increment(1);
        }
    }
}

/// Milliseconds from now, as the functions say when something is due.
fn millis(rows: &[tokio_postgres::Row]) -> Option<Duration> {
    let ms: Option<i64> = rows.first().and_then(|row| row.get(0));
    ms.map(|ms| Duration::from_millis(ms.max(0) as u64))
}
