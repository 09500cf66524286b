//! The programs everything is compared with, written before anything was measured against them.
//!
//! Each is the best simple form of its idea: prepared statements, batches, two connections, plans pinned to the index.

mod driver;
pub(crate) mod plain;
pub(crate) mod seed;

use std::time::Duration;

use anyhow::Result;

use crate::feed::Feed;
use crate::worker::{Kind, Spec};

/// Tables and statements of one way to keep jobs.
pub(crate) struct Design {
    /// Name in reports and of its template database.
    pub(crate) name: &'static str,
    /// The worker program that goes with it.
    pub(crate) worker: Kind,
    /// Makes the tables in an empty database.
    pub(crate) schema: &'static str,
    /// Inserts one job in a statement of its own.
    pub(crate) insert_one: &'static str,
    /// The same with a notification in the same statement.
    pub(crate) insert_and_notify: &'static str,
    /// Inserts many jobs, one array per column.
    pub(crate) insert_many: &'static str,
    /// What the three inserts take, in the order of their parameters.
    pub(crate) columns: &'static [Column],
    /// Fills the table with `$1` jobs inside the server, for depths that are too large to send.
    pub(crate) build: &'static str,
}

/// A parameter of an insert.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// JSON as text: `{"seq":N}` and padding.
    Payload,
    /// A UUIDv7 made by the client.
    Id,
}

/// Runs the worker process of a reference until its parent ends it.
pub(crate) async fn work(spec: &Spec) -> Result<()> {
    match spec.kind {
        Kind::Plain => driver::run::<plain::PlainWorker>(spec).await,
        Kind::Seed => driver::run::<seed::SeedWorker>(spec).await,
    }
}

/// Times `claims` claims of 100 jobs; each batch is replaced and settled before the next claim.
pub(crate) async fn time_claims(worker: Kind, url: &str, feed: &Feed, claims: u64) -> Result<Vec<Duration>> {
    match worker {
        Kind::Plain => driver::time_claims::<plain::PlainWorker>(url, feed, claims).await,
        Kind::Seed => driver::time_claims::<seed::SeedWorker>(url, feed, claims).await,
    }
}
