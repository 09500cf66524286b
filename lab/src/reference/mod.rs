//! The programs everything is compared with, written before anything was measured against them.
//!
//! Each is the best simple form of its idea: prepared statements, batches, two connections, plans pinned to the index.

mod driver;
pub(crate) mod events;
pub(crate) mod functions;
pub(crate) mod naive;
pub(crate) mod plain;
pub(crate) mod seed;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::feed::Feed;
use crate::worker::{Kind, Spec};

/// Tables and statements of one way to keep jobs.
pub(crate) struct Design {
    /// Name in reports and of its template database.
    pub(crate) name: &'static str,
    /// The worker program that goes with it.
    pub(crate) worker: Kind,
    pub(crate) schema: Schema,
    /// Where its notifications are sent.
    pub(crate) channel: &'static str,
    /// Inserts one job in a statement of its own: without a notification, with one, and with one and a key.
    pub(crate) silent: &'static str,
    pub(crate) notifying: &'static str,
    pub(crate) keyed: Option<&'static str>,
    /// Inserts many jobs, one array per column; and with a key each.
    pub(crate) many: &'static str,
    pub(crate) many_keyed: Option<&'static str>,
    /// What the inserts take, in the order of their parameters.
    pub(crate) columns: &'static [Column],
    /// Fills the table with `$1` jobs, a multiple of 1,000, inside the server: for depths that are too large to send.
    pub(crate) build: &'static str,
}

/// How the tables come into an empty database.
pub(crate) enum Schema {
    Statements(&'static str),
    /// By migration; the queue `bench` keeps this of completed jobs.
    Outhaul {
        history: &'static str,
    },
}

/// Which of a design's inserts a producer uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Silent,
    Notifying,
    Keyed,
}

/// A parameter of an insert.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// JSON as text: `{"seq":N}` and padding.
    Payload,
    /// A UUIDv7 made by the client.
    Id,
}

impl Design {
    /// The statements that insert one job and many.
    pub(crate) fn inserts(&self, style: Style) -> Result<(&'static str, &'static str)> {
        match style {
            Style::Silent => Ok((self.silent, self.many)),
            Style::Notifying => Ok((self.notifying, self.many)),
            Style::Keyed => {
                let keyed = self.keyed.zip(self.many_keyed);
                keyed.with_context(|| format!("design {} has no idempotency keys", self.name))
            }
        }
    }
}

/// Runs the worker process of a reference until its parent ends it.
pub(crate) async fn work(spec: &Spec) -> Result<()> {
    match spec.kind {
        Kind::Plain => driver::run::<plain::PlainWorker>(spec, plain::PLAIN.channel).await,
        Kind::Functions => {
            driver::run::<functions::FunctionsWorker>(spec, functions::FUNCTIONS.channel).await
        }
        Kind::Seed => driver::run::<seed::SeedWorker>(spec, seed::SEED.channel).await,
        Kind::Outhaul | Kind::Reports => bail!("the library's worker is no reference"),
    }
}

/// Times `claims` claims of 100 jobs; each batch is replaced and settled before the next claim.
pub(crate) async fn time_claims(worker: Kind, url: &str, feed: &Feed, claims: u64) -> Result<Vec<Duration>> {
    match worker {
        Kind::Plain => driver::time_claims::<plain::PlainWorker>(url, feed, claims).await,
        Kind::Functions => driver::time_claims::<functions::FunctionsWorker>(url, feed, claims).await,
        Kind::Seed => driver::time_claims::<seed::SeedWorker>(url, feed, claims).await,
        Kind::Outhaul | Kind::Reports => bail!("the library's worker claims when it likes"),
    }
}
