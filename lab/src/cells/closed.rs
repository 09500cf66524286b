//! The closed loop: jobs are enqueued, claimed, handled and settled at the same time, in batches of 100.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::task::JoinHandle;

use super::{design_of, of_worker};
use crate::arena::Arena;
use crate::feed::Feed;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::{Design, Style};
use crate::report::Metric::JobsPerSecond;
use crate::report::{Metric, Sample};
use crate::worker::{Spec, Worker};

/// Jobs a call, a claim and a settling take.
const BATCH: u32 = 100;
/// Jobs that wait at most: enough that claims are full, few enough that nothing piles up.
const BACKLOG: u64 = 4_000;

pub(crate) const CLOSED: Cell = Cell {
    name: "closed",
    about: "enqueue, claim, handle and settle at once; batches of 100, one worker process (the library's chooses its claims itself)",
    variants: &["seed", "functions", "functions no-history", "outhaul", "outhaul no-history", "plain"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "closed loop / minimal driver of the same functions",
            of: ("outhaul", JobsPerSecond),
            to: Some(("functions", JobsPerSecond)),
            goal: Goal::AtLeast(0.85),
        },
        Comparison {
            what: "closed loop with history / seed table in place",
            of: ("outhaul", JobsPerSecond),
            to: Some(("seed", JobsPerSecond)),
            goal: Goal::AtLeast(1.0),
        },
        Comparison {
            what: "closed loop without history / seed table in place",
            of: ("outhaul no-history", JobsPerSecond),
            to: Some(("seed", JobsPerSecond)),
            goal: Goal::AtLeast(1.1),
        },
        Comparison {
            what: "seed table in place / plain",
            of: ("seed", JobsPerSecond),
            to: Some(("plain", JobsPerSecond)),
            goal: Goal::None,
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let arena = bench.ground.arena(design).await?;
    let mut running = Loop::start(&arena, design, None).await?;
    tokio::time::sleep(bench.scale.warm_up).await;
    let sample = running.window(&arena, bench.scale.window).await?;
    running.stop().await?;
    bench.ground.clear(arena).await?;
    Ok(sample)
}

/// A producer in this process and a worker process.
pub(super) struct Loop {
    worker: Worker,
    producer: JoinHandle<Result<()>>,
    /// One lane, so that the time of a claim does not contain that of the claim before it.
    paced: bool,
}

impl Loop {
    /// Starts both: at full rate, or at `pace` jobs a second.
    pub(super) async fn start(arena: &Arena, design: &Design, pace: Option<u64>) -> Result<Self> {
        let paced = pace.is_some();
        let lanes = if paced { 1 } else { 3 };
        let spec = Spec {
            kind: design.worker,
            url: arena.url.clone(),
            batch: BATCH,
            lanes,
            concurrency: None,
            wake: false,
        };
        let mut worker = Worker::start(&spec).await?;
        let feed = Feed::connect(&arena.url, design, Style::Silent, 0).await?;
        let settled = worker.settled();
        worker.go(0).await?;
        let producer = tokio::spawn(async move { feed.flow(u64::from(BATCH), pace, BACKLOG, settled).await });
        Ok(Self { worker, producer, paced })
    }

    /// Measures for so long.
    pub(super) async fn window(&mut self, arena: &Arena, length: Duration) -> Result<Sample> {
        self.worker.mark().await?;
        let before = arena.reading().await?;
        tokio::time::sleep(length).await;
        let report = self.worker.mark().await?;
        let after = arena.reading().await?;
        if self.producer.is_finished() {
            (&mut self.producer).await?.context("the producer ended")?;
        }
        if report.settled == 0 {
            bail!("no job was settled in {length:?}");
        }
        let mut sample = of_worker(&report);
        after.per_job(&before, report.settled as f64, &mut sample);
        if self.paced {
            sample.insert(Metric::ClaimP50Ms, report.claim_p50_us as f64 / 1e3);
            sample.insert(Metric::ClaimP99Ms, report.claim_p99_us as f64 / 1e3);
        }
        Ok(sample)
    }

    /// Ends both.
    pub(super) async fn stop(self) -> Result<()> {
        self.producer.abort();
        self.worker.quit().await
    }
}
