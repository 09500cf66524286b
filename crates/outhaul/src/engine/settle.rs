//! Settling ended attempts, in batches.
//!
//! A batch goes out when it is full, when its oldest attempt has waited a few milliseconds, or at once with a cursor. One bad row
//! never fails its batch: the batch is split until the row stands alone, and what then still cannot be
//! stored loses its message and not its verdict. A row that somebody else has locked is set aside and tried
//! again by itself. While the database is away everything waits here; its leases are renewed as long as that
//! works, and the fence decides in the end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::handle::Ran;
use super::held::{Held, History, Lease, Plane, Registry};
use super::link::Db;
use super::plane::{self, Missing, Progress, Reported};
use crate::decide::retry::LONGEST_DELAY;
use crate::decide::verdict::{Ending, RetryPolicy, Verdict, verdict};
use crate::decide::words;
use crate::error::{Error, Result};
use crate::model::FailureClass;
use crate::telemetry;

/// Most attempts in one settling statement.
pub(crate) const BATCH: usize = 500;
/// How long an ended attempt waits for others.
pub(crate) const WINDOW: Duration = Duration::from_millis(5);
/// How long an attempt waits whose row was locked: each try may hold the others up for as long as a lock is
/// waited for, so it has to be rare.
const ASIDE: Duration = Duration::from_secs(1);

/// An attempt that has ended, with its verdict.
pub(crate) struct Ended {
    pub(crate) held: Arc<Held>,
    pub(crate) verdict: Verdict,
    pub(crate) report: Report,
    at: Instant,
    /// A report of it was sent and not answered: it may have been settled by that.
    uncertain: AtomicBool,
    /// Its row was locked by somebody else.
    locked: AtomicBool,
}

/// What a failure leaves on the row: bounded and cleaned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) class: Option<&'static str>,
    pub(crate) code: Option<String>,
    /// See [`Failure`](crate::failure::Failure).
    code_is_made: bool,
    pub(crate) summary: Option<String>,
    /// A handler said done after `complete_in`; "lost" then means that its commit went through.
    in_transaction: bool,
}

impl Report {
    /// The code as metrics are told it. An empty one is none of theirs.
    fn label(&self) -> Option<&str> {
        if self.code_is_made { Some("") } else { self.code.as_deref() }
    }
}

impl Ended {
    /// Decides on an attempt that has run.
    pub(crate) fn decide(held: Arc<Held>, ran: Ran, policy: &RetryPolicy, random: f64) -> Ended {
        let attempt = plane::attempt(held.claim_no, held.attempt(), held.max_attempts);
        let (ending, report) = match ran {
            Ran::Done => (Ending::Done, Report::default()),
            Ran::Abandoned => (Ending::Released, Report { class: Some("released"), ..Report::default() }),
            Ran::DoneInTransaction => (
                Ending::Failed(FailureClass::Transient.into()),
                Report {
                    class: Some(FailureClass::Transient.as_str()),
                    code: Some("not_committed".into()),
                    code_is_made: false,
                    summary: Some(
                        "the handler returned Ok after complete_in, but its transaction did not commit"
                            .into(),
                    ),
                    in_transaction: true,
                },
            ),
            Ran::Failed(failure) => {
                let class = failure.class().map_or("snooze", FailureClass::as_str);
                let report = Report {
                    class: Some(class),
                    code: failure.code,
                    code_is_made: failure.code_is_made,
                    summary: Some(words::summary(&failure.summary)),
                    in_transaction: false,
                };
                (Ending::Failed(failure.kind), report)
            }
        };
        let verdict = verdict(ending, attempt, policy, random);
        let verdict = match held.batch() {
            Some(batch) if batch.failed_as_one() => apart(verdict, policy),
            Some(batch) if batch.blocks => waiting(verdict, policy),
            _ => verdict,
        };
        Ended::new(held, verdict, report)
    }

    /// Gives a claim back that was never started.
    pub(crate) fn release(held: Arc<Held>) -> Ended {
        Ended::new(held, Verdict::Release, Report { class: Some("released"), ..Report::default() })
    }

    fn new(held: Arc<Held>, verdict: Verdict, report: Report) -> Ended {
        let (uncertain, locked) = (AtomicBool::new(false), AtomicBool::new(false));
        Ended { held, verdict, report, at: Instant::now(), uncertain, locked }
    }

    /// How far a batch of events got.
    fn progress(&self) -> Progress {
        let Some(batch) = self.held.batch() else { return Progress::default() };
        // A batch that was not begun has nothing at hand.
        let failed = !matches!(self.verdict, Verdict::Release);
        Progress {
            handled: Some(if self.verdict == Verdict::Complete { batch.handled() } else { batch.certain() }),
            at: Some(batch.at()).filter(|_| failed),
            unparked: batch.unparked,
            committed: batch.committed(),
        }
    }

    fn reported(&self, wordless: bool) -> Reported {
        let words = |text: &Option<String>| if wordless { None } else { text.clone() };
        Reported {
            verdict: self.verdict,
            class: self.report.class,
            code: words(&self.report.code),
            summary: words(&self.report.summary),
            progress: self.progress(),
        }
    }

    /// Whether the job stays and becomes due by itself.
    pub(crate) fn comes_back(&self) -> bool {
        matches!(self.verdict, Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release)
    }

    /// Whether the database lets others of its kind wait as well (see `fail.sql`).
    fn cools_down(&self) -> bool {
        let waits =
            matches!(self.verdict, Verdict::Retry(delay) | Verdict::Snooze(delay) if !delay.is_zero());
        waits
            && self.held.plane() == Plane::Jobs
            && self.report.class == Some(FailureClass::RateLimited.as_str())
    }

    /// Whether an unsettled state in the answer means that an earlier report of this attempt had settled it.
    fn was_settled_before(&self, state: &str) -> bool {
        // Without history nothing is left of a completed job that could tell.
        let untold = self.verdict == Verdict::Complete && self.held.history() == History::None;
        self.uncertain.load(Ordering::Relaxed) && (state == "done" || untold)
    }
}

/// A cursor that blocks waits at an event that failed for good, as long as it takes: going on would lose it.
pub(crate) fn waiting(verdict: Verdict, policy: &RetryPolicy) -> Verdict {
    if verdict == Verdict::DeadLetter { Verdict::Retry(policy.backoff.max) } else { verdict }
}

/// Events that failed together come again one by one, before any of them is given up.
fn apart(verdict: Verdict, policy: &RetryPolicy) -> Verdict {
    match verdict {
        Verdict::DeadLetter | Verdict::Cancel => Verdict::Retry(policy.backoff.base),
        verdict => verdict,
    }
}

/// Ended attempts on their way to the database.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Vec<Ended>>,
    arrived: Notify,
    /// A cursor is among those that wait, and nothing of its subscription is claimed before it is settled.
    urgent: AtomicBool,
}

impl Inbox {
    /// True when the settler was woken.
    pub(crate) fn push(&self, ended: Ended) -> bool {
        let urgent = ended.held.batch().is_some();
        let mut waiting = self.lock();
        waiting.push(ended);
        let worth_a_wake = waiting.len() == 1 || waiting.len() == BATCH || urgent;
        self.urgent.fetch_or(urgent, Ordering::Relaxed);
        drop(waiting);
        if worth_a_wake {
            self.arrived.notify_one();
        }
        worth_a_wake
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Ended>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take(&self) -> Vec<Ended> {
        let mut waiting = self.lock();
        let n = waiting.len().min(2 * BATCH);
        if n == waiting.len() {
            self.urgent.store(false, Ordering::Relaxed);
        }
        waiting.drain(..n).collect()
    }

    fn is_due(&self) -> Option<Duration> {
        let waiting = self.lock();
        let oldest = waiting.first()?;
        if waiting.len() >= BATCH || self.urgent.load(Ordering::Relaxed) {
            Some(Duration::ZERO)
        } else {
            Some(WINDOW.saturating_sub(oldest.at.elapsed()))
        }
    }
}

/// What is done with settled attempts.
pub(crate) type Acknowledge = Box<dyn Fn(&[Ended]) + Send + Sync>;

/// Settles what arrives until `last` is cancelled and nothing is left, or `now` is cancelled.
pub(crate) struct Settler {
    pub(crate) db: Db,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) registry: Arc<Registry>,
    /// Called with the claims that are settled, so that their sources can claim more.
    pub(crate) acknowledge: Acknowledge,
    pub(crate) last: CancellationToken,
    pub(crate) now: CancellationToken,
}

impl Settler {
    pub(crate) async fn run(self) {
        let mut aside = Vec::new();
        while let Some(batch) = self.next(&mut aside).await {
            tokio::select! {
                () = self.settle(&batch) => {}
                // Whatever is not acknowledged by now is left to the expiry of its lease.
                () = self.now.cancelled() => return,
            }
            let (locked, settled): (Vec<Ended>, Vec<Ended>) =
                batch.into_iter().partition(|ended| ended.locked.swap(false, Ordering::Relaxed));
            aside.extend(locked.into_iter().map(|ended| Ended { at: Instant::now(), ..ended }));
            self.registry.remove(settled.iter().map(|ended| &ended.held));
            (self.acknowledge)(&settled);
        }
    }

    /// Waits for the next batch; `None` when the last one has been taken.
    async fn next(&self, aside: &mut Vec<Ended>) -> Option<Vec<Ended>> {
        loop {
            let again = aside.first().map(|ended| ASIDE.saturating_sub(ended.at.elapsed()));
            match (self.inbox.is_due(), again) {
                (Some(Duration::ZERO), _) => return Some(self.inbox.take()),
                (_, Some(Duration::ZERO)) => return Some(std::mem::take(aside)),
                (None, None) if self.last.is_cancelled() => return None,
                (None, None) => {
                    tokio::select! {
                        () = self.inbox.arrived.notified() => {}
                        () = self.last.cancelled() => {}
                    }
                }
                (due, again) => {
                    let wait = due.into_iter().chain(again).min().unwrap_or_default();
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.inbox.arrived.notified() => {}
                    }
                }
            }
        }
    }

    /// Settles one batch, however long that takes; what is locked by others is marked so.
    async fn settle(&self, batch: &[Ended]) {
        // What one statement can settle. A job that this process has had twice meanwhile is in it once: answers go by
        // id, and the one report would be taken for the other.
        let mut groups: HashMap<(Plane, Option<History>, usize), Vec<&Ended>> = HashMap::new();
        let mut times: HashMap<Uuid, usize> = HashMap::new();
        for ended in batch {
            let history = (ended.verdict == Verdict::Complete).then(|| ended.held.history());
            let before = times.entry(ended.held.id).or_default();
            groups.entry((ended.held.plane(), history, *before)).or_default().push(ended);
            *before += 1;
        }
        for (_, group) in groups {
            self.group(group).await;
        }
    }

    async fn group(&self, mut group: Vec<&Ended>) {
        // Sorted, so that two processes that settle overlapping batches cannot wait for each other in a circle.
        group.sort_unstable_by_key(|ended| ended.held.id);
        let mut parts = vec![group];
        while let Some(part) = parts.pop() {
            let error = match self.send(&part, false).await {
                Ok(missing) => {
                    self.count(&part, &missing);
                    continue;
                }
                Err(error) => error,
            };
            if error.is_outcome_unknown() {
                part.iter().for_each(|ended| ended.uncertain.store(true, Ordering::Relaxed));
            }
            let waited = error.is_lock_wait();
            // Rights and functions that are missing are missing for all rows, and somebody will put that right.
            let whole = error.is_refused() || error.is_schema_mismatch();
            let away = !waited && (whole || error.is_retryable() || error.is_outcome_unknown());
            if away {
                tracing::warn!(%error, jobs = part.len(), "settling waits for the database");
                self.db.pause().await;
                parts.push(part);
            } else if part.len() > 1 {
                let rest = part.len() / 2;
                parts.push(part[rest..].to_vec());
                parts.push(part[..rest].to_vec());
            } else if waited {
                part[0].locked.store(true, Ordering::Relaxed);
            } else {
                self.alone(part[0], error).await;
            }
        }
    }

    /// A row that the database refuses by itself: once more without its own words.
    async fn alone(&self, ended: &Ended, error: Error) {
        tracing::error!(id = %ended.held.id, queue = ended.held.registered.queue, %error,
            "a report cannot be stored, its verdict is kept without it");
        match self.send(&[ended], true).await {
            Ok(missing) => self.count(&[ended], &missing),
            Err(error) => {
                tracing::error!(id = %ended.held.id, queue = ended.held.registered.queue, %error,
                    "a report cannot be stored, its lease will expire")
            }
        }
    }

    /// Sends one group of completions or of others. Returns the state of what was not settled.
    async fn send(&self, part: &[&Ended], wordless: bool) -> Result<Missing> {
        let started = Instant::now();
        let plane = part[0].held.plane();
        let leases: Vec<Lease> = part.iter().map(|ended| ended.held.named()).collect();
        let missing = if part[0].verdict == Verdict::Complete {
            let progress: Vec<Progress> = part.iter().map(|ended| ended.progress()).collect();
            plane::complete(&self.db, plane, &leases, part[0].held.history(), &progress).await?
        } else {
            let reports: Vec<Reported> = part.iter().map(|ended| ended.reported(wordless)).collect();
            plane::fail(&self.db, plane, &leases, &reports, false).await?
        };
        metrics::histogram!(telemetry::BATCH_DB, "phase" => "settle").record(started.elapsed());
        Ok(missing)
    }

    /// Tells metrics and log what became of each. A report that came too late is a normal end, not an error.
    fn count(&self, part: &[&Ended], missing: &Missing) {
        for ended in part {
            let metrics = &ended.held.registered.metrics;
            let state = missing.get(&ended.held.id).map(String::as_str);
            if state == Some("locked") {
                ended.locked.store(true, Ordering::Relaxed);
                continue;
            }
            if state == Some("cancelled") {
                // An order was followed, or came when the work was done already: no error of anybody.
                tracing::info!(job_id = %ended.held.id, claim_no = ended.held.claim_no, "the job was cancelled, its report changed nothing");
                metrics.settled("cancelled", None);
                continue;
            }
            let lost = state.is_some_and(|state| !ended.was_settled_before(state));
            if lost && !ended.report.in_transaction {
                let report = if ended.verdict == Verdict::Complete { "complete" } else { "fail" };
                metrics::counter!(telemetry::STALE_REPORTS, "report" => report).increment(1);
                metrics.settled("lease_lost", None);
                tracing::warn!(id = %ended.held.id, queue = ended.held.registered.queue, claim_no = ended.held.claim_no, report,
                    "the lease was lost, the report changed nothing");
                continue;
            }
            match ended.verdict {
                Verdict::Complete => metrics.completed.increment(ended.held.len() as u64),
                _ if lost && ended.report.in_transaction => {
                    metrics.completed.increment(ended.held.len() as u64)
                }
                verdict => metrics.settled(outcome(verdict), ended.report.label()),
            }
            if ended.cools_down() {
                let queue = ended.held.registered.queue.clone();
                metrics::counter!(telemetry::COOLDOWNS, "queue" => queue).increment(1);
            }
        }
    }
}

pub(crate) fn sql_verdict(verdict: Verdict) -> (&'static str, i64) {
    let millis = |delay: Duration| delay.min(LONGEST_DELAY).as_millis() as i64;
    match verdict {
        Verdict::Retry(delay) => ("retry", millis(delay)),
        Verdict::Snooze(delay) => ("snooze", millis(delay)),
        Verdict::Release => ("release", 0),
        Verdict::DeadLetter => ("dead_letter", 0),
        Verdict::Cancel => ("cancel", 0),
        Verdict::Complete => unreachable!("completions have a statement of their own"),
    }
}

pub(crate) fn outcome(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Complete => "completed",
        Verdict::Retry(_) => "retry",
        Verdict::Snooze(_) => "snoozed",
        Verdict::Release => "released",
        Verdict::DeadLetter => "dead_letter",
        Verdict::Cancel => "cancelled",
    }
}
