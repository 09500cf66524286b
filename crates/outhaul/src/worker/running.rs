//! A worker while it runs: its parts are started together, and stopped in an order that loses nothing.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{RELAY, Stopper, Worker, WorkerOptions};
use crate::engine::handle::{Grace, Registered};
use crate::engine::held::{Registry, Stop};
use crate::engine::lead::{Swept, Upkeep};
use crate::engine::link::Db;
use crate::engine::pulse::Pulse;
use crate::engine::run::{Line, State};
use crate::engine::settle::{Inbox, Settler};
use crate::engine::source::{self, Common, Jobs, Source};
use crate::engine::vital::Vital;
use crate::engine::wake::Listener;
use crate::error::{Error, Kind, Result};
use crate::store::source::VERSION;
use crate::telemetry;

/// The parts of a worker while it runs.
pub(super) struct Running {
    pub(super) stop: Stopper,
    options: WorkerOptions,
    lines: Vec<Arc<Line>>,
    line_tasks: TaskTracker,
    runners: TaskTracker,
    settler: tokio::task::JoinHandle<()>,
    last: CancellationToken,
    listener: Option<tokio::task::JoinHandle<()>>,
    quiet: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    registry: Arc<Registry>,
    pub(super) vital: Vital,
}

impl Running {
    pub(super) fn start(worker: Worker) -> Result<Running> {
        let schema = VERSION.to_string();
        metrics::gauge!(telemetry::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "schema" => schema)
            .set(1.0);
        let registry = Arc::new(Registry::default());
        let inbox = Arc::new(Inbox::default());
        let runners = TaskTracker::new();
        let (last, quiet) = (CancellationToken::new(), CancellationToken::new());
        let vital = Vital::new(quiet.clone());
        let lines = lines(&worker, &registry, &inbox, &runners, &vital);

        let by_queue: HashMap<String, Arc<Line>> =
            lines.iter().map(|line| (line.source.name().to_owned(), line.clone())).collect();
        let settler = Settler {
            db: Db::new(worker.settle.clone(), &worker.schema),
            inbox,
            registry: registry.clone(),
            acknowledge: Box::new(move |batch| {
                let mut counts: HashMap<&str, (usize, bool)> = HashMap::new();
                for ended in batch {
                    let (n, later) = counts.entry(&ended.held.registered.queue).or_default();
                    *n += 1;
                    *later |= ended.comes_back();
                }
                for (queue, (n, later)) in counts {
                    if let Some(line) = by_queue.get(queue) {
                        line.settled(n, later);
                    }
                }
            }),
            last: last.clone(),
            now: quiet.clone(),
        };
        let settler = tokio::spawn(vital.clone().part("settler", settler.run()));
        let thread = background(&worker, &lines, &registry, &vital, quiet.clone())?;
        let line_tasks = TaskTracker::new();
        for line in &lines {
            line_tasks.spawn(vital.clone().part("claiming task", line.clone().run()));
        }
        line_tasks.close();
        Ok(Running {
            listener: listener(&worker, &vital, quiet.clone()),
            stop: worker.stop,
            options: worker.options,
            lines,
            line_tasks,
            runners,
            settler,
            last,
            quiet,
            thread: Some(thread),
            registry,
            vital,
        })
    }

    /// Stop claiming, keep renewing, finish; then ask, then drop; settle everything; then stop renewing.
    pub(super) async fn finish(mut self) {
        self.line_tasks.wait().await;
        self.runners.close();
        let drained = tokio::select! {
            () = self.runners.wait() => true,
            () = tokio::time::sleep(self.options.drain) => false,
            () = self.stop.now.cancelled() => false,
        };
        if !drained {
            let running: usize = self.lines.iter().map(|line| line.running()).sum();
            let why = if self.stop.now.is_cancelled() {
                "stop was told twice"
            } else {
                "the drain limit has passed"
            };
            tracing::warn!(running, why, "running jobs are given back");
            for line in &self.lines {
                line.stop_all(Stop::Draining);
            }
            let grace =
                if self.stop.now.is_cancelled() { Duration::from_millis(100) } else { self.options.grace };
            // A handler that blocks its thread cannot be dropped; its lease is left to expire.
            let _ = tokio::time::timeout(grace + Duration::from_secs(1), self.runners.wait()).await;
        }
        self.last.cancel();
        if tokio::time::timeout(Duration::from_secs(10), &mut self.settler).await.is_err() {
            tracing::warn!(
                jobs = self.registry.len(),
                "the database did not take the last reports, their leases will expire"
            );
        }
        self.quiet.cancel();
        if let Some(listener) = self.listener.take() {
            let _ = listener.await;
        }
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Running {
    /// A worker that is dropped in the middle stops everything; leases expire.
    fn drop(&mut self) {
        self.stop.now();
        for line in &self.lines {
            line.stop_all(Stop::Draining);
        }
        self.last.cancel();
        self.quiet.cancel();
    }
}

fn lines(
    worker: &Worker,
    registry: &Arc<Registry>,
    inbox: &Arc<Inbox>,
    runners: &TaskTracker,
    vital: &Vital,
) -> Vec<Arc<Line>> {
    let line = |source: Source, concurrency: usize| {
        Arc::new(Line {
            source,
            schema: worker.schema.clone(),
            policy: worker.options.retry,
            concurrency,
            poll: worker.options.poll,
            grace: Grace {
                time: worker.options.grace,
                over: worker.stop.now.clone(),
                draining: worker.stop.drain.clone(),
            },
            inbox: inbox.clone(),
            registry: registry.clone(),
            waker: worker.waker.clone(),
            no_more: worker.stop.drain.clone(),
            runners: runners.clone(),
            vital: vital.clone(),
            state: Mutex::new(State::default()),
            room: tokio::sync::Notify::new(),
            later: tokio::sync::Notify::new(),
        })
    };
    sources(worker).into_iter().map(|(source, concurrency)| line(source, concurrency)).collect()
}

/// Everything that this worker claims from, with how many handlers may run at once.
fn sources(worker: &Worker) -> Vec<(Source, usize)> {
    let epoch = Instant::now();
    let common = |name: &str, lease: Duration| Common {
        name: name.to_owned(),
        worker: worker.id,
        lease,
        timeout: worker.options.timeout,
        epoch,
        db: Db::new(worker.claim.clone(), &worker.schema),
    };
    let mut sources: Vec<(Source, usize)> = Vec::new();
    for (queue, concurrency) in &worker.queues {
        let own = |handler: &Arc<Registered>| {
            let own =
                if handler.queue == *queue { handler.clone() } else { Arc::new(handler.in_queue(queue)) };
            (handler.job_type.clone(), own)
        };
        let jobs = Jobs {
            common: common(queue, worker.options.lease),
            handlers: worker.handlers.iter().map(own).collect(),
            lanes: Arc::default(),
            unknown: Mutex::default(),
            served: (-1).into(),
        };
        sources.push((Source::Jobs(jobs), *concurrency));
    }
    for (subscription, registered) in &worker.subscriptions {
        let cursor = source::Cursor {
            common: common(&registered.queue, worker.options.subscription_lease),
            subscription: subscription.name.clone(),
            batch: subscription.batch,
            behind: AtomicBool::new(false),
            registered: registered.clone(),
        };
        sources.push((Source::Subscription(cursor), 1));
    }
    if let Some((relay, registered)) = &worker.relay {
        let source =
            source::Relay { common: common(RELAY, worker.options.lease), registered: registered.clone() };
        sources.push((Source::Relay(source), relay.concurrency));
    }
    sources
}

/// What is swept: each queue by itself, the rest by kind.
fn swept(lines: &[Arc<Line>]) -> Vec<Swept> {
    let mut swept = Vec::new();
    for line in lines {
        match &line.source {
            Source::Jobs(jobs) => {
                swept.push(Swept::Queue { queue: jobs.common.name.clone(), lanes: jobs.lanes.clone() })
            }
            Source::Relay(_) => swept.push(Swept::Relay),
            Source::Subscription(_) if swept.iter().any(|swept| matches!(swept, Swept::Subscriptions)) => {}
            Source::Subscription(_) => swept.push(Swept::Subscriptions),
        }
    }
    swept
}

/// The thread that handlers cannot block: the pulse and the upkeep.
fn background(
    worker: &Worker,
    lines: &[Arc<Line>],
    registry: &Arc<Registry>,
    vital: &Vital,
    stop: CancellationToken,
) -> Result<std::thread::JoinHandle<()>> {
    let pulse = Pulse {
        db: Db::new(worker.pulse.clone(), &worker.schema),
        registry: registry.clone(),
        lease: lines.iter().map(|line| line.source.common().lease).min().unwrap_or(worker.options.lease),
        stop: stop.clone(),
    };
    let upkeep = Upkeep {
        db: Db::new(worker.upkeep.clone(), &worker.schema),
        owner: worker.owner.clone().map(|link| Db::new(link, &worker.schema)),
        worker: worker.id,
        swept: swept(lines),
        queue_limits: serde_json::json!(worker.queues),
        role: worker.role.clone(),
        policy: worker.options.retry,
        registry: registry.clone(),
        waker: worker.waker.clone(),
        sweep_every: worker.options.sweep,
        reads_or_steps: tokio::sync::Mutex::new(()),
        stopping: worker.stop.drain.clone(),
        stop,
    };
    let cannot = |error: std::io::Error| {
        Error::new(Kind::Config, "the renewal thread cannot be started").with_source(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (pulse, upkeep) = (
        vital.clone().part("pulse", Box::pin(pulse.run())),
        vital.clone().part("upkeep", Box::pin(upkeep.run())),
    );
    std::thread::Builder::new()
        .name("outhaul-pulse".into())
        .spawn(move || {
            runtime.block_on(async {
                tokio::join!(pulse, upkeep);
            });
        })
        .map_err(cannot)
}

fn listener(worker: &Worker, vital: &Vital, stop: CancellationToken) -> Option<tokio::task::JoinHandle<()>> {
    let link = worker.listen.clone()?;
    let listener = Listener {
        link,
        canary: Db::new(worker.settle.clone(), &worker.schema),
        schema: worker.schema.clone(),
        worker: worker.id,
        waker: worker.waker.clone(),
        probe_every: worker.options.probe,
        canary_every: worker.options.canary,
        stop,
    };
    Some(tokio::spawn(vital.clone().part("listener", listener.run())))
}
