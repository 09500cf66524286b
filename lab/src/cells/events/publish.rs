//! Publishing: one event per transaction by 8 clients, and 1,000 a call on one connection.

use anyhow::Result;

use crate::cells::single::insert;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::Style;
use crate::report::Metric::JobsPerSecond;
use crate::report::Sample;

pub(crate) const PUBLISH: Cell = Cell {
    name: "publish",
    about: "one event per transaction by 8 clients, and 1,000 a call; naive is an INSERT into an outbox without a feed",
    variants: &["naive single", "outhaul single", "naive bulk", "outhaul bulk"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "publish, 8 clients / naive INSERT",
            of: ("outhaul single", JobsPerSecond),
            to: Some(("naive single", JobsPerSecond)),
            goal: Goal::None,
        },
        Comparison {
            what: "publish_many / naive INSERT",
            of: ("outhaul bulk", JobsPerSecond),
            to: Some(("naive bulk", JobsPerSecond)),
            goal: Goal::None,
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let (clients, size) = if variant.ends_with("bulk") { (1, 1_000) } else { (8, 1) };
    let style = if variant.starts_with("outhaul") { Style::Notifying } else { Style::Silent };
    insert(bench, super::design_of(variant), style, clients, size).await
}
