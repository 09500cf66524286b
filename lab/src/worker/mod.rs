//! A worker under measurement: a child process of the same program, so that its CPU time and memory are its own.
//!
//! The two ends talk in lines of JSON: [`Order`] to the child's standard input, [`Word`] from its standard output. The
//! child keeps its connections open until its input ends, so that the server's CPU time is read while its backends live.

mod outhaul;
mod parent;
mod tally;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub(crate) use outhaul::{Noop, REPORTS, reports as work_reports, work as work_outhaul};
pub(crate) use parent::Worker;
pub(crate) use tally::{Tally, serve};

/// What a child is told on its command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Spec {
    /// Whose worker it is.
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// The database it works on.
    #[arg(long)]
    pub(crate) url: String,
    /// Jobs a claim may return.
    #[arg(long)]
    pub(crate) batch: u32,
    /// Batches in work at the same time.
    #[arg(long)]
    pub(crate) lanes: u32,
    /// Handlers that run at once, where the program has handlers; its own default without this.
    #[arg(long)]
    pub(crate) concurrency: Option<usize>,
    /// Keep the time at which each job's handler starts; references wake on notifications only then, the library always.
    #[arg(long)]
    pub(crate) wake: bool,
}

/// The programs a worker process can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The plain-SQL worker on a thin table.
    Plain,
    /// The seed's table, updated in place.
    Seed,
    /// The minimal driver of our own SQL functions.
    Functions,
    /// The worker of the library, as it comes: it chooses batches and lanes by itself.
    Outhaul,
    /// A worker of the library that makes reports: 200 ms of computing each, one at a time.
    Reports,
}

/// What the parent asks.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Start working; report by yourself once so many jobs are settled (never, when it is 0).
    Go { target: u64 },
    /// Report the interval since the last report, and begin a new one.
    Mark,
}

/// What the child says.
#[derive(Serialize, Deserialize)]
enum Word {
    /// Connected and prepared.
    Ready,
    /// Jobs settled since the start; said at most every 5 ms.
    Settled(u64),
    Report(Report),
}

/// An interval of a worker's life.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Jobs whose settling the server acknowledged.
    pub(crate) settled: u64,
    /// Length of the interval.
    pub(crate) elapsed_us: u64,
    /// CPU time of the worker process.
    pub(crate) cpu_us: u64,
    /// Resident memory at the end, and the highest since the process began.
    pub(crate) memory_kib: u64,
    pub(crate) memory_peak_kib: u64,
    /// Time of the claim statements, as the client sees it.
    pub(crate) claim_p50_us: u64,
    pub(crate) claim_p99_us: u64,
    /// When handlers started: the job's number and nanoseconds of the system clock.
    pub(crate) starts: Vec<(u64, u64)>,
}
