//! What is done to many jobs at once, over a set that is fixed before anything is done to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::{Operator, PATIENCE, no_answer};
use crate::error::{Error, Result};
use crate::observe::{OperationView, operation_view};
use crate::store::statement::{OPERATION_CREATE, OPERATION_STEP, OPERATION_SWITCH, SHOW_OPERATIONS};

/// How long fixing a set may take: up to a million rows are written.
const CREATE_PATIENCE: Duration = Duration::from_secs(300);

/// Which jobs: those that agree with every field that is set. Times are from (inclusive) and before (exclusive).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Selection {
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Of this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// With this code of the last failure; an empty text for those without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Dead letters only: with this class of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Of this organization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub organization: Option<Uuid>,
    /// Dead letters only: that died at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_after: Option<Timestamp>,
    /// Dead letters only: that died before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_before: Option<Timestamp>,
    /// Live jobs only: enqueued at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<Timestamp>,
    /// Live jobs only: enqueued before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// Live jobs only: with this ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Live jobs only: with this limit key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// All of them: an operation without any other field needs it, so that nobody means one queue and gets all.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl Selection {
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What an operation does to each of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Makes dead letters live again, as [`Operator::retry`] does.
    Replay,
    /// Ends dead letters for good, as [`Operator::discard`] does.
    Discard,
    /// Cancels live jobs, as [`Operator::cancel`] does.
    Cancel,
}

impl OperationKind {
    /// The word that stands in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            OperationKind::Replay => "replay",
            OperationKind::Discard => "discard",
            OperationKind::Cancel => "cancel",
        }
    }
}

impl FromStr for OperationKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<OperationKind> {
        [OperationKind::Replay, OperationKind::Discard, OperationKind::Cancel]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| {
                Error::invalid(
                    "kind",
                    format!("{text} is no kind of operation"),
                    "Use replay, discard or cancel.",
                )
            })
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Its set is fixed, and nothing is done yet.
    Ready,
    /// Some worker, or whoever waits for it, goes on with it about once a second.
    Running,
    /// Somebody has stopped it; it can be resumed.
    Stopped,
    /// Every item has its outcome.
    Done,
}

impl OperationState {
    /// The word that stands in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            OperationState::Ready => "ready",
            OperationState::Running => "running",
            OperationState::Stopped => "stopped",
            OperationState::Done => "done",
        }
    }
}

impl FromStr for OperationState {
    type Err = Error;

    fn from_str(text: &str) -> Result<OperationState> {
        [OperationState::Ready, OperationState::Running, OperationState::Stopped, OperationState::Done]
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| {
                Error::invalid(
                    "state",
                    format!("{text} is no state of an operation"),
                    "Use ready, running, stopped or done.",
                )
            })
    }
}

impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An operation to be created.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// Its name, which must be free: up to 100 letters, digits, dots, dashes and underscores.
    pub name: String,
    /// What it does.
    pub kind: OperationKind,
    /// To which jobs; they are chosen when it is created.
    pub selection: Selection,
    /// The most jobs in a second, 1 to 10,000.
    pub per_second: i32,
    /// Why, for the record; a discard needs one.
    pub reason: Option<String>,
}

impl NewOperation {
    /// 100 jobs a second, without a reason.
    pub fn new(name: impl Into<String>, kind: OperationKind, selection: Selection) -> NewOperation {
        NewOperation { name: name.into(), kind, selection, per_second: 100, reason: None }
    }

    /// The most jobs in a second, 1 to 10,000.
    pub fn per_second(mut self, jobs: i32) -> NewOperation {
        self.per_second = jobs;
        self
    }

    /// Why, for the record.
    pub fn reason(mut self, reason: impl Into<String>) -> NewOperation {
        self.reason = Some(reason.into());
        self
    }
}

/// What to do with an operation that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Begin, when it is ready.
    Start,
    /// Make no further step, when it runs.
    Stop,
    /// Go on, when it was stopped.
    Resume,
}

/// What a [`Switch`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// It was done.
    Changed,
    /// It was in a state that this does not change.
    Was(OperationState),
}

/// A step of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stepped {
    /// The operation.
    pub operation: String,
    /// Its state after the step.
    pub state: OperationState,
    /// Items in all.
    pub total: i64,
    /// Items acted on.
    pub done: i64,
    /// Items skipped.
    pub skipped: i64,
}

/// What is done to many jobs at once. A set is fixed, looked at, and then worked off a little at a time by whichever worker
/// comes first; it can be stopped and resumed, and survives the end of any process.
impl Operator {
    /// Fixes the set of an operation and does nothing to it yet. Returns how many jobs that are, 1 to 1,000,000.
    ///
    /// What comes to match later does not belong to the set.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when no job matches, [`Error::is_conflict`] for a name that is taken,
    /// [`Error::is_invalid_input`] for what is out of range, for more jobs than that, and for a selection without any
    /// field. Nothing is stored then.
    pub async fn create_operation(&self, operation: &NewOperation) -> Result<i64> {
        let filter = operation.selection.text();
        let kind = operation.kind.as_str();
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&operation.name, &kind, &filter, &operation.per_second, &operation.reason];
        let rows = self.db.rows_once(&OPERATION_CREATE, &params, CREATE_PATIENCE).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(no_answer)
    }

    /// Starts, stops or resumes an operation. After a stop has returned nothing more is done to its jobs.
    ///
    /// # Errors
    /// [`Error::is_not_found`] for an unknown name.
    pub async fn switch_operation(&self, name: &str, to: Switch, reason: Option<&str>) -> Result<Switched> {
        let action = match to {
            Switch::Start => "start",
            Switch::Stop => "stop",
            Switch::Resume => "resume",
        };
        let word: String = self.value(&OPERATION_SWITCH, &[&name, &action, &reason]).await?;
        match word.strip_prefix("was_") {
            Some(state) => Ok(Switched::Was(state.parse()?)),
            None => Ok(Switched::Changed),
        }
    }

    /// Makes the next step of a running operation, as workers do about once a second. `None` when it is not running, its
    /// speed does not allow one yet, or somebody else is making one.
    pub async fn step_operation(&self, name: &str) -> Result<Option<Stepped>> {
        let rows = self.db.rows_once(&OPERATION_STEP, &[&name], PATIENCE).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Stepped {
            operation: row.get(0),
            state: row.get::<_, &str>(1).parse()?,
            total: row.get(2),
            done: row.get(3),
            skipped: row.get(4),
        }))
    }

    /// One operation, or `None`. What [`crate::Observer::operation`] says, for who has the operator's role only.
    pub async fn operation(&self, name: &str) -> Result<Option<OperationView>> {
        let rows = self.db.rows_once(&SHOW_OPERATIONS, &[&name, &1i32], PATIENCE).await?;
        rows.first().map(operation_view).transpose()
    }
}
