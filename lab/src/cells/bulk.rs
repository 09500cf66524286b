//! Bulk enqueues: 1,000 jobs a call on one connection.

use anyhow::Result;

use super::single::enqueue;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::report::Metric::JobsPerSecond;
use crate::report::Sample;

pub(crate) const BULK: Cell = Cell {
    name: "bulk",
    about: "1,000 jobs a call on one connection; plain is one INSERT of the same rows into the thin table",
    variants: &["plain", "functions", "outhaul", "outhaul keyed"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "bulk enqueue / plain INSERT",
            of: ("outhaul", JobsPerSecond),
            to: Some(("plain", JobsPerSecond)),
            goal: Goal::AtLeast(0.6),
        },
        Comparison {
            what: "bulk enqueue with keys / plain INSERT",
            of: ("outhaul keyed", JobsPerSecond),
            to: Some(("plain", JobsPerSecond)),
            goal: Goal::AtLeast(0.3),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    enqueue(bench, variant, 1, 1_000).await
}
