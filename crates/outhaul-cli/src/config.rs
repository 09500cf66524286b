//! Settings, and where each comes from.

use outhaul::{Dsn, SchemaName};

use crate::exit::{Exit, Problem};

/// The settings after all sources were read.
#[derive(Default)]
pub(crate) struct Config {
    database_url: Option<String>,
    schema: Option<String>,
}

impl Config {
    pub(crate) fn load(database_url: Option<String>, schema: Option<String>) -> anyhow::Result<Config> {
        let database_url =
            database_url.or_else(|| env("OUTHAUL_DATABASE_URL")).or_else(|| env("DATABASE_URL"));
        Ok(Config { database_url, schema })
    }

    /// Where the database is, when anything says so.
    pub(crate) fn database(&self) -> anyhow::Result<Option<Dsn>> {
        let Some(url) = &self.database_url else { return Ok(None) };
        Ok(Some(Dsn::parse(url, env)?))
    }

    /// Where the database is.
    pub(crate) fn require_database(&self) -> anyhow::Result<Dsn> {
        Ok(self.database()?.ok_or_else(|| {
            Problem::new(Exit::Usage, "no_database_url", "no database is named")
                .hint("Set DATABASE_URL, or start a private server with `outhaul dev up`.")
        })?)
    }

    /// The schema that holds Outhaul's objects.
    pub(crate) fn schema(&self) -> anyhow::Result<SchemaName> {
        Ok(self.schema.as_deref().map(SchemaName::new).transpose()?.unwrap_or_default())
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
