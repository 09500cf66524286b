//! The smallest worker loop: claim, handle, settle, in a few lanes over two shared connections.
//!
//! Statements of different lanes are pipelined: while the settling backend deletes one batch, the claiming backend is
//! already on the next, and neither waits for the client between two statements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;
use tokio::sync::Notify;
use tokio_postgres::Client;

use crate::db;
use crate::feed::Feed;
use crate::worker::{Spec, Tally, serve};

/// Rest after an empty claim when nothing will wake the worker.
const POLL: Duration = Duration::from_millis(1);
/// The same when a notification will.
const POLL_LISTENING: Duration = Duration::from_secs(1);

/// Claims that are not timed: they fill the caches of the new sessions.
const WARM_CLAIMS: u64 = 10;

/// The two statements of a worker.
pub(super) trait Verbs: Sized {
    /// What settling a job needs to know about it.
    type Held;

    async fn connect(claimer: Client, settler: Client) -> Result<Self>;

    /// Takes up to `limit` due jobs, with their payloads, in a transaction of its own.
    async fn claim(&self, limit: i64) -> Result<Vec<(Self::Held, String)>>;

    /// Settles jobs in one statement; returns how many were still held.
    async fn settle(&self, held: Vec<Self::Held>) -> Result<u64>;
}

/// Runs lanes until the parent ends the process; `channel` carries the notifications of the design.
pub(super) async fn run<V: Verbs>(spec: &Spec, channel: &str) -> Result<()> {
    let (claimer, wake) = if spec.wake {
        let (client, wake) = db::connect_listening(&spec.url, channel).await?;
        (client, Some(wake))
    } else {
        (db::connect_for_work(&spec.url).await?, None)
    };
    let verbs = V::connect(claimer, db::connect_for_work(&spec.url).await?).await?;
    let tally = Tally::new(spec.wake)?;
    serve(&tally, async || {
        let lanes = (0..spec.lanes).map(|_| lane(&verbs, &tally, wake.as_ref(), i64::from(spec.batch)));
        try_join_all(lanes).await.map(drop)
    })
    .await
}

async fn lane<V: Verbs>(verbs: &V, tally: &Arc<Tally>, wake: Option<&Arc<Notify>>, batch: i64) -> Result<()> {
    loop {
        let began = Instant::now();
        let jobs = verbs.claim(batch).await?;
        tally.claimed(began.elapsed());
        if jobs.is_empty() {
            rest(wake).await;
            continue;
        }
        let mut held = Vec::with_capacity(jobs.len());
        for (job, payload) in jobs {
            // The body of every job: nothing.
            tally.starts(&payload);
            held.push(job);
        }
        tally.settles(verbs.settle(held).await?);
    }
}

async fn rest(wake: Option<&Arc<Notify>>) {
    match wake {
        Some(wake) => drop(tokio::time::timeout(POLL_LISTENING, wake.notified()).await),
        None => tokio::time::sleep(POLL).await,
    }
}

/// Claims, timed, on an otherwise idle table whose depth stays the same.
pub(super) async fn time_claims<V: Verbs>(url: &str, feed: &Feed, claims: u64) -> Result<Vec<Duration>> {
    let verbs = V::connect(db::connect_for_work(url).await?, db::connect_for_work(url).await?).await?;
    let mut times = Vec::new();
    for number in 0..WARM_CLAIMS + claims {
        let began = Instant::now();
        let jobs = verbs.claim(100).await?;
        if number >= WARM_CLAIMS {
            times.push(began.elapsed());
        }
        feed.many(0, jobs.len() as u64).await?;
        verbs.settle(jobs.into_iter().map(|(job, _)| job).collect()).await?;
    }
    Ok(times)
}
