//! Workers: handlers, queues and limits, put together and run.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::decide::verdict::RetryPolicy;
use crate::engine::dispatch::EventHandlers;
use crate::engine::events::{self, EventContext, RecordedEvent};
use crate::engine::handle::{Context, Grace, Outcome, Registered};
use crate::engine::held::{Registry, Stop};
use crate::engine::lead::{Swept, Upkeep};
use crate::engine::link::{Db, Link, Purpose};
use crate::engine::project;
use crate::engine::pulse::Pulse;
use crate::engine::run::{Line, State};
use crate::engine::settle::{Inbox, Settler};
use crate::engine::source::{self, Common, Jobs, Source};
use crate::engine::vital::Vital;
use crate::engine::wake::{Listener, ListenerState, Waker};
use crate::error::{Error, Kind, Result};
use crate::model::{Job, SchemaName, check_name};
use crate::projection::Projection;
use crate::store::dsn::Dsn;
use crate::store::migrate;
use crate::store::source::VERSION;
use crate::store::statement::{FLOORS, REGISTER_RELAY, SUBSCRIBE};
use crate::subscription::{Relay, Subscription};
use crate::telemetry;

/// Limits and intervals of a worker. Every field has the default that the documentation names.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// How long a claim holds a job before it must be renewed: 1 s to 24 h, 60 s by default. Renewed at a third.
    pub lease: Duration,
    /// How long a claim holds the cursor of a subscription: 1 s to 24 h, 30 s by default.
    pub subscription_lease: Duration,
    /// How often an idle worker looks without being told to: 1 s by default, five times rarer while
    /// notifications are proven to arrive. 10 ms to 24 h, like `sweep`, `probe` and `canary`.
    pub poll: Duration,
    /// How long a handler may run when its job does not say: 1 ms to 24 h, 5 min by default.
    pub timeout: Duration,
    /// How long a stopping worker waits for running handlers: up to 24 h, 30 s by default.
    pub drain: Duration,
    /// How long a handler that was asked to stop may go on before it is dropped: up to 24 h, 5 s by default.
    pub grace: Duration,
    /// How often expired leases are looked for: 1 s by default.
    pub sweep: Duration,
    /// Handlers that run at once in one queue, unless the queue says otherwise: 10 by default.
    pub concurrency: usize,
    /// Verdicts and waits after failures.
    pub retry: RetryPolicy,
    /// Whether to listen for notifications; on by default. Without, only latency changes.
    pub listen: bool,
    /// How often the listener's session is probed, and a notification is sent to it: 5 s and 15 s by default.
    pub probe: Duration,
    /// See `probe`.
    pub canary: Duration,
    /// The most connections this worker may open; the plan is refused when it needs more. 5 by default,
    /// which is also what it opens; 2 at the least.
    pub max_connections: usize,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            lease: Duration::from_secs(60),
            subscription_lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(300),
            drain: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            sweep: Duration::from_secs(1),
            concurrency: 10,
            retry: RetryPolicy::default(),
            listen: true,
            probe: Duration::from_secs(5),
            canary: Duration::from_secs(15),
            max_connections: 5,
        }
    }
}

/// Puts a [`Worker`] together.
///
/// ```no_run
/// use outhaul::{Context, Dsn, Failure, Job, Worker};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Welcome { user: i64 }
/// impl Job for Welcome { const TYPE: &'static str = "mail.welcome"; }
///
/// # async fn main_() -> outhaul::Result<()> {
/// let dsn: Dsn = "postgres://app@localhost/shop".parse()?;
/// Worker::builder(dsn)
///     .handle(|job: Welcome, cx: Context| async move {
///         println!("welcome, user {} (attempt {})", job.user, cx.attempt());
///         Ok::<(), Failure>(())
///     })
///     .build()
///     .await?
///     .run_until(async { tokio::signal::ctrl_c().await.unwrap() })
///     .await
/// # }
/// ```
pub struct WorkerBuilder {
    dsn: Dsn,
    listen_dsn: Option<Dsn>,
    owner_dsn: Option<Dsn>,
    schema: SchemaName,
    options: WorkerOptions,
    handlers: Vec<Arc<Registered>>,
    queues: BTreeMap<String, Option<usize>>,
    subscriptions: Vec<(Subscription, Arc<Registered>)>,
    projections: Vec<Projection>,
    relay: Option<(Relay, Arc<Registered>)>,
    /// The first mistake in handlers of events, which `build` tells.
    mistake: Option<Error>,
}

impl WorkerBuilder {
    /// Handles the jobs of one type with an async function of the payload and a [`Context`].
    ///
    /// Every handler must be idempotent: a crash after its effect and before the completion runs it again.
    pub fn handle<J, F, Fut>(mut self, handler: F) -> WorkerBuilder
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.handlers.push(Arc::new(Registered::typed(J::QUEUE, Arc::new(handler))));
        self
    }

    /// Handles the jobs of a type whose payload is read by the handler itself, from [`Context::payload`].
    pub fn handle_raw<F, Fut>(mut self, queue: &str, job_type: &str, handler: F) -> WorkerBuilder
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.handlers.push(Arc::new(Registered::raw(queue, job_type, handler)));
        self
    }

    /// Handles the events of an ordered subscription one by one, in order.
    pub fn subscribe<F, Fut>(mut self, subscription: Subscription, handler: F) -> WorkerBuilder
    where
        F: Fn(RecordedEvent, EventContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let registered = events::each(&format!("@{}", subscription.name), handler);
        self.subscriptions.push((subscription, Arc::new(registered)));
        self
    }

    /// Handles the events of an ordered subscription in batches. When a batch fails, its events come again one by one.
    pub fn subscribe_batches<F, Fut>(mut self, subscription: Subscription, handler: F) -> WorkerBuilder
    where
        F: Fn(Vec<RecordedEvent>, EventContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let registered = events::together(&format!("@{}", subscription.name), handler);
        self.subscriptions.push((subscription, Arc::new(registered)));
        self
    }

    /// Handles the events of an ordered subscription one by one, in order, each type with a handler of its own. The
    /// subscription reads the types that have one, or all when there is an
    /// [`otherwise`](EventHandlers::otherwise).
    pub fn subscribe_typed(
        mut self,
        mut subscription: Subscription,
        handlers: EventHandlers,
    ) -> WorkerBuilder {
        self.note(&handlers, &format!("subscription {}", subscription.name));
        if let Some(types) = handlers.types() {
            subscription = subscription.events(types);
        }
        let handlers = Arc::new(handlers);
        self.subscribe(subscription, move |event, cx| handlers.clone().handle(event, cx))
    }

    /// Turns events into jobs by rules, each exactly once.
    pub fn project(mut self, projection: Projection) -> WorkerBuilder {
        self.projections.push(projection);
        self
    }

    /// Hands events on without order. One handler takes every type.
    pub fn relay<F, Fut>(mut self, relay: Relay, handler: F) -> WorkerBuilder
    where
        F: Fn(RecordedEvent, EventContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.relay = Some((relay, Arc::new(events::each(RELAY, handler))));
        self
    }

    /// Hands events on without order, each type to a handler of its own. Events of a type without one are parked, unless
    /// there is an [`otherwise`](EventHandlers::otherwise).
    pub fn relay_typed(mut self, relay: Relay, handlers: EventHandlers) -> WorkerBuilder {
        self.note(&handlers, "the relay");
        let handlers = Arc::new(handlers);
        self.relay(relay, move |event, cx| handlers.clone().handle(event, cx))
    }

    /// Works a queue with a number of handlers at once. Without any call the queues of all handled types are
    /// worked; with one, only those named. A handler serves its type in every queue of the worker.
    pub fn queue(mut self, name: impl Into<String>, concurrency: usize) -> WorkerBuilder {
        self.queues.insert(name.into(), Some(concurrency));
        self
    }

    /// Uses another schema than `outhaul`.
    pub fn schema(mut self, schema: SchemaName) -> WorkerBuilder {
        self.schema = schema;
        self
    }

    /// Listens over another URL: needed where the ordinary one leads through a transaction pooler.
    pub fn listen_dsn(mut self, dsn: Dsn) -> WorkerBuilder {
        self.listen_dsn = Some(dsn);
        self
    }

    /// Keeps partitions over another URL, of a member of the role that owns the schema: needed where the
    /// ordinary one is only a worker.
    pub fn owner_dsn(mut self, dsn: Dsn) -> WorkerBuilder {
        self.owner_dsn = Some(dsn);
        self
    }

    /// Replaces all limits and intervals.
    pub fn options(mut self, options: WorkerOptions) -> WorkerBuilder {
        self.options = options;
        self
    }

    /// Changes some limits and intervals.
    pub fn with(mut self, change: impl FnOnce(&mut WorkerOptions)) -> WorkerBuilder {
        change(&mut self.options);
        self
    }

    /// Checks the configuration, connects once, and checks the schema.
    ///
    /// # Errors
    /// [`Error::is_config`] for a configuration that cannot work, [`Error::is_schema_mismatch`] for a schema that does not
    /// fit, or an error of the connection.
    pub async fn build(mut self) -> Result<Worker> {
        if let Some(mistake) = self.mistake.take() {
            return Err(mistake);
        }
        let queues = self.checked()?;
        let plan = Plan::new(&self.options, self.owner_dsn.is_some())?;
        let worker = Worker::assemble(self, queues, plan);
        let conn = worker.claim.connect_once(Duration::from_secs(10)).await?;
        migrate::check(conn.client(), &worker.schema).await?;
        // A call that only a worker may make: a role without the right would fail at every claim instead.
        let db = Db::new(worker.claim.clone(), &worker.schema);
        db.rows_once(&FLOORS, &[&""], Duration::from_secs(10)).await?;
        worker.register(&db).await?;
        Ok(worker)
    }

    /// The queues with their concurrency, when all is in order.
    fn checked(&self) -> Result<BTreeMap<String, usize>> {
        let o = &self.options;
        let bad = |what: &str, hint: &str| Err(Error::config(what).with_hint(hint));
        let readers = self.subscriptions.len() + self.projections.len() + usize::from(self.relay.is_some());
        if self.handlers.is_empty() && readers == 0 {
            let hint = "Register one with `handle`, `subscribe`, `project` or `relay`.";
            return bad("the worker has no handlers", hint);
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&o.subscription_lease) {
            return bad("the subscription lease is out of range", "Use 1 second to 24 hours.");
        }
        self.check_events()?;
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&o.lease) {
            return bad("the lease is out of range", "Use 1 second to 24 hours.");
        }
        for (name, value, least) in [
            ("poll", o.poll, Duration::from_millis(10)),
            ("sweep", o.sweep, Duration::from_millis(10)),
            ("probe", o.probe, Duration::from_millis(10)),
            ("canary", o.canary, Duration::from_millis(10)),
            ("timeout", o.timeout, Duration::from_millis(1)),
            ("drain", o.drain, Duration::ZERO),
            ("grace", o.grace, Duration::ZERO),
        ] {
            if !(least..=Duration::from_secs(86_400)).contains(&value) {
                let hint = format!("Use {least:?} to 24 hours.");
                return bad(&format!("{name} of {value:?} is out of range"), &hint);
            }
        }
        let mut types = HashMap::new();
        for handler in &self.handlers {
            check_name("job_type", &handler.job_type)?;
            check_name("queue", &handler.queue)?;
            if types.insert(&handler.job_type, ()).is_some() {
                return bad(
                    &format!("job type {} has two handlers", handler.job_type),
                    "Register one handler per type.",
                );
            }
        }
        let mut queues: BTreeMap<String, usize> =
            self.queues.iter().map(|(name, n)| (name.clone(), n.unwrap_or(o.concurrency))).collect();
        if queues.is_empty() {
            queues = self.handlers.iter().map(|handler| (handler.queue.clone(), o.concurrency)).collect();
        }
        for (name, concurrency) in &queues {
            check_name("queue", name)?;
            if !(1..=10_000).contains(concurrency) {
                return bad(
                    &format!("concurrency {concurrency} of queue {name} is out of range"),
                    "Use 1 to 10000.",
                );
            }
        }
        Ok(queues)
    }

    fn note(&mut self, handlers: &EventHandlers, what: &str) {
        let mistake = match handlers.twice() {
            Some(twice) => Error::config(format!("{what} has two handlers of events of type {twice}"))
                .with_hint("Register one per type; a second subscription sees all events, too."),
            None if handlers.is_empty() => {
                Error::config(format!("{what} has no handlers")).with_hint("Add some with `on`.")
            }
            None => return,
        };
        self.mistake.get_or_insert(mistake);
    }

    fn check_events(&self) -> Result<()> {
        let mut names = HashMap::new();
        self.projections.iter().try_for_each(Projection::check)?;
        let projected: Vec<Subscription> = self.projections.iter().map(Projection::subscription).collect();
        for subscription in self.subscriptions.iter().map(|(subscription, _)| subscription).chain(&projected)
        {
            subscription.check()?;
            if names.insert(&subscription.name, ()).is_some() {
                return Err(Error::config(format!("subscription {} has two handlers", subscription.name))
                    .with_hint("Give each a subscription of its own: both see all events then."));
            }
        }
        self.relay.iter().try_for_each(|(relay, _)| relay.check())
    }
}

/// Under which name the relay is counted; no queue and no subscription can have it.
const RELAY: &str = "@relay";

/// The connections of a worker, by purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Each connection: its name, and what it is for.
    pub connections: Vec<(&'static str, &'static str)>,
    share: usize,
}

impl Plan {
    fn new(options: &WorkerOptions, owner: bool) -> Result<Plan> {
        let listen = usize::from(options.listen);
        let fixed = 1 + listen + usize::from(owner);
        let budget = options.max_connections;
        // Renewal never shares: waiting behind another statement is how leases are lost.
        if budget < fixed + 1 {
            let need = fixed + 1;
            return Err(Error::config(format!(
                "{budget} connections cannot work, this worker needs at least {need}"
            ))
            .with_hint("Raise max_connections, or switch listening off."));
        }
        let share = (budget - fixed).min(3);
        let mut connections = vec![("pulse", "renews leases; shared with nothing")];
        if listen == 1 {
            connections.push(("listen", "hears notifications"));
        }
        match share {
            1 => connections.push(("work", "claims, settles, and keeps house")),
            2 => {
                connections.push(("work", "claims and keeps house"));
                connections.push(("settle", "settles ended attempts"));
            }
            _ => {
                connections.push(("claim", "claims jobs"));
                connections.push(("settle", "settles ended attempts"));
                connections.push(("upkeep", "sweeps expired leases, keeps partitions and retention"));
            }
        }
        if owner {
            connections.push(("owner", "keeps partitions as the schema's owner"));
        }
        Ok(Plan { connections, share })
    }
}

/// A worker, ready to run.
pub struct Worker {
    id: Uuid,
    schema: SchemaName,
    options: WorkerOptions,
    queues: BTreeMap<String, usize>,
    handlers: Vec<Arc<Registered>>,
    subscriptions: Vec<(Subscription, Arc<Registered>)>,
    relay: Option<(Relay, Arc<Registered>)>,
    plan: Plan,
    claim: Link,
    settle: Link,
    upkeep: Link,
    pulse: Link,
    listen: Option<Link>,
    owner: Option<Link>,
    waker: Arc<Waker>,
    stop: Stopper,
}

/// Stops a worker from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Stopper {
    drain: CancellationToken,
    now: CancellationToken,
}

impl Stopper {
    /// Claims nothing more, finishes what runs up to the drain limit, gives the rest back.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Does not wait: handlers are dropped and their jobs given back at once.
    pub fn now(&self) {
        self.drain.cancel();
        self.now.cancel();
    }
}

impl Worker {
    /// Begins a worker on a database.
    pub fn builder(dsn: Dsn) -> WorkerBuilder {
        WorkerBuilder {
            dsn,
            listen_dsn: None,
            owner_dsn: None,
            schema: SchemaName::default(),
            options: WorkerOptions::default(),
            handlers: Vec::new(),
            queues: BTreeMap::new(),
            subscriptions: Vec::new(),
            projections: Vec::new(),
            relay: None,
            mistake: None,
        }
    }

    fn assemble(builder: WorkerBuilder, queues: BTreeMap<String, usize>, plan: Plan) -> Worker {
        let link = |purpose| Link::new(builder.dsn.clone(), purpose);
        let claim = link(Purpose::Claim);
        let settle = if plan.share >= 2 { link(Purpose::Settle) } else { claim.clone() };
        let upkeep = if plan.share >= 3 { link(Purpose::Upkeep) } else { claim.clone() };
        let mut subscriptions = builder.subscriptions;
        for projection in builder.projections {
            let subscription = projection.subscription();
            let db = Db::new(settle.clone(), &builder.schema);
            let rules = Arc::new(move |event: &RecordedEvent| projection.jobs_of(event));
            let registered = project::projection(&format!("@{}", subscription.name), db, rules);
            subscriptions.push((subscription, Arc::new(registered)));
        }
        let listen_dsn = builder.listen_dsn.unwrap_or_else(|| builder.dsn.clone());
        Worker {
            id: Uuid::now_v7(),
            pulse: link(Purpose::Pulse),
            listen: builder.options.listen.then(|| Link::new(listen_dsn, Purpose::Listen)),
            owner: builder.owner_dsn.map(|dsn| Link::new(dsn, Purpose::Upkeep)),
            claim,
            settle,
            upkeep,
            schema: builder.schema,
            options: builder.options,
            queues,
            handlers: builder.handlers,
            subscriptions,
            relay: builder.relay,
            plan,
            waker: Arc::new(Waker::new()),
            stop: Stopper::default(),
        }
    }

    /// Makes sure that what it subscribes to exists.
    async fn register(&self, db: &Db) -> Result<()> {
        let patience = Duration::from_secs(10);
        for (subscription, _) in &self.subscriptions {
            let s = subscription;
            let policy = if s.parks_after.is_some() { "park" } else { "block" };
            let gone_after = s.gone_after.as_millis() as i64;
            let attempts = s.parks_after.unwrap_or(10);
            db.rows_once(
                &SUBSCRIBE,
                &[
                    &s.name,
                    &s.start.text(),
                    &s.event_types,
                    &s.aggregate_types,
                    &policy,
                    &gone_after,
                    &attempts,
                ],
                patience,
            )
            .await?;
        }
        if let Some((relay, _)) = &self.relay {
            db.rows_once(&REGISTER_RELAY, &[&relay.start.text(), &relay.max_attempts], patience).await?;
        }
        Ok(())
    }

    /// This process's id in `workers` and in `jobs.locked_by`.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The connections it opens, for people who count them.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Stops it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Tells how its listener does, while it runs and after.
    pub fn listener(&self) -> impl Fn() -> ListenerState + Send + Sync + 'static {
        let waker = self.waker.clone();
        move || waker.state()
    }

    /// Works until `shutdown` resolves and what runs has been finished or given back.
    ///
    /// A database that is away is no reason to end: the worker waits for it.
    ///
    /// # Errors
    /// [`Error::is_internal`] when a part of the worker itself panicked: its leases are not renewed any more
    /// then. [`Error::is_config`] when a thread cannot be started.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
        let running = Running::start(self)?;
        let vital = running.vital.clone();
        let to_the_end = async {
            tokio::select! {
                () = shutdown => running.stop.drain(),
                () = running.stop.drain.cancelled() => {}
            }
            running.finish().await;
        };
        tokio::select! {
            biased;
            death = vital.death() => Err(death),
            () = to_the_end => Ok(()),
        }
    }
}

/// The parts of a worker while it runs.
struct Running {
    stop: Stopper,
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
    vital: Vital,
}

impl Running {
    fn start(worker: Worker) -> Result<Running> {
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
    async fn finish(mut self) {
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
        };
        sources.push((Source::Jobs(jobs), *concurrency));
    }
    for (subscription, registered) in &worker.subscriptions {
        let cursor = source::Cursor {
            common: common(&registered.queue, worker.options.subscription_lease),
            subscription: subscription.name.clone(),
            batch: subscription.batch,
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
        policy: worker.options.retry,
        registry: registry.clone(),
        waker: worker.waker.clone(),
        sweep_every: worker.options.sweep,
        stopping: worker.stop.drain.clone(),
        stop,
    };
    let cannot = |error: std::io::Error| {
        Error::new(Kind::Config, "the renewal thread cannot be started").with_source(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (pulse, upkeep) =
        (vital.clone().part("pulse", pulse.run()), vital.clone().part("upkeep", upkeep.run()));
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
