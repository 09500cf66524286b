//! Single enqueues, each in a transaction of its own.

use anyhow::Result;

use super::{design_of, style_of};
use crate::db;
use crate::feed::{Crowd, Load};
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::{Design, Style};
use crate::report::Metric::{JobsPerSecond, ServerCpuUsPerJob};
use crate::report::{Metric, Sample};

/// Sessions that listen while jobs are enqueued, in every variant: a notification nobody hears costs little.
const LISTENERS: usize = 4;

pub(crate) const SINGLE: Cell = Cell {
    name: "single",
    about: "one job per transaction, by 8 and by 32 clients; plain is one INSERT without a notification",
    variants: &[
        "plain 8",
        "functions 8",
        "outhaul 8",
        "outhaul 8 silent",
        "outhaul 8 keyed",
        "outhaul 32",
        "outhaul 32 silent",
    ],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "single enqueue, 8 clients / plain INSERT",
            of: ("outhaul 8", JobsPerSecond),
            to: Some(("plain 8", JobsPerSecond)),
            goal: Goal::AtLeast(0.65),
        },
        Comparison {
            what: "single enqueue with a key, 8 clients / plain INSERT",
            of: ("outhaul 8 keyed", JobsPerSecond),
            to: Some(("plain 8", JobsPerSecond)),
            goal: Goal::AtLeast(0.55),
        },
        Comparison {
            what: "wake-ups on / off, 8 clients",
            of: ("outhaul 8", JobsPerSecond),
            to: Some(("outhaul 8 silent", JobsPerSecond)),
            goal: Goal::AtLeast(0.9),
        },
        Comparison {
            what: "wake-ups on / off, 32 clients",
            of: ("outhaul 32", JobsPerSecond),
            to: Some(("outhaul 32 silent", JobsPerSecond)),
            goal: Goal::AtLeast(0.9),
        },
        Comparison {
            what: "server CPU per single enqueue / plain INSERT",
            of: ("outhaul 8", ServerCpuUsPerJob),
            to: Some(("plain 8", ServerCpuUsPerJob)),
            goal: Goal::AtMost(2.0),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let clients = if variant.split(' ').nth(1) == Some("32") { 32 } else { 8 };
    enqueue(bench, variant, clients, 1).await
}

/// Inserts at full speed, as the variant's name says, and measures a window of it.
pub(super) async fn enqueue(bench: &Bench, variant: &str, clients: usize, size: u64) -> Result<Sample> {
    insert(bench, design_of(variant)?, style_of(variant), clients, size).await
}

/// Inserts `size` at once by each of the clients, at full speed, and measures a window of it.
pub(super) async fn insert(
    bench: &Bench,
    design: &'static Design,
    style: Style,
    clients: usize,
    size: u64,
) -> Result<Sample> {
    let arena = bench.ground.arena(design).await?;
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        listeners.push(db::connect_listening(&arena.url, design.channel).await?);
    }
    let load = Load { style, clients, size, padding: 0 };
    let mut crowd = Crowd::start(&arena.url, design, load).await?;
    tokio::time::sleep(bench.scale.warm_up).await;
    let (first, before) = (crowd.inserted()?, arena.reading().await?);
    tokio::time::sleep(bench.scale.window).await;
    let (last, after) = (crowd.inserted()?, arena.reading().await?);
    drop((crowd, listeners));
    let jobs = (last - first) as f64;
    let mut sample = Sample::from([(Metric::JobsPerSecond, jobs / after.seconds_since(&before))]);
    after.per_job(&before, jobs, &mut sample);
    bench.ground.clear(arena).await?;
    Ok(sample)
}
