//! What holds queues apart: their settings, units, cooldowns, and what waits for them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{Observer, json};
use crate::error::Result;
use crate::model::{JobId, JobStatus};
use crate::operate::QueueSettings;
use crate::store::statement::{SHOW_ISOLATION, SHOW_WAITING, SHOW_WAITS};

/// The most waiting jobs of each kind that are looked at in a queue.
const CAP: i32 = 10_000;
/// The same for gauges, which every process asks for again and again. Their rows lie apart from each other, so that each costs a
/// look of its own.
pub(super) const GAUGES_CAP: i32 = 1_000;

/// What holds a queue apart from others, as it is now.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct IsolationView {
    /// The queue.
    pub queue: String,
    /// Its settings.
    pub settings: QueueSettings,
    /// Units of its limit in use. What was claimed before it had a limit is not among them.
    pub running: i64,
    /// Jobs that wait outside of `pending`, of at most 10,000 that are looked at for each reason; see `waiting_capped`.
    pub waiting: Waiting,
    /// Whether there may be more of them than were counted.
    pub waiting_capped: bool,
    /// Age of the oldest job that waits for its turn or for a unit, in milliseconds.
    pub oldest_waiting_ms: Option<i64>,
    /// How much longer nothing of the queue is claimed because a service asked for patience, in milliseconds.
    pub cooling_ms: Option<i64>,
    /// Partitions of the queue (rate keys) that wait for the same reason.
    pub cooling_keys: i64,
    /// How many keys have limits of their own.
    pub key_limits: i64,
    /// Worker processes heard of in the last 30 s that serve the queue, by role; those without one under the empty name.
    pub roles: BTreeMap<String, i64>,
}

/// Jobs that wait, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// For another job of their ordering key.
    pub lane: i64,
    /// For a unit of their limit key.
    pub permit: i64,
    /// For the place in time that a rate or a cooldown has given them. They are counted as scheduled or retrying as well.
    pub rate: i64,
}

impl Waiting {
    /// Those that are in no other count of the queue.
    pub fn held(self) -> i64 {
        self.lane + self.permit
    }
}

/// Why a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitReason {
    /// Another job of its ordering key is before it.
    Lane,
    /// Every unit of its limit key is in use.
    Permit,
    /// Every unit of the queue's limit is in use.
    Limit,
    /// A rate has given it a later time.
    Rate,
    /// A service asked for patience.
    Cooldown,
    /// The queue is paused.
    Paused,
}

impl WaitReason {
    fn parse(word: &str) -> WaitReason {
        match word {
            "lane" => WaitReason::Lane,
            "permit" => WaitReason::Permit,
            "limit" => WaitReason::Limit,
            "cooldown" => WaitReason::Cooldown,
            "paused" => WaitReason::Paused,
            _ => WaitReason::Rate,
        }
    }
}

/// Something that jobs wait for.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WaitView {
    /// What it is.
    pub reason: WaitReason,
    /// The ordering key, limit key or rate key; `None` where it is the whole queue.
    pub key: Option<String>,
    /// How many jobs wait for it: all of the key in a list, those before this one for a single job. `None` where that is
    /// not counted.
    pub jobs: Option<i64>,
    /// The job at the head of the lane.
    pub job_id: Option<JobId>,
    /// Where that job is in its life.
    pub job_status: Option<JobStatus>,
    /// Units of the limit in use.
    pub running: Option<i64>,
    /// The limit.
    pub max_running: Option<i32>,
    /// Until when, as far as that is known; since when, for a pause.
    pub until: Option<Timestamp>,
}

impl Observer {
    /// What holds queues apart: of one queue, whether it exists or not, or of every one that has settings, waiting jobs or workers.
    pub async fn isolation(&self, queue: Option<&str>) -> Result<Vec<IsolationView>> {
        self.isolation_to(queue, CAP).await
    }

    pub(super) async fn isolation_to(&self, queue: Option<&str>, cap: i32) -> Result<Vec<IsolationView>> {
        let view = |row: &tokio_postgres::Row| IsolationView {
            queue: row.get(0),
            settings: serde_json::from_value(json(row.get(1))).unwrap_or_default(),
            running: row.get(2),
            waiting: Waiting { lane: row.get(3), permit: row.get(4), rate: row.get(5) },
            waiting_capped: row.get(6),
            oldest_waiting_ms: row.get(7),
            cooling_ms: row.get(8),
            cooling_keys: row.get(9),
            key_limits: row.get(10),
            roles: serde_json::from_value(json(row.get(11))).unwrap_or_default(),
        };
        Ok(self.ask(&SHOW_ISOLATION, &[&queue, &cap]).await?.iter().map(view).collect())
    }

    /// The keys of a queue that most jobs wait for, those with limits of their own, and those that cool down: at most `keys`
    /// of each.
    pub async fn waiting(&self, queue: &str, keys: i32) -> Result<Vec<WaitView>> {
        let rows = self.ask(&SHOW_WAITING, &[&queue, &CAP, &keys]).await?;
        rows.iter().map(|row| wait_view(row, row.get(2), 3)).collect()
    }

    /// Everything that a live job waits for besides its own time; empty for a job that runs, may run now, or has ended.
    pub async fn waits(&self, id: JobId) -> Result<Vec<WaitView>> {
        let rows = self.ask(&SHOW_WAITS, &[&id.0]).await?;
        rows.iter().map(|row| wait_view(row, row.get(4), 2)).collect()
    }
}

/// `job` is where the columns of the lane's head are.
fn wait_view(row: &tokio_postgres::Row, jobs: Option<i64>, job: usize) -> Result<WaitView> {
    Ok(WaitView {
        reason: WaitReason::parse(row.get(0)),
        key: row.get(1),
        jobs,
        job_id: row.get::<_, Option<uuid::Uuid>>(job).map(JobId),
        job_status: row.get::<_, Option<&str>>(job + 1).map(str::parse).transpose()?,
        running: row.get(5),
        max_running: row.get(6),
        until: row.get(7),
    })
}
