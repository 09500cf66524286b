//! The adapters for sqlx: the same code for each supported version.
//!
//! Statements are not kept prepared on the connection. A named one breaks, or worse, belongs to somebody
//! else behind a transaction pooler; the price is one more round trip a call.

macro_rules! adapter {
    ($version:ident, $sql:expr) => {
        use $version::postgres::{PgConnection, PgDatabaseError, Postgres};
        use $version::{Row, Transaction};

        use crate::caller::Arg;
        use crate::caller::sealed::Call;
        use crate::error::{Error, Kind, Result};

        impl Call for PgConnection {
            async fn call(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Option<String>>> {
                let mut query = $version::query::<Postgres>($sql(sql)).persistent(false);
                for arg in args {
                    query = match arg {
                        Arg::Text(text) => query.bind(text.as_deref().map(str::to_owned)),
                        Arg::Texts(texts) => query.bind(texts.as_ref().map(|texts| {
                            texts.iter().map(|text| text.as_deref().map(str::to_owned)).collect::<Vec<_>>()
                        })),
                        Arg::Int(n) => query.bind(*n),
                        Arg::BigInt(n) => query.bind(*n),
                        Arg::Bool(b) => query.bind(*b),
                    };
                }
                let rows = query.fetch_all(&mut *self).await.map_err(error)?;
                // complete_in answers with a void, which has no text.
                Ok(rows.iter().map(|row| row.try_get(0).ok().flatten()).collect())
            }
        }

        impl Call for Transaction<'_, Postgres> {
            async fn call(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Option<String>>> {
                Call::call(&mut **self, sql, args).await
            }
        }

        fn error(error: $version::Error) -> Error {
            match error.as_database_error().and_then(|db| db.try_downcast_ref::<PgDatabaseError>()) {
                Some(db) => Error::from_server(db.code(), db.message(), db.hint(), db.column()),
                None => Error::new(Kind::OutcomeUnknown, "the connection to the database was lost")
                    .with_hint("If a COMMIT was under way it may have taken effect: repeat with the same idempotency key.")
                    .with_source(error),
            }
        }
    };
}

#[cfg(feature = "sqlx-0_8")]
mod v0_8 {
    fn text(sql: &str) -> &str {
        sql
    }

    adapter!(sqlx_0_8, text);
}

#[cfg(feature = "sqlx-0_9")]
mod v0_9 {
    // The text is from the catalogue; its one variable part is a checked schema name.
    fn text(sql: &str) -> sqlx_0_9::AssertSqlSafe<String> {
        sqlx_0_9::AssertSqlSafe(sql.to_owned())
    }

    adapter!(sqlx_0_9, text);
}
