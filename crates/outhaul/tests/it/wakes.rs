//! From the commit of a job to the look that finds it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outhaul::NewJob;
use outhaul_local::{Action, Match, Phase, Proxy, Rule};

use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Counter, Db, Running, Tick, until};

/// So rare that nothing in a test can be found by it.
const NEVER: Duration = Duration::from_secs(3600);

/// A worker that looks at its start, and then only for a reason.
async fn sleeper(db: &mut Db, log: &EffectLog) -> Running {
    let builder = db.worker().handle(log.actor("w")).with(|o| (o.poll, o.canary) = (NEVER, NEVER));
    let worker = Running::start(builder).await;
    let listening = "select count(*) = 1 from pg_stat_activity where datname = current_database() \
        and application_name = 'outhaul/listen' and state = 'idle'";
    db.until("it listens", listening).await;
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn every_commit_wakes_a_worker_that_sleeps() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = sleeper(&mut db, &log).await;
    for n in 1..=200 {
        Act::Nothing.enqueue(&mut db.client).await;
        log.until("end", n).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_notifications_for_one_job_do_not_cause_a_thousand_claims() {
    let db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    let counter = Counter::default();
    let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
        .options(crate::support::quick())
        .handle(counter.handler())
        .with(|o| (o.poll, o.canary) = (NEVER, NEVER));
    let worker = Running::start(builder).await;
    let claims = Rule::on(Match::at(Phase::BeforeForward).tag("claim")).always();
    let claims = proxy.add(claims.then(Action::Delay(Duration::ZERO)));
    db.until("it works", "select count(*) = 1 from outhaul.workers").await;
    let mut caller = db.connect().await;
    let noise = db.connect().await;
    outhaul::enqueue(&mut caller, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap();
    let before = claims.count();
    for _ in 0..1_000 {
        noise.batch_execute("notify outhaul").await.unwrap();
    }
    counter.until_ended(1).await;
    // What the last notification set off is over when another job has come and gone.
    outhaul::enqueue(&mut caller, &NewJob::new(&Tick { n: 2 }).unwrap()).await.unwrap();
    counter.until_ended(2).await;
    let caused = claims.count() - before;
    println!("{caused} claims for 1000 notifications");
    assert!(caused < 500, "{caused} claims");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_notification_was_suppressed_is_found_soon_after_the_wake() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = sleeper(&mut db, &log).await;
    let (mut first, mut second) = (db.connect().await, db.connect().await);
    db.client.batch_execute("create table orders (n int)").await.unwrap();
    let (mut jobs, mut shown) = (0, 0);
    while shown < 5 {
        // The first opens the gate and stays open; the second comes within its interval and is silent.
        let mut loud = first.transaction().await.unwrap();
        loud.execute("insert into orders values (1)", &[]).await.unwrap();
        let mut silent = second.transaction().await.unwrap();
        silent.execute("insert into orders values (2)", &[]).await.unwrap();
        let gate = "select last_value from outhaul.wake_gate";
        outhaul::enqueue(&mut loud, &Act::Nothing.job()).await.unwrap();
        let opened = db.count(gate).await;
        outhaul::enqueue(&mut silent, &Act::Nothing.job()).await.unwrap();
        let suppressed = db.count(gate).await == opened;
        loud.commit().await.unwrap();
        // Then the look that the first has caused is over.
        log.until("begin", jobs + 1).await;
        silent.commit().await.unwrap();
        jobs += 2;
        let gap = "select (extract(epoch from max(pg_xact_commit_timestamp(xmin)) - min(pg_xact_commit_timestamp(xmin))) * 1000)::bigint from orders";
        // Only a commit within the lingering is promised to be found; the rescan that is owed may find it as well.
        if suppressed && db.count(gap).await < 60 {
            log.until("end", jobs).await;
            shown += 1;
        } else {
            db.client.batch_execute("notify outhaul").await.unwrap();
            log.until("end", jobs).await;
        }
        db.client.batch_execute("truncate orders").await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_far_behind_the_floor_is_found_by_the_rescan() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = Running::start(db.worker().handle(log.actor("w"))).await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 50]).await;
    log.until("end", 50).await;
    // As a transaction that began an hour ago and commits now, without a word.
    db.client
        .batch_execute(
            "set outhaul.notify = 'off';
             insert into outhaul.jobs (queue, job_type, payload, run_at, created_at)
             select 'acts', 'test.act', '\"nothing\"', now() - n * interval '6 min', now() - n * interval '6 min' from generate_series(1, 10) n",
        )
        .await
        .unwrap();
    log.until("end", 60).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_begins_when_it_becomes_due_although_the_worker_polls_rarely() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = sleeper(&mut db, &log).await;
    let delays = [700u64, 300, 1_000];
    let jobs: Vec<NewJob> =
        delays.iter().map(|ms| Act::Nothing.job().delay(Duration::from_millis(*ms))).collect();
    enqueue_all(&mut db.client, &jobs).await;
    let rows = db.client.query("select id, run_at from outhaul.jobs", &[]).await.unwrap();
    let due: std::collections::HashMap<uuid::Uuid, Timestamp> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    log.until("end", 3).await;
    for begin in log.all("begin").await {
        let due = due[&begin.job];
        assert!(begin.at >= due, "{begin:?} was due at {due}");
        assert!(begin.at <= due + SignedDuration::from_secs(1), "{begin:?} was due at {due}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_finds_new_lanes_also_when_claims_are_slow() {
    for delay in [0, 5] {
        let mut db = Db::new().await;
        let log = EffectLog::new().await;
        let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
        let slow = Rule::on(Match::at(Phase::BeforeForward).tag("claim")).always();
        proxy.add(slow.then(Action::Delay(Duration::from_millis(delay))));
        let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
            .options(crate::support::quick())
            .handle(log.actor("w"))
            .with(|o| (o.poll, o.canary) = (NEVER, NEVER));
        let worker = Running::start(builder).await;
        for (n, priority) in [0, 5, -5, 10, -10, 7].into_iter().enumerate() {
            let job = Act::Nothing.job().priority(priority);
            outhaul::enqueue(&mut db.client, &job).await.unwrap();
            let n = n as i64 + 1;
            until(&format!("the job of priority {priority}"), || async { log.count("end").await == n }).await;
        }
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_of_a_clock_that_was_ahead_hide_nothing() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    // As a process leaves them whose server's clock was set back an hour since.
    let floors = "insert into outhaul.queue_floors (queue, priorities, shares, run_ats, floored_at, swept_at) \
        values ('acts', '{0}', '{0}', array[now() + interval '1 hour'], now() + interval '1 hour', now() + interval '1 hour')";
    db.client.batch_execute(floors).await.unwrap();
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    // Three of them have lost their worker.
    let claim = "select from outhaul.claim('acts', 3, gen_random_uuid(), interval '1 minute')";
    db.client.batch_execute(claim).await.unwrap();
    assert_eq!(db.age_leases().await, 3);
    let worker = Running::start(db.worker().handle(log.actor("w"))).await;
    log.until("end", 20).await;
    worker.stop().await;
}
