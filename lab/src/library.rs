//! Enqueues as a program that uses the library makes them.

use anyhow::{Result, ensure};
use outhaul::{Enqueued, NewJob, Producer, StatementCache};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::db;
use crate::feed::incompressible;
use crate::reference::Style;
use crate::worker::Noop;

/// A connection that enqueues through [`Producer`]; each call is a transaction of its own. Statements are prepared
/// once, as those of the references are.
pub(crate) struct LibraryFeed {
    client: Client,
    statements: StatementCache,
    producer: Producer,
    keyed: bool,
    padding: Option<String>,
}

impl LibraryFeed {
    /// `padding`: bytes added to each payload.
    pub(crate) async fn connect(url: &str, style: Style, padding: usize) -> Result<Self> {
        Ok(Self {
            client: db::connect(url).await?,
            statements: StatementCache::default(),
            producer: Producer::default().notify(style != Style::Silent),
            keyed: style == Style::Keyed,
            padding: (padding > 0).then(|| incompressible(padding)),
        })
    }

    /// Enqueues job number `number`.
    pub(crate) async fn one(&mut self, number: u64) -> Result<()> {
        let job = self.job(number)?;
        let enqueued = self.producer.enqueue(&mut self.statements.on(&self.client), &job).await?;
        ensure!(matches!(enqueued, Enqueued::New(_)), "a new key was taken");
        Ok(())
    }

    /// Enqueues the jobs `first..first + count` in one call.
    pub(crate) async fn many(&mut self, first: u64, count: u64) -> Result<()> {
        let jobs = (first..first + count).map(|number| self.job(number)).collect::<Result<Vec<_>>>()?;
        let enqueued = self.producer.enqueue_many(&mut self.statements.on(&self.client), &jobs).await?;
        ensure!(enqueued.len() == jobs.len(), "{} of {} jobs were enqueued", enqueued.len(), jobs.len());
        Ok(())
    }

    fn job(&self, number: u64) -> Result<NewJob> {
        let job = NewJob::new(&Noop { seq: number, padding: self.padding.clone() })?;
        Ok(if self.keyed { job.idempotency_key(Uuid::now_v7().to_string()) } else { job })
    }
}
