//! Memory of a worker process that goes through a million jobs, 100 at a time.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{design_of, of_worker};
use crate::feed::Feed;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::Style;
use crate::report::Metric::{MemoryGrowthMib, WorkerMemoryPeakMib};
use crate::report::{Metric, Sample};
use crate::worker::{Spec, Worker};

pub(crate) const MEMORY: Cell = Cell {
    name: "memory",
    about: "resident memory of a worker process with 100 concurrent no-op jobs over 1,000,000 jobs",
    variants: &["plain", "outhaul"],
    most_rounds: 2,
    comparisons: &[
        Comparison {
            what: "worker memory peak, MiB",
            of: ("outhaul", WorkerMemoryPeakMib),
            to: None,
            goal: Goal::AtMost(32.0),
        },
        Comparison {
            what: "growth over the last nine tenths, MiB",
            of: ("outhaul", MemoryGrowthMib),
            to: None,
            goal: Goal::AtMost(2.0),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let arena = bench.ground.arena(design).await?;
    let spec = Spec {
        kind: design.worker,
        url: arena.url.clone(),
        batch: 100,
        lanes: 1,
        concurrency: Some(100),
        wake: false,
    };
    let mut worker = Worker::start(&spec).await?;
    worker.go(0).await?;
    let feed = Feed::connect(&arena.url, design, Style::Silent, 0).await?;
    let settled = worker.settled();
    let produce = feed.flow(100, None, 4_000, settled);
    let watch = async {
        reach(&worker, bench.scale.memory / 10).await?;
        let early = worker.mark().await?.memory_kib;
        reach(&worker, bench.scale.memory).await?;
        anyhow::Ok((early, worker.mark().await?))
    };
    let (early, report) = tokio::select! {
        watched = watch => watched?,
        ended = produce => bail!("the producer ended: {ended:?}"),
    };
    worker.quit().await?;
    bench.ground.clear(arena).await?;
    let mut sample = of_worker(&report);
    sample.insert(Metric::MemoryGrowthMib, (report.memory_kib as f64 - early as f64) / 1024.0);
    Ok(sample)
}

async fn reach(worker: &Worker, jobs: u64) -> Result<()> {
    let mut settled = worker.settled();
    let reached = settled.wait_for(|settled| *settled >= jobs);
    tokio::time::timeout(Duration::from_secs(300), reached).await.context("the worker is too slow")??;
    Ok(())
}
