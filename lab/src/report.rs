//! What a run measured, for people and as JSON.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::harness::{Comparison, Goal};

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    JobsPerSecond,
    ServerCpuUsPerJob,
    WorkerCpuUsPerJob,
    WalBytesPerJob,
    DeadTuplesPerJob,
    HotShare,
    WorkerMemoryMib,
    WorkerMemoryPeakMib,
    MemoryGrowthMib,
    ClaimP50Ms,
    ClaimP99Ms,
    LatencyP50Ms,
    LatencyP99Ms,
    LatencyFromSendP50Ms,
    LatencyFromSendP99Ms,
    BeforeJobsPerSecond,
    BeforeClaimP99Ms,
    RateKept,
    ClaimP99Growth,
    LongestTurnMs,
    AloneP99Ms,
    WaitRatio,
    WaitRatioLow,
    WaitRatioHigh,
}

impl Metric {
    /// Heading in the table.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::JobsPerSecond => "jobs/s",
            Self::ServerCpuUsPerJob => "server CPU us/job",
            Self::WorkerCpuUsPerJob => "worker CPU us/job",
            Self::WalBytesPerJob => "WAL B/job",
            Self::DeadTuplesPerJob => "dead tuples/job",
            Self::HotShare => "HOT share of updates",
            Self::WorkerMemoryMib => "worker memory MiB",
            Self::WorkerMemoryPeakMib => "worker memory peak MiB",
            Self::MemoryGrowthMib => "worker memory growth MiB",
            Self::ClaimP50Ms => "claim p50 ms",
            Self::ClaimP99Ms => "claim p99 ms",
            Self::LatencyP50Ms => "commit to handler p50 ms",
            Self::LatencyP99Ms => "commit to handler p99 ms",
            Self::LatencyFromSendP50Ms => "send to handler p50 ms",
            Self::LatencyFromSendP99Ms => "send to handler p99 ms",
            Self::BeforeJobsPerSecond => "before the hold jobs/s",
            Self::BeforeClaimP99Ms => "before the hold claim p99 ms",
            Self::RateKept => "rate after/before",
            Self::ClaimP99Growth => "claim p99 after/before",
            Self::LongestTurnMs => "longest turn ms",
            Self::AloneP99Ms => "alone p99 ms",
            Self::WaitRatio => "p99 beside/alone",
            Self::WaitRatioLow => "95 % from",
            Self::WaitRatioHigh => "95 % to",
        }
    }

    fn digits(self, value: f64) -> usize {
        match self {
            Self::JobsPerSecond | Self::BeforeJobsPerSecond | Self::WalBytesPerJob => 0,
            _ if value >= 100.0 => 0,
            _ if value >= 10.0 => 1,
            _ => 2,
        }
    }

    /// A value as people read it.
    pub(crate) fn show(self, value: f64) -> String {
        let text = format!("{value:.*}", self.digits(value));
        let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(w, f)| (w, Some(f)));
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index) % 3 == 0 && digit.is_ascii_digit() {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        fraction.map_or(grouped.clone(), |fraction| format!("{grouped}.{fraction}"))
    }
}

/// One measurement of one variant.
pub(crate) type Sample = BTreeMap<Metric, f64>;

/// Everything a run found out.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) conditions: Conditions,
    pub(crate) cells: Vec<CellReport>,
}

/// Where and how it was measured.
#[derive(Serialize)]
pub(crate) struct Conditions {
    pub(crate) server: String,
    pub(crate) settings: Vec<String>,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    /// Processes that wanted a core before the run began: more than a few tenths means a busy machine.
    pub(crate) load_before: f64,
    pub(crate) optimised: bool,
    pub(crate) smoke: bool,
    pub(crate) finished_at_unix: u64,
    pub(crate) seconds: f64,
}

/// The rounds of a cell.
#[derive(Serialize)]
pub(crate) struct CellReport {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Per variant, a sample per round; `None` where a variant runs in fewer rounds.
    pub(crate) variants: Vec<VariantReport>,
    pub(crate) ratios: Vec<Ratio>,
}

/// The samples of a variant, by round.
#[derive(Serialize)]
pub(crate) struct VariantReport {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Option<Sample>>,
}

/// A comparison, computed within each round.
#[derive(Serialize)]
pub(crate) struct Ratio {
    pub(crate) what: &'static str,
    pub(crate) goal: Goal,
    /// Absent when a side was not measured.
    pub(crate) spread: Option<Spread>,
    pub(crate) reached: Option<bool>,
}

/// Middle and ends of a few values.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` when there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

impl CellReport {
    /// Computes the ratios of `comparisons` from the samples.
    pub(crate) fn compare(&mut self, comparisons: &[Comparison]) {
        self.ratios = comparisons.iter().map(|comparison| self.ratio(comparison)).collect();
    }

    fn ratio(&self, comparison: &Comparison) -> Ratio {
        let rounds = self.variants.iter().map(|variant| variant.rounds.len()).max().unwrap_or(0);
        let values = (0..rounds).filter_map(|round| {
            let (variant, metric) = comparison.of;
            let value = self.value(variant, metric, round)?;
            match comparison.to {
                Some((variant, metric)) => Some(value / self.value(variant, metric, round)?),
                None => Some(value),
            }
        });
        let spread = Spread::of(values);
        let reached = spread.and_then(|spread| comparison.goal.reached_by(&spread));
        Ratio { what: comparison.what, goal: comparison.goal, spread, reached }
    }

    fn value(&self, variant: &str, metric: Metric, round: usize) -> Option<f64> {
        let variant = self.variants.iter().find(|found| found.name == variant)?;
        variant.rounds.get(round)?.as_ref()?.get(&metric).copied()
    }
}

impl Report {
    /// The table for people.
    pub(crate) fn show(&self) -> String {
        let mut text = self.conditions.show();
        for cell in &self.cells {
            text.push_str(&format!("\n{}: {}\n", cell.name, cell.about));
            text.push_str(&cell.figures());
            text.push_str(&cell.comparisons());
        }
        text
    }
}

impl Conditions {
    fn show(&self) -> String {
        let mut text = format!(
            "{}; {} cores, {:.0} GiB; load before {:.2}; {:.0} s in all\n{}\nmedian (least - most) of the rounds\n",
            self.server,
            self.cores,
            self.memory_gib,
            self.load_before,
            self.seconds,
            self.settings.join(", "),
        );
        if !self.optimised {
            text.push_str("UNOPTIMISED BUILD: shows that the benchmark runs; its numbers mean nothing\n");
        }
        if self.smoke {
            text.push_str("SMOKE RUN: cells are too short and too few for their numbers to mean anything\n");
        }
        text
    }
}

impl CellReport {
    fn figures(&self) -> String {
        let mut table = plain_table();
        let samples = self.variants.iter().flat_map(|variant| variant.rounds.iter().flatten());
        let metrics: BTreeSet<Metric> = samples.flat_map(|sample| sample.keys().copied()).collect();
        let names = self.variants.iter().map(|variant| variant.name.to_owned());
        table.set_header(std::iter::once(String::new()).chain(names));
        for metric in metrics {
            let cells = self
                .variants
                .iter()
                .map(|variant| variant.spread(metric).map_or("-".into(), |s| s.show(metric)));
            table.add_row(std::iter::once(metric.label().to_owned()).chain(cells));
        }
        align(&mut table);
        format!("{table}\n")
    }

    fn comparisons(&self) -> String {
        if self.ratios.is_empty() {
            return String::new();
        }
        let mut table = plain_table();
        table.set_header(["within each round", "measured", "goal", ""]);
        for ratio in &self.ratios {
            let measured = ratio.spread.map_or("not measured".into(), |s| s.show(Metric::RateKept));
            let verdict = match ratio.reached {
                Some(true) => "reached",
                Some(false) => "MISSED",
                None => "",
            };
            table.add_row([ratio.what.to_owned(), measured, ratio.goal.show(), verdict.to_owned()]);
        }
        align(&mut table);
        format!("{table}\n")
    }
}

impl VariantReport {
    fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.rounds.iter().flatten().filter_map(|sample| sample.get(&metric).copied()))
    }
}

impl Spread {
    fn show(&self, metric: Metric) -> String {
        let show = |value| metric.show(value);
        if self.min == self.max {
            return show(self.median);
        }
        format!("{} ({} - {})", show(self.median), show(self.min), show(self.max))
    }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
