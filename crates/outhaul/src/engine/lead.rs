//! Upkeep: what must be done now and then by some worker, and must not depend on the queue it keeps.
//!
//! There is no leader to elect or lose. For each task whoever asks first after its interval takes the
//! turn, by a row that is locked with SKIP LOCKED and holds the time; every task is harmless when two do it.
//! Runs beside the pulse, on the thread that handlers cannot block.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::held::Registry;
use super::link::Db;
use super::settle::{outcome, sql_verdict};
use super::source::LaneArrays;
use super::wake::Waker;
use crate::decide::pace::{FAR_SHARE, Lane};
use crate::decide::verdict::{Attempt, Ending, RetryPolicy, verdict};
use crate::error::{Error, Kind, Result};
use crate::model::{FailureClass, FailureKind};
use crate::store::ranges;
use crate::store::source::VERSION;
use crate::store::statement::{
    EXPIRED, FAIL, PUBLISH_FLOORS, REMOVE_EXPIRED, TAKE_SWEEP, UPKEEP_DUE, UPKEEP_REPORT, WORKER_BEAT,
    WORKER_GONE,
};
use crate::telemetry;

/// Expired leases settled in one statement.
const SWEEP_BATCH: usize = 500;
/// The most leases that one sweep steps over because they cannot be settled now.
const STEP_OVER: usize = 10_000;

/// A queue as upkeep sees it.
pub(crate) struct SweptQueue {
    pub(crate) queue: String,
    pub(crate) lanes: Arc<Mutex<Option<Vec<Lane>>>>,
}

pub(crate) struct Upkeep {
    pub(crate) db: Db,
    /// A connection of the owner for partitions, where one is configured.
    pub(crate) owner: Option<Db>,
    pub(crate) worker: Uuid,
    pub(crate) queues: Vec<SweptQueue>,
    pub(crate) queue_limits: serde_json::Value,
    pub(crate) policy: RetryPolicy,
    pub(crate) registry: Arc<Registry>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) sweep_every: Duration,
    /// Cancelled when the worker begins to stop: the registration then says so.
    pub(crate) stopping: CancellationToken,
    pub(crate) stop: CancellationToken,
}

/// How long the upkeep of partitions may take before its connection is taken for dead.
const RANGES_PATIENCE: Duration = Duration::from_secs(120);

/// When each task of this process is due next, other than the sweep.
struct Clocks {
    beat: Instant,
    floors: Instant,
    retention: Instant,
    ranges: Instant,
}

impl Upkeep {
    pub(crate) async fn run(self) {
        tokio::select! {
            () = self.sweeps() => {}
            () = self.chores() => {}
            () = self.stop.cancelled() => {}
        }
        let patience = Duration::from_secs(2);
        let goodbye = async { self.db.rows_within(&WORKER_GONE, &[&self.worker], patience).await };
        // A database that is away must not hold up the end: waiting for a connection has no limit of its own.
        if !matches!(tokio::time::timeout(patience, goodbye).await, Ok(Ok(_))) {
            tracing::debug!("the registration of this worker stays until it is a day old");
        }
    }

    /// Sweeps for ever, beside the chores: jobs must not wait for a long one of them. A sweep that is dear, over
    /// the dead rows of a held snapshot, comes more rarely.
    async fn sweeps(&self) {
        let mut due = vec![Instant::now(); self.queues.len()];
        loop {
            for (swept, due) in self.queues.iter().zip(&mut due) {
                if Instant::now() >= *due {
                    let began = Instant::now();
                    let read = self.sweep(swept).await;
                    *due = (began + self.sweep_every).max(Instant::now() + read * FAR_SHARE);
                }
            }
            tokio::time::sleep(self.tick()).await;
        }
    }

    async fn chores(&self) {
        let now = Instant::now();
        let mut clocks =
            Clocks { beat: now, floors: now + Duration::from_secs(1), retention: now, ranges: now };
        loop {
            self.round(&mut clocks).await;
            tokio::time::sleep(self.tick()).await;
        }
    }

    fn tick(&self) -> Duration {
        (self.sweep_every / 4).clamp(Duration::from_millis(10), Duration::from_millis(250))
    }

    async fn round(&self, clocks: &mut Clocks) {
        let now = Instant::now();
        if now >= clocks.beat {
            clocks.beat = now + Duration::from_secs(5);
            self.task("beat", self.beat()).await;
        }
        if now >= clocks.floors {
            clocks.floors = now + Duration::from_secs(1);
            self.task("floors", self.publish_floors()).await;
        }
        if now >= clocks.retention {
            clocks.retention = now + Duration::from_secs(10);
            self.turn("retention", Duration::from_secs(60), self.retention()).await;
        }
        if now >= clocks.ranges {
            clocks.ranges = now + Duration::from_secs(60);
            self.turn("partitions", Duration::from_secs(600), self.ranges()).await;
        }
    }

    /// Settles the expired leases of one queue as crashes, if it is this process's turn. Returns how long
    /// reading took.
    async fn sweep(&self, swept: &SweptQueue) -> Duration {
        let every_ms = self.sweep_every.as_millis() as i64;
        let turn = self.db.rows(&TAKE_SWEEP, &[&swept.queue, &every_ms]).await;
        let mut read = Duration::ZERO;
        match turn.map(|rows| rows.first().is_some_and(|row| row.get(0))) {
            Ok(true) => {}
            Ok(false) => return read,
            Err(error) => {
                self.failed("expire", &error);
                return read;
            }
        }
        let began = Instant::now();
        if let Err(error) = self.expire(swept, &mut read).await {
            self.failed("expire", &error);
        }
        metrics::histogram!(telemetry::BATCH_DB, "phase" => "expire").record(began.elapsed());
        read
    }

    async fn expire(&self, swept: &SweptQueue, read: &mut Duration) -> Result<()> {
        let lanes = swept.lanes.lock().unwrap_or_else(|p| p.into_inner()).clone();
        let arrays = lanes.map(|lanes| LaneArrays::new(&lanes, Duration::ZERO));
        let (priorities, shares, run_ats, behind) = match arrays {
            Some(a) => (Some(a.priorities), Some(a.shares), Some(a.run_ats), Some(a.behind_ms)),
            None => (None, None, None, None),
        };
        // What cannot be settled now. It is read each time again, and must not hide the rest.
        let mut left: HashSet<Uuid> = HashSet::new();
        loop {
            let began = Instant::now();
            let wanted = SWEEP_BATCH + left.len();
            let params: [&(dyn ToSql + Sync); 6] =
                [&swept.queue, &(wanted as i32), &priorities, &shares, &run_ats, &behind];
            let rows = self.db.rows(&EXPIRED, &params).await?;
            *read += began.elapsed();
            let (own, others): (Vec<&Row>, Vec<&Row>) = rows
                .iter()
                .filter(|row| !left.contains(&row.get::<_, Uuid>(0)))
                // The job has run here, and its report is on the way: it comes late and is not lost.
                .partition(|row| self.registry.awaits_report(row.get(0), row.get(1)));
            left.extend(own.iter().map(|row| row.get::<_, Uuid>(0)));
            if others.is_empty() {
                return Ok(());
            }
            left.extend(self.settle_expired(&swept.queue, others).await?);
            if rows.len() < wanted || left.len() > STEP_OVER {
                return Ok(());
            }
        }
    }

    /// Returns the ids of what was not settled. A row that the database refuses must not keep the others from
    /// being settled.
    async fn settle_expired(&self, queue: &str, mut rows: Vec<&Row>) -> Result<Vec<Uuid>> {
        rows.sort_by_key(|row| row.get::<_, Uuid>(0));
        let mut parts = vec![&rows[..]];
        let mut left = Vec::new();
        while let Some(part) = parts.pop() {
            match self.send_expired(queue, part).await {
                Ok(missing) => left.extend(missing),
                Err(error) if error.is_retryable() || error.is_outcome_unknown() => return Err(error),
                Err(error) if part.len() == 1 => {
                    tracing::error!(job_id = %part[0].get::<_, Uuid>(0), %error, "an expired lease cannot be settled");
                    left.push(part[0].get(0));
                }
                Err(_) => parts.extend([&part[part.len() / 2..], &part[..part.len() / 2]]),
            }
        }
        if left.len() < rows.len() {
            self.waker.wake(super::wake::Cause::Rescan);
        }
        Ok(left)
    }

    /// The statement names each lease's token and asks again whether it is over, so a completion or renewal in
    /// between wins. Returns the ids of what was not settled.
    async fn send_expired(&self, queue: &str, rows: &[&Row]) -> Result<Vec<Uuid>> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        let tokens: Vec<Uuid> = rows.iter().map(|row| row.get(1)).collect();
        let claims: Vec<i32> = rows.iter().map(|row| row.get(2)).collect();
        let crash = Ending::Failed(FailureKind::Class(FailureClass::Crash));
        let verdicts: Vec<_> = rows
            .iter()
            .map(|row| {
                let count = |at: usize| row.get::<_, i32>(at).max(0) as u32;
                let attempt = Attempt { claim_no: count(2), attempts: count(3), max_attempts: count(4) };
                verdict(crash, attempt, &self.policy, fastrand::f64())
            })
            .collect();
        let (words, delays): (Vec<&str>, Vec<i64>) =
            verdicts.iter().map(|verdict| sql_verdict(*verdict)).unzip();
        let n = ids.len();
        let classes = vec![Some(FailureClass::Crash.as_str()); n];
        let codes = vec![Some("lease_expired"); n];
        let summaries: Vec<Option<String>> = rows
            .iter()
            .map(|row| Some(format!("worker {} stopped renewing the lease", row.get::<_, Uuid>(6))))
            .collect();
        let missing = self
            .db
            .rows(&FAIL, &[&ids, &tokens, &claims, &words, &delays, &classes, &codes, &summaries, &true])
            .await?;
        let missing: HashSet<Uuid> = missing.iter().map(|row| row.get(0)).collect();
        let mut left = Vec::new();
        for (row, verdict) in rows.iter().zip(&verdicts) {
            let id: Uuid = row.get(0);
            if missing.contains(&id) {
                left.push(id);
                continue;
            }
            tracing::warn!(job_id = %id, job_type = row.get::<_, &str>(5), queue,
                overdue_ms = row.get::<_, i64>(7), outcome = outcome(*verdict), "a lease has expired");
        }
        metrics::counter!(telemetry::LEASE_EXPIRATIONS, "queue" => queue.to_owned())
            .increment((n - left.len()) as u64);
        Ok(left)
    }

    async fn beat(&self) -> Result<()> {
        let host = host();
        let pid = std::process::id() as i32;
        let queues = self.queue_limits.to_string();
        let listener_pid = Some(self.waker.pid()).filter(|pid| *pid != 0);
        let running = self.registry.len() as i32;
        self.db
            .rows(
                &WORKER_BEAT,
                &[
                    &self.worker,
                    &host,
                    &pid,
                    &env!("CARGO_PKG_VERSION"),
                    &VERSION,
                    &queues,
                    &listener_pid,
                    &self.waker.state().as_str(),
                    &running,
                    &self.stopping.is_cancelled(),
                ],
            )
            .await
            .map(drop)
    }

    async fn publish_floors(&self) -> Result<()> {
        for swept in &self.queues {
            let lanes = swept.lanes.lock().unwrap_or_else(|p| p.into_inner()).clone();
            let Some(lanes) = lanes.filter(|lanes| !lanes.is_empty()) else { continue };
            let a = LaneArrays::new(&lanes, Duration::ZERO);
            self.db
                .rows(&PUBLISH_FLOORS, &[&swept.queue, &a.priorities, &a.shares, &a.run_ats, &a.behind_ms])
                .await?;
        }
        Ok(())
    }

    async fn retention(&self) -> Result<serde_json::Value> {
        let mut removed = [0i64; 3];
        loop {
            let rows = self.db.rows(&REMOVE_EXPIRED, &[&1_000i32]).await?;
            let Some(row) = rows.first() else { break };
            let now: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
            removed.iter_mut().zip(now).for_each(|(sum, n)| *sum += n);
            if now[0] < 1_000 && now[1] < 1_000 {
                break;
            }
        }
        Ok(serde_json::json!({ "keys": removed[0], "dead_letters": removed[1], "workers": removed[2] }))
    }

    async fn ranges(&self) -> Result<serde_json::Value> {
        let db = self.owner.as_ref().unwrap_or(&self.db);
        let conn = db.link.get().await;
        let Ok(done) =
            tokio::time::timeout(RANGES_PATIENCE, ranges::keep(conn.client(), &db.schema, 50)).await
        else {
            db.link.discard(&conn);
            return Err(Error::new(Kind::Timeout, format!("no answer within {RANGES_PATIENCE:?}")));
        };
        let done = done?;
        if !done.late_tails.is_empty() {
            tracing::error!(tables = ?done.late_tails, "rows were found in the last partition: upkeep had been away too long");
        }
        Ok(serde_json::to_value(done).unwrap_or_default())
    }

    /// Runs a task if its turn has come for the whole installation, and leaves a record.
    async fn turn(
        &self,
        task: &'static str,
        every: Duration,
        work: impl Future<Output = Result<serde_json::Value>>,
    ) {
        let every_ms = every.as_millis() as i64;
        match self.db.rows(&UPKEEP_DUE, &[&task, &every_ms]).await {
            Ok(rows) if rows.first().is_some_and(|row| row.get(0)) => {}
            Ok(_) => return,
            Err(error) => return self.failed(task, &error),
        }
        let started = Instant::now();
        let result = work.await;
        let took = started.elapsed();
        metrics::histogram!(telemetry::UPKEEP_DURATION, "task" => task).record(took);
        let (findings, error) = match &result {
            Ok(findings) => (findings.to_string(), None),
            Err(error) => {
                self.failed(task, error);
                (String::from("{}"), Some(error.to_string()))
            }
        };
        let report =
            self.db.rows(&UPKEEP_REPORT, &[&task, &(took.as_millis() as i64), &findings, &error]).await;
        if let Err(error) = report {
            self.failed(task, &error);
        }
    }

    async fn task(&self, task: &'static str, work: impl Future<Output = Result<()>>) {
        if let Err(error) = work.await {
            self.failed(task, &error);
        }
    }

    fn failed(&self, task: &'static str, error: &crate::Error) {
        metrics::counter!(telemetry::UPKEEP_FAILURES, "task" => task).increment(1);
        tracing::warn!(task, %error, hint = error.hint(), "upkeep failed, it is tried again at its next turn");
    }
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}
