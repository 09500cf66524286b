//! Stopping: what runs is finished or given back, and nothing is left to the end of its lease without need.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outhaul::NewJob;
use outhaul_local::{Action, Match, Phase, Proxy, Rule};

use crate::fault::{Act, EffectLog, Post, enqueue_all};
use crate::support::{Counter, Db, PATIENCE, Running, Tick, until};

#[tokio::test(flavor = "multi_thread")]
async fn three_draining_workers_finish_everything_they_run() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        let post = Post { concurrency: 20, lease: 4_000, ..Post::new(name, &db.url(), &log) };
        workers.push(post.start().await);
    }
    // One and a half leases long.
    enqueue_all(&mut db.client, &vec![Act::Sleep(6_000).job(); 50]).await;
    log.until("begin", 50).await;
    workers.iter_mut().for_each(|worker| worker.term().unwrap());
    for worker in &mut workers {
        assert!(worker.wait(PATIENCE).await.unwrap().success());
    }
    assert_eq!(db.count("select count(*) from outhaul.jobs_finished where status = 'completed'").await, 50);
    assert_eq!((log.count("begin").await, log.count("end").await), (50, 50));
    assert_eq!(db.count("select count(*) from outhaul.workers").await, 0, "they have signed off");
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_drain_limit_jobs_are_given_back_at_no_cost_and_begin_elsewhere_at_once() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let post = Post { lease: 60_000, drain: 100, grace: 100, ..Post::new("first", &db.url(), &log) };
    let mut first = post.start().await;
    let jobs = enqueue_all(&mut db.client, &vec![Act::Hang.job(); 10]).await;
    log.until("begin", 10).await;
    // Only a wake-up can tell it before a minute has passed.
    let _second = Post { name: "second".into(), poll: 60_000, ..post }.start().await;
    db.until("both are heard", "select count(*) = 2 from outhaul.workers").await;
    until("it listens", || async { db.count("select count(*) from pg_stat_activity where application_name = 'outhaul/listen' and datname = current_database()").await == 2 }).await;
    first.term().unwrap();
    assert!(first.wait(PATIENCE).await.unwrap().success());
    log.until("begin", 20).await;
    let again = log.all("begin").await.split_off(10);
    assert_eq!(again.iter().map(|begin| begin.job).collect::<HashSet<_>>(), jobs.into_iter().collect());
    assert!(again.iter().all(|begin| begin.attempt == 1 && begin.claim_no == 2), "{again:?}");
    let gave_back = "select count(*) from outhaul.job_attempts where outcome = 'released'";
    assert_eq!(db.count(gave_back).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_claimed_ahead_are_given_back_by_a_drain() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let builder =
        db.worker().handle(log.actor("w")).queue("acts", 2).with(|o| o.lease = Duration::from_secs(60));
    let worker = Running::start(builder).await;
    // Fast ones first, so that the worker claims ahead; then some that fill its slots.
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 200]).await;
    log.until("end", 200).await;
    let mut jobs = vec![Act::Sleep(1_500).job(); 2];
    jobs.extend(vec![Act::Nothing.job(); 100]);
    enqueue_all(&mut db.client, &jobs).await;
    log.until("begin", 202).await;
    worker.stop().await;
    db.until("nothing is held", "select count(*) = 0 from outhaul.jobs where status = 'leased'").await;
    assert_eq!(db.count("select coalesce(max(attempts), 0)::bigint from outhaul.jobs").await, 0);
    let (done, left) = (
        db.count("select count(*) from outhaul.jobs_finished").await,
        db.count("select count(*) from outhaul.jobs").await,
    );
    assert_eq!(done + left, 302);
    assert_eq!(log.count("end").await, done);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_claim_under_way_brings_is_given_back_by_a_drain() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
        .options(crate::support::quick())
        .with(|o| o.lease = Duration::from_secs(3600))
        .handle(log.actor("w"));
    let worker = Running::start(builder).await;
    db.until("it looks", "select count(*) = 1 from outhaul.workers").await;
    // Each claim's answer is held until one has leased the jobs; the next rule is there before that.
    let hold = || proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("claim")).then(Action::Hold));
    let mut held = hold();
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 5]).await;
    loop {
        held.fired(PATIENCE).await.unwrap();
        if db.count("select count(*) from outhaul.jobs where status = 'leased'").await == 5 {
            break;
        }
        let next = hold();
        held.release();
        held = next;
    }
    worker.stopper().drain();
    // Not before everybody has heard of the drain, so that the answer meets a worker that stops.
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.release();
    worker.stop().await;
    let back = "select count(*) from outhaul.jobs where status = 'pending' and attempts = 0";
    assert_eq!(db.count(back).await + log.count("end").await, 5);
    assert_eq!(db.count("select count(*) from outhaul.jobs where status = 'leased'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_now_gives_back_what_does_not_listen() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let builder = db.worker().handle(log.actor("w")).with(|o| {
        (o.lease, o.drain, o.grace) =
            (Duration::from_secs(3600), Duration::from_secs(3600), Duration::from_secs(3600));
    });
    let worker = Running::start(builder).await;
    enqueue_all(&mut db.client, &[Act::Hang.job(), Act::UntilTold.job(), Act::Sleep(3_600_000).job()]).await;
    log.until("begin", 3).await;
    worker.stopper().now();
    worker.stop().await;
    let back = "select count(*) from outhaul.jobs where status = 'pending' and attempts = 0";
    assert_eq!(db.count(back).await + db.count("select count(*) from outhaul.jobs_finished").await, 3);
    assert!(db.count(back).await >= 2);
}

/// Counts the futures of handlers that were dropped.
struct Guard(Counter);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_worker_drops_its_handlers_and_its_leases_expire() {
    let mut db = Db::new().await;
    let counter = Counter::default();
    let dropped = counter.clone();
    let builder = db.worker().handle(move |_: Tick, _| {
        let guard = Guard(dropped.clone());
        guard.0.begin();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let worker = tokio::spawn(builder.build().await.unwrap().run_until(std::future::pending()));
    let jobs: Vec<_> = (0..5).map(|n| NewJob::new(&Tick { n }).unwrap()).collect();
    enqueue_all(&mut db.client, &jobs).await;
    until("5 handlers began", || async { counter.begun() == 5 }).await;
    worker.abort();
    counter.until_ended(5).await;
    let others = Counter::default();
    let other = Running::start(db.worker().handle(others.handler())).await;
    others.until_ended(5).await;
    other.stop().await;
    assert_eq!((counter.begun(), others.begun()), (5, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_although_its_database_is_away() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    for away in ["refused", "silent", "refused from the start"] {
        proxy.pass();
        proxy.open_listener().await.unwrap();
        let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
            .options(crate::support::quick())
            .handle(log.actor("w"));
        let worker = builder.build().await.unwrap();
        if away == "refused from the start" {
            proxy.close_listener().await;
            proxy.cut();
        }
        let stopper = worker.stopper();
        let task = tokio::spawn(worker.run_until(std::future::pending()));
        if away != "refused from the start" {
            db.until("it works", "select count(*) >= 1 from outhaul.workers").await;
            db.client.execute("delete from outhaul.workers", &[]).await.unwrap();
        }
        match away {
            "refused" => {
                proxy.close_listener().await;
                proxy.cut();
            }
            "silent" => proxy.blackhole(),
            _ => {}
        }
        // Long enough for every part of it to meet the trouble.
        tokio::time::sleep(Duration::from_millis(500)).await;
        stopper.drain();
        let started = Instant::now();
        let ended = tokio::time::timeout(PATIENCE, task).await;
        assert!(ended.is_ok(), "{away}: still there after {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_past_the_drain_does_not_keep_the_worker() {
    let mut db = Db::new().await;
    let (blocked, others) = (Counter::default(), Counter::default());
    let release = Arc::new(AtomicBool::new(false));
    let (count, released) = (blocked.clone(), release.clone());
    let builder = db.worker().handle(move |_: Tick, _| {
        count.begin();
        let started = Instant::now();
        while !released.load(Ordering::SeqCst) && started.elapsed() < 2 * PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        count.end();
        std::future::ready(Ok(()))
    });
    let quick = |o: &mut outhaul::WorkerOptions| {
        (o.drain, o.grace) = (Duration::from_millis(100), Duration::from_millis(100));
    };
    let worker = Running::start(builder.with(quick)).await;
    enqueue_all(&mut db.client, &[NewJob::new(&Tick { n: 1 }).unwrap()]).await;
    until("the handler blocks", || async { blocked.begun() == 1 }).await;
    worker.stop().await;
    assert_eq!(blocked.ended(), 0, "the worker ended before its handler");
    let other = Running::start(db.worker().handle(others.handler())).await;
    db.until("completed", "select count(*) = 1 from outhaul.jobs_finished where claim_no = 2").await;
    // The first says done as well, to nobody.
    release.store(true, Ordering::SeqCst);
    blocked.until_ended(1).await;
    other.stop().await;
    assert_eq!(db.count("select count(*) from outhaul.jobs_finished").await, 1);
}
