//! Where work comes from: leased jobs of one queue. The one file that knows how a claimed row looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::handle::Registered;
use super::held::{Claimed, Held, History};
use super::link::Db;
use crate::decide::pace::{self, Floor, Lane};
use crate::error::Result;
use crate::store::statement::{CLAIM, FLOORS, NEXT_DUE};
use crate::telemetry;

/// The leased jobs of one queue.
pub(crate) struct Jobs {
    pub(crate) queue: String,
    pub(crate) handlers: HashMap<String, Arc<Registered>>,
    pub(crate) worker: Uuid,
    pub(crate) lease: Duration,
    pub(crate) timeout: Duration,
    pub(crate) epoch: Instant,
    pub(crate) db: Db,
    /// Scan floors; shared with upkeep, which sweeps below them and publishes them.
    pub(crate) lanes: Arc<Mutex<Option<Vec<Lane>>>>,
    /// Types found in the queue that this process has no handler for. Its handlers never change, so such
    /// jobs are left to others from then on.
    pub(crate) unknown: Mutex<Vec<String>>,
}

/// How much of a queue a claim scans.
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
    pub(crate) took: Duration,
}

/// Lanes as the arrays that the functions take.
pub(crate) struct LaneArrays {
    pub(crate) priorities: Vec<i16>,
    pub(crate) shares: Vec<i32>,
    pub(crate) run_ats: Vec<Option<Timestamp>>,
    pub(crate) behind_ms: Vec<Option<i64>>,
}

impl LaneArrays {
    /// `back` is how far before its floor each lane begins.
    pub(crate) fn new(lanes: &[Lane], back: Duration) -> LaneArrays {
        let at = |lane: &Lane| match lane.floor {
            Floor::At(at) => at.checked_sub(back).ok(),
            Floor::Exhausted(_) => None,
        };
        let behind = |lane: &Lane| match lane.floor {
            Floor::At(_) => None,
            Floor::Exhausted(sent) => Some((sent.elapsed() + pace::SHORT_MARGIN + back).as_millis() as i64),
        };
        LaneArrays {
            priorities: lanes.iter().map(|lane| lane.priority).collect(),
            shares: lanes.iter().map(|lane| lane.share).collect(),
            run_ats: lanes.iter().map(at).collect(),
            behind_ms: lanes.iter().map(behind).collect(),
        }
    }
}

impl Jobs {
    /// Starts from the floors that another process has published, if any.
    pub(crate) async fn load_floors(&self) -> Result<()> {
        let rows = self.db.rows(&FLOORS, &[&self.queue]).await?;
        if let Some(row) = rows.first() {
            let priorities: Vec<i16> = row.get(0);
            let shares: Vec<i32> = row.get(1);
            let run_ats: Vec<Timestamp> = row.get(2);
            let lanes: Vec<Lane> = priorities
                .into_iter()
                .zip(shares)
                .zip(run_ats)
                .map(|((priority, share), at)| Lane { priority, share, floor: Floor::At(at) })
                .collect();
            if !lanes.is_empty() {
                *self.lanes.lock().unwrap_or_else(|p| p.into_inner()) = Some(lanes);
            }
        }
        Ok(())
    }

    /// Claims up to `n` jobs. Each of our calls is one autocommit statement: when it has answered, the lease is
    /// committed and no transaction is open.
    pub(crate) async fn claim(&self, n: usize, scan: Scan) -> Result<Batch> {
        let known = self.lanes.lock().unwrap_or_else(|p| p.into_inner()).clone();
        let arrays = match (&known, scan) {
            (None, _) | (_, Scan::Far) => None,
            (Some(lanes), Scan::Ordinary) => Some(LaneArrays::new(lanes, Duration::ZERO)),
            (Some(lanes), Scan::Near) => Some(LaneArrays::new(lanes, pace::NEAR_MARGIN)),
        };
        let (priorities, shares, run_ats, behind) = match arrays {
            Some(a) => (Some(a.priorities), Some(a.shares), Some(a.run_ats), Some(a.behind_ms)),
            None => (None, None, None, None),
        };
        let skip = self.unknown.lock().unwrap_or_else(|p| p.into_inner()).clone();
        let lease_ms = self.lease.as_millis() as i64;
        let discover = scan != Scan::Ordinary;
        let sent = Instant::now();
        let rows = self
            .db
            .rows(
                &CLAIM,
                &[
                    &self.queue,
                    &(n as i32),
                    &self.worker,
                    &lease_ms,
                    &priorities,
                    &shares,
                    &run_ats,
                    &behind,
                    &None::<i32>,
                    &discover,
                    &skip,
                ],
            )
            .await?;
        let took = sent.elapsed();
        let batch = self.batch(&rows, n, sent, took);
        if scan == Scan::Ordinary || known.is_none() {
            self.advance(known.unwrap_or_default(), &rows, n, sent);
        } else if scan == Scan::Near {
            self.learn(&rows);
        }
        self.measure(&batch);
        Ok(batch)
    }

    /// How long until something becomes due, if anything waits.
    pub(crate) async fn next_due(&self) -> Result<Option<Duration>> {
        let rows = self.db.rows(&NEXT_DUE, &[&self.queue]).await?;
        let ms: Option<i64> = rows.first().and_then(|row| row.get(0));
        Ok(ms.map(|ms| Duration::from_millis(ms.max(0) as u64)))
    }

    fn batch(&self, rows: &[Row], asked: usize, sent: Instant, took: Duration) -> Batch {
        let mut batch = Batch {
            held: Vec::with_capacity(rows.len()),
            unknown: Vec::new(),
            full: rows.len() >= asked,
            took,
        };
        for row in rows {
            let job_type: &str = row.get(2);
            match self.handlers.get(job_type) {
                Some(registered) => batch.held.push(self.held(row, registered.clone(), sent)),
                None => {
                    self.remember_unknown(job_type);
                    batch.unknown.push(self.held(row, self.stranger(job_type), sent));
                }
            }
        }
        // A claim promises no order of its rows; its lane and time give it.
        batch.held.sort_by_key(|held| (held.run_at, held.id));
        batch
    }

    fn held(&self, row: &Row, registered: Arc<Registered>, sent: Instant) -> Arc<Held> {
        let timeout: Option<i64> = row.get(12);
        let (due, claimed_at): (Timestamp, Timestamp) = (row.get(9), row.get(15));
        registered.metrics.wait.record(claimed_at.duration_since(due).as_secs_f64().max(0.0));
        let claimed = Claimed {
            id: row.get(0),
            token: row.get(1),
            payload: row.get(3),
            attempts: row.get(4),
            claim_no: row.get(5),
            max_attempts: row.get(6),
            run_at: due,
            created_at: row.get(10),
            organization: row.get(11),
            timeout: timeout.map(|ms| Duration::from_millis(ms.max(1) as u64)),
            traceparent: row.get(13),
            history: History::parse(row.get(14)),
        };
        Arc::new(Held::new(claimed, registered, self.timeout, self.epoch, sent))
    }

    fn remember_unknown(&self, job_type: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(|p| p.into_inner());
        if !unknown.iter().any(|known| known == job_type) {
            unknown.push(job_type.to_owned());
            tracing::error!(
                queue = self.queue,
                job_type,
                "this worker has no handler for the type; its jobs are given back at no cost and left to other workers"
            );
        }
        metrics::counter!(telemetry::UNKNOWN_TYPES, "queue" => self.queue.clone()).increment(1);
    }

    /// A stand-in for a type without a handler; it is never run. The type's name is not ours, so it is no label.
    fn stranger(&self, job_type: &str) -> Arc<Registered> {
        let mut registered = Registered::raw(&self.queue, "unknown", |_| async { Ok(()) });
        registered.job_type = job_type.to_owned();
        Arc::new(registered)
    }

    fn advance(&self, known: Vec<Lane>, rows: &[Row], asked: usize, sent: Instant) {
        let got: Vec<(i16, i32, Timestamp)> =
            rows.iter().map(|row| (row.get(7), row.get(8), row.get(9))).collect();
        let lanes = pace::floors_after(&known, &got, asked, sent);
        *self.lanes.lock().unwrap_or_else(|p| p.into_inner()) = Some(lanes);
    }

    /// A rescan moves no floor; it only adds lanes that were not known.
    fn learn(&self, rows: &[Row]) {
        let mut lanes = self.lanes.lock().unwrap_or_else(|p| p.into_inner());
        let Some(lanes) = lanes.as_mut() else { return };
        for row in rows {
            let (priority, share): (i16, i32) = (row.get(7), row.get(8));
            if !lanes.iter().any(|lane| lane.priority == priority && lane.share == share) {
                lanes.push(Lane { priority, share, floor: Floor::At(row.get(9)) });
            }
        }
        lanes.sort_by_key(|lane| (std::cmp::Reverse(lane.priority), lane.share));
    }

    fn measure(&self, batch: &Batch) {
        let n = batch.held.len() + batch.unknown.len();
        metrics::histogram!(telemetry::CLAIM_DURATION, "queue" => self.queue.clone()).record(batch.took);
        metrics::histogram!(telemetry::BATCH_DB, "phase" => "claim").record(batch.took);
        if n > 0 {
            metrics::counter!(telemetry::CLAIMED, "queue" => self.queue.clone()).increment(n as u64);
            let saturated = if batch.full { "true" } else { "false" };
            metrics::counter!(telemetry::BATCHES, "queue" => self.queue.clone(), "saturated" => saturated)
                .increment(1);
        }
    }
}
