//! What tests of faults stand on: an effect log that shares nothing with the product, handlers that do what
//! their payload says, and worker processes that can be stopped and killed.

use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outhaul::{
    Backoff, Context, Dsn, EventContext, Failure, Job, NewJob, Outcome, Projection, RecordedEvent, Relay,
    Rule, Start, Stop, Subscription, Worker, WorkerBuilder, enqueue,
};
use outhaul_local::{Child, ChildOptions, TestServer};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::support::{PATIENCE, connect, until};

/// What the handler of the test shall do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    Nothing,
    Sleep(u64),
    /// Occupies its thread without an await.
    Block(u64),
    /// Waits to be told to stop, and notes why.
    UntilTold,
    /// Never ends, and never listens.
    Hang,
    /// Ends its whole process.
    Die,
    Fail(String),
    /// Does nothing and leaves no trace, for large numbers.
    Silent,
}

impl Job for Act {
    const TYPE: &'static str = "test.act";
    const QUEUE: &'static str = "acts";
}

impl Act {
    pub(crate) fn job(self) -> NewJob {
        NewJob::new(&self).unwrap()
    }

    pub(crate) async fn enqueue(self, client: &mut Client) -> Uuid {
        enqueue(client, &self.job()).await.unwrap().id().0
    }
}

/// Enqueues many at once, each under an id of its own.
pub(crate) async fn enqueue_all(client: &mut Client, jobs: &[NewJob]) -> Vec<Uuid> {
    let jobs: Vec<NewJob> = jobs.iter().map(|job| job.clone().id(outhaul::JobId::new())).collect();
    let enqueued = outhaul::enqueue_many(client, &jobs).await.unwrap();
    enqueued.into_iter().map(|one| one.id().0).collect()
}

/// One row of the effect log.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) at: Timestamp,
    pub(crate) job: Uuid,
    pub(crate) claim_no: i32,
    pub(crate) attempt: i32,
    pub(crate) worker: String,
}

/// What handlers did, written by them through a plain connection into another database.
#[derive(Clone)]
pub(crate) struct EffectLog {
    url: String,
    client: Arc<Client>,
    /// Prepared once: letting go of a statement wakes the connection's task, on a thread that may block next.
    insert: Statement,
}

impl EffectLog {
    pub(crate) async fn new() -> EffectLog {
        let server = TestServer::shared().await.expect("a PostgreSQL server for tests");
        let url = server.empty_database().await.expect("a database for effects").url();
        let table = "create table effects (at timestamptz not null default clock_timestamp(), what text, job uuid, \
            claim_no int, attempt int, worker text)";
        connect(&url).await.batch_execute(table).await.unwrap();
        EffectLog::open(&url).await
    }

    async fn open(url: &str) -> EffectLog {
        let client = connect(url).await;
        let sql = "insert into effects (what, job, claim_no, attempt, worker) values ($1, $2, $3, $4, $5)";
        let insert = client.prepare(sql).await.unwrap();
        EffectLog { url: url.to_owned(), client: Arc::new(client), insert }
    }

    pub(crate) async fn note(&self, cx: &Context, worker: &str, what: &str) {
        self.write(what, cx.id().0, cx.claim_no(), cx.attempt(), worker).await;
    }

    pub(crate) async fn note_event(
        &self,
        event: &RecordedEvent,
        cx: &EventContext,
        worker: &str,
        what: &str,
    ) {
        self.write(what, event.id, cx.claim_no(), cx.attempt(), worker).await;
    }

    async fn write(&self, what: &str, job: Uuid, claim_no: i32, attempt: i32, worker: &str) {
        self.client.execute(&self.insert, &[&what, &job, &claim_no, &attempt, &worker]).await.unwrap();
    }

    /// A handler of events that says when it begins and ends, and takes the milliseconds of the payload.
    pub(crate) fn listener(
        &self,
        worker: &str,
    ) -> impl Fn(RecordedEvent, EventContext) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Clone + use<>
    {
        let (log, worker) = (self.clone(), worker.to_owned());
        move |event, cx| {
            let (log, worker) = (log.clone(), worker.clone());
            Box::pin(async move {
                log.note_event(&event, &cx, &worker, "begin").await;
                let ms: u64 = event.read::<Takes>()?.ms;
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                    why = cx.cancelled() => log.note_event(&event, &cx, &worker, &format!("told {why:?}")).await,
                }
                log.note_event(&event, &cx, &worker, "end").await;
                Ok(())
            })
        }
    }

    pub(crate) async fn count(&self, what: &str) -> i64 {
        let sql = "select count(*) from effects where what = $1";
        self.client.query_one(sql, &[&what]).await.unwrap().get(0)
    }

    /// How many different jobs did this.
    pub(crate) async fn jobs(&self, what: &str) -> i64 {
        let sql = "select count(distinct job) from effects where what = $1";
        self.client.query_one(sql, &[&what]).await.unwrap().get(0)
    }

    /// All of them in order of time.
    pub(crate) async fn all(&self, what: &str) -> Vec<Effect> {
        let sql = "select at, job, claim_no, attempt, worker from effects where what = $1 order by at";
        let rows = self.client.query(sql, &[&what]).await.unwrap();
        let effect = |row: &tokio_postgres::Row| Effect {
            at: row.get(0),
            job: row.get(1),
            claim_no: row.get(2),
            attempt: row.get(3),
            worker: row.get(4),
        };
        rows.iter().map(effect).collect()
    }

    /// Waits until `n` rows say this.
    pub(crate) async fn until(&self, what: &str, n: i64) {
        until(&format!("{n} effects {what}"), || async { self.count(what).await >= n }).await;
    }

    /// A handler that does what its payload says, under this worker's name.
    pub(crate) fn actor(
        &self,
        worker: &str,
    ) -> impl Fn(Act, Context) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Clone + use<> {
        let (log, worker) = (self.clone(), worker.to_owned());
        move |act, cx| {
            let (log, worker) = (log.clone(), worker.clone());
            Box::pin(async move { log.perform(act, &cx, &worker).await })
        }
    }

    async fn perform(&self, act: Act, cx: &Context, worker: &str) -> Outcome {
        if matches!(act, Act::Silent) {
            return Ok(());
        }
        self.note(cx, worker, "begin").await;
        match act {
            Act::Nothing | Act::Silent => {}
            Act::Sleep(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Act::Block(ms) => std::thread::sleep(Duration::from_millis(ms)),
            Act::UntilTold => {
                let why = match cx.cancelled().await {
                    Stop::LeaseLost => "told lease_lost",
                    Stop::TimedOut => "told timed_out",
                    Stop::Draining => "told draining",
                    Stop::Cancelled => "told cancelled",
                };
                self.note(cx, worker, why).await;
            }
            Act::Hang => std::future::pending().await,
            Act::Die => std::process::abort(),
            Act::Fail(text) => return Err(Failure::transient(text)),
        }
        self.note(cx, worker, "end").await;
        Ok(())
    }
}

/// What a worker process has to know; times in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) log_url: String,
    pub(crate) lease: u64,
    pub(crate) sweep: u64,
    pub(crate) poll: u64,
    pub(crate) drain: u64,
    pub(crate) grace: u64,
    pub(crate) concurrency: usize,
    pub(crate) listen: bool,
    /// First wait after a failure.
    pub(crate) backoff: u64,
    /// Where its listener connects, if not to `url`.
    pub(crate) listen_url: Option<String>,
    /// Whoever logs this panics.
    pub(crate) trap: Option<String>,
    /// What it does beside jobs: `subscribe`, `ledger`, `project` or `relay`.
    pub(crate) events: Option<String>,
}

/// The payload of an event for [`EffectLog::listener`].
#[derive(Deserialize)]
struct Takes {
    ms: u64,
}

const POST: &str = "OUTHAUL_TEST_WORKER";

impl Post {
    /// A worker on a database; lease 1 s, sweep 100 ms, poll 200 ms.
    pub(crate) fn new(name: &str, url: &str, log: &EffectLog) -> Post {
        Post {
            name: name.to_owned(),
            url: url.to_owned(),
            log_url: log.url.clone(),
            lease: 1_000,
            sweep: 100,
            poll: 200,
            drain: 10_000,
            grace: 1_000,
            concurrency: 10,
            listen: true,
            backoff: 200,
            listen_url: None,
            trap: None,
            events: None,
        }
    }

    /// Starts the process, and returns when it works.
    pub(crate) async fn start(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["fault::worker_process", "--exact", "--ignored", "--nocapture"]);
        command.env(POST, serde_json::to_string(self).unwrap());
        let mut child = Child::spawn(command, ChildOptions::new()).unwrap();
        child.line_with("ready ", PATIENCE).await.unwrap();
        child
    }

    fn builder(&self, log: &EffectLog) -> WorkerBuilder {
        let ms = Duration::from_millis;
        let dsn: Dsn = self.url.parse().unwrap();
        let listen_dsn = self.listen_url.as_ref().unwrap_or(&self.url).parse().unwrap();
        let mut builder = Worker::builder(dsn).listen_dsn(listen_dsn).handle(log.actor(&self.name));
        let handler = log.listener(&self.name);
        builder = match self.events.as_deref() {
            Some("subscribe") => {
                builder.subscribe(Subscription::new("acts").start(Start::Beginning), handler)
            }
            Some("ledger") => {
                let (url, shared) = (self.url.clone(), Arc::new(tokio::sync::Mutex::new(None)));
                builder.subscribe(ledger(), move |event, cx| enter(url.clone(), shared.clone(), event, cx))
            }
            Some("project") => {
                let subscription = Subscription::new("acts").start(Start::Beginning).batch(10);
                let rule = Rule::copy("order.placed", "made", "made.job");
                builder.project(Projection::new(subscription).rule(rule))
            }
            Some("relay") => builder.relay(Relay::default().start(Start::Beginning), handler),
            _ => builder,
        };
        builder.with(|o| {
            (o.lease, o.sweep, o.poll) = (ms(self.lease), ms(self.sweep), ms(self.poll));
            o.subscription_lease = o.lease;
            (o.drain, o.grace) = (ms(self.drain), ms(self.grace));
            // A canary wakes too, and who polls rarely is meant to sleep.
            o.canary = ms(self.poll.max(15_000));
            (o.concurrency, o.listen) = (self.concurrency, self.listen);
            o.retry.backoff = Backoff { base: ms(self.backoff), ..Backoff::default() };
        })
    }
}

pub(crate) fn ledger() -> Subscription {
    Subscription::new("ledger").start(Start::Beginning).batch(7)
}

/// Enters an event into the table `ledger`, whose rows and the checkpoint commit together.
async fn enter(
    url: String,
    shared: Arc<tokio::sync::Mutex<Option<Client>>>,
    event: RecordedEvent,
    cx: EventContext,
) -> Outcome {
    let mut shared = shared.lock().await;
    if shared.as_ref().is_none_or(Client::is_closed) {
        *shared = Some(connect(&url).await);
    }
    let mut tx = shared.as_mut().unwrap().transaction().await?;
    let insert =
        "insert into ledger (event, position, aggregate, payload) values ($1, $2, $3, $4::text::jsonb)";
    tx.execute(insert, &[&event.id, &event.position, &event.aggregate_id, &&*event.payload]).await?;
    cx.advance_in(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

/// The body of the worker processes: this same binary, started once more.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the body of worker processes, which other tests start"]
async fn worker_process() {
    let Ok(post) = std::env::var(POST) else { return };
    let post: Post = serde_json::from_str(&post).unwrap();
    let log = EffectLog::open(&post.log_url).await;
    if let Some(words) = post.trap.clone() {
        tracing::subscriber::set_global_default(Trap(words)).unwrap();
    }
    let worker = post.builder(&log).build().await.unwrap();
    println!("ready {}", worker.id());
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let told = async move {
        tokio::select! {
            _ = term.recv() => {}
            () = orphaned() => std::process::exit(1),
        }
    };
    if let Err(error) = worker.run_until(told).await {
        println!("ended {}: {error}", error.code());
        std::process::exit(3);
    }
}

/// A log that panics at some words.
struct Trap(String);

impl tracing::Subscriber for Trap {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let text = format!("{value:?}");
            assert!(field.name() != "message" || !text.contains(&self.0), "the log is trapped at {text:?}");
        });
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Resolves when the test that started this process is gone.
async fn orphaned() {
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
