//! What tests stand on: a database each, plain connections, an effect log outside of the product, and waits
//! that end on a condition and never on a guess about time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outhaul::{Context, Dsn, Failure, Job, MigrateOptions, SchemaName, Worker, WorkerBuilder, WorkerOptions};
pub(crate) use outhaul_local::{PATIENCE, until};
use outhaul_local::{TestDatabase, TestServer};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls, Notification};
use uuid::Uuid;

/// A migrated database of one test.
pub(crate) struct Db {
    pub(crate) database: TestDatabase,
    pub(crate) client: Client,
}

impl Db {
    pub(crate) async fn new() -> Db {
        let server = TestServer::shared().await.expect("a PostgreSQL server for tests");
        // With the day: a migration also keeps partitions, so a template of yesterday is not what it makes today.
        let day = jiff::Timestamp::now().strftime("%F");
        let fingerprint = format!("{day} {}", outhaul::migration_sql(&MigrateOptions::default()));
        let template = server
            .template("outhaul", &fingerprint, |url| async move {
                let dsn: Dsn = url.parse()?;
                outhaul::migrate(&dsn, &MigrateOptions::default()).await.map(drop)
            })
            .await
            .expect("a migrated template");
        let database = server.database(&template).await.expect("a database of the test's own");
        let client = connect(&database.url()).await;
        Db { database, client }
    }

    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    pub(crate) fn dsn(&self) -> Dsn {
        self.url().parse().expect("the test server's URL")
    }

    /// Another plain connection.
    pub(crate) async fn connect(&self) -> Client {
        connect(&self.url()).await
    }

    /// A worker with intervals that suit tests: lease 1 s, sweep 100 ms, poll 200 ms.
    pub(crate) fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.dsn()).options(quick())
    }

    pub(crate) async fn observer(&self) -> outhaul::Observer {
        outhaul::Observer::connect(&self.dsn(), &SchemaName::default()).await.expect("an observer")
    }

    pub(crate) async fn operator(&self) -> outhaul::Operator {
        outhaul::Operator::connect(&self.dsn(), &SchemaName::default()).await.expect("an operator")
    }

    /// One number, as `count(*)` gives it.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Waits until a query that answers with one boolean says true.
    pub(crate) async fn until(&self, what: &str, sql: &str) {
        until(what, || async {
            self.client
                .query_one(sql, &[])
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
                .get::<_, bool>(0)
        })
        .await;
    }

    /// Wakes the workers, and waits until a look for work that began after this call is over.
    pub(crate) async fn until_looked(&self) {
        let now = self.client.query_one("select clock_timestamp()", &[]).await.unwrap();
        let now: jiff::Timestamp = now.get(0);
        self.client.batch_execute("notify outhaul").await.unwrap();
        let sql = "select count(*) > 0 from pg_stat_activity where datname = current_database() and state = 'idle' \
            and query ~ '^/\\* outhaul:(claim|subscription_due) ' and query_start > $1";
        until("a worker looks for work", || async {
            self.client.query_one(sql, &[&now]).await.unwrap().get(0)
        })
        .await;
    }

    /// The status of a job over all tables, `none` when there is none.
    pub(crate) async fn status(&self, id: Uuid) -> String {
        let row =
            self.client.query_opt("select status from outhaul.all_jobs where id = $1", &[&id]).await.unwrap();
        row.map_or_else(|| "none".to_owned(), |row| row.get(0))
    }

    /// Makes a lease look as if it had run out, instead of waiting for it.
    pub(crate) async fn age_leases(&self) -> u64 {
        let sql = "update outhaul.jobs set lease_until = clock_timestamp() - interval '1 s' where lease_until > '-infinity'";
        self.client.execute(sql, &[]).await.unwrap()
    }
}

pub(crate) fn quick() -> WorkerOptions {
    WorkerOptions {
        lease: Duration::from_secs(1),
        poll: Duration::from_millis(200),
        sweep: Duration::from_millis(100),
        drain: Duration::from_secs(10),
        grace: Duration::from_secs(1),
        ..WorkerOptions::default()
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a plain connection");
    tokio::spawn(connection);
    client
}

/// Listens on a channel; what arrives is in the receiver, as long as the client is kept.
pub(crate) async fn listen(url: &str, channel: &str) -> (Client, UnboundedReceiver<Notification>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("a plain connection");
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification);
            }
        }
    });
    client.batch_execute(&format!("listen {channel}")).await.expect("LISTEN");
    (client, receiver)
}

/// A worker that runs in the background of a test and is drained at its end.
pub(crate) struct Running {
    stopper: outhaul::Stopper,
    task: tokio::task::JoinHandle<outhaul::Result<()>>,
}

impl Running {
    pub(crate) async fn start(builder: WorkerBuilder) -> Running {
        Running::of(builder.build().await.expect("a worker"))
    }

    pub(crate) fn of(worker: Worker) -> Running {
        let stopper = worker.stopper();
        let task = tokio::spawn(worker.run_until(std::future::pending()));
        Running { stopper, task }
    }

    pub(crate) fn stopper(&self) -> outhaul::Stopper {
        self.stopper.clone()
    }

    /// Whether it has ended, which it does only when it is told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Drains it and waits for its end.
    pub(crate) async fn stop(self) {
        self.stopper.drain();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("the worker ends")
            .expect("no panic")
            .expect("no error");
    }
}

/// The job of most tests: a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tick {
    pub(crate) n: i64,
}

impl Job for Tick {
    const TYPE: &'static str = "test.tick";
    const QUEUE: &'static str = "ticks";
}

/// Counts how often handlers began and ended.
#[derive(Clone, Default)]
pub(crate) struct Counter {
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Counter {
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn begin(&self) -> usize {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// A handler that counts and does nothing else.
    pub(crate) fn handler(
        &self,
    ) -> impl Fn(Tick, Context) -> std::future::Ready<Result<(), Failure>> + use<> {
        let counter = self.clone();
        move |_, _| {
            counter.begin();
            counter.end();
            std::future::ready(Ok(()))
        }
    }

    pub(crate) async fn until_ended(&self, n: usize) {
        until(&format!("{n} handlers ended"), || async { self.ended() >= n }).await;
    }
}
