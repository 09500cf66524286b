//! The child's end: what it counts, and the loop that answers the parent.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::sync::{Notify, mpsc};

use super::{Order, Report, Word};
use crate::{feed, proc};

/// How often the count of settled jobs is said: a producer that keeps 4,000 jobs waiting needs no finer one.
const SAY_EVERY: Duration = Duration::from_millis(5);

/// A longer claim is counted as one of this length.
const LONGEST_CLAIM_US: u64 = 60_000_000;

/// Counts of a worker process, shared by its tasks.
pub(crate) struct Tally {
    settled: AtomicU64,
    target: AtomicU64,
    reached: Notify,
    interval: Mutex<Interval>,
    keep_starts: bool,
}

struct Interval {
    since: Instant,
    settled_before: u64,
    cpu_before: Duration,
    claims: Histogram<u64>,
    starts: Vec<(u64, u64)>,
    said: Instant,
    /// When the target was reached, which is a little before the report is put together.
    end: Option<Instant>,
}

impl Tally {
    pub(crate) fn new(keep_starts: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            settled: AtomicU64::new(0),
            target: AtomicU64::new(0),
            reached: Notify::new(),
            interval: Mutex::new(Interval::begin(0)?),
            keep_starts,
        }))
    }

    /// A claim statement took so long.
    pub(crate) fn claimed(&self, took: Duration) {
        self.interval().claims.saturating_record(took.as_micros() as u64);
    }

    /// The handler of a job starts.
    pub(crate) fn starts(&self, payload: &str) {
        if self.keep_starts {
            self.interval().starts.push((feed::number_of(payload), feed::system_nanos()));
        }
    }

    /// The server has acknowledged the settling of `count` jobs.
    pub(crate) fn settles(&self, count: u64) {
        let total = self.settled.fetch_add(count, Ordering::Relaxed) + count;
        let target = self.target.load(Ordering::Relaxed);
        let mut interval = self.interval();
        if target > 0 && total >= target && interval.end.is_none() {
            interval.end = Some(Instant::now());
            self.reached.notify_one();
        }
        if interval.said.elapsed() >= SAY_EVERY {
            interval.said = Instant::now();
            say(&Word::Settled(total));
        }
    }

    fn mark(&self) -> Result<Report> {
        let total = self.settled.load(Ordering::Relaxed);
        let mut interval = self.interval();
        let done = std::mem::replace(&mut *interval, Interval::begin(total)?);
        let (memory_kib, memory_peak_kib) = proc::own_memory()?;
        Ok(Report {
            settled: total - done.settled_before,
            elapsed_us: done.end.unwrap_or_else(Instant::now).duration_since(done.since).as_micros() as u64,
            cpu_us: (interval.cpu_before - done.cpu_before).as_micros() as u64,
            memory_kib,
            memory_peak_kib,
            claim_p50_us: done.claims.value_at_quantile(0.5),
            claim_p99_us: done.claims.value_at_quantile(0.99),
            starts: done.starts,
        })
    }

    fn interval(&self) -> MutexGuard<'_, Interval> {
        self.interval.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Interval {
    fn begin(settled_before: u64) -> Result<Self> {
        let now = Instant::now();
        Ok(Self {
            since: now,
            settled_before,
            cpu_before: proc::own_cpu()?,
            claims: Histogram::new_with_bounds(1, LONGEST_CLAIM_US, 3)?,
            starts: Vec::new(),
            said: now,
            end: None,
        })
    }
}

/// Says that the worker is ready, calls `work` at the order to go, and answers until the parent closes the input.
///
/// An error of `work` ends the process with that error.
pub(crate) async fn serve(tally: &Arc<Tally>, work: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let mut orders = hear();
    say(&Word::Ready);
    let Some(Order::Go { target }) = orders.recv().await else { return Ok(()) };
    tally.target.store(target, Ordering::Relaxed);
    tally.mark()?;
    let mut work = std::pin::pin!(work());
    loop {
        tokio::select! {
            ended = &mut work => return ended,
            () = tally.reached.notified() => say(&Word::Report(tally.mark()?)),
            order = orders.recv() => match order {
                Some(_) => say(&Word::Report(tally.mark()?)),
                None => return Ok(()),
            },
        }
    }
}

/// A thread of its own, because a pending read of standard input cannot be cancelled.
fn hear() -> mpsc::UnboundedReceiver<Order> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if sender.send(order).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A parent that no longer listens is gone, and its end of the input closes next.
fn say(word: &Word) {
    if let Ok(line) = serde_json::to_string(word) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}
