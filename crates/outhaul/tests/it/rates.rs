//! Rates and cooldowns: when a queue, or a partition of it, may go on.

use std::time::Duration;

use outhaul::{Failure, NewJob, QueueChange};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{Lease, claim, complete};
use crate::support::{Db, Running};

async fn set(db: &Db, change: QueueChange) {
    db.operator().await.set_queue("q", &change, None).await.unwrap();
}

async fn enqueue(db: &Db, n: usize, key: Option<&str>) {
    let job = |_| NewJob::raw("q", "t", "{}");
    let keyed = |job: NewJob| if let Some(key) = key { job.rate_key(key) } else { job };
    let jobs: Vec<NewJob> = (0..n).map(job).map(keyed).collect();
    outhaul::enqueue_many(&mut db.connect().await, &jobs).await.unwrap();
}

/// As the library does: with what a limit says of the time until the next.
async fn told(client: &Client, n: i32) -> (usize, Option<i64>) {
    let sql = "select id, timeout_ms from outhaul.claim('q', $1, gen_random_uuid(), '60 s', tell => true)";
    let rows = client.query(sql, &[&n]).await.unwrap();
    let last = rows.last().filter(|row| row.get::<_, Option<Uuid>>(0).is_none());
    (rows.len() - usize::from(last.is_some()), last.and_then(|row| row.get(1)))
}

/// Lets time pass for the buckets, instead of waiting for it.
async fn age(db: &Db, by: &str) {
    let sql = format!(
        "update outhaul.rates set refilled_at = refilled_at - interval '{by}', spread_until = spread_until - interval '{by}', \
            cool_until = cool_until - interval '{by}'; \
         update outhaul.jobs set run_at = run_at - interval '{by}', rate_slot = rate_slot - interval '{by}' where rate_slot is not null; \
         update outhaul.queues set cool_until = cool_until - interval '{by}'"
    );
    db.client.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn a_rate_lets_a_burst_begin_and_then_one_in_each_part_of_its_period() {
    let db = Db::new().await;
    set(&db, QueueChange::new().rate(6, Duration::from_secs(3600)).rate_burst(3)).await;
    enqueue(&db, 20, None).await;
    let (got, wait) = told(&db.client, 10).await;
    assert_eq!(got, 3);
    let next = wait.expect("told when the next may begin");
    assert!((590_000..=600_000).contains(&next), "a tenth of an hour: {next} ms");
    assert_eq!(told(&db.client, 10).await.0, 0);
    age(&db, "21 min").await;
    assert_eq!(told(&db.client, 10).await.0, 2);
    age(&db, "9 days").await;
    assert_eq!(told(&db.client, 10).await.0, 3, "a bucket holds no more than a burst");
}

#[tokio::test]
async fn a_clock_that_was_set_back_stops_no_rate() {
    let db = Db::new().await;
    set(&db, QueueChange::new().rate(60, Duration::from_secs(60))).await;
    enqueue(&db, 5, None).await;
    assert_eq!(told(&db.client, 10).await.0, 1);
    db.client.batch_execute("update outhaul.rates set refilled_at = now() + interval '1 day'").await.unwrap();
    assert_eq!(told(&db.client, 10).await.0, 0);
    age(&db, "1 min").await;
    let refilled = "select count(*) from outhaul.rates where refilled_at < now() + interval '1 s'";
    assert_eq!(db.count(refilled).await, 1, "the claim has taken the time as it is now");
    assert_eq!(told(&db.client, 10).await.0, 1);
}

#[tokio::test]
async fn a_partition_over_its_rate_hides_no_other_and_comes_in_order_one_after_another() {
    let db = Db::new().await;
    set(&db, QueueChange::new().key_rate(60, Duration::from_secs(60))).await;
    enqueue(&db, 30, Some("slow")).await;
    enqueue(&db, 1, Some("other")).await;
    enqueue(&db, 2, None).await;
    let mut got = 0;
    for _ in 0..20 {
        got += claim(&db.client, "q", 10).await.len();
    }
    assert_eq!(got, 4, "one of each partition, and those that have none");
    // The others have places a second apart, in the order in which they came.
    let apart = "select count(*) from (select run_at - lag(run_at) over (order by id) as gap from outhaul.jobs where rate_slot = run_at) x \
        where gap between interval '0.9 s' and interval '1.1 s'";
    assert_eq!(db.count(apart).await, 28);
    // A newcomer goes to the end of the line, even where a token is free.
    age(&db, "500 ms").await;
    enqueue(&db, 1, Some("slow")).await;
    assert!(claim(&db.client, "q", 10).await.is_empty());
    let last = "select count(*) from outhaul.jobs where rate_key = 'slow' and run_at > (select max(run_at) from outhaul.jobs where created_at < \
        (select max(created_at) from outhaul.jobs))";
    assert_eq!(db.count(last).await, 1);
    age(&db, "1 s").await;
    assert_eq!(claim(&db.client, "q", 10).await.len(), 1);
    // After a long absence there is no flood.
    age(&db, "1 hour").await;
    let mut got = 0;
    for _ in 0..20 {
        got += claim(&db.client, "q", 10).await.len();
    }
    assert_eq!(got, 1);
}

/// Settles one as rate limited.
async fn rate_limited(db: &Db, lease: &Lease, ms: i64) {
    let sql = "select state from outhaul.fail(array[$1::uuid], array[$2::uuid], array[$3::int], '{retry}', array[$4::bigint], \
        '{rate_limited}', '{http_429}', '{slow down}')";
    let lost = db.client.query(sql, &[&lease.id, &lease.token, &lease.claim_no, &ms]).await.unwrap();
    assert!(lost.is_empty());
}

#[tokio::test]
async fn an_answer_to_come_back_later_cools_its_partition_once_and_no_other() {
    let db = Db::new().await;
    enqueue(&db, 20, Some("a")).await;
    enqueue(&db, 1, Some("b")).await;
    let first = claim(&db.client, "q", 5).await;
    for (lease, ms) in first.iter().zip([60_000, 30_000, 60_000, 10_000, 20_000]) {
        rate_limited(&db, lease, ms).await;
    }
    let cool = "select count(*) from outhaul.rates where rate_key = 'a' and cool_until between now() + interval '55 s' and now() + interval '60 s'";
    assert_eq!(db.count(cool).await, 1, "the longest wait stands");
    let mut others = Vec::new();
    for _ in 0..20 {
        others.extend(claim(&db.client, "q", 10).await);
    }
    assert_eq!(others.len(), 1, "the other partition goes on");
    let burnt = "select coalesce(sum(attempts), 0) from outhaul.jobs where rate_key = 'a'";
    assert_eq!(db.count(burnt).await, 5, "nobody else of it has spent an attempt");
    assert_eq!(complete(&db.client, &others[0], "row").await, "completed");
    // After the cooldown they come back, a hundred a second.
    age(&db, "61 s").await;
    db.client
        .batch_execute("update outhaul.jobs set run_at = run_at - interval '61 s' where rate_slot is null")
        .await
        .unwrap();
    let mut back = 0;
    for _ in 0..20 {
        back += claim(&db.client, "q", 10).await.len();
    }
    assert_eq!(back, 20);
}

#[tokio::test]
async fn without_a_rate_key_the_queue_cools_and_an_operator_can_end_it() {
    let db = Db::new().await;
    enqueue(&db, 5, None).await;
    let lease = claim(&db.client, "q", 1).await.remove(0);
    rate_limited(&db, &lease, 60_000).await;
    let (got, wait) = told(&db.client, 10).await;
    assert_eq!(got, 0);
    assert!((50_000..=60_000).contains(&wait.unwrap()), "{wait:?}");
    let operator = db.operator().await;
    assert!(operator.queue_settings("q").await.unwrap().cool_until.is_some());
    operator
        .set_queue("q", &QueueChange::new().without("cool_until"), Some("they said sorry"))
        .await
        .unwrap();
    assert!(operator.queue_settings("q").await.unwrap().cool_until.is_none());
    assert_eq!(told(&db.client, 10).await.0, 4, "all but the one that waits for its own time");
}

#[tokio::test]
async fn a_cooldown_that_is_over_is_forgotten_by_upkeep() {
    let db = Db::new().await;
    enqueue(&db, 2, None).await;
    let lease = claim(&db.client, "q", 1).await.remove(0);
    rate_limited(&db, &lease, 60_000).await;
    let governed = "select count(*) from outhaul.queues where governed";
    db.client.query("select outhaul.remove_expired(100)", &[]).await.unwrap();
    assert_eq!(db.count(governed).await, 1);
    age(&db, "61 s").await;
    db.client.query("select outhaul.remove_expired(100)", &[]).await.unwrap();
    assert_eq!(db.count(governed).await, 0, "claims of the queue look at nothing of it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_a_limit_is_called_no_faster_and_nothing_is_lost() {
    let db = Db::new().await;
    set(&db, QueueChange::new().key_rate(50, Duration::from_secs(1)).key_rate_burst(5)).await;
    enqueue(&db, 60, Some("service")).await;
    db.client.batch_execute("create table calls (at timestamptz default clock_timestamp())").await.unwrap();
    let url = db.url();
    let handler = move |_: outhaul::Context| {
        let url = url.clone();
        async move {
            let client = crate::support::connect(&url).await;
            client.execute("insert into calls default values", &[]).await?;
            Ok::<(), Failure>(())
        }
    };
    let running = Running::start(db.worker().queue("q", 20).handle_raw("q", "t", handler)).await;
    db.until("all have called", "select count(*) = 60 from outhaul.jobs_finished").await;
    running.stop().await;
    // 5 at once and then 50 a second: 55 more than the burst take 1.1 s at least.
    let span = "select (extract(epoch from max(at) - min(at)) * 1000)::bigint from calls";
    assert!(db.count(span).await >= 1_000);
}
