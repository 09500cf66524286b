//! A drain while another session holds an xid and a snapshot, after many jobs have come and gone under it.

use std::time::Duration;

use anyhow::Result;

use super::{design_of, fill_and_drain};
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::report::Metric::JobsPerSecond;
use crate::report::Sample;

/// A drain that is slower than this is counted as far as it came.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const HELD: Cell = Cell {
    name: "held",
    about: "200,000 jobs are drained, clean and after 300,000 were churned under a held snapshot and xid",
    variants: &["plain clean", "plain held", "outhaul clean", "outhaul held"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "drain under a held snapshot / clean",
            of: ("outhaul held", JobsPerSecond),
            to: Some(("outhaul clean", JobsPerSecond)),
            goal: Goal::AtLeast(0.95),
        },
        Comparison {
            what: "plain under a held snapshot / clean",
            of: ("plain held", JobsPerSecond),
            to: Some(("plain clean", JobsPerSecond)),
            goal: Goal::None,
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let arena = bench.ground.arena(design).await?;
    let holder = if variant.ends_with("held") { Some(arena.hold().await?) } else { None };
    if holder.is_some() {
        fill_and_drain(&arena, design, bench.scale.churn, LIMIT * 2).await?;
    }
    let sample = fill_and_drain(&arena, design, bench.scale.drain, LIMIT).await?;
    drop(holder);
    bench.ground.clear(arena).await?;
    Ok(sample)
}
