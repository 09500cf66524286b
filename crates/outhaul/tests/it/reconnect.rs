//! A database that goes away and comes back while workers run.

use std::time::Duration;

use outhaul::Worker;
use outhaul_local::Proxy;

use crate::fault::{Act, EffectLog, Post, enqueue_all};
use crate::support::{Db, Running, until};

async fn behind_proxy() -> (Db, Proxy, EffectLog) {
    let db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    (db, proxy, EffectLog::new().await)
}

fn worker(proxy: &Proxy, log: &EffectLog) -> outhaul::WorkerBuilder {
    Worker::builder(proxy.url().parse().unwrap()).options(crate::support::quick()).handle(log.actor("w"))
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_presumed_lost_while_the_database_is_away() {
    for silent in [false, true] {
        let (mut db, proxy, log) = behind_proxy().await;
        let running = Running::start(worker(&proxy, &log)).await;
        let id = Act::UntilTold.enqueue(&mut db.client).await;
        log.until("begin", 1).await;
        // Nobody else sweeps: only the passing of its own time can tell this worker.
        if silent {
            proxy.blackhole();
        } else {
            proxy.close_listener().await;
            proxy.cut();
        }
        log.until("told lease_lost", 1).await;
        proxy.open_listener().await.unwrap();
        proxy.pass();
        proxy.cut();
        // It works again: the report stands unless its sweep came first.
        Act::Nothing.enqueue(&mut db.client).await;
        until("the first job has ended or begun again", || async {
            log.count("begin").await == 3 || db.status(id).await == "completed"
        })
        .await;
        running.stopper().now();
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_outlives_its_renewal_connection_has_one_end() {
    let (mut db, proxy, log) = behind_proxy().await;
    let running = Running::start(worker(&proxy, &log)).await;
    let id = Act::Sleep(3_000).enqueue(&mut db.client).await;
    log.until("begin", 1).await;
    let _other = Post::new("other", &db.url(), &log).start().await;
    proxy.blackhole_role("outhaul/pulse");
    log.until("begin", 2).await;
    // The worker that cannot renew may have got it once more before the other did.
    db.until("it completed", "select count(*) = 1 from outhaul.jobs_finished").await;
    proxy.pass();
    running.stop().await;
    assert_eq!(db.status(id).await, "completed");
    assert_eq!(db.count("select count(*) from outhaul.jobs_finished").await, 1);
    let lost = "select count(*) from outhaul.job_attempts where error_class = 'crash'";
    assert_eq!(
        db.count("select claim_no - 1::bigint from outhaul.jobs_finished").await,
        db.count(lost).await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_that_are_ended_cost_no_job_and_end_no_worker() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(Running::start(db.worker().handle(log.actor(name))).await);
    }
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
        where application_name like 'outhaul/%' and datname = current_database()";
    for round in 1..=10 {
        // For a moment all may be between two attempts.
        until("there are connections to end", async || db.count(end).await > 0).await;
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 10]).await;
        log.until("end", round * 10).await;
    }
    db.until("all completed", "select count(*) = 100 from outhaul.jobs_finished").await;
    for worker in workers {
        assert!(!worker.has_ended());
        worker.stop().await;
    }
    assert_eq!(log.jobs("end").await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn short_limits_of_the_server_and_a_raised_isolation_level_are_survived() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let name = db.database.name().to_owned();
    for setting in [
        "idle_session_timeout = '1s'",
        "idle_in_transaction_session_timeout = '1s'",
        "statement_timeout = '1s'",
        "default_transaction_isolation = 'repeatable read'",
    ] {
        db.client.batch_execute(&format!("alter database \"{name}\" set {setting}")).await.unwrap();
    }
    let mut workers = Vec::new();
    for worker in ["a", "b"] {
        workers.push(Running::start(db.worker().handle(log.actor(worker))).await);
    }
    let mut done = 0;
    enqueue_all(&mut db.client, &vec![Act::Sleep(3_000).job(); 5]).await;
    for _ in 0..5 {
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 40]).await;
        done += 40;
        log.until("end", done).await;
        // Longer than the idle limit, which is what this is about.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    db.until("all completed", "select count(*) = 205 from outhaul.jobs_finished").await;
    for worker in workers {
        assert!(!worker.has_ended());
        worker.stop().await;
    }
    assert_eq!(log.jobs("end").await, 205);
    assert_eq!(log.count("begin").await, 205, "no lease was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_at_random_cost_no_job() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut db, proxy, log) = behind_proxy().await;
    let mut workers = vec![Running::start(worker(&proxy, &log)).await];
    workers.push(Running::start(worker(&proxy, &log).with(|o| o.max_connections = 3)).await);
    let jobs = enqueue_all(&mut db.client, &vec![Act::Sleep(50).job(); 400]).await;
    for _ in 0..15 {
        let role = ["outhaul/claim", "outhaul/settle", "outhaul/pulse", "outhaul/upkeep", "outhaul/listen"];
        proxy.cut_role(random.choice(role).unwrap());
        tokio::time::sleep(Duration::from_millis(random.u64(20..150))).await;
    }
    db.until("all completed", "select count(*) = 400 from outhaul.jobs_finished where status = 'completed'")
        .await;
    for worker in workers {
        assert!(!worker.has_ended());
        worker.stop().await;
    }
    assert_eq!(log.jobs("end").await, jobs.len() as i64);
    // Each begin more than one has a record of how the claim before it ended.
    let claims = db.count("select sum(claim_no) from outhaul.jobs_finished").await;
    let recorded = db.count("select count(*) from outhaul.job_attempts").await;
    assert_eq!(claims, 400 + recorded, "seed {seed}");
}
