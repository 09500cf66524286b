//! What one job leaves in the WAL and in the tables over its whole life: a single enqueue, a claim, a settling.

use std::time::Duration;

use anyhow::Result;

use super::{design_of, drainer, style_of};
use crate::feed::{Crowd, Load};
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::report::Metric::{DeadTuplesPerJob, HotShare, WalBytesPerJob};
use crate::report::Sample;
use crate::worker::Worker;

/// Bytes added to a payload of `4k`.
const LARGE: usize = 4_096;

pub(crate) const WAL: Cell = Cell {
    name: "wal",
    about: "WAL and dead tuples over a job's life, enqueued singly by 8 clients, then drained; 4k: payloads of 4 KiB",
    variants: &["plain", "seed", "outhaul", "outhaul no-history", "plain 4k", "outhaul 4k"],
    // Bytes and tuples are counted, not timed: they differ by a few in a thousand between rounds.
    most_rounds: 3,
    comparisons: &[
        Comparison {
            what: "WAL B per job with history",
            of: ("outhaul", WalBytesPerJob),
            to: None,
            goal: Goal::AtMost(1_150.0),
        },
        Comparison {
            what: "WAL B per job without history",
            of: ("outhaul no-history", WalBytesPerJob),
            to: None,
            goal: Goal::AtMost(950.0),
        },
        Comparison {
            what: "dead tuples per job",
            of: ("outhaul", DeadTuplesPerJob),
            to: None,
            // Two, and the few rows of a worker's own upkeep.
            goal: Goal::AtMost(2.01),
        },
        Comparison {
            what: "HOT share of updates",
            of: ("outhaul", HotShare),
            to: None,
            goal: Goal::AtLeast(0.99),
        },
        Comparison {
            what: "HOT share of updates, 4 KiB payloads",
            of: ("outhaul 4k", HotShare),
            to: None,
            goal: Goal::AtLeast(0.99),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let padding = if variant.ends_with("4k") { LARGE } else { 0 };
    let arena = bench.ground.arena(design).await?;
    let load = Load { style: style_of(variant), clients: 8, size: 1, padding };
    let before = arena.reading().await?;
    let mut crowd = Crowd::start(&arena.url, design, load).await?;
    tokio::time::sleep(bench.scale.window / 2).await;
    let jobs = crowd.inserted()?;
    drop(crowd);
    let mut worker = Worker::start(&drainer(&arena, design)).await?;
    worker.go(jobs).await?;
    let report = worker.finished(Duration::from_secs(60)).await?;
    let after = arena.reading().await?;
    worker.quit().await?;
    let mut sample = Sample::new();
    after.per_job(&before, report.settled as f64, &mut sample);
    arena.changes().await?.per_job(report.settled as f64, &mut sample);
    bench.ground.clear(arena).await?;
    Ok(sample)
}
