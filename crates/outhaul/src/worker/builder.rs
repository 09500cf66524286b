//! What a worker is made of, and the checks before it begins.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Plan, RELAY, Worker, WorkerOptions};
use crate::engine::dispatch::EventHandlers;
use crate::engine::events::{self, EventContext, RecordedEvent};
use crate::engine::handle::{Context, Outcome, Registered};
use crate::engine::link::Db;
use crate::error::{Error, Result};
use crate::model::{Job, SchemaName, check_name};
use crate::projection::Projection;
use crate::store::dsn::Dsn;
use crate::store::migrate;
use crate::store::statement::FLOORS;
use crate::subscription::{Relay, Subscription};

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
    pub(super) dsn: Dsn,
    pub(super) listen_dsn: Option<Dsn>,
    pub(super) owner_dsn: Option<Dsn>,
    pub(super) schema: SchemaName,
    pub(super) role: Option<String>,
    pub(super) options: WorkerOptions,
    pub(super) handlers: Vec<Arc<Registered>>,
    pub(super) queues: BTreeMap<String, Option<usize>>,
    pub(super) subscriptions: Vec<(Subscription, Arc<Registered>)>,
    pub(super) projections: Vec<Projection>,
    pub(super) relay: Option<(Relay, Arc<Registered>)>,
    /// The first mistake in handlers of events, which `build` tells.
    pub(super) mistake: Option<Error>,
}

impl WorkerBuilder {
    pub(super) fn new(dsn: Dsn) -> WorkerBuilder {
        WorkerBuilder {
            dsn,
            listen_dsn: None,
            owner_dsn: None,
            schema: SchemaName::default(),
            role: None,
            options: WorkerOptions::default(),
            handlers: Vec::new(),
            queues: BTreeMap::new(),
            subscriptions: Vec::new(),
            projections: Vec::new(),
            relay: None,
            mistake: None,
        }
    }

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

    /// Says as what this process works, such as `alerts`: 1 to 63 characters, a letter, then letters, digits and `_ . : -`.
    /// It is for people: it stands in the registration of the worker and in the `application_name` of its connections, and
    /// decides nothing.
    pub fn role(mut self, role: impl Into<String>) -> WorkerBuilder {
        self.role = Some(role.into());
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
        self.role.as_deref().map_or(Ok(()), |role| check_name("role", role))?;
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
