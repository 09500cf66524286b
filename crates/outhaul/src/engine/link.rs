//! Connections as the engine uses them: by purpose, reopened for as long as it takes.

pub(crate) use crate::store::conn::{Conn, Link, Purpose};

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::error::{Error, Kind, Result};
use crate::model::SchemaName;
use crate::store::statement::Statement;

/// How long a statement of ours may take before its connection is taken for dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls of the schema's functions over one link.
#[derive(Clone)]
pub(crate) struct Db {
    pub(crate) link: Link,
    pub(crate) schema: SchemaName,
}

impl Db {
    pub(crate) fn new(link: Link, schema: &SchemaName) -> Db {
        Db { link, schema: schema.clone() }
    }

    pub(crate) async fn rows(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.rows_within(statement, params, PATIENCE).await
    }

    pub(crate) async fn rows_within(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
        patience: Duration,
    ) -> Result<Vec<Row>> {
        let types = statement.types();
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = params.iter().copied().zip(types).collect();
        self.raw(&statement.text(&self.schema), &typed, patience).await
    }

    /// The same for a person who waits: the deadline holds for connecting, too.
    pub(crate) async fn rows_once(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
        patience: Duration,
    ) -> Result<Vec<Row>> {
        let answer = self.rows_within(statement, params, patience);
        tokio::time::timeout(2 * patience, answer).await.unwrap_or_else(|_| {
            Err(Error::new(
                Kind::Unavailable,
                format!("no connection to the database within {:?}", 2 * patience),
            )
            .with_hint("Check that the server runs and accepts connections."))
        })
    }

    /// Sends a statement that is not a call.
    pub(crate) async fn raw(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        patience: Duration,
    ) -> Result<Vec<Row>> {
        let conn = self.link.get().await;
        conn.query(sql, params, patience).await
    }

    /// Waits a moment before a statement is tried again.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(50 + fastrand::u64(..150))).await;
    }
}
