//! Emptying a full table: what claim and settle cost when nothing else happens.

use std::time::Duration;

use anyhow::Result;

use super::{design_of, fill_and_drain};
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::report::Metric::{JobsPerSecond, ServerCpuUsPerJob};
use crate::report::Sample;

pub(crate) const DRAIN: Cell = Cell {
    name: "drain",
    about: "200,000 no-op jobs are drained by one worker process; references claim 1,000 at once",
    variants: &["plain", "functions", "functions no-history", "outhaul", "outhaul no-history"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "drain with history / plain",
            of: ("outhaul", JobsPerSecond),
            to: Some(("plain", JobsPerSecond)),
            goal: Goal::AtLeast(0.9),
        },
        Comparison {
            what: "drain without history / plain",
            of: ("outhaul no-history", JobsPerSecond),
            to: Some(("plain", JobsPerSecond)),
            goal: Goal::AtLeast(1.1),
        },
        Comparison {
            what: "server CPU per drained job / plain",
            of: ("outhaul", ServerCpuUsPerJob),
            to: Some(("plain", ServerCpuUsPerJob)),
            goal: Goal::AtMost(1.3),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let arena = bench.ground.arena(design).await?;
    let mut sample = fill_and_drain(&arena, design, bench.scale.drain, Duration::from_secs(60)).await?;
    arena.changes().await?.per_job(bench.scale.drain as f64, &mut sample);
    bench.ground.clear(arena).await?;
    Ok(sample)
}
