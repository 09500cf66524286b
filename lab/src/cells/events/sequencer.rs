//! The sequencer: how fast committed events get their positions, clean and behind a held snapshot.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::db;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::events::EVENTS;
use crate::report::Metric::{JobsPerSecond, LongestTurnMs};
use crate::report::Sample;

/// Events of a turn.
const TURN: i32 = 1_000;

pub(crate) const SEQUENCER: Cell = Cell {
    name: "sequencer",
    about: "turns of 1,000 events, while 300,000 come and go, clean and under a held snapshot and xid: the last third of them",
    variants: &["outhaul clean", "outhaul held"],
    most_rounds: 3,
    comparisons: &[Comparison {
        what: "sequencer under a held snapshot / clean",
        of: ("outhaul held", JobsPerSecond),
        to: Some(("outhaul clean", JobsPerSecond)),
        goal: Goal::None,
    }],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let arena = bench.ground.arena(&EVENTS).await?;
    let holder = if variant.ends_with("held") { Some(arena.hold().await?) } else { None };
    let client = db::connect(&arena.url).await?;
    let (insert, turn) =
        (client.prepare(EVENTS.build).await?, client.prepare("select outhaul.sequence($1)").await?);
    let turns = (bench.scale.churn / TURN as u64).max(3);
    let mut times = Vec::new();
    for _ in 0..turns {
        client.execute(&insert, &[&i64::from(TURN)]).await?;
        let began = Instant::now();
        let given: i32 = client.query_one(&turn, &[&TURN]).await?.get(0);
        times.push(began.elapsed());
        ensure!(given == TURN, "{given} of {TURN} events got a position");
    }
    drop((client, holder));
    bench.ground.clear(arena).await?;
    let last = &times[times.len() - times.len() / 3..];
    let took: Duration = last.iter().sum();
    let longest = last.iter().max().copied().unwrap_or_default();
    Ok(Sample::from([
        (JobsPerSecond, last.len() as f64 * f64::from(TURN) / took.as_secs_f64()),
        (LongestTurnMs, longest.as_secs_f64() * 1e3),
    ]))
}
