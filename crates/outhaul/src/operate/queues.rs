//! Settings of queues: what they keep, how much of them runs at once, how fast, and for whom.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Operator, PATIENCE};
use crate::error::Result;
use crate::store::statement::{OPERATOR_HISTORY, OPERATOR_KEY_LIMIT, OPERATOR_QUEUE_SET};

/// The settings of a queue, as they are stored. A queue without any has the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueSettings {
    /// What stays of a completed job: `none`, `row` (the default) or `payload`.
    pub history: String,
    /// How long a job should wait at most, in seconds; alerts compare the oldest waiting job with it.
    pub objective_seconds: Option<f64>,
    /// Most jobs that run at the same time in the whole cluster, 1 to 10,000.
    pub max_running: Option<i32>,
    /// The same for each [`crate::NewJob::limit_key`].
    pub max_running_per_key: Option<i32>,
    /// Most jobs that begin within `rate_per_seconds`.
    pub rate: Option<i32>,
    /// The period of `rate`, 1 to 86,400 s.
    pub rate_per_seconds: Option<f64>,
    /// How many of them may begin at once; by default as many as the rate lets begin in a second, and one at least.
    pub rate_burst: Option<i32>,
    /// The same for each [`crate::NewJob::rate_key`].
    pub key_rate: Option<i32>,
    /// The period of `key_rate`.
    pub key_rate_per_seconds: Option<f64>,
    /// See `rate_burst`.
    pub key_rate_burst: Option<i32>,
    /// Whether organizations take turns, however much each has enqueued.
    pub fair: bool,
    /// Until when nothing is claimed because a service asked for patience.
    pub cool_until: Option<jiff::Timestamp>,
}

/// Changes of a queue's settings; what is not named stays.
///
/// ```
/// use std::time::Duration;
/// use outhaul::QueueChange;
///
/// let change = QueueChange::new().max_running(20).max_running_per_key(2).rate(100, Duration::from_secs(60)).fair(true);
/// # drop(change);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueChange(serde_json::Map<String, serde_json::Value>);

impl QueueChange {
    /// No change yet.
    pub fn new() -> QueueChange {
        QueueChange::default()
    }

    fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> QueueChange {
        self.0.insert(name.into(), value.into());
        self
    }

    /// Takes a setting back by its name, as [`QueueSettings`] spells it. `rate` and `key_rate` take their periods along;
    /// `cool_until` ends a cooldown.
    pub fn without(self, name: &str) -> QueueChange {
        self.with(name, serde_json::Value::Null)
    }

    /// What stays of a completed job: `none`, `row` or `payload`.
    pub fn history(self, history: &str) -> QueueChange {
        self.with("history", history)
    }

    /// How long a job should wait at most, 1 s to a year.
    pub fn objective(self, objective: Duration) -> QueueChange {
        self.with("objective_seconds", objective.as_secs())
    }

    /// Most jobs that are leased at the same time in the whole cluster, 1 to 10,000. What runs already when a limit is
    /// set first is not counted; when a limit is lowered, what runs goes on.
    pub fn max_running(self, most: i32) -> QueueChange {
        self.with("max_running", most)
    }

    /// The same for each [`crate::NewJob::limit_key`]. [`Operator::limit_key`] makes exceptions.
    pub fn max_running_per_key(self, most: i32) -> QueueChange {
        self.with("max_running_per_key", most)
    }

    /// Most jobs that begin within a period: 1 to 1,000,000 in 1 s to 24 h, spread over it.
    pub fn rate(self, jobs: i32, per: Duration) -> QueueChange {
        self.with("rate", jobs).with("rate_per_seconds", per.as_secs())
    }

    /// How many jobs of `rate` may begin at once after a time without any.
    pub fn rate_burst(self, jobs: i32) -> QueueChange {
        self.with("rate_burst", jobs)
    }

    /// A rate for each [`crate::NewJob::rate_key`].
    pub fn key_rate(self, jobs: i32, per: Duration) -> QueueChange {
        self.with("key_rate", jobs).with("key_rate_per_seconds", per.as_secs())
    }

    /// See [`QueueChange::rate_burst`].
    pub fn key_rate_burst(self, jobs: i32) -> QueueChange {
        self.with("key_rate_burst", jobs)
    }

    /// Whether organizations take turns. It holds for what is enqueued from then on.
    pub fn fair(self, fair: bool) -> QueueChange {
        self.with("fair", fair)
    }
}

impl Operator {
    /// The settings of a queue.
    pub async fn queue_settings(&self, queue: &str) -> Result<QueueSettings> {
        self.set_queue(queue, &QueueChange::new(), None).await
    }

    /// Changes settings of a queue, from its next claim on, and returns what holds then.
    ///
    /// # Errors
    /// [`crate::Error::is_invalid_input`] for a setting out of range; nothing is changed then.
    pub async fn set_queue(
        &self,
        queue: &str,
        change: &QueueChange,
        reason: Option<&str>,
    ) -> Result<QueueSettings> {
        let settings = serde_json::Value::Object(change.0.clone()).to_string();
        let answer: String = self.value(&OPERATOR_QUEUE_SET, &[&queue, &settings, &reason]).await?;
        serde_json::from_str(&answer).map_err(|_| super::no_answer())
    }

    /// Gives one `limit_key` of a queue a limit of its own, 0 (nothing of it runs) to 10,000, or takes it back.
    ///
    /// # Errors
    /// [`crate::Error::is_invalid_input`].
    pub async fn limit_key(
        &self,
        queue: &str,
        key: &str,
        most: Option<i32>,
        reason: Option<&str>,
    ) -> Result<()> {
        self.db.rows_once(&OPERATOR_KEY_LIMIT, &[&queue, &key, &most, &reason], PATIENCE).await.map(drop)
    }

    /// Chooses what stays of completed jobs of a queue: `none`, `row` or `payload`.
    pub async fn history(&self, queue: &str, history: &str) -> Result<()> {
        self.db.rows_once(&OPERATOR_HISTORY, &[&queue, &history], PATIENCE).await.map(drop)
    }
}
