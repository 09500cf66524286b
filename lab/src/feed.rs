//! Producers: jobs put into a design's table by its own insert statements.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::db;
use crate::library::LibraryFeed;
use crate::reference::{Column, Design, Style};
use crate::worker::Kind;

/// The number in a payload of ours, or 0 in any other.
pub(crate) fn number_of(payload: &str) -> u64 {
    let digits = payload.split_once("\"seq\":").map_or("", |(_, rest)| rest.trim_start());
    digits
        .bytes()
        .take_while(u8::is_ascii_digit)
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// A connection that inserts jobs; each call is a transaction of its own.
pub(crate) struct Feed {
    client: Client,
    one: Statement,
    many: Statement,
    columns: &'static [Column],
    padding: String,
}

impl Feed {
    /// `padding`: bytes added to each payload.
    pub(crate) async fn connect(url: &str, design: &Design, style: Style, padding: usize) -> Result<Self> {
        let client = db::connect(url).await?;
        let (one, many) = design.inserts(style)?;
        let (one, many) = (client.prepare(one).await?, client.prepare(many).await?);
        Ok(Self { client, one, many, columns: design.columns, padding: incompressible(padding) })
    }

    /// Inserts job number `number`.
    pub(crate) async fn one(&self, number: u64) -> Result<()> {
        let (id, payload) = (Uuid::now_v7(), self.payload(number));
        let values: Vec<&(dyn ToSql + Sync)> = self
            .columns
            .iter()
            .map(|column| match column {
                Column::Payload => &payload as &(dyn ToSql + Sync),
                Column::Id => &id,
            })
            .collect();
        self.client.execute(&self.one, &values).await?;
        Ok(())
    }

    /// Inserts the jobs `first..first + count` in one statement.
    pub(crate) async fn many(&self, first: u64, count: u64) -> Result<()> {
        let payloads: Vec<String> = (first..first + count).map(|number| self.payload(number)).collect();
        let ids: Vec<Uuid> = match self.columns.contains(&Column::Id) {
            true => payloads.iter().map(|_| Uuid::now_v7()).collect(),
            false => Vec::new(),
        };
        let values: Vec<&(dyn ToSql + Sync)> = self
            .columns
            .iter()
            .map(|column| match column {
                Column::Payload => &payloads as &(dyn ToSql + Sync),
                Column::Id => &ids,
            })
            .collect();
        self.client.execute(&self.many, &values).await?;
        Ok(())
    }

    /// Inserts `count` jobs in calls of `size`.
    pub(crate) async fn fill(&self, count: u64, size: u64) -> Result<()> {
        let mut next = 0;
        while next < count {
            let size = size.min(count - next);
            self.many(next, size).await?;
            next += size;
        }
        Ok(())
    }

    /// Inserts calls of `size` for ever, `pace` jobs a second or, without one, as fast as `backlog` jobs keep waiting.
    pub(crate) async fn flow(
        &self,
        size: u64,
        pace: Option<u64>,
        backlog: u64,
        mut settled: watch::Receiver<u64>,
    ) -> Result<()> {
        let mut next = 0;
        let mut ticks = pace.map(|pace| {
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(size as f64 / pace as f64));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            ticks
        });
        loop {
            match &mut ticks {
                Some(ticks) => drop(ticks.tick().await),
                None => drop(
                    settled.wait_for(|settled| next < settled + backlog).await.context("the worker ended")?,
                ),
            }
            self.many(next, size).await?;
            next += size;
        }
    }

    /// Inserts a job every `gap` for `length`; returns when each insert was sent and acknowledged, in nanoseconds of the
    /// system clock.
    pub(crate) async fn drip(&self, gap: Duration, length: Duration) -> Result<Vec<(u64, u64)>> {
        let mut sent = Vec::new();
        let mut ticks = tokio::time::interval(gap);
        let began = Instant::now();
        while began.elapsed() < length {
            ticks.tick().await;
            let before = system_nanos();
            self.one(sent.len() as u64).await?;
            sent.push((before, system_nanos()));
        }
        Ok(sent)
    }

    fn payload(&self, number: u64) -> String {
        match self.padding.as_str() {
            "" => format!("{{\"seq\":{number}}}"),
            padding => format!("{{\"seq\":{number},\"padding\":\"{padding}\"}}"),
        }
    }
}

/// Text that does not compress, as no real payload does as well as a repeated letter.
pub(crate) fn incompressible(bytes: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    (0..bytes).map(|_| random.alphanumeric()).collect()
}

/// What a [`Crowd`] does.
pub(crate) struct Load {
    pub(crate) style: Style,
    pub(crate) clients: usize,
    /// Jobs of each call.
    pub(crate) size: u64,
    /// Bytes added to each payload.
    pub(crate) padding: usize,
}

/// Many clients inserting at full speed until they are dropped, each insert a transaction of its own.
pub(crate) struct Crowd {
    inserted: Arc<AtomicU64>,
    clients: JoinSet<Result<Infallible>>,
}

impl Crowd {
    /// Connects the clients and lets them go.
    pub(crate) async fn start(url: &str, design: &Design, load: Load) -> Result<Self> {
        let inserted = Arc::new(AtomicU64::new(0));
        let mut feeds = Vec::new();
        for _ in 0..load.clients {
            feeds.push(match design.worker {
                Kind::Outhaul => {
                    Inserter::Library(LibraryFeed::connect(url, load.style, load.padding).await?)
                }
                _ => Inserter::Statements(Feed::connect(url, design, load.style, load.padding).await?),
            });
        }
        let mut crowd = Self { inserted, clients: JoinSet::new() };
        for feed in feeds {
            crowd.clients.spawn(insert_for_ever(feed, load.size, crowd.inserted.clone()));
        }
        Ok(crowd)
    }

    /// Jobs inserted and acknowledged so far; an error when a client has failed.
    pub(crate) fn inserted(&mut self) -> Result<u64> {
        match self.clients.try_join_next() {
            Some(ended) => ended?.map(|never| match never {}),
            None => Ok(self.inserted.load(Ordering::Relaxed)),
        }
    }
}

/// A client of a crowd.
enum Inserter {
    Statements(Feed),
    Library(LibraryFeed),
}

async fn insert_for_ever(mut feed: Inserter, size: u64, inserted: Arc<AtomicU64>) -> Result<Infallible> {
    loop {
        let first = inserted.load(Ordering::Relaxed);
        match (&mut feed, size) {
            (Inserter::Statements(feed), 1) => feed.one(first).await?,
            (Inserter::Statements(feed), _) => feed.many(first, size).await?,
            (Inserter::Library(feed), 1) => feed.one(first).await?,
            (Inserter::Library(feed), _) => feed.many(first, size).await?,
        }
        inserted.fetch_add(size, Ordering::Relaxed);
    }
}

/// The system clock, which all processes of the machine share.
pub(crate) fn system_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
