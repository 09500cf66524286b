//! The closed loop before and after a minute of a held snapshot and xid, at full rate and at 5,000 jobs a second.

use anyhow::Result;

use super::closed::Loop;
use super::design_of;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::report::Metric::{
    BeforeClaimP99Ms, BeforeJobsPerSecond, ClaimP99Growth, ClaimP99Ms, JobsPerSecond, RateKept,
};
use crate::report::{Metric, Sample};

pub(crate) const HELD_FULL: Cell = Cell {
    name: "held-full",
    about: "closed loop at full rate, after 60 s of a held snapshot and xid against before",
    variants: &["outhaul"],
    most_rounds: 3,
    comparisons: &[Comparison {
        what: "closed loop at full rate, held / before",
        of: ("outhaul", RateKept),
        to: None,
        goal: Goal::AtLeast(0.7),
    }],
    measure: |bench, variant| Box::pin(measure(bench, variant, None)),
};

pub(crate) const HELD_PACED: Cell = Cell {
    name: "held-paced",
    about: "the same at 5,000 jobs a second",
    variants: &["outhaul"],
    most_rounds: 3,
    comparisons: &[
        Comparison {
            what: "closed loop at 5,000 jobs/s, held / before",
            of: ("outhaul", RateKept),
            to: None,
            goal: Goal::AtLeast(0.98),
        },
        Comparison {
            what: "claim p99, held / before",
            of: ("outhaul", ClaimP99Growth),
            to: None,
            goal: Goal::AtMost(2.0),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant, Some(5_000))),
};

/// A figure of the window under the hold, what it was before, and their ratio.
const COMPARED: [(Metric, Metric, Metric); 2] =
    [(JobsPerSecond, BeforeJobsPerSecond, RateKept), (ClaimP99Ms, BeforeClaimP99Ms, ClaimP99Growth)];

async fn measure(bench: &Bench, variant: &str, pace: Option<u64>) -> Result<Sample> {
    let design = design_of(variant)?;
    let arena = bench.ground.arena(design).await?;
    let mut running = Loop::start(&arena, design, pace).await?;
    tokio::time::sleep(bench.scale.warm_up).await;
    let before = running.window(&arena, bench.scale.window).await?;
    let holder = arena.hold().await?;
    tokio::time::sleep(bench.scale.hold).await;
    let mut sample = running.window(&arena, bench.scale.window).await?;
    drop(holder);
    running.stop().await?;
    bench.ground.clear(arena).await?;
    for (metric, earlier, ratio) in COMPARED {
        if let (Some(&after), Some(&before)) = (sample.get(&metric), before.get(&metric)) {
            sample.insert(earlier, before);
            sample.insert(ratio, after / before);
        }
    }
    Ok(sample)
}
