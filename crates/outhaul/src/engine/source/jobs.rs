//! Leased jobs of one queue. The one file that knows how a claimed row looks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Batch, Common, Scan, millis};
use crate::decide::pace::{self, Floor, Lane};
use crate::engine::handle::Registered;
use crate::engine::held::{Claimed, Held, History, JobRow, Work};
use crate::error::Result;
use crate::store::statement::{CLAIM, FLOORS, NEXT_DUE};
use crate::telemetry;

/// The leased jobs of one queue.
pub(crate) struct Jobs {
    pub(crate) common: Common,
    pub(crate) handlers: HashMap<String, Arc<Registered>>,
    /// Scan floors; shared with upkeep, which sweeps below them and publishes them.
    pub(crate) lanes: Arc<Mutex<Option<Vec<Lane>>>>,
    /// Types found in the queue that this process has no handler for. Its handlers never change, so such
    /// jobs are left to others from then on.
    pub(crate) unknown: Mutex<Vec<String>>,
    /// In a fair queue, the share that had its turn last; -1 before the first.
    pub(crate) served: AtomicI32,
}

/// Lanes that are remembered. A fair queue may have one for each organization; the others are scanned from their
/// beginning.
const MOST_LANES: usize = 256;

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
        let rows = self.common.db.rows(&FLOORS, &[&self.common.name]).await?;
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
        let lease_ms = self.common.lease_ms();
        let discover = scan != Scan::Ordinary;
        let served = self.served.load(Ordering::Relaxed);
        let sent = Instant::now();
        let mut rows = self
            .common
            .db
            .rows(
                &CLAIM,
                &[
                    &self.common.name,
                    &(n as i32),
                    &self.common.worker,
                    &lease_ms,
                    &priorities,
                    &shares,
                    &run_ats,
                    &behind,
                    &None::<i32>,
                    &discover,
                    &skip,
                    &true,
                    &served,
                ],
            )
            .await?;
        let took = sent.elapsed();
        let told = rows.pop_if(|row| row.get::<_, Option<Uuid>>(0).is_none());
        let shares = rows.iter().chain(told.iter().filter(|_| rows.len() < n)).map(|row| row.get(8));
        self.served.store(pace::served_last(served, shares), Ordering::Relaxed);
        let mut batch = self.batch(&rows, n, sent, took);
        batch.kept_back = told.as_ref().is_some_and(|row| row.get::<_, i32>(4) > 0);
        // Without an end of any lane that could be told.
        let governed = told.is_some();
        batch.again = told
            .and_then(|row| row.get::<_, Option<i64>>(12))
            .map(|ms| Duration::from_millis(ms.max(0) as u64));
        if scan == Scan::Ordinary || known.is_none() {
            self.advance(known.unwrap_or_default(), &rows, n, governed, sent);
        } else if scan == Scan::Near {
            self.learn(&rows);
        }
        Ok(batch)
    }

    /// How long until something becomes due, if anything waits.
    pub(crate) async fn next_due(&self) -> Result<Option<Duration>> {
        let known = self.lanes.lock().unwrap_or_else(|p| p.into_inner()).clone().unwrap_or_default();
        let known = LaneArrays::new(&known, Duration::ZERO);
        let params: [&(dyn ToSql + Sync); 3] = [&self.common.name, &known.priorities, &known.shares];
        Ok(millis(&self.common.db.rows(&NEXT_DUE, &params).await?))
    }

    fn batch(&self, rows: &[Row], asked: usize, sent: Instant, took: Duration) -> Batch {
        let mut batch = Batch::of(Vec::with_capacity(rows.len()), rows.len() >= asked, took);
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
        batch.held.sort_by_key(|held| (run_at(held), held.id));
        batch
    }

    fn held(&self, row: &Row, registered: Arc<Registered>, sent: Instant) -> Arc<Held> {
        let timeout: Option<i64> = row.get(12);
        let (due, claimed_at): (Timestamp, Timestamp) = (row.get(9), row.get(15));
        registered.metrics.wait.record(claimed_at.duration_since(due).as_secs_f64().max(0.0));
        let claimed = Claimed {
            id: row.get(0),
            token: row.get(1),
            attempts: row.get(4),
            claim_no: row.get(5),
            max_attempts: row.get(6),
            timeout: timeout.map_or(self.common.timeout, |ms| Duration::from_millis(ms.max(1) as u64)),
            lease: self.common.lease,
            work: Work::Job(JobRow {
                payload: row.get(3),
                run_at: due,
                created_at: row.get(10),
                organization: row.get(11),
                traceparent: row.get(13),
                history: History::parse(row.get(14)),
            }),
        };
        self.common.held(claimed, &registered, sent)
    }

    fn remember_unknown(&self, job_type: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(|p| p.into_inner());
        if !unknown.iter().any(|known| known == job_type) {
            unknown.push(job_type.to_owned());
            tracing::error!(
                queue = self.common.name,
                job_type,
                "this worker has no handler for the type; its jobs are given back at no cost and left to other workers"
            );
        }
        metrics::counter!(telemetry::UNKNOWN_TYPES, "queue" => self.common.name.clone()).increment(1);
    }

    /// A stand-in for a type without a handler; it is never run. The type's name is not ours, so it is no label.
    fn stranger(&self, job_type: &str) -> Arc<Registered> {
        let mut registered = Registered::raw(&self.common.name, "unknown", |_| async { Ok(()) });
        registered.job_type = job_type.to_owned();
        Arc::new(registered)
    }

    fn advance(&self, known: Vec<Lane>, rows: &[Row], asked: usize, governed: bool, sent: Instant) {
        let got: Vec<(i16, i32, Timestamp)> =
            rows.iter().map(|row| (row.get(7), row.get(8), row.get(9))).collect();
        let mut lanes = pace::floors_after(&known, &got, asked, governed, sent);
        lanes.truncate(MOST_LANES);
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
}

fn run_at(held: &Held) -> Option<Timestamp> {
    match &held.work {
        Work::Job(job) => Some(job.run_at),
        _ => None,
    }
}
