//! Servers of their own that are killed and restarted under load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outhaul::{Dsn, Error, MigrateOptions, Worker, enqueue};
use outhaul_local::{Throwaway, ThrowawayOptions};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Running, connect, until};

/// A migrated server with durability on, which knows of orders.
async fn shop() -> Throwaway {
    let server = Throwaway::start_new(ThrowawayOptions::new()).await.expect("a server of the test's own");
    let dsn: Dsn = server.url().parse().unwrap();
    outhaul::migrate(&dsn, &MigrateOptions::default()).await.unwrap();
    connect(&server.url())
        .await
        .batch_execute("create table orders (n int primary key, job uuid)")
        .await
        .unwrap();
    server
}

async fn workers(server: &Throwaway, log: &EffectLog, n: usize) -> Vec<Running> {
    let mut workers = Vec::new();
    for name in 0..n {
        let dsn: Dsn = server.tcp_url().parse().unwrap();
        let builder =
            Worker::builder(dsn).options(crate::support::quick()).handle(log.actor(&name.to_string()));
        workers.push(Running::start(builder).await);
    }
    workers
}

/// What the caller was told about each order.
#[derive(Default)]
struct Told {
    ok: BTreeSet<i32>,
    unknown: BTreeSet<i32>,
}

/// Takes orders until stopped, each with its job in one transaction, and connects again when it has to.
async fn take_orders(url: String, stop: Arc<AtomicBool>) -> Told {
    let (mut told, mut n) = (Told::default(), 0);
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::SeqCst) {
        let Some(open) = client.as_mut().filter(|client| !client.is_closed()) else {
            client = match tokio_postgres::connect(&url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    Some(client)
                }
                Err(_) => None,
            };
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        n += 1;
        match order(open, n).await {
            Ok(()) => {
                told.ok.insert(n);
            }
            Err(error) if error.is_outcome_unknown() => {
                told.unknown.insert(n);
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    told
}

async fn order(client: &mut Client, n: i32) -> Result<(), Error> {
    let mut tx = client.transaction().await?;
    let id = enqueue(&mut tx, &Act::Sleep(5).job()).await?.id().0;
    tx.execute("insert into orders values ($1, $2)", &[&n, &id]).await?;
    Ok(tx.commit().await?)
}

/// When the first job was claimed after the server's last start, by its own stamps.
async fn first_claim(client: &Client) -> Option<Timestamp> {
    let sql = "select least((select min(locked_at) from outhaul.jobs where locked_at > pg_postmaster_start_time()), \
        (select min(started_at) from outhaul.jobs_finished where started_at > pg_postmaster_start_time()))";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_loses_nothing_acknowledged_and_is_worked_again_within_two_seconds() {
    let server = shop().await;
    let log = EffectLog::new().await;
    let workers = workers(&server, &log, 3).await;
    let stop = Arc::new(AtomicBool::new(false));
    let orders = tokio::spawn(take_orders(server.tcp_url(), stop.clone()));
    for crash in 1..=3 {
        // Enough that there is something to claim at every moment.
        let mut client = connect(&server.url()).await;
        enqueue_all(&mut client, &vec![Act::Sleep(20).job(); 500]).await;
        log.until("end", crash * 100).await;
        drop(client);
        if crash == 2 {
            server.stop_immediate().await.unwrap()
        } else {
            server.kill().await.unwrap()
        }
        server.start().await.unwrap();
        let client = connect(&server.url()).await;
        let accepts: Timestamp = client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
        until("a claim", || async { first_claim(&client).await.is_some() }).await;
        let first = first_claim(&client).await.unwrap();
        let limit = accepts + SignedDuration::from_secs(2);
        assert!(
            first <= limit,
            "crash {crash}: the first claim was at {first}, the server accepted at {accepts}"
        );
        assert!(workers.iter().all(|worker| !worker.has_ended()), "a worker has ended");
    }
    stop.store(true, Ordering::SeqCst);
    let told = orders.await.unwrap();
    let client = connect(&server.url()).await;
    until("all have ended", || async {
        client.query_one("select count(*) from outhaul.jobs", &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }
    reconcile(&client, &log, &told).await;
}

/// The orders as they were written, the jobs as they ended, and what handlers did.
async fn reconcile(client: &Client, log: &EffectLog, told: &Told) {
    let rows = client.query("select n, job from orders", &[]).await.unwrap();
    let orders: BTreeMap<i32, Uuid> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for n in &told.ok {
        assert!(orders.contains_key(n), "order {n} was acknowledged and is gone");
    }
    for n in orders.keys() {
        assert!(
            told.ok.contains(n) || told.unknown.contains(n),
            "order {n} was called not done and is there"
        );
    }
    let rows = client
        .query("select id, claim_no from outhaul.jobs_finished where status = 'completed'", &[])
        .await
        .unwrap();
    let finished: BTreeMap<Uuid, i32> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(finished.len(), rows.len(), "a job has two ends");
    for (n, job) in &orders {
        assert!(finished.contains_key(job), "the job of order {n} has no end");
    }
    assert_eq!(finished.len(), 1_500 + orders.len(), "a job without an order");
    let ends: BTreeSet<(Uuid, i32)> =
        log.all("end").await.into_iter().map(|end| (end.job, end.claim_no)).collect();
    for (job, claim_no) in &finished {
        assert!(ends.contains(&(*job, *claim_no)), "job {job} completed and its handler did not");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outlives_a_stop_of_its_server_and_goes_on() {
    let server = shop().await;
    let log = EffectLog::new().await;
    let workers = workers(&server, &log, 1).await;
    server.stop_fast().await.unwrap();
    // Long enough that every connection has been refused several times.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(workers.iter().all(|worker| !worker.has_ended()));
    server.start().await.unwrap();
    let mut client = connect(&server.url()).await;
    enqueue_all(&mut client, &vec![Act::Nothing.job(); 20]).await;
    log.until("end", 20).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(log.count("begin").await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turns_read_only_is_worked_again_within_two_seconds_of_its_return() {
    let server = shop().await;
    let log = EffectLog::new().await;
    let workers = workers(&server, &log, 2).await;
    let mut client = connect(&server.url()).await;
    // This session keeps writing; all others follow the server's default.
    client.batch_execute("set default_transaction_read_only = off").await.unwrap();
    enqueue_all(&mut client, &vec![Act::Nothing.job(); 20]).await;
    log.until("end", 20).await;
    read_only(&client, &server, true).await;
    enqueue_all(&mut client, &vec![Act::Nothing.job(); 20]).await;
    // Every connection meets it more than once.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(log.count("begin").await, 20);
    assert!(workers.iter().all(|worker| !worker.has_ended()));
    read_only(&client, &server, false).await;
    let writable: Timestamp = client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
    log.until("end", 40).await;
    let first = log.all("begin").await[20].at;
    assert!(
        first <= writable + SignedDuration::from_secs(2),
        "writable at {writable}, first begin at {first}"
    );
    for worker in workers {
        worker.stop().await;
    }
}

async fn is_read_only(server: &Throwaway) -> bool {
    let client = connect(&server.url()).await;
    let row = client.query_one("select current_setting('transaction_read_only')", &[]).await.unwrap();
    row.get::<_, &str>(0) == "on"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_outlived_its_lease_while_the_server_was_read_only_is_not_swept_by_its_own_worker() {
    let server = shop().await;
    let log = EffectLog::new().await;
    let worker = workers(&server, &log, 1).await.remove(0);
    let mut client = connect(&server.url()).await;
    client.batch_execute("set default_transaction_read_only = off").await.unwrap();
    for round in 1..=5 {
        enqueue_all(&mut client, &vec![Act::Sleep(500).job(); 10]).await;
        log.until("begin", 10 * round).await;
        read_only(&client, &server, true).await;
        log.until("end", 10 * round).await;
        let over = "select count(*) = 10 from outhaul.jobs where lease_until < clock_timestamp()";
        until("their leases are over", || async { client.query_one(over, &[]).await.unwrap().get(0) }).await;
        read_only(&client, &server, false).await;
        let settled = format!("select count(*) = {} from outhaul.jobs_finished", 10 * round);
        until("all completed", || async { client.query_one(&settled, &[]).await.unwrap().get(0) }).await;
        assert_eq!(log.count("begin").await, 10 * round, "each ran once");
    }
    worker.stop().await;
}

/// Turns all sessions but those that said otherwise; returns when new ones follow.
async fn read_only(client: &Client, server: &Throwaway, on: bool) {
    let sql = format!("alter system set default_transaction_read_only = {on}");
    client.batch_execute(&sql).await.unwrap();
    client.batch_execute("select pg_reload_conf()").await.unwrap();
    until("sessions follow", || async { is_read_only(server).await == on }).await;
}
