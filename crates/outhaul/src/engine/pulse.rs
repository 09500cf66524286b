//! Renewal of the leases of everything held, on a thread and a connection of its own.
//!
//! The thread has its own small runtime, so that handlers which block every thread of the program's
//! runtime cannot stop it. Short jobs are never renewed: a lease is left alone until a third of it has passed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::held::{Held, Lease, Plane, Registry, Stop};
use super::link::Db;
use super::plane;
use crate::decide::lease::{Care, care, look_every};
use crate::error::Result;
use crate::telemetry;

/// How long the timer of a handler's own task has to tell it.
const OVERDUE: Duration = Duration::from_secs(1);
/// Most leases in one statement.
const BATCH: usize = 1_000;

pub(crate) struct Pulse {
    pub(crate) db: Db,
    pub(crate) registry: Arc<Registry>,
    /// The shortest lease that is held.
    pub(crate) lease: Duration,
    /// Cancelled when nothing is held any more, or nothing shall be.
    pub(crate) stop: CancellationToken,
}

impl Pulse {
    pub(crate) async fn run(self) {
        // The first renewal should not have to wait for a connection, nor find that there is none left for it.
        tokio::select! {
            _ = tokio::time::timeout(look_every(self.lease), self.db.link.get()) => {}
            () = self.stop.cancelled() => return,
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(look_every(self.lease)) => {}
                () = self.stop.cancelled() => return,
            }
            let now = Instant::now();
            self.remind(now);
            let mut due: BTreeMap<(Plane, Duration), Vec<Arc<Held>>> = BTreeMap::new();
            for held in self.registry.select(|held| care(held.since(), now, held.lease) != Care::Keep) {
                due.entry((held.plane(), held.lease)).or_default().push(held);
            }
            for ((plane, lease), held) in due {
                for batch in held.chunks(BATCH) {
                    tokio::select! {
                        () = self.beat(plane, lease, batch) => {}
                        () = self.stop.cancelled() => return,
                    }
                }
            }
        }
    }

    /// A handler that occupies its thread keeps the timer of its own task from telling it that its time is over.
    fn remind(&self, now: Instant) {
        for held in self.registry.select(|held| held.is_overdue(now, OVERDUE)) {
            held.stop(Stop::TimedOut);
        }
    }

    async fn beat(&self, plane: Plane, lease: Duration, batch: &[Arc<Held>]) {
        let sent = Instant::now();
        let renewal = self.renew(plane, lease, batch);
        tokio::pin!(renewal);
        let renewed = loop {
            tokio::select! {
                renewed = &mut renewal => break renewed,
                // The database may be away for longer than the leases last.
                () = tokio::time::sleep(look_every(self.lease)) => self.presume(&HashSet::new()),
            }
        };
        let locked = match renewed {
            Ok(locked) => {
                metrics::histogram!(telemetry::BATCH_DB, "phase" => "renew").record(sent.elapsed());
                locked
            }
            Err(error) => {
                tracing::warn!(%error, jobs = batch.len(), "leases could not be renewed");
                HashSet::new()
            }
        };
        self.presume(&locked);
    }

    /// Whatever is too old may have been leased to somebody else, unless the server has just said that its
    /// row is locked: nobody can have leased it then.
    fn presume(&self, locked: &HashSet<Uuid>) {
        let now = Instant::now();
        let lost = |held: &Held| {
            care(held.since(), now, held.lease) == Care::PresumeLost && !locked.contains(&held.id)
        };
        for held in self.registry.select(lost) {
            held.stop(Stop::LeaseLost);
        }
    }

    /// Returns the ids of those that were locked.
    async fn renew(&self, plane: Plane, lease: Duration, batch: &[Arc<Held>]) -> Result<HashSet<Uuid>> {
        let mut locked = HashSet::new();
        let leases: Vec<Lease> = batch.iter().map(|held| held.named()).collect();
        let sent = Instant::now();
        // An answer that takes longer than this is no better than none: half of the lease would be gone.
        let patience = (lease / 4).max(Duration::from_millis(500));
        let missing = plane::renew(&self.db, plane, &leases, lease, patience).await?;
        for held in batch {
            let state = missing.get(&held.id).map(String::as_str);
            let result = match state {
                None => "renewed",
                Some("lost") => "lost",
                Some("cancelled") => "cancelled",
                Some(_) => "locked",
            };
            metrics::counter!(telemetry::RENEWALS, "result" => result).increment(1);
            match state {
                None => held.renewed(sent),
                Some("lost") => self.lost(held),
                Some("cancelled") => {
                    tracing::info!(job_id = %held.id, claim_no = held.claim_no, "the job was cancelled, the handler is told to stop");
                    held.stop(Stop::Cancelled);
                }
                // The handler's own transaction is completing it; ask again next time.
                Some(_) => {
                    locked.insert(held.id);
                }
            }
        }
        Ok(locked)
    }

    fn lost(&self, held: &Arc<Held>) {
        if held.has_ended() || held.completed_in.load(std::sync::atomic::Ordering::Acquire) {
            // Its row is gone because it was settled, or because the handler's transaction has committed.
            return;
        }
        if held.stop_reason().is_none() {
            metrics::counter!(telemetry::STALE_REPORTS, "report" => "renew").increment(1);
            tracing::warn!(id = %held.id, queue = held.registered.queue, claim_no = held.claim_no, "the lease is lost, the handler is told to stop");
        }
        held.stop(Stop::LeaseLost);
    }
}
