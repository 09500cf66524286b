//! Workers: handlers, queues and limits, put together and run.
//!
//! `builder` takes everything and checks it, `options` has the limits and the plan of connections, `running` is the worker
//! while it runs.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::engine::events::RecordedEvent;
use crate::engine::handle::Registered;
use crate::engine::link::{Db, Link, Purpose};
use crate::engine::project;
use crate::engine::wake::{ListenerState, Waker};
use crate::error::Result;
use crate::model::SchemaName;
use crate::store::dsn::Dsn;
use crate::store::statement::{REGISTER_RELAY, SUBSCRIBE};
use crate::subscription::{Relay, Subscription};

mod builder;
mod options;
mod running;

pub use builder::WorkerBuilder;
pub use options::{Plan, WorkerOptions};
use running::Running;

/// Under which name the relay is counted; no queue and no subscription can have it.
const RELAY: &str = "@relay";

/// A worker, ready to run.
pub struct Worker {
    id: Uuid,
    schema: SchemaName,
    role: Option<String>,
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
        WorkerBuilder::new(dsn)
    }

    fn assemble(builder: WorkerBuilder, queues: BTreeMap<String, usize>, plan: Plan) -> Worker {
        let named = |dsn: Dsn| match &builder.role {
            Some(role) => dsn.with_role(role),
            None => dsn,
        };
        let dsn = named(builder.dsn.clone());
        let link = |purpose| Link::new(dsn.clone(), purpose);
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
        let listen_dsn = builder.listen_dsn.map_or_else(|| dsn.clone(), &named);
        Worker {
            id: Uuid::now_v7(),
            pulse: link(Purpose::Pulse),
            listen: builder.options.listen.then(|| Link::new(listen_dsn, Purpose::Listen)),
            owner: builder.owner_dsn.map(|dsn| Link::new(named(dsn), Purpose::Upkeep)),
            claim,
            settle,
            upkeep,
            schema: builder.schema,
            role: builder.role,
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
    /// [`Error::is_internal`](crate::Error::is_internal) when a part of the worker itself panicked: its leases are not renewed any more
    /// then. [`Error::is_config`](crate::Error::is_config) when a thread cannot be started.
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
