//! Runs cells in interleaved rounds.
//!
//! A cell measures a few variants of one thing. Every round measures each variant once, in an order that moves on by one
//! each round, and ratios are computed within a round: a machine that is slower for a minute slows both sides.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use serde::Serialize;

use crate::arena::Ground;
use crate::report::{CellReport, Metric, Sample, Spread, VariantReport};

/// A full run stops beginning rounds at this age, so that it ends within 40 minutes.
const LAST_ROUND_BEGINS: Duration = Duration::from_secs(37 * 60);

/// One thing that is measured.
pub(crate) struct Cell {
    /// What `--only` selects it by.
    pub(crate) name: &'static str,
    /// What is measured, in a line.
    pub(crate) about: &'static str,
    /// What is measured against each other.
    pub(crate) variants: &'static [&'static str],
    /// More rounds than this tell nothing more; for cells of more than a minute.
    pub(crate) most_rounds: usize,
    pub(crate) comparisons: &'static [Comparison],
    /// Measures a variant once.
    pub(crate) measure: for<'a> fn(&'a Bench, &'static str) -> BoxFuture<'a, Result<Sample>>,
}

/// A ratio of two variants, or a figure of one.
pub(crate) struct Comparison {
    pub(crate) what: &'static str,
    pub(crate) of: (&'static str, Metric),
    pub(crate) to: Option<(&'static str, Metric)>,
    pub(crate) goal: Goal,
}

/// What a comparison should come to.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// For information.
    None,
}

impl Goal {
    /// Whether the bad end of the spread reaches the goal.
    pub(crate) fn reached_by(self, spread: &Spread) -> Option<bool> {
        match self {
            Self::AtLeast(goal) => Some(spread.min >= goal),
            Self::AtMost(goal) => Some(spread.max <= goal),
            Self::None => None,
        }
    }

    /// The goal as people read it.
    pub(crate) fn show(self) -> String {
        match self {
            Self::AtLeast(goal) => format!(">= {goal}"),
            Self::AtMost(goal) => format!("<= {goal}"),
            Self::None => String::new(),
        }
    }
}

/// How much is done in each measurement.
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// Steady load before a window is measured, and the window.
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// Jobs of a drain, of the churn before a held drain, and of the memory cell.
    pub(crate) drain: u64,
    pub(crate) churn: u64,
    pub(crate) memory: u64,
    /// How long a snapshot is held under a closed loop.
    pub(crate) hold: Duration,
    /// Length of a latency measurement.
    pub(crate) drip: Duration,
    /// Pending jobs of the deep table, and claims timed on it.
    pub(crate) depth: u64,
    pub(crate) claims: u64,
}

impl Scale {
    /// A run whose numbers count.
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        warm_up: Duration::from_secs(1),
        window: Duration::from_secs(4),
        drain: 200_000,
        churn: 300_000,
        memory: 1_000_000,
        hold: Duration::from_secs(60),
        drip: Duration::from_secs(6),
        depth: 10_000_000,
        claims: 200,
    };

    /// A run that shows that everything runs.
    pub(crate) const SMOKE: Self = Self {
        rounds: 1,
        warm_up: Duration::from_millis(300),
        window: Duration::from_millis(700),
        drain: 20_000,
        churn: 20_000,
        memory: 50_000,
        hold: Duration::from_secs(2),
        drip: Duration::from_secs(1),
        depth: 100_000,
        claims: 30,
    };
}

/// What a measurement works with.
pub(crate) struct Bench {
    pub(crate) ground: Ground,
    pub(crate) scale: Scale,
}

/// Measures all `cells`; rounds are left out, and said so, when a run would become longer than 40 minutes.
pub(crate) async fn run(bench: &Bench, cells: &[Cell]) -> Result<Vec<CellReport>> {
    let mut progress = Progress::new(bench, cells);
    let mut reports = Vec::new();
    for cell in cells {
        reports.push(run_cell(bench, cell, &mut progress).await?);
    }
    Ok(reports)
}

async fn run_cell(bench: &Bench, cell: &Cell, progress: &mut Progress) -> Result<CellReport> {
    let rounds = rounds_of(bench, cell);
    let variants = cell.variants.iter().map(|name| VariantReport { name, rounds: vec![None; rounds] });
    let mut report =
        CellReport { name: cell.name, about: cell.about, variants: variants.collect(), ratios: Vec::new() };
    for round in 0..rounds {
        if round > 0 && progress.began.elapsed() > LAST_ROUND_BEGINS {
            eprintln!(
                "{}: rounds {} to {rounds} left out, the run has lasted long enough",
                cell.name,
                round + 1
            );
            break;
        }
        for turn in 0..cell.variants.len() {
            let index = (turn + round) % cell.variants.len();
            let variant = cell.variants[index];
            let sample = (cell.measure)(bench, variant)
                .await
                .with_context(|| format!("cell {}, variant {variant}, round {}", cell.name, round + 1))?;
            progress.step(cell, variant, round, rounds, &sample);
            report.variants[index].rounds[round] = Some(sample);
        }
    }
    bench.ground.clear_kept().await?;
    report.compare(cell.comparisons);
    Ok(report)
}

fn rounds_of(bench: &Bench, cell: &Cell) -> usize {
    bench.scale.rounds.min(cell.most_rounds)
}

/// The line about each measurement, on standard error.
struct Progress {
    began: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    fn new(bench: &Bench, cells: &[Cell]) -> Self {
        let all = cells.iter().map(|cell| rounds_of(bench, cell) * cell.variants.len()).sum();
        Self { began: Instant::now(), done: 0, all }
    }

    fn step(&mut self, cell: &Cell, variant: &str, round: usize, rounds: usize, sample: &Sample) {
        self.done += 1;
        let figures: Vec<String> = sample
            .iter()
            .take(3)
            .map(|(metric, value)| format!("{} {}", metric.show(*value), metric.label()))
            .collect();
        eprintln!(
            "[{:>3}/{} {:>4.0} s] {} round {}/{rounds} {variant}: {}",
            self.done,
            self.all,
            self.began.elapsed().as_secs_f64(),
            cell.name,
            round + 1,
            figures.join(", "),
        );
    }
}
