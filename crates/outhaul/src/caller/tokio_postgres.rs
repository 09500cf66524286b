//! The adapter for tokio-postgres.
//!
//! Statements go as `query_typed`: one round trip with an unnamed statement, which is also right behind a
//! transaction pooler, where a named one may belong to somebody else.

use std::borrow::Cow;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Transaction};

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
