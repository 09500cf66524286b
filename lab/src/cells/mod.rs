//! What is measured: one file for each family of cells.
//!
//! The goals stand next to what they are set for. Recoveries have no cell: their bounds are made of configured
//! intervals, and tests assert them.

mod bulk;
mod closed;
mod depth;
mod drain;
mod events;
mod governed;
mod held;
mod held_loop;
mod isolation;
mod memory;
mod single;
mod wake;
mod wal;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::arena::Arena;
use crate::feed::Feed;
use crate::harness::Cell;
use crate::reference::functions::{FUNCTIONS, FUNCTIONS_NO_HISTORY, OUTHAUL, OUTHAUL_NO_HISTORY};
use crate::reference::plain::PLAIN;
use crate::reference::seed::SEED;
use crate::reference::{Design, Style};
use crate::report::{Metric, Sample};
use crate::worker::{Report, Spec, Worker};

/// Rows of a call where the cell does not measure the size of calls.
const FILL: u64 = 1_000;

/// All cells, the short ones first: a run that becomes too long leaves out rounds at its end.
pub(crate) fn all() -> Vec<Cell> {
    vec![
        drain::DRAIN,
        closed::CLOSED,
        single::SINGLE,
        bulk::BULK,
        wake::WAKE,
        wal::WAL,
        governed::GOVERNED,
        events::publish::PUBLISH,
        events::feed::FEED,
        events::read::READ,
        events::sequencer::SEQUENCER,
        held::HELD,
        memory::MEMORY,
        isolation::ISOLATION,
        depth::DEPTH,
        events::read::CATCH_UP,
        events::feed::FEED_HELD,
        held_loop::HELD_FULL,
        held_loop::HELD_PACED,
    ]
}

/// The design whose name a variant's begins with.
fn design_of(variant: &str) -> Result<&'static Design> {
    let words: Vec<&str> = variant.split(' ').collect();
    match words[..] {
        ["plain", ..] => Ok(&PLAIN),
        ["seed", ..] => Ok(&SEED),
        ["functions", "no-history", ..] => Ok(&FUNCTIONS_NO_HISTORY),
        ["functions", ..] => Ok(&FUNCTIONS),
        ["outhaul", "no-history", ..] => Ok(&OUTHAUL_NO_HISTORY),
        ["outhaul", ..] => Ok(&OUTHAUL),
        _ => bail!("no design for variant {variant}"),
    }
}

/// How a variant's producers insert: as users of that design do, unless its name says otherwise.
fn style_of(variant: &str) -> Style {
    let says = |word| variant.split(' ').any(|found| found == word);
    match variant.split(' ').next() {
        _ if says("keyed") => Style::Keyed,
        Some("plain" | "seed") => Style::Silent,
        _ if says("silent") => Style::Silent,
        _ => Style::Notifying,
    }
}

/// The worker of a drain: large claims, and enough lanes that neither of its two backends waits for it.
fn drainer(arena: &Arena, design: &Design) -> Spec {
    Spec {
        kind: design.worker,
        url: arena.url.clone(),
        batch: 1_000,
        lanes: 3,
        concurrency: None,
        wake: false,
    }
}

/// Fills the table and drains it with a new worker process; an unfinished drain is counted as far as it came.
async fn fill_and_drain(arena: &Arena, design: &Design, jobs: u64, limit: Duration) -> Result<Sample> {
    Feed::connect(&arena.url, design, Style::Silent, 0).await?.fill(jobs, FILL).await?;
    let mut worker = Worker::start(&drainer(arena, design)).await?;
    let before = arena.reading().await?;
    worker.go(jobs).await?;
    let report = worker.finished(limit).await?;
    let after = arena.reading().await?;
    worker.quit().await?;
    let mut sample = of_worker(&report);
    after.per_job(&before, report.settled as f64, &mut sample);
    Ok(sample)
}

/// What a worker process says about an interval.
fn of_worker(report: &Report) -> Sample {
    let jobs = report.settled as f64;
    let mib = |kib: u64| kib as f64 / 1024.0;
    Sample::from([
        (Metric::JobsPerSecond, jobs * 1e6 / report.elapsed_us as f64),
        (Metric::WorkerCpuUsPerJob, report.cpu_us as f64 / jobs),
        (Metric::WorkerMemoryMib, mib(report.memory_kib)),
        (Metric::WorkerMemoryPeakMib, mib(report.memory_peak_kib)),
    ])
}

/// The value below which a share of the values lies; 0 of none.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_comparison_names_variants_of_its_cell() {
        for cell in super::all() {
            for comparison in cell.comparisons {
                for (side, _) in [Some(comparison.of), comparison.to].into_iter().flatten() {
                    assert!(
                        cell.variants.contains(&side),
                        "{}: {} compares {side}",
                        cell.name,
                        comparison.what
                    );
                }
            }
        }
    }
}
