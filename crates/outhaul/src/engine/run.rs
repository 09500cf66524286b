//! THE loop of a source: wait for a reason, claim, hand out, and wait again.
//!
//! Two sides share a small state under one lock. The fetching side claims and fills the buffer; runners
//! take from it, run handlers, and leave the end of each attempt for the settler. A runner is a task that
//! lives while there is something to run, so a job costs no task of its own.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handle::{self, Grace};
use super::held::{Held, Registry, Stop};
use super::settle::{Ended, Inbox};
use super::source::{Batch, Scan, Source};
use super::vital::Vital;
use super::wake::{Cause, Waker};
use crate::decide::pace::{self, Average, Load, Look};
use crate::decide::verdict::RetryPolicy;
use crate::model::SchemaName;
use crate::telemetry;

/// One source being worked.
pub(crate) struct Line {
    pub(crate) source: Source,
    pub(crate) schema: SchemaName,
    pub(crate) policy: RetryPolicy,
    pub(crate) concurrency: usize,
    pub(crate) poll: Duration,
    pub(crate) grace: Grace,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) waker: Arc<Waker>,
    /// Cancelled when nothing more may be claimed.
    pub(crate) no_more: CancellationToken,
    pub(crate) runners: TaskTracker,
    pub(crate) vital: Vital,
    pub(crate) state: Mutex<State>,
    pub(crate) room: Notify,
    /// A job was given back that becomes due by itself, so an idle line has to think again about its sleep.
    pub(crate) later: Notify,
}

/// How long a stopping line waits for the answer of a claim that is under way.
const LAST_CLAIM: Duration = Duration::from_secs(1);

pub(crate) struct State {
    buffer: VecDeque<Arc<Held>>,
    /// At this many buffered jobs the fetching side is told that there is room again.
    low: usize,
    running: usize,
    unsettled: usize,
    service_time: Average,
    claim_time: Average,
    /// When a handler last began or ended.
    moved: Instant,
    /// A limit of the queue kept work back: nothing is claimed ahead, because its units are everybody's.
    kept_back: bool,
}

impl State {
    /// How long nothing has moved although every slot is taken.
    fn standing(&self, concurrency: usize) -> Duration {
        if self.running < concurrency { Duration::ZERO } else { self.moved.elapsed() }
    }
}

impl Default for State {
    fn default() -> State {
        State {
            buffer: VecDeque::new(),
            low: 0,
            running: 0,
            unsettled: 0,
            // Until something is known, assume handlers slow enough that nothing is claimed ahead.
            service_time: Average::new(Duration::from_millis(100)),
            claim_time: Average::new(Duration::from_millis(2)),
            moved: Instant::now(),
            kept_back: false,
        }
    }
}

/// When this line looked last, and what it may do next.
struct Rounds {
    near_due: Instant,
    near_cost: Duration,
    far_due: Instant,
    woken: Option<Instant>,
    /// No rescan has followed the last wake yet: what woke may lie behind the floors, or in a new lane.
    owed: bool,
    cause: Cause,
    /// Since when claims have brought something.
    draining: Option<Instant>,
    /// When a limit lets the next job go.
    again: Option<Instant>,
}

impl Line {
    /// Works the queue until `no_more` is cancelled. What is still buffered then is given back.
    pub(crate) async fn run(self: Arc<Self>) {
        let now = Instant::now();
        let mut rounds = Rounds {
            near_due: now + pace::near_every(Duration::ZERO),
            near_cost: Duration::ZERO,
            far_due: now + pace::far_every(Duration::ZERO),
            woken: None,
            owed: false,
            cause: Cause::Startup,
            draining: None,
            again: None,
        };
        let mut wakes = self.waker.subscribe();
        tokio::select! {
            loaded = self.source.take_over() => {
                if let Err(error) = loaded {
                    tracing::debug!(%error, "no published floors");
                }
            }
            () = self.no_more.cancelled() => {}
        }
        while !self.no_more.is_cancelled() {
            let size = self.claim_size();
            if size == 0 {
                tokio::select! {
                    () = self.room.notified() => {}
                    () = tokio::time::sleep(self.source.common().lease / 4) => self.give_back_stuck(),
                    () = self.no_more.cancelled() => break,
                }
                continue;
            }
            let more = {
                let look = self.look(size, &mut rounds);
                tokio::pin!(look);
                tokio::select! {
                    more = &mut look => more,
                    () = self.no_more.cancelled() => {
                        // The claim may have leased jobs already: with its answer they can be given back now,
                        // and without it only when their leases end.
                        let _ = tokio::time::timeout(LAST_CLAIM, look).await;
                        break;
                    }
                }
            };
            if !more {
                if let Some(began) = rounds.draining.take() {
                    let name = self.source.name().to_owned();
                    metrics::histogram!(telemetry::DRAIN_DURATION, "queue" => name).record(began.elapsed());
                }
                tokio::select! {
                    () = self.wait(&mut rounds, &mut wakes) => {}
                    () = self.no_more.cancelled() => break,
                }
            }
        }
        self.give_back();
    }

    /// One claim. True when it is worth looking again at once.
    async fn look(self: &Arc<Self>, size: usize, rounds: &mut Rounds) -> bool {
        let scan = rounds.scan();
        match self.source.claim(size, scan).await {
            Ok(batch) => {
                rounds.looked(scan, batch.took);
                let n = batch.held.len() + batch.unknown.len();
                let full = batch.full;
                rounds.again = batch.again.map(|again| Instant::now() + again);
                self.lock().kept_back = batch.kept_back;
                if batch.kept_back {
                    let name = self.source.name().to_owned();
                    metrics::counter!(telemetry::CLAIMS_KEPT_BACK, "queue" => name).increment(1);
                }
                self.take(batch);
                if n > 0 {
                    rounds.draining.get_or_insert_with(Instant::now);
                    // A short claim has seen the end of every lane it scanned.
                    return full;
                }
                let cause = rounds.cause.as_str();
                metrics::counter!(telemetry::DRAIN_EMPTY, "queue" => self.source.name().to_owned(), "cause" => cause).increment(1);
                // Nothing from the floors on: before sleeping, look a little behind them, where late commits are.
                scan == Scan::Ordinary && rounds.near_is_cheap()
            }
            Err(error) => {
                tracing::warn!(queue = self.source.name(), %error, hint = error.hint(), "claim failed");
                if error.is_history_truncated() || error.is_history_diverged() || error.is_not_found() {
                    // Nobody but an operator can change that.
                    tokio::time::sleep(self.poll.max(LAST_CLAIM)).await;
                } else {
                    self.source.common().db.pause().await;
                }
                true
            }
        }
    }

    fn take(self: &Arc<Self>, batch: Batch) {
        if !batch.unknown.is_empty() {
            self.registry.insert(&batch.unknown);
            self.lock().unsettled += batch.unknown.len();
            for held in batch.unknown {
                self.inbox.push(Ended::release(held));
            }
        }
        if batch.held.is_empty() {
            return;
        }
        self.registry.insert(&batch.held);
        let (start, used) = {
            let mut state = self.lock();
            state.claim_time.add(batch.took);
            state.buffer.extend(batch.held);
            state.low = state.buffer.len() / 2;
            // What a last claim brings is not begun any more.
            let slots = if self.no_more.is_cancelled() { 0 } else { self.concurrency - state.running };
            let start = slots.min(state.buffer.len());
            state.running += start;
            state.moved = Instant::now();
            (start, state.running)
        };
        self.show_slots(used);
        for _ in 0..start {
            self.runners.spawn(self.vital.clone().part("runner of jobs", self.clone().runner()));
        }
    }

    /// Runs jobs until the buffer is empty.
    async fn runner(self: Arc<Self>) {
        let mut woke = false;
        while let Some(held) = self.next(&mut woke) {
            if std::mem::take(&mut woke) {
                // A task that was woken from here may be kept for this very thread, and the handler may block
                // it: claims and reports would wait for as long.
                step_aside().await;
            }
            let started = Instant::now();
            if held.attempts > 1 {
                held.registered.metrics.repeats.increment(1);
            }
            // Told to stop before it began: its lease is gone, or the worker is.
            let ran = match held.stop_reason() {
                Some(_) => handle::Ran::Abandoned,
                None => handle::run(&held, &self.schema, &self.grace).await,
            };
            held.end();
            let ended_at = Instant::now();
            let took = ended_at - started;
            let metrics = &held.registered.metrics;
            if matches!(ran, handle::Ran::Failed(_)) {
                metrics.error.record(took)
            } else {
                metrics.ok.record(took)
            }
            let ended = Ended::decide(held, ran, &self.policy, fastrand::f64());
            {
                let mut state = self.lock();
                state.service_time.add(took);
                state.moved = ended_at;
                state.unsettled += 1;
            }
            woke = self.inbox.push(ended);
        }
    }

    /// The next buffered job, or `None` after counting the runner out.
    fn next(&self, woke: &mut bool) -> Option<Arc<Held>> {
        let mut state = self.lock();
        let next = state.buffer.pop_front();
        if next.is_none() {
            state.running -= 1;
        }
        // Not at each job: waking the fetching side costs more than running a small one.
        let room = state.buffer.is_empty() || state.buffer.len() == state.low;
        drop(state);
        if room {
            self.room.notify_one();
            *woke = true;
        }
        next
    }

    /// Called by the settler for acknowledged claims of this line; `later` when some will be due again.
    pub(crate) fn settled(&self, n: usize, later: bool) {
        let used = {
            let mut state = self.lock();
            state.unsettled -= n;
            state.running
        };
        self.show_slots(used);
        self.room.notify_one();
        if later {
            self.later.notify_one();
        }
    }

    fn show_slots(&self, used: usize) {
        let slots = |kind: &'static str| metrics::gauge!(telemetry::QUEUE_SLOTS, "queue" => self.source.name().to_owned(), "kind" => kind);
        slots("used").set(used as f64);
        slots("limit").set(self.concurrency as f64);
    }

    /// Gives the buffer back when no handler has moved for a quarter of the lease: what was claimed ahead
    /// because handlers were fast may wait behind slow ones now, while another process could run it.
    fn give_back_stuck(&self) {
        let standing = self.lock().standing(self.concurrency);
        if standing >= self.source.common().lease / 4 {
            self.give_back();
        }
    }

    /// Gives everything back that was claimed and not started.
    fn give_back(&self) {
        let mut state = self.lock();
        let waiting: Vec<_> = state.buffer.drain(..).collect();
        state.unsettled += waiting.len();
        drop(state);
        for held in waiting {
            self.inbox.push(Ended::release(held));
        }
    }

    /// Asks all running handlers to stop.
    pub(crate) fn stop_all(&self, why: Stop) {
        for held in self.registry.select(|held| held.registered.queue == self.source.name()) {
            held.stop(why);
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.lock().running
    }

    fn claim_size(&self) -> usize {
        let load = self.load();
        if self.source.is_serial() {
            return usize::from(load.running + load.buffered + load.unsettled == 0);
        }
        pace::claim_size(load)
    }

    fn load(&self) -> Load {
        let state = self.lock();
        Load {
            concurrency: self.concurrency,
            ahead: !state.kept_back,
            running: state.running,
            buffered: state.buffer.len(),
            unsettled: state.unsettled,
            // While all slots stand still the past says too little about how long handlers take.
            service_time: state.service_time.get().max(state.standing(self.concurrency)),
            claim_time: state.claim_time.get(),
            lease: self.source.common().lease,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sleeps until there is a reason to look, and notes the reason.
    async fn wait(&self, rounds: &mut Rounds, wakes: &mut tokio::sync::watch::Receiver<super::wake::Wake>) {
        rounds.cause = loop {
            let poll = self.waker.poll(self.poll);
            // Asked only by an idle worker, once before each longer sleep.
            let next_due =
                if rounds.lingering() { None } else { self.source.next_due().await.ok().flatten() };
            let since_wake = rounds.woken.map(|at| at.elapsed());
            let sleep = pace::sleep(Look { since_wake, poll, next_due })
                .min(rounds.until_owed())
                .min(rounds.until_again());
            tokio::select! {
                changed = wakes.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    rounds.woken = Some(Instant::now());
                    rounds.owed = true;
                    break wakes.borrow_and_update().cause;
                }
                () = self.later.notified() => {}
                () = tokio::time::sleep(sleep) => {
                    break if since_wake.is_some_and(is_lingering) {
                        Cause::Linger
                    } else if rounds.until_again() == Duration::ZERO {
                        rounds.again = None;
                        Cause::Due
                    } else if rounds.owed {
                        Cause::Rescan
                    } else if next_due.is_some_and(|due| due <= sleep) {
                        Cause::Due
                    } else {
                        Cause::Poll
                    };
                }
            }
        };
        metrics::counter!(telemetry::WAKES, "cause" => rounds.cause.as_str()).increment(1);
    }
}

impl Rounds {
    fn scan(&self) -> Scan {
        let now = Instant::now();
        if self.cause == Cause::Reconnect || now >= self.far_due {
            Scan::Far
        } else if self.cause == Cause::Poll || now >= self.near_due {
            Scan::Near
        } else {
            Scan::Ordinary
        }
    }

    fn looked(&mut self, scan: Scan, took: Duration) {
        let now = Instant::now();
        if scan != Scan::Ordinary {
            self.near_due = now + pace::near_every(took);
            self.owed = false;
            // The cause has had its scan; what follows in this round is ordinary.
            self.cause = Cause::Rescan;
        }
        match scan {
            Scan::Ordinary => {}
            Scan::Near => self.near_cost = took,
            Scan::Far => self.far_due = now + pace::far_every(took),
        }
    }

    /// Lets the near rescan go ahead of its turn. Behind the floors there may be many dead rows; once it has
    /// been dear, it waits.
    fn near_is_cheap(&mut self) -> bool {
        let cheap = self.near_cost < Duration::from_millis(2);
        if cheap {
            self.near_due = Instant::now();
        }
        cheap
    }

    /// How long a sleep may last for the sake of the rescan that is owed.
    fn until_owed(&self) -> Duration {
        if self.owed { self.near_due.saturating_duration_since(Instant::now()) } else { Duration::MAX }
    }

    /// How long a sleep may last for the sake of what a limit lets go then.
    fn until_again(&self) -> Duration {
        self.again.map_or(Duration::MAX, |again| again.saturating_duration_since(Instant::now()))
    }

    fn lingering(&self) -> bool {
        self.woken.is_some_and(|at| is_lingering(at.elapsed()))
    }
}

/// Lets the other tasks of this thread go first. The runtime's own `yield_now` sets the task aside where no other
/// thread can take it, so that it would wait behind whatever comes to run here meanwhile.
async fn step_aside() {
    let mut stepped = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn is_lingering(since_wake: Duration) -> bool {
    since_wake < pace::LINGER[pace::LINGER.len() - 1]
}
