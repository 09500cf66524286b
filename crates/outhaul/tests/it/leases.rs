//! Who may run a job: only what is committed, one holder at a time, renewed whatever its handler does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outhaul::{Context, Failure, NewJob, enqueue};
use uuid::Uuid;

use crate::calls::claim;
use crate::fault::{Act, EffectLog, Post, enqueue_all};
use crate::support::{Counter, Db, PATIENCE, Running, Tick, connect, until};

#[tokio::test(flavor = "multi_thread")]
async fn no_job_begins_before_its_commit_and_none_after_a_rollback() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = Running::start(db.worker().handle(log.actor("w"))).await;
    db.client.batch_execute("create table orders (job uuid)").await.unwrap();
    let mut producer = db.connect().await;
    for n in 0..20 {
        let mut tx = producer.transaction().await.unwrap();
        let id = enqueue(&mut tx, &Act::Nothing.job()).await.unwrap().id().0;
        tx.execute("insert into orders values ($1)", &[&id]).await.unwrap();
        db.until_looked().await;
        if n % 2 == 0 { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    log.until("end", 10).await;
    worker.stop().await;
    let rows = db.client.query("select job, pg_xact_commit_timestamp(xmin) from orders", &[]).await.unwrap();
    let committed: HashMap<Uuid, Timestamp> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let begins = log.all("begin").await;
    assert_eq!(begins.len(), 10);
    for begin in begins {
        assert!(begin.at >= committed[&begin.job], "{begin:?} was committed at {}", committed[&begin.job]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_claimers_never_hold_one_lease_twice() {
    let mut db = Db::new().await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 2_000]).await;
    let claimers = (0..20).map(|_| tokio::spawn(claim_all(db.url())));
    let mut claimed: HashMap<Uuid, (i32, Uuid)> = HashMap::new();
    for claimer in claimers.collect::<Vec<_>>() {
        for (id, claim_no, token) in claimer.await.unwrap() {
            assert!(claimed.insert(id, (claim_no, token)).is_none(), "job {id} was leased twice");
        }
    }
    assert_eq!(claimed.len(), 2_000);
    assert!(claimed.values().all(|(claim_no, _)| *claim_no == 1));
    let rows = db.client.query("select id, claim_no, lease_token from outhaul.jobs", &[]).await.unwrap();
    for row in rows {
        assert_eq!(claimed[&row.get::<_, Uuid>(0)], (row.get(1), row.get(2)));
    }
    assert_eq!(db.count("select sum(attempts) from outhaul.jobs").await, 2_000);
}

/// Claims by tens until three claims in a row bring nothing: one may only have met the locks of the others.
async fn claim_all(url: String) -> Vec<(Uuid, i32, Uuid)> {
    let client = connect(&url).await;
    let (mut claimed, mut empty) = (Vec::new(), 0);
    while empty < 3 {
        let leases = claim(&client, "acts", 10).await;
        empty = if leases.is_empty() { empty + 1 } else { 0 };
        claimed.extend(leases.iter().map(|lease| (lease.id, lease.claim_no, lease.token)));
    }
    claimed
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_several_processes_run_each_job_once() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let mut posts = Vec::new();
    for name in ["a", "b", "c"] {
        posts.push(Post { lease: 30_000, ..Post::new(name, &db.url(), &log) }.start().await);
    }
    for _ in 0..4 {
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 100]).await;
    }
    log.until("end", 400).await;
    db.until("all completed", "select count(*) = 400 from outhaul.jobs_finished where status = 'completed'")
        .await;
    assert_eq!((log.count("begin").await, log.jobs("begin").await), (400, 400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_keep_their_leases() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    // Another process sweeps, and would run whatever is not renewed.
    let other = Post::new("other", &db.url(), &log);
    let builder = db.worker().handle(log.actor("blocked")).queue("acts", 5);
    let worker = Running::start(builder).await;
    enqueue_all(&mut db.client, &vec![Act::Block(3_000).job(); 5]).await;
    db.until("all are leased", "select count(*) = 5 from outhaul.jobs where status = 'leased'").await;
    let _other = other.start().await;
    db.until("all completed", "select count(*) = 5 from outhaul.jobs_finished").await;
    worker.stop().await;
    let begins = log.all("begin").await;
    assert_eq!(begins.len(), 5, "{begins:?}");
    assert!(begins.iter().all(|begin| begin.worker == "blocked"), "{begins:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_stops_neither_reports_nor_claims() {
    let mut db = Db::new().await;
    let (begun, blocking) = (Counter::default(), Counter::default());
    let (count, block) = (begun.clone(), blocking.clone());
    let release = Arc::new(AtomicBool::new(false));
    let released = release.clone();
    let builder = db.worker().queue("ticks", 2).handle(move |tick: Tick, _| {
        count.begin();
        if tick.n == -1 {
            block.begin();
            let started = Instant::now();
            while !released.load(Ordering::SeqCst) && started.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            block.end();
        }
        std::future::ready(Ok(()))
    });
    let worker = Running::start(builder).await;
    // Fast ones first, so that one runner gets the next ones and the blocking one in a row.
    let ticks = |ns: &[i64]| ns.iter().map(|n| NewJob::new(&Tick { n: *n }).unwrap()).collect::<Vec<_>>();
    enqueue_all(&mut db.client, &ticks(&[0; 300])).await;
    db.until("the fast ones", "select count(*) = 300 from outhaul.jobs_finished").await;
    enqueue_all(&mut db.client, &ticks(&[1, 2, 3, -1, 4, 5, 6])).await;
    until("a handler blocks", || async { blocking.begun() == 1 }).await;
    db.until("what ended before is reported", "select count(*) = 306 from outhaul.jobs_finished").await;
    enqueue_all(&mut db.client, &ticks(&[0; 20])).await;
    db.until("others are claimed and run", "select count(*) = 326 from outhaul.jobs_finished").await;
    assert_eq!(blocking.ended(), 0, "all that while one thread was blocked");
    release.store(true, Ordering::SeqCst);
    db.until("the blocking one too", "select count(*) = 327 from outhaul.jobs_finished").await;
    worker.stop().await;
    assert_eq!(begun.begun(), 327);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_complete_in_does_not_starve_the_renewal_of_others() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let builder = db
        .worker()
        // Long enough for a busy machine, and shorter than the row stays locked.
        .with(|options| options.lease = Duration::from_secs(3))
        .handle(log.actor("w"))
        .handle_raw("acts", "test.slow_commit", slow_commit(db.url(), Duration::from_millis(6_000)))
        .queue("acts", 201);
    let worker = Running::start(builder).await;
    let mut jobs = vec![Act::Sleep(7_000).job(); 200];
    jobs.insert(100, NewJob::raw("acts", "test.slow_commit", "{}"));
    enqueue_all(&mut db.client, &jobs).await;
    db.until("all completed", "select count(*) = 201 from outhaul.jobs_finished where status = 'completed'")
        .await;
    worker.stop().await;
    assert_eq!(log.count("begin").await, 200, "no lease ended while another row was locked");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}

/// Completes in a transaction of its own, and keeps that open for a time.
fn slow_commit(
    url: String,
    open: Duration,
) -> impl Fn(Context) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync + 'static
{
    let url = Arc::new(url);
    move |cx| {
        let url = url.clone();
        Box::pin(async move {
            let mut client = connect(&url).await;
            let mut tx = client.transaction().await?;
            cx.complete_in(&mut tx).await?;
            tokio::time::sleep(open).await;
            tx.commit().await?;
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_whose_job_this_process_has_claimed_again_is_told() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    // Nothing is renewed within the test, so only the second claim can tell the first attempt.
    let builder = db.worker().handle(log.actor("w")).with(|o| o.lease = Duration::from_secs(3600));
    let worker = Running::start(builder).await;
    let id = Act::UntilTold.enqueue(&mut db.client).await;
    log.until("begin", 1).await;
    assert_eq!(db.age_leases().await, 1);
    log.until("told lease_lost", 1).await;
    let told = log.all("told lease_lost").await;
    assert_eq!((told[0].job, told[0].claim_no), (id, 1));
    log.until("begin", 2).await;
    assert_eq!(log.all("begin").await[1].claim_no, 2);
    // The first attempt says done: that is not its to say.
    log.until("end", 1).await;
    assert_eq!(db.status(id).await, "leased");
    worker.stopper().now();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_tells_its_handler_by_the_next_renewal() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let builder = db.worker().handle(log.actor("w")).with(|o| o.lease = Duration::from_secs(3));
    let worker = Running::start(builder).await;
    let id = Act::UntilTold.enqueue(&mut db.client).await;
    log.until("begin", 1).await;
    let cancelled = outhaul::Producer::default().cancel(&mut db.client, outhaul::JobId(id)).await.unwrap();
    assert_eq!(cancelled, outhaul::Cancelled::Cancelled);
    let at: Timestamp = db.client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
    log.until("told cancelled", 1).await;
    worker.stop().await;
    let after = log.all("told cancelled").await[0].at.duration_since(at).as_secs_f64();
    assert!(after < 3.0 / 3.0 + 3.0 / 12.0 + 1.0, "told {after} s after the cancellation");
    assert_eq!(db.status(id).await, "cancelled", "its effects stay, its report changes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_hears_that_its_time_is_over() {
    let mut db = Db::new().await;
    let (told, ended) = (Arc::new(AtomicBool::new(false)), Counter::default());
    let (hears, ends) = (told.clone(), ended.clone());
    let builder =
        db.worker().with(|o| o.timeout = Duration::from_millis(200)).handle(move |_: Tick, cx: Context| {
            let started = Instant::now();
            while !cx.is_cancelled() && started.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20));
            }
            hears.store(cx.is_cancelled(), Ordering::SeqCst);
            ends.end();
            std::future::ready(Ok(()))
        });
    let worker = Running::start(builder).await;
    enqueue(&mut db.client, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap();
    ended.until_ended(1).await;
    worker.stop().await;
    assert!(told.load(Ordering::SeqCst));
}
