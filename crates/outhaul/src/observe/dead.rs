//! Dead letters, and operations over many jobs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Observer, json};
use crate::error::Result;
use crate::model::JobId;
use crate::operate::{OperationKind, OperationState, Selection};
use crate::store::statement::{SHOW_DEAD, SHOW_DEAD_GROUPS, SHOW_OPERATION_ITEMS, SHOW_OPERATIONS};

/// A dead letter as lists show it.
#[derive(Clone, Debug, Serialize)]
pub struct DeadView {
    /// The job's id, which it keeps when it is replayed.
    pub id: JobId,
    /// The organization, if any.
    pub organization_id: Option<Uuid>,
    /// The queue.
    pub queue: String,
    /// The type.
    pub job_type: String,
    /// Attempts spent.
    pub attempts: i32,
    /// Attempts it had.
    pub max_attempts: i32,
    /// Claims ever made.
    pub claim_no: i32,
    /// Class of the last failure.
    pub error_class: String,
    /// Code of the last failure.
    pub error_code: Option<String>,
    /// Summary of the last failure.
    pub error_summary: Option<String>,
    /// Its idempotency key, which it holds.
    pub idempotency_key: Option<String>,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it became a dead letter.
    pub died_at: Timestamp,
}

/// Dead letters that agree in queue, type and code.
#[derive(Clone, Debug, Serialize)]
pub struct DeadGroup {
    /// The queue.
    pub queue: String,
    /// The type.
    pub job_type: String,
    /// Code of the last failure.
    pub error_code: Option<String>,
    /// How many.
    pub jobs: i64,
    /// When the first of them died.
    pub oldest_at: Timestamp,
    /// When the last of them died.
    pub newest_at: Timestamp,
    /// The last of them, to look at; it may have been replayed meanwhile.
    pub sample_id: Option<JobId>,
    /// The summary of its failure.
    pub sample_summary: Option<String>,
}

/// An operation over many jobs.
#[derive(Clone, Debug, Serialize)]
pub struct OperationView {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: OperationKind,
    /// How its jobs were chosen, as a [`Selection`] is stored.
    pub filter: serde_json::Value,
    /// Where it is.
    pub state: OperationState,
    /// The most items in a second.
    pub per_second: i32,
    /// Items in all.
    pub total: i64,
    /// Items acted on.
    pub done: i64,
    /// Items skipped, because their job was not any more what it was when the set was fixed.
    pub skipped: i64,
    /// How many items have had each outcome: replayed, discarded or cancelled; skipped ones are live, died_again,
    /// dead_letter, ended or gone.
    pub outcomes: BTreeMap<String, i64>,
    /// The set as it was when it was fixed: `groups`, the 100 largest by queue, type and code, and `sample`, the first ten.
    pub preview: serde_json::Value,
    /// When the set was fixed.
    pub created_at: Timestamp,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// When it was stopped, unless it was resumed.
    pub stopped_at: Option<Timestamp>,
    /// When its last item had its outcome.
    pub finished_at: Option<Timestamp>,
    /// The database role that created it.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// Why its last step failed; it is tried again.
    pub error: Option<String>,
}

/// One job of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationItem {
    /// Its place, counted from 1.
    pub n: i64,
    /// The job.
    pub job_id: JobId,
    /// What became of it; `None` until then. See [`OperationView::outcomes`].
    pub outcome: Option<String>,
}

impl Observer {
    /// A page of dead letters, the last one that died first. `before` is the last one of the page before; `limit` 1 to
    /// 1,000.
    ///
    /// # Errors
    /// [`crate::Error::is_invalid_input`] for a field of live jobs.
    pub async fn dead(
        &self,
        selection: &Selection,
        before: Option<(Timestamp, JobId)>,
        limit: i32,
    ) -> Result<Vec<DeadView>> {
        let (at, id) = before.map(|(at, id)| (at.to_string(), id.0)).unzip();
        let rows = self.ask(&SHOW_DEAD, &[&selection.text(), &at, &id, &limit]).await?;
        Ok(rows.iter().map(dead_view).collect())
    }

    /// Dead letters by queue, type and code, the largest group first; at most `limit` groups, 1 to 1,000.
    ///
    /// # Errors
    /// [`crate::Error::is_invalid_input`] for a field of live jobs.
    pub async fn dead_groups(&self, selection: &Selection, limit: i32) -> Result<Vec<DeadGroup>> {
        let rows = self.ask(&SHOW_DEAD_GROUPS, &[&selection.text(), &limit]).await?;
        let group = |row: &Row| DeadGroup {
            queue: row.get(0),
            job_type: row.get(1),
            error_code: row.get(2),
            jobs: row.get(3),
            oldest_at: row.get(4),
            newest_at: row.get(5),
            sample_id: row.get::<_, Option<Uuid>>(6).map(JobId),
            sample_summary: row.get(7),
        };
        Ok(rows.iter().map(group).collect())
    }

    /// The last 1,000 operations, the last one made first.
    pub async fn operations(&self) -> Result<Vec<OperationView>> {
        let rows = self.ask(&SHOW_OPERATIONS, &[&None::<&str>, &1_000i32]).await?;
        rows.iter().map(operation_view).collect()
    }

    /// One operation, or `None`.
    pub async fn operation(&self, name: &str) -> Result<Option<OperationView>> {
        let rows = self.ask(&SHOW_OPERATIONS, &[&name, &1i32]).await?;
        rows.first().map(operation_view).transpose()
    }

    /// A page of the items of an operation after an item, in the order in which it acts on them; only those with one
    /// outcome, if it is named. `limit` 1 to 1,000. Empty for an unknown name.
    pub async fn operation_items(
        &self,
        name: &str,
        after: i64,
        outcome: Option<&str>,
        limit: i32,
    ) -> Result<Vec<OperationItem>> {
        let rows = self.ask(&SHOW_OPERATION_ITEMS, &[&name, &after, &outcome, &limit]).await?;
        let item =
            |row: &Row| OperationItem { n: row.get(0), job_id: JobId(row.get(1)), outcome: row.get(2) };
        Ok(rows.iter().map(item).collect())
    }
}

fn dead_view(row: &Row) -> DeadView {
    DeadView {
        id: JobId(row.get(0)),
        organization_id: row.get(1),
        queue: row.get(2),
        job_type: row.get(3),
        attempts: row.get(4),
        max_attempts: row.get(5),
        claim_no: row.get(6),
        error_class: row.get(7),
        error_code: row.get(8),
        error_summary: row.get(9),
        idempotency_key: row.get(10),
        ordering_key: row.get(11),
        created_at: row.get(12),
        died_at: row.get(13),
    }
}

pub(crate) fn operation_view(row: &Row) -> Result<OperationView> {
    Ok(OperationView {
        id: row.get(0),
        name: row.get(1),
        kind: row.get::<_, &str>(2).parse()?,
        filter: json(row.get(3)),
        state: row.get::<_, &str>(4).parse()?,
        per_second: row.get(5),
        total: row.get(6),
        done: row.get(7),
        skipped: row.get(8),
        outcomes: row
            .get::<_, Option<&str>>(9)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
        preview: json(row.get(10)),
        created_at: row.get(11),
        started_at: row.get(12),
        stopped_at: row.get(13),
        finished_at: row.get(14),
        actor: row.get(15),
        reason: row.get(16),
        error: row.get(17),
    })
}
