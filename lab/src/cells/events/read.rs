//! Reading a backlog: with positions, against a cursor on the number of insertion, and from the beginning without any.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Reader, Seen, check_order, design_of};
use crate::arena::Arena;
use crate::db;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::events::EVENTS;
use crate::reference::naive::NaiveReader;
use crate::report::Metric::JobsPerSecond;
use crate::report::Sample;

/// A backlog that is not read within this counts as broken.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const READ: Cell = Cell {
    name: "read",
    about: "200,000 events that have their positions are read in batches by one reader; naive moves a cursor on the number \
            of insertion",
    variants: &["naive 100", "outhaul 100", "naive 1000", "outhaul 1000"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "batches of 100 / naive cursor",
            of: ("outhaul 100", JobsPerSecond),
            to: Some(("naive 100", JobsPerSecond)),
            goal: Goal::None,
        },
        Comparison {
            what: "batches of 1,000 / naive cursor",
            of: ("outhaul 1000", JobsPerSecond),
            to: Some(("naive 1000", JobsPerSecond)),
            goal: Goal::None,
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

pub(crate) const CATCH_UP: Cell = Cell {
    name: "catch-up",
    about: "1,000,000 committed events without positions are given positions and read, in batches of 1,000",
    variants: &["outhaul"],
    most_rounds: 1,
    comparisons: &[],
    measure: |bench, _| Box::pin(catch_up(bench)),
};

async fn measure(bench: &Bench, variant: &'static str) -> Result<Sample> {
    let design = design_of(variant);
    let batch: i32 = variant.rsplit(' ').next().unwrap_or_default().parse()?;
    let arena = bench.ground.arena(design).await?;
    let events = bench.scale.drain;
    arena.build(design, events).await?;
    if variant.starts_with("outhaul") {
        give_positions(&arena).await?;
        return read(bench, arena, batch, events).await;
    }
    let mut reader = NaiveReader::new(db::connect_for_work(&arena.url).await?, false).await?;
    let seen = Seen::default();
    let (before, began) = (arena.reading().await?, Instant::now());
    while reader.batch(i64::from(batch), &mut |payload| seen.note(payload)).await? > 0 {}
    let took = began.elapsed();
    let after = arena.reading().await?;
    let read = seen.take();
    ensure!(read.len() as u64 == events, "{} of {events} events were read", read.len());
    check_order(&read, 1)?;
    let mut sample = Sample::from([(JobsPerSecond, events as f64 / took.as_secs_f64())]);
    after.per_job(&before, events as f64, &mut sample);
    drop(reader);
    bench.ground.clear(arena).await?;
    Ok(sample)
}

async fn catch_up(bench: &Bench) -> Result<Sample> {
    let arena = bench.ground.arena(&EVENTS).await?;
    let events = bench.scale.memory;
    arena.build(&EVENTS, events).await?;
    read(bench, arena, 1_000, events).await
}

/// Reads the whole backlog with the library's worker; opening its sessions is part of what is measured.
async fn read(bench: &Bench, arena: Arena, batch: i32, events: u64) -> Result<Sample> {
    let seen = Seen::default();
    let (before, began) = (arena.reading().await?, Instant::now());
    let reader = Reader::start(&arena.url, Some(batch), &seen).await?;
    seen.until(events, LIMIT).await?;
    let took = began.elapsed();
    let after = arena.reading().await?;
    reader.stop().await?;
    check_order(&seen.take(), 1)?;
    let mut sample = Sample::from([(JobsPerSecond, events as f64 / took.as_secs_f64())]);
    after.per_job(&before, events as f64, &mut sample);
    bench.ground.clear(arena).await?;
    Ok(sample)
}

async fn give_positions(arena: &Arena) -> Result<()> {
    let client = db::connect(&arena.url).await?;
    while client.query_one("select outhaul.sequence(10000)", &[]).await?.get::<_, i32>(0) > 0 {}
    Ok(())
}
