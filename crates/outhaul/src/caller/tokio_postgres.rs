//! The adapters for tokio-postgres.
//!
//! Statements go as `query_typed`: one round trip with an unnamed statement, which is also right behind a
//! transaction pooler, where a named one may belong to somebody else.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row, Statement, Transaction};

use super::Arg;
use super::sealed::Call;
use crate::error::Result;

impl Call for Transaction<'_> {
    async fn call(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Option<String>>> {
        let bound = bind(args);
        Ok(texts(self.query_typed(sql, &params(&bound)).await?))
    }
}

impl Call for Client {
    async fn call(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Option<String>>> {
        let bound = bind(args);
        Ok(texts(self.query_typed(sql, &params(&bound)).await?))
    }
}

/// The statements of this library, prepared on one connection of tokio-postgres.
///
/// A single enqueue costs the server about half when its statement is prepared. Keep one cache beside each
/// connection, and drop it with the connection. Not for connections through a transaction pooler, where a
/// prepared statement may be missing or somebody else's.
///
/// ```no_run
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let statements = outhaul::StatementCache::default();
/// let tx = client.transaction().await?;
/// outhaul::enqueue(&mut statements.on(&tx), &outhaul::NewJob::raw("mail", "mail.welcome", "{}")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct StatementCache(Mutex<HashMap<String, Statement>>);

/// A client or transaction whose calls use prepared statements; see [`StatementCache::on`].
pub struct Cached<'a, C> {
    client: &'a C,
    cache: &'a StatementCache,
}

impl StatementCache {
    /// Uses the cache for a client, or for a transaction on it. The connection must always be the same one.
    pub fn on<'a, C: GenericClient + Sync>(&'a self, client: &'a C) -> Cached<'a, C> {
        Cached { client, cache: self }
    }

    fn get(&self, sql: &str) -> Option<Statement> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned()
    }

    fn put(&self, sql: &str, statement: &Statement) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sql.to_owned(), statement.clone());
    }
}

impl fmt::Debug for StatementCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementCache").finish_non_exhaustive()
    }
}

impl<C: GenericClient + Sync> Call for Cached<'_, C> {
    async fn call(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Option<String>>> {
        let bound = bind(args);
        let (values, types): (Vec<_>, Vec<_>) = params(&bound).into_iter().unzip();
        let statement = match self.cache.get(sql) {
            Some(statement) => statement,
            None => {
                let statement = self.client.prepare_typed(sql, &types).await?;
                self.cache.put(sql, &statement);
                statement
            }
        };
        Ok(texts(self.client.query(&statement, &values).await?))
    }
}

enum Bound<'a> {
    Text(Option<&'a str>),
    Texts(Option<Vec<Option<&'a str>>>),
    Int(i32),
    BigInt(Option<i64>),
    Bool(bool),
}

fn bind<'a>(args: &'a [Arg<'_>]) -> Vec<Bound<'a>> {
    args.iter()
        .map(|arg| match arg {
            Arg::Text(text) => Bound::Text(text.as_deref()),
            Arg::Texts(texts) => Bound::Texts(
                texts.as_ref().map(|texts| texts.iter().map(|text| text.as_ref().map(Cow::as_ref)).collect()),
            ),
            Arg::Int(n) => Bound::Int(*n),
            Arg::BigInt(n) => Bound::BigInt(*n),
            Arg::Bool(b) => Bound::Bool(*b),
        })
        .collect()
}

fn params<'a>(bound: &'a [Bound<'a>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    bound
        .iter()
        .map(|bound| match bound {
            Bound::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
            Bound::Texts(texts) => (texts as &(dyn ToSql + Sync), Type::TEXT_ARRAY),
            Bound::Int(n) => (n as &(dyn ToSql + Sync), Type::INT4),
            Bound::BigInt(n) => (n as &(dyn ToSql + Sync), Type::INT8),
            Bound::Bool(b) => (b as &(dyn ToSql + Sync), Type::BOOL),
        })
        .collect()
}

fn texts(rows: Vec<Row>) -> Vec<Option<String>> {
    // complete_in answers with a void, which has no text.
    rows.iter().map(|row| row.try_get(0).ok().flatten()).collect()
}
