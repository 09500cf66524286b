//! What operators do: migrate, retry, discard, cancel, pause. Everything but migrations is on the audit record.
//!
//! Jobs are here; many jobs at once in [`operations`], settings of queues in [`queues`], events and subscriptions in [`outbox`].

mod operations;
mod outbox;
mod queues;

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use uuid::Uuid;

use crate::caller::Cancelled;
use crate::engine::link::{Db, Link, Purpose};
use crate::error::{Error, Kind, Result};
use crate::model::{JobId, SchemaName};
use crate::store::dsn::Dsn;
use crate::store::migrate::{self, MigrateOptions, Migrated, SchemaStatus};
use crate::store::ranges;
use crate::store::statement::{
    OPERATOR_CANCEL, OPERATOR_CANCEL_KEY, OPERATOR_DISCARD, OPERATOR_PAUSE, OPERATOR_RETRY, Statement,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// Brings a database's schema to this version, and its partitions to their rules.
///
/// Safe to call by any number of processes at once, and again and again.
///
/// # Errors
/// [`Error::is_refused`] when rights are missing, [`Error::is_schema_mismatch`] when the schema is newer and no
/// longer serves this version, [`Error::is_retryable`] when locks could not be had in time.
pub async fn migrate(dsn: &Dsn, options: &MigrateOptions) -> Result<Migrated> {
    let link = Link::new(dsn.clone(), Purpose::Tool);
    let conn = link.connect_once(Duration::from_secs(10)).await?;
    let done = migrate::migrate(conn.client(), options).await?;
    // Ahead of time is soon enough for partitions: somebody's lock is no reason to fail a deployment.
    if let Err(error) = ranges::keep(conn.client(), &options.schema, 50).await {
        tracing::warn!(%error, "partitions are not made yet, a worker will try again");
    }
    Ok(done)
}

/// Compares a database's schema with this version, changing nothing.
///
/// # Errors
/// Errors of the connection; a missing schema is a status.
pub async fn migration_status(dsn: &Dsn, schema: &SchemaName) -> Result<SchemaStatus> {
    let link = Link::new(dsn.clone(), Purpose::Tool);
    let conn = link.connect_once(Duration::from_secs(10)).await?;
    migrate::status(conn.client(), schema).await
}

/// The SQL that a migration of an empty database sends, for an administrator to read and run.
pub fn migration_sql(options: &MigrateOptions) -> String {
    migrate::sql(options)
}

/// Acts on jobs, queues, events and subscriptions as the role `outhaul_operator`.
#[derive(Clone)]
pub struct Operator {
    db: Db,
}

pub use operations::{NewOperation, OperationKind, OperationState, Selection, Stepped, Switch, Switched};
pub use queues::{QueueChange, QueueSettings};

/// What a retry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Retried {
    /// It waited and is due now.
    Due,
    /// It was a dead letter and is live again, under its own id and with its attempts at zero.
    Replayed,
    /// A worker holds it; nothing was changed.
    Leased,
    /// It has ended otherwise; nothing was changed.
    Ended,
    /// There is no such job.
    NotFound,
}

/// What a discard found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discarded {
    /// It was a dead letter and has ended as cancelled, with the code `discarded`.
    Discarded,
    /// It is no dead letter, or not any more: it waits or runs. Nothing was changed.
    Live,
    /// It has ended, perhaps by a discard before; nothing was changed.
    Ended,
    /// There is no such job.
    NotFound,
}

impl Operator {
    /// Connects and checks the schema.
    ///
    /// # Errors
    /// [`Error::is_unavailable`] or [`Error::is_schema_mismatch`].
    pub async fn connect(dsn: &Dsn, schema: &SchemaName) -> Result<Operator> {
        let link = Link::new(dsn.clone(), Purpose::Tool);
        let conn = link.connect_once(Duration::from_secs(10)).await?;
        migrate::check(conn.client(), schema).await?;
        Ok(Operator { db: Db::new(link, schema) })
    }

    /// Cancels a job, waiting or running.
    pub async fn cancel(&self, id: JobId, reason: Option<&str>) -> Result<Cancelled> {
        let word: String = self.value(&OPERATOR_CANCEL, &[&id.0, &reason]).await?;
        Cancelled::of(&word).ok_or_else(no_answer)
    }

    /// Cancels the job that has an idempotency key; see [`crate::Producer::cancel_by_key`].
    pub async fn cancel_by_key(
        &self,
        job_type: &str,
        key: &str,
        organization: Option<Uuid>,
        reason: Option<&str>,
    ) -> Result<Cancelled> {
        let word: String =
            self.value(&OPERATOR_CANCEL_KEY, &[&job_type, &key, &organization, &reason]).await?;
        Cancelled::of(&word).ok_or_else(no_answer)
    }

    /// Ends a dead letter for good; its idempotency key is kept for 7 days, as after any end.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`] without a reason.
    pub async fn discard(&self, id: JobId, reason: &str) -> Result<Discarded> {
        Ok(match self.value::<String>(&OPERATOR_DISCARD, &[&id.0, &reason]).await?.as_str() {
            "discarded" => Discarded::Discarded,
            "live" => Discarded::Live,
            "ended" => Discarded::Ended,
            _ => Discarded::NotFound,
        })
    }

    /// Makes a waiting job due, or brings a dead letter back.
    pub async fn retry(&self, id: JobId, reason: Option<&str>) -> Result<Retried> {
        Ok(match self.value::<String>(&OPERATOR_RETRY, &[&id.0, &reason]).await?.as_str() {
            "due" => Retried::Due,
            "replayed" => Retried::Replayed,
            "leased" => Retried::Leased,
            "ended" => Retried::Ended,
            _ => Retried::NotFound,
        })
    }

    /// Stops claims of a queue. What is leased goes on. True when it was not paused before.
    pub async fn pause(&self, queue: &str, reason: Option<&str>) -> Result<bool> {
        self.value(&OPERATOR_PAUSE, &[&queue, &true, &reason]).await
    }

    /// Lets claims of a queue go on. True when it was paused before.
    pub async fn resume(&self, queue: &str, reason: Option<&str>) -> Result<bool> {
        self.value(&OPERATOR_PAUSE, &[&queue, &false, &reason]).await
    }

    /// The one value that an action answers with.
    async fn value<T: FromSqlOwned>(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<T> {
        let rows = self.db.rows_once(statement, params, PATIENCE).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(no_answer)
    }
}

fn no_answer() -> Error {
    Error::new(Kind::Database, "the database gave no answer to a call")
        .with_hint("Check that the schema was migrated by this version.")
}
