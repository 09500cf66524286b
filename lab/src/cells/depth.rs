//! The time of a claim at ten million pending jobs and at ten thousand.

use anyhow::Result;

use super::{design_of, quantile};
use crate::feed::Feed;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::{self, Style};
use crate::report::Metric::ClaimP50Ms;
use crate::report::{Metric, Sample};

/// Pending jobs of the shallow table.
const SHALLOW: u64 = 10_000;

pub(crate) const DEPTH: Cell = Cell {
    name: "depth",
    about: "a claim of 100 at 10,000,000 pending jobs (built once) and at 10,000, the depth kept up between claims",
    variants: &["plain 10k", "plain 10M", "functions 10k", "functions 10M"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "claim p50 at 10 M pending / at 10 k",
            of: ("functions 10M", ClaimP50Ms),
            to: Some(("functions 10k", ClaimP50Ms)),
            goal: Goal::AtMost(1.5),
        },
        Comparison {
            what: "plain claim p50 at 10 M pending / at 10 k",
            of: ("plain 10M", ClaimP50Ms),
            to: Some(("plain 10k", ClaimP50Ms)),
            goal: Goal::None,
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &'static str) -> Result<Sample> {
    let design = design_of(variant)?;
    let depth = if variant.ends_with("10M") { bench.scale.depth } else { SHALLOW };
    let arena =
        bench.ground.kept_arena(variant, design, async |arena| arena.build(design, depth).await).await?;
    let feed = Feed::connect(&arena.url, design, Style::Silent, 0).await?;
    let times = reference::time_claims(design.worker, &arena.url, &feed, bench.scale.claims).await?;
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    Ok(Sample::from([
        (Metric::ClaimP50Ms, quantile(&mut times, 0.5)),
        (Metric::ClaimP99Ms, quantile(&mut times, 0.99)),
    ]))
}
