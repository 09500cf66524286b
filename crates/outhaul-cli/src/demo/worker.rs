//! A worker process of the demonstration: the same binary, started once more.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use outhaul::Session;
use outhaul::{Backoff, Context, Dsn, Failure, Outcome, SchemaName, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::effects::{EffectLog, Run};
use super::facts;
use super::place::{connect, private_dsn};
use super::task::{Fate, LOYALTY, QUEUES, TYPES, Task};
use crate::config::Config;
use crate::exit::Exit;

/// How long a claim holds a job: short, so that people need not wait for what a killed worker held.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// The variable that hands a worker its [`Post`]. A variable and not an argument, because arguments are
/// shown to everybody on the machine and a URL may hold a password.
pub(super) const POST: &str = "_OUTHAUL_DEMO_WORKER";

/// What a worker process has to know.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Post {
    pub(super) number: i32,
    /// The shop's and the log's database on a private server; without, the worker is configured like any
    /// other command.
    pub(super) urls: Option<(String, String)>,
    pub(super) outhaul_schema: String,
    pub(super) shop_schema: String,
    pub(super) log_schema: String,
}

/// Works until it is told to stop, or until the demonstration is gone.
pub(super) async fn run(config: &Config) -> anyhow::Result<Exit> {
    let post = std::env::var(POST).context("a worker of the demonstration is started by `outhaul demo`")?;
    let post: Post = serde_json::from_str(&post).context("reading the worker's instructions")?;
    let (shop, log) = match &post.urls {
        Some((shop, log)) => (private_dsn(shop)?, private_dsn(log)?),
        None => (config.require_database()?, config.require_database()?),
    };
    let desk = Arc::new(Desk {
        log: EffectLog::new(connect(&log, "effects").await?, &post.log_schema),
        shop: Mutex::new(connect(&shop, "points").await?),
        shop_schema: post.shop_schema.clone(),
        worker: post.number,
    });
    let worker = builder(shop, &post, desk).build().await?;
    crate::output::write(&format!("ready {}\n", worker.id()))?;
    worker.run_until(told_to_stop()).await?;
    Ok(Exit::Ok)
}

fn builder(dsn: Dsn, post: &Post, desk: Arc<Desk>) -> outhaul::WorkerBuilder {
    let schema = SchemaName::new(&post.outhaul_schema).unwrap_or_default();
    let mut builder = Worker::builder(dsn).schema(schema).with(|options| {
        (options.lease, options.subscription_lease) = (LEASE, LEASE);
        options.timeout = Duration::from_secs(20);
        options.drain = Duration::from_secs(5);
        options.retry.backoff = Backoff { base: Duration::from_millis(300), ..Backoff::default() };
        options.max_connections = 4;
    });
    for (queue, concurrency) in QUEUES {
        builder = builder.queue(queue, concurrency);
    }
    for (job_type, queue) in TYPES {
        let desk = desk.clone();
        builder = builder.handle_raw(queue, job_type, move |cx| {
            let desk = desk.clone();
            async move { desk.perform(cx).await }
        });
    }
    builder.project(facts::projection()).subscribe(facts::ledger(), move |event, cx| {
        let desk = desk.clone();
        async move { facts::enter(&mut *desk.shop.lock().await, &desk.shop_schema, &event, &cx).await }
    })
}

/// SIGTERM, or the end of standard input: its other end is held by the demonstration, however that ends.
async fn told_to_stop() {
    let (gone, orphaned) = tokio::sync::oneshot::channel();
    // A thread, because a read of standard input cannot be given up and would hold the runtime.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = gone.send(());
    });
    let mut term = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(term) => term,
        Err(_) => return drop(orphaned.await),
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = orphaned => {}
    }
}

/// What a handler works with.
struct Desk {
    log: EffectLog,
    /// One connection for what writes into the shop's database: one kind of job, and the ledger.
    shop: Mutex<Session>,
    shop_schema: String,
    worker: i32,
}

impl Desk {
    /// Begin, the work with its effect, end: each written down before the next.
    async fn perform(&self, cx: Context) -> Outcome {
        let task: Task = serde_json::from_str(cx.payload())?;
        let run = Run {
            job: cx.id().0,
            claim_no: cx.claim_no(),
            worker: self.worker,
            queue: cx.queue().to_owned(),
        };
        self.log.begin(&run, &task).await.map_err(Failure::transient)?;
        let outcome = self.work(&cx, &run, &task).await;
        let word = match &outcome {
            Ok(()) => "done",
            Err(failure) => failure.class().map_or("snoozed", |class| class.as_str()),
        };
        self.log.end(&run, &task, word).await.map_err(Failure::transient)?;
        outcome
    }

    async fn work(&self, cx: &Context, run: &Run, task: &Task) -> Outcome {
        if task.fate == Fate::TooEarly && cx.claim_no() == 1 {
            return Err(Failure::snooze(Duration::from_millis(800)));
        }
        tokio::time::sleep(task.fate.work(Duration::from_millis(task.work_ms), LEASE)).await;
        trouble(task.fate, cx.attempt())?;
        if cx.job_type() == LOYALTY {
            return self.book_points(cx, task).await;
        }
        self.log.effect(run, task).await.map_err(Failure::transient)?;
        if task.fate == Fate::AnswerLost && cx.attempt() == 1 {
            return Err(Failure::transient("the answer of the other side was lost").code("answer_lost"));
        }
        Ok(())
    }

    /// No key protects this effect: it commits with the completion of its job, or not at all.
    async fn book_points(&self, cx: &Context, task: &Task) -> Outcome {
        let mut shop = self.shop.lock().await;
        let mut tx = shop.transaction().await.map_err(Failure::transient)?;
        let insert = format!(
            "insert into {}.points (operation_id, order_id, points, job_id, claim_no) values ($1, $2, 10, $3, $4)",
            self.shop_schema
        );
        tx.execute(&insert, &[&task.operation, &task.order, &cx.id().0, &cx.claim_no()])
            .await
            .map_err(Failure::transient)?;
        cx.complete_in(&mut tx).await?;
        tx.commit().await.map_err(Failure::transient)
    }
}

/// How an attempt fails before it has an effect, if it does.
fn trouble(fate: Fate, attempt: i32) -> Outcome {
    match fate {
        Fate::Busy(attempts) if attempt <= attempts => {
            Err(Failure::transient("the other side is busy").code("http_503"))
        }
        Fate::Limited if attempt == 1 => Err(Failure::http(429).retry_after(Duration::from_millis(400))),
        Fate::Puzzling if attempt == 1 => Err(Puzzle.into()),
        Fate::Hopeless => Err(Puzzle.into()),
        Fate::Panics if attempt == 1 => panic!("a handler of the demonstration panics, as it should"),
        Fate::Refused => Err(Failure::permanent("there is no such address").code("http_410")),
        Fate::Withdrawn => Err(Failure::revoked("the customer has left").code("consent_withdrawn")),
        _ => Ok(()),
    }
}

/// An error that says nothing about what to do.
#[derive(Debug)]
struct Puzzle;

impl fmt::Display for Puzzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer makes no sense")
    }
}

impl std::error::Error for Puzzle {}
