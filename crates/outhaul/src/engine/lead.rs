//! Upkeep: what must be done now and then by some worker, and must not depend on the queue it keeps.
//!
//! There is no leader to elect or lose. For each task whoever asks first after its interval takes the
//! turn, by a row that is locked with SKIP LOCKED and holds the time; every task is harmless when two do it.
//! Runs beside the pulse, on the thread that handlers cannot block.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::held::{Lease, Plane, Registry};
use super::link::Db;
use super::plane::{self, Expired, Progress, Reported};
use super::settle::{outcome, waiting};
use super::source::LaneArrays;
use super::wake::Waker;
use crate::decide::pace::{FAR_SHARE, Lane};
use crate::decide::verdict::{Ending, RetryPolicy, verdict};
use crate::error::{Error, Kind, Result};
use crate::model::FailureClass;
use crate::store::source::VERSION;
use crate::store::statement::{
    EXPIRED, OPERATION_STEP, PROMOTE_WAITING, PUBLISH_FLOORS, REMOVE_EXPIRED, REMOVE_OPERATIONS,
    SHOW_SUBSCRIPTIONS, TAKE_SWEEP, UPKEEP_DUE, UPKEEP_REPORT, WORKER_BEAT, WORKER_GONE,
};
use crate::store::{ranges, sequence};
use crate::telemetry;

/// Expired leases settled in one statement.
const SWEEP_BATCH: usize = 500;
/// Steps of operations between two looks at the other chores.
const STEPS: usize = 20;
/// The most leases that one sweep steps over because they cannot be settled now.
const STEP_OVER: usize = 10_000;

/// Leases that are swept together.
pub(crate) enum Swept {
    Queue { queue: String, lanes: Arc<Mutex<Option<Vec<Lane>>>> },
    Relay,
    Subscriptions,
}

impl Swept {
    /// Under which name turns are taken, and things are counted.
    fn name(&self) -> &str {
        match self {
            Swept::Queue { queue, .. } => queue,
            Swept::Relay => "@relay",
            Swept::Subscriptions => "@subscriptions",
        }
    }

    fn plane(&self) -> Plane {
        match self {
            Swept::Queue { .. } => Plane::Jobs,
            Swept::Relay => Plane::Relay,
            Swept::Subscriptions => Plane::Subscriptions,
        }
    }
}

pub(crate) struct Upkeep {
    pub(crate) db: Db,
    /// A connection of the owner for partitions, where one is configured.
    pub(crate) owner: Option<Db>,
    pub(crate) worker: Uuid,
    pub(crate) swept: Vec<Swept>,
    pub(crate) queue_limits: serde_json::Value,
    pub(crate) role: Option<String>,
    pub(crate) policy: RetryPolicy,
    pub(crate) registry: Arc<Registry>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) sweep_every: Duration,
    /// Held while a sweep reads, and while a step of an operation is made: both go over one connection, and a sweep that waited
    /// for a step would be taken for a dear one, and come more rarely.
    pub(crate) reads_or_steps: tokio::sync::Mutex<()>,
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
    sequence: Instant,
    operations: Instant,
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
    /// the dead rows of a held snapshot, comes more rarely. Twice in a row, that is: one long read has most likely waited
    /// for a chore, with which it shares a connection.
    async fn sweeps(&self) {
        let mut due = vec![(Instant::now(), Duration::ZERO); self.swept.len()];
        loop {
            for (swept, (due, last)) in self.swept.iter().zip(&mut due) {
                if Instant::now() >= *due {
                    let began = Instant::now();
                    let read = self.sweep(swept).await;
                    *due = (began + self.sweep_every).max(Instant::now() + read.min(*last) * FAR_SHARE);
                    *last = read;
                }
            }
            tokio::time::sleep(self.tick()).await;
        }
    }

    async fn chores(&self) {
        let now = Instant::now();
        let mut clocks = Clocks {
            beat: now,
            floors: now + Duration::from_secs(1),
            sequence: now,
            operations: now,
            retention: now,
            ranges: now,
        };
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
        if now >= clocks.sequence {
            clocks.sequence = now + Duration::from_secs(1);
            self.task("sequence", self.sequence()).await;
        }
        if now >= clocks.operations {
            clocks.operations = now + Duration::from_secs(1);
            self.task("operations", self.operations()).await;
        }
        if now >= clocks.retention {
            clocks.retention = now + Duration::from_secs(10);
            self.turn("retention", Duration::from_secs(60), self.retention()).await;
            self.turn("subscriptions", Duration::from_secs(60), self.subscriptions()).await;
        }
        if now >= clocks.ranges {
            clocks.ranges = now + Duration::from_secs(60);
            self.turn("partitions", Duration::from_secs(600), self.ranges()).await;
        }
    }

    /// Settles the expired leases of one kind as crashes, if it is this process's turn. Returns how long
    /// reading took.
    async fn sweep(&self, swept: &Swept) -> Duration {
        let every_ms = self.sweep_every.as_millis() as i64;
        let turn = self.db.rows(&TAKE_SWEEP, &[&swept.name(), &every_ms]).await;
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
        if let Swept::Queue { queue, .. } = swept
            && let Err(error) = self.db.rows(&PROMOTE_WAITING, &[queue]).await
        {
            self.failed("let waiting jobs in", &error);
        }
        metrics::histogram!(telemetry::BATCH_DB, "phase" => "expire").record(began.elapsed());
        read
    }

    async fn expire(&self, swept: &Swept, read: &mut Duration) -> Result<()> {
        // What cannot be settled now. It is read each time again, and must not hide the rest.
        let mut left: HashSet<Uuid> = HashSet::new();
        loop {
            let wanted = SWEEP_BATCH + left.len();
            let alone = self.reads_or_steps.lock().await;
            let began = Instant::now();
            let expired = self.expired(swept, wanted as i32).await?;
            let full = expired.len() >= wanted;
            *read += began.elapsed();
            drop(alone);
            let (own, others): (Vec<Expired>, Vec<Expired>) = expired
                .into_iter()
                .filter(|expired| !left.contains(&expired.lease.id))
                // The job has run here, and its report is on the way: it comes late and is not lost.
                .partition(|expired| self.registry.awaits_report(expired.lease.id, expired.lease.token));
            left.extend(own.iter().map(|expired| expired.lease.id));
            if others.is_empty() {
                return Ok(());
            }
            left.extend(self.settle_expired(swept, others).await?);
            if !full || left.len() > STEP_OVER {
                return Ok(());
            }
        }
    }

    async fn expired(&self, swept: &Swept, n: i32) -> Result<Vec<Expired>> {
        let (queue, lanes) = match swept {
            Swept::Queue { queue, lanes } => (queue, lanes),
            Swept::Relay => return plane::expired_events(&self.db, n).await,
            Swept::Subscriptions => return plane::expired_subscriptions(&self.db, n).await,
        };
        let lanes = lanes.lock().unwrap_or_else(|p| p.into_inner()).clone();
        let arrays = lanes.map(|lanes| LaneArrays::new(&lanes, Duration::ZERO));
        let (priorities, shares, run_ats, behind) = match arrays {
            Some(a) => (Some(a.priorities), Some(a.shares), Some(a.run_ats), Some(a.behind_ms)),
            None => (None, None, None, None),
        };
        let rows = self.db.rows(&EXPIRED, &[queue, &n, &priorities, &shares, &run_ats, &behind]).await?;
        let expired = |row: &Row| Expired {
            lease: Lease {
                id: row.get(0),
                token: row.get(1),
                claim_no: row.get(2),
                at: Timestamp::UNIX_EPOCH,
            },
            attempt: plane::attempt(row.get(2), row.get(3), row.get(4)),
            blocks: false,
            what: row.get(5),
            holder: row.get::<_, Uuid>(6).to_string(),
            overdue_ms: row.get(7),
        };
        Ok(rows.iter().map(expired).collect())
    }

    /// Returns the ids of what was not settled. A row that the database refuses must not keep the others from
    /// being settled.
    async fn settle_expired(&self, swept: &Swept, mut expired: Vec<Expired>) -> Result<Vec<Uuid>> {
        expired.sort_by_key(|expired| expired.lease.id);
        let mut parts = vec![&expired[..]];
        let mut left = Vec::new();
        while let Some(part) = parts.pop() {
            match self.send_expired(swept, part).await {
                Ok(missing) => left.extend(missing),
                Err(error) if error.is_retryable() || error.is_outcome_unknown() => return Err(error),
                Err(error) if part.len() == 1 => {
                    tracing::error!(id = %part[0].lease.id, %error, "an expired lease cannot be settled");
                    left.push(part[0].lease.id);
                }
                Err(_) => parts.extend([&part[part.len() / 2..], &part[..part.len() / 2]]),
            }
        }
        if left.len() < expired.len() {
            self.waker.wake(super::wake::Cause::Rescan);
        }
        Ok(left)
    }

    /// The statement names each lease's token and asks again whether it is over, so a completion or renewal in
    /// between wins. Returns the ids of what was not settled.
    async fn send_expired(&self, swept: &Swept, expired: &[Expired]) -> Result<Vec<Uuid>> {
        let crash = Ending::Failed(FailureClass::Crash.into());
        let reports: Vec<Reported> = expired
            .iter()
            .map(|expired| {
                let verdict = verdict(crash, expired.attempt, &self.policy, fastrand::f64());
                Reported {
                    verdict: if expired.blocks { waiting(verdict, &self.policy) } else { verdict },
                    class: Some(FailureClass::Crash.as_str()),
                    code: Some("lease_expired".into()),
                    summary: Some(format!("worker {} stopped renewing the lease", expired.holder)),
                    progress: Progress::default(),
                }
            })
            .collect();
        let leases: Vec<Lease> = expired.iter().map(|expired| expired.lease).collect();
        let missing = plane::fail(&self.db, swept.plane(), &leases, &reports, true).await?;
        let mut left = Vec::new();
        for (expired, report) in expired.iter().zip(&reports) {
            let id = expired.lease.id;
            if missing.contains_key(&id) {
                left.push(id);
                continue;
            }
            tracing::warn!(%id, what = expired.what, queue = swept.name(), overdue_ms = expired.overdue_ms,
                outcome = outcome(report.verdict), "a lease has expired");
        }
        metrics::counter!(telemetry::LEASE_EXPIRATIONS, "queue" => swept.name().to_owned())
            .increment((expired.len() - left.len()) as u64);
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
                    &self.role,
                ],
            )
            .await
            .map(drop)
    }

    async fn publish_floors(&self) -> Result<()> {
        for swept in &self.swept {
            let Swept::Queue { queue, lanes } = swept else { continue };
            let lanes = lanes.lock().unwrap_or_else(|p| p.into_inner()).clone();
            let Some(lanes) = lanes.filter(|lanes| !lanes.is_empty()) else { continue };
            let a = LaneArrays::new(&lanes, Duration::ZERO);
            self.db
                .rows(&PUBLISH_FLOORS, &[queue, &a.priorities, &a.shares, &a.run_ats, &a.behind_ms])
                .await?;
        }
        Ok(())
    }

    async fn sequence(&self) -> Result<()> {
        let conn = self.db.link.get().await;
        sequence::sequence(&conn, &self.db.schema).await.map(drop)
    }

    /// Goes on with operations of operators. The throttle is in the database, so it does not matter how many ask.
    async fn operations(&self) -> Result<()> {
        for _ in 0..STEPS {
            let _alone = self.reads_or_steps.lock().await;
            if self.db.rows(&OPERATION_STEP, &[&None::<&str>]).await?.is_empty() {
                break;
            }
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
        while let Some(row) = self.db.rows(&REMOVE_OPERATIONS, &[&1_000i32]).await?.first() {
            if row.get::<_, i64>(0) < 1_000 {
                break;
            }
        }
        Ok(serde_json::json!({ "keys": removed[0], "dead_letters": removed[1], "workers": removed[2] }))
    }

    /// Says aloud which subscriptions nobody reads or can read: events are kept for them, for as long as that takes.
    async fn subscriptions(&self) -> Result<serde_json::Value> {
        let mut held = serde_json::Map::new();
        for row in self.db.rows(&SHOW_SUBSCRIPTIONS, &[&None::<&str>]).await? {
            let (name, behind, holds): (String, i64, Option<&str>) = (row.get(0), row.get(4), row.get(23));
            let Some(holds @ ("gone" | "truncated" | "diverged")) = holds else { continue };
            tracing::warn!(
                subscription = name,
                holds,
                behind,
                "a subscription does not go on and events are kept for it: start its consumer, rewind it, or drop it"
            );
            held.insert(name, holds.into());
        }
        Ok(serde_json::json!({ "held": held }))
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
        // On the heap: all tasks together would be too much for the stack of the thread.
        let result = Box::pin(work).await;
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
