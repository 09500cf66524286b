//! What holds queues apart, as an observer sees it: settings, units, cooldowns, and what each job waits for.

use std::time::Duration;

use outhaul::{
    IsolationView, JobId, JobStatus, NewJob, Observer, Projection, QueueChange, Rule, Start, Subscription,
    WaitReason, WaitView, Waiting,
};

use crate::calls::{Lease, claim, complete};
use crate::support::{Counter, Db, Running, Tick};

const HOUR: Duration = Duration::from_secs(3_600);

async fn set(db: &Db, change: QueueChange) {
    db.operator().await.set_queue("q", &change, None).await.unwrap();
}

/// Enqueues one after another, so that they are in this order.
async fn enqueue<const N: usize>(db: &mut Db, keys: impl Fn(NewJob) -> NewJob) -> [JobId; N] {
    let mut ids = [JobId::default(); N];
    for id in &mut ids {
        let job = keys(NewJob::raw("q", "t", "{}"));
        *id = outhaul::enqueue(&mut db.client, &job).await.unwrap().id();
    }
    ids
}

async fn seen(observer: &Observer) -> IsolationView {
    observer.isolation(Some("q")).await.unwrap().remove(0)
}

async fn waits(observer: &Observer, id: JobId) -> Option<WaitView> {
    let mut waits = observer.waits(id).await.unwrap();
    assert!(waits.len() <= 1, "{waits:?}");
    waits.pop()
}

/// A claimed job ends as rate_limited and is to come back after a time.
async fn cool(db: &Db, lease: &Lease, ms: i64) {
    let sql = "select from outhaul.fail(array[$1::uuid], array[$2::uuid], array[$3::int], '{retry}', array[$4::bigint], \
        '{rate_limited}', '{http_429}', '{slow down}')";
    db.client.query(sql, &[&lease.id, &lease.token, &lease.claim_no, &ms]).await.unwrap();
}

#[tokio::test]
async fn a_job_behind_another_of_its_ordering_key_waits_for_its_turn_and_says_behind_whom() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    let [first, second, third] = enqueue(&mut db, |job| job.ordering_key("o")).await;
    // Nobody has looked yet: all of them wait, the first for nothing but that look.
    assert_eq!(seen(&observer).await.waiting, Waiting { lane: 3, permit: 0, rate: 0 });
    assert_eq!(waits(&observer, first).await.unwrap().job_id, None);
    let lease = claim(&db.client, "q", 10).await.remove(0);
    assert_eq!(lease.id, first.0);
    let apart = seen(&observer).await;
    assert_eq!(apart.waiting.held(), 2);
    assert!(apart.oldest_waiting_ms.is_some_and(|ms| ms < 60_000), "{apart:?}");
    assert!(waits(&observer, first).await.is_none(), "it runs");
    for (id, ahead) in [(second, 1), (third, 2)] {
        let wait = waits(&observer, id).await.unwrap();
        assert_eq!((wait.reason, wait.key.as_deref()), (WaitReason::Lane, Some("o")));
        assert_eq!((wait.job_id, wait.job_status), (Some(first), Some(JobStatus::Leased)));
        assert_eq!(wait.jobs, Some(ahead), "jobs before it");
    }
    let keys = observer.waiting("q", 10).await.unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].reason, keys[0].jobs, keys[0].job_id), (WaitReason::Lane, Some(2), Some(first)));
    // The head waits for its next attempt, and they say until when.
    assert_eq!(crate::calls::fail(&db.client, &lease, "retry", 3_600_000).await, "settled");
    let wait = waits(&observer, second).await.unwrap();
    assert_eq!(wait.job_status, Some(JobStatus::Retrying));
    assert!(wait.until.is_some_and(|at| at > jiff::Timestamp::now()), "{wait:?}");
    db.operator().await.cancel(first, None).await.unwrap();
    assert!(waits(&observer, second).await.is_none(), "it may run now");
    assert_eq!(seen(&observer).await.waiting.lane, 1);
}

#[tokio::test]
async fn a_job_without_a_unit_of_its_key_says_how_many_are_in_use() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    set(&db, QueueChange::new().max_running_per_key(1)).await;
    db.operator().await.limit_key("q", "exempt", Some(7), None).await.unwrap();
    let jobs: [JobId; 3] = enqueue(&mut db, |job| job.limit_key("k")).await;
    let lease = claim(&db.client, "q", 10).await.remove(0);
    assert_eq!(seen(&observer).await.waiting, Waiting { lane: 0, permit: 2, rate: 0 });
    for id in jobs.into_iter().filter(|id| id.0 != lease.id) {
        let wait = waits(&observer, id).await.unwrap();
        assert_eq!((wait.reason, wait.key.as_deref()), (WaitReason::Permit, Some("k")));
        assert_eq!((wait.running, wait.max_running), (Some(1), Some(1)));
    }
    let keys = observer.waiting("q", 10).await.unwrap();
    let told: Vec<_> =
        keys.iter().map(|key| (key.key.as_deref().unwrap(), key.jobs, key.max_running)).collect();
    assert_eq!(told, [("k", Some(2), Some(1)), ("exempt", Some(0), Some(7))]);
    assert_eq!(seen(&observer).await.key_limits, 1);
    complete(&db.client, &lease, "row").await;
    assert_eq!(seen(&observer).await.waiting.permit, 1, "one was let in");
}

#[tokio::test]
async fn a_job_says_which_limit_rate_cooldown_or_pause_it_waits_for() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    // The limit of the queue.
    set(&db, QueueChange::new().max_running(1)).await;
    let [a, b] = enqueue(&mut db, |job| job).await;
    let lease = claim(&db.client, "q", 10).await.remove(0);
    let other = if lease.id == a.0 { b } else { a };
    let wait = waits(&observer, other).await.unwrap();
    assert_eq!((wait.reason, wait.running, wait.max_running), (WaitReason::Limit, Some(1), Some(1)));
    assert_eq!(seen(&observer).await.running, 1);
    // The queue's rate.
    set(&db, QueueChange::new().without("max_running").rate(1, HOUR)).await;
    complete(&db.client, &lease, "row").await;
    let lease = claim(&db.client, "q", 10).await.remove(0);
    assert_eq!(lease.id, other.0);
    let [next] = enqueue(&mut db, |job| job).await;
    let wait = waits(&observer, next).await.unwrap();
    assert_eq!((wait.reason, wait.key.as_deref()), (WaitReason::Rate, None));
    assert!(wait.until.is_some_and(|at| at > jiff::Timestamp::now()), "{wait:?}");
    // A cooldown of the whole queue, and its end.
    set(&db, QueueChange::new().without("rate")).await;
    cool(&db, &lease, 3_600_000).await;
    let wait = waits(&observer, next).await.unwrap();
    assert_eq!((wait.reason, wait.key.as_deref()), (WaitReason::Cooldown, None));
    assert!(seen(&observer).await.cooling_ms.is_some_and(|ms| ms > 3_000_000));
    set(&db, QueueChange::new().without("cool_until")).await;
    assert!(waits(&observer, next).await.is_none());
    // A pause.
    db.operator().await.pause("q", None).await.unwrap();
    assert_eq!(waits(&observer, next).await.unwrap().reason, WaitReason::Paused);
}

#[tokio::test]
async fn a_place_in_a_rate_and_the_cooldown_of_a_key_are_counted_and_told_with_their_time() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    set(&db, QueueChange::new().key_rate(1, HOUR)).await;
    let jobs: [JobId; 3] = enqueue(&mut db, |job| job.rate_key("host")).await;
    let lease = claim(&db.client, "q", 10).await.remove(0);
    assert_eq!(seen(&observer).await.waiting, Waiting { lane: 0, permit: 0, rate: 2 });
    for id in jobs.into_iter().filter(|id| id.0 != lease.id) {
        let wait = waits(&observer, id).await.unwrap();
        assert_eq!((wait.reason, wait.key.as_deref()), (WaitReason::Rate, Some("host")));
        assert!(wait.until.is_some_and(|at| at > jiff::Timestamp::now()), "{wait:?}");
    }
    cool(&db, &lease, 7_200_000).await;
    let apart = seen(&observer).await;
    assert_eq!((apart.cooling_ms, apart.cooling_keys), (None, 1));
    let keys = observer.waiting("q", 10).await.unwrap();
    assert_eq!((keys[0].reason, keys[0].key.as_deref()), (WaitReason::Cooldown, Some("host")));
    assert!(keys[0].until.is_some());
}

#[tokio::test]
async fn more_jobs_than_the_cap_are_told_as_such_and_every_queue_with_something_to_say_is_there() {
    let db = Db::new().await;
    let waiting = "begin; set local session_replication_role = replica; \
        insert into outhaul.jobs (queue, job_type, limit_key, held, held_for) \
        select 'q', 't', 'k' || n % 3, true, 'permit' from generate_series(1, 10001) n; commit";
    db.client.batch_execute(waiting).await.unwrap();
    let observer = db.observer().await;
    let apart = seen(&observer).await;
    assert!(apart.waiting_capped && apart.waiting.permit >= 10_000, "{apart:?}");
    let all = observer.isolation(None).await.unwrap();
    assert_eq!(all.len(), 8, "the seven that are there from the beginning, and the one that only waits");
    assert!(all.iter().filter(|queue| queue.queue != "q").all(|queue| !queue.waiting_capped));
    assert_eq!(observer.waiting("q", 2).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_role_says_so_in_its_registration_and_on_its_connections() {
    let db = Db::new().await;
    let counter = Counter::default();
    let named = db.dsn().with_application_name("shop");
    let builder = outhaul::Worker::builder(named).handle(counter.handler()).role("alerts");
    let running = Running::start(builder).await;
    db.until("it is registered", "select count(*) = 1 from outhaul.workers where role = 'alerts'").await;
    let connections = "select count(*) = 5 from pg_stat_activity where datname = current_database() \
        and application_name in ('outhaul/claim alerts shop', 'outhaul/settle alerts shop', 'outhaul/upkeep alerts shop', \
        'outhaul/pulse alerts shop', 'outhaul/listen alerts shop')";
    outhaul::enqueue(&mut db.connect().await, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap();
    db.until("its connections have its name", connections).await;
    let observer = db.observer().await;
    let queue = observer.queues().await.unwrap().into_iter().find(|queue| queue.workers == 1).unwrap();
    let apart = observer.isolation(Some(&queue.queue)).await.unwrap().remove(0);
    assert_eq!(apart.roles, [("alerts".to_owned(), 1)].into());
    running.stop().await;
    let bad = db.worker().handle(counter.handler()).role("no role").build().await;
    assert!(bad.err().unwrap().is_invalid_input());
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_projection_have_the_keys_that_its_rules_give_and_keep_the_order_of_the_events() {
    let db = Db::new().await;
    let rule = Rule::copy("order.changed", "made", "made.job").with(|job, event| {
        job.ordering_key(event.aggregate_id.to_string()).limit_key("shop").rate_key("host").priority(3)
    });
    let projection = Projection::new(Subscription::new("keyed").start(Start::Beginning)).rule(rule);
    // In one transaction, and so in one batch.
    let publish = "select outhaul.publish('order.changed', 'order', '01a22d96-f667-741b-9170-ea2010b260f0', \
        jsonb_build_object('n', n)) from generate_series(1, 50) n";
    db.client.batch_execute(publish).await.unwrap();
    let running = Running::start(db.worker().project(projection)).await;
    db.until("all are made", "select count(*) = 50 from outhaul.jobs").await;
    running.stop().await;
    let wrong = "select count(*) from outhaul.jobs j left join outhaul.ordering_lanes l on l.job_id = j.id \
        where l.seq is null or j.ordering_key <> '01a22d96-f667-741b-9170-ea2010b260f0' or j.limit_key <> 'shop' or j.rate_key <> 'host' \
        or j.priority <> 3 or j.held_for <> 'lane'";
    assert_eq!(db.count(wrong).await, 0);
    let disorder = "select count(*) from (select (j.payload->>'n')::int < lag((j.payload->>'n')::int) over (order by l.seq) as back \
        from outhaul.jobs j join outhaul.ordering_lanes l on l.job_id = j.id) x where back";
    assert_eq!(db.count(disorder).await, 0, "places in the lane follow the events");
}
