//! Jobs with an ordering key: one after another, in the order in which they were enqueued.

use outhaul::{NewJob, QueueChange};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{Lease, claim, complete, fail};
use crate::support::{Db, Running};

/// Enqueues one job of a lane; its number is the payload.
async fn enqueue(client: &mut Client, key: &str, n: i64) -> Uuid {
    let job = NewJob::raw("q", "t", format!("{{\"n\": {n}}}")).ordering_key(key);
    outhaul::enqueue(client, &job).await.unwrap().id().0
}

async fn number(db: &Db, lease: &Lease) -> i64 {
    let sql = "select (payload ->> 'n')::bigint from outhaul.jobs where id = $1";
    db.client.query_one(sql, &[&lease.id]).await.unwrap().get(0)
}

/// The one job that can be claimed.
async fn next(db: &Db) -> (i64, Lease) {
    let mut leases = claim(&db.client, "q", 10).await;
    assert_eq!(leases.len(), 1, "one head");
    let lease = leases.remove(0);
    (number(db, &lease).await, lease)
}

async fn nothing(db: &Db) {
    assert!(claim(&db.client, "q", 10).await.is_empty());
}

#[tokio::test]
async fn a_lane_runs_in_order_one_at_a_time_whatever_way_each_ends() {
    let mut db = Db::new().await;
    for n in 1..=6 {
        enqueue(&mut db.client, "k", n).await;
    }
    for n in 1..=6 {
        let (got, lease) = next(&db).await;
        assert_eq!(got, n);
        nothing(&db).await;
        match n {
            1 => assert_eq!(complete(&db.client, &lease, "row").await, "completed"),
            2 => assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled"),
            3 => assert_eq!(fail(&db.client, &lease, "cancel", 0).await, "settled"),
            4 => drop(db.client.query("select outhaul.cancel($1)", &[&lease.id]).await.unwrap()),
            5 => {
                let mut client = db.connect().await;
                let tx = client.transaction().await.unwrap();
                let sql = "select outhaul.complete_in($1, $2, $3)";
                tx.query(sql, &[&lease.id, &lease.token, &lease.claim_no]).await.unwrap();
                nothing(&db).await;
                tx.commit().await.unwrap();
            }
            _ => {
                assert_eq!(
                    db.client.execute("delete from outhaul.jobs where id = $1", &[&lease.id]).await.unwrap(),
                    1
                )
            }
        }
    }
    nothing(&db).await;
    assert_eq!(db.count("select count(*) from outhaul.ordering_lanes").await, 0);
}

#[tokio::test]
async fn a_head_that_is_retried_keeps_its_lane_and_other_lanes_go_on() {
    let mut db = Db::new().await;
    let first = enqueue(&mut db.client, "k", 1).await;
    enqueue(&mut db.client, "k", 2).await;
    let (_, lease) = next(&db).await;
    assert_eq!(fail(&db.client, &lease, "retry", 3_600_000).await, "settled");
    enqueue(&mut db.client, "other", 7).await;
    let (got, other) = next(&db).await;
    assert_eq!(got, 7);
    assert_eq!(complete(&db.client, &other, "row").await, "completed");
    nothing(&db).await;
    db.client.query("select outhaul.operator_retry($1)", &[&first]).await.unwrap();
    assert_eq!(next(&db).await.0, 1, "still the first");
}

#[tokio::test]
async fn a_waiting_job_that_is_cancelled_leaves_the_order_of_the_others() {
    let mut db = Db::new().await;
    let ids = [1, 2, 3];
    let mut jobs = Vec::new();
    for n in ids {
        jobs.push(enqueue(&mut db.client, "k", n).await);
    }
    let (_, lease) = next(&db).await;
    let cancelled = db.client.query_one("select outhaul.cancel($1)", &[&jobs[1]]).await.unwrap();
    assert_eq!(cancelled.get::<_, &str>(0), "cancelled");
    nothing(&db).await;
    assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    assert_eq!(next(&db).await.0, 3);
}

#[tokio::test]
async fn a_late_commit_takes_its_place_without_disturbing_the_head() {
    let mut db = Db::new().await;
    let mut late = db.connect().await;
    let mut tx = late.transaction().await.unwrap();
    let job = NewJob::raw("q", "t", "{\"n\": 1}").ordering_key("k");
    outhaul::enqueue(&mut tx, &job).await.unwrap();
    enqueue(&mut db.client, "k", 2).await;
    enqueue(&mut db.client, "k", 3).await;
    let (got, second) = next(&db).await;
    assert_eq!(got, 2, "nobody waits for a transaction that may never commit");
    tx.commit().await.unwrap();
    nothing(&db).await;
    assert_eq!(complete(&db.client, &second, "row").await, "completed");
    let (got, first) = next(&db).await;
    assert_eq!(got, 1, "it was enqueued before the third");
    assert_eq!(complete(&db.client, &first, "row").await, "completed");
    assert_eq!(next(&db).await.0, 3);
}

#[tokio::test]
async fn an_open_cancel_of_the_next_job_holds_nobody_up_and_nobody_overtakes_it() {
    let mut db = Db::new().await;
    let mut jobs = Vec::new();
    for n in 1..=3 {
        jobs.push(enqueue(&mut db.client, "k", n).await);
    }
    let (_, lease) = next(&db).await;
    let mut other = db.connect().await;
    let tx = other.transaction().await.unwrap();
    tx.query("select outhaul.cancel($1)", &[&jobs[1]]).await.unwrap();
    assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    nothing(&db).await;
    tx.rollback().await.unwrap();
    assert_eq!(next(&db).await.0, 2, "the cancel was taken back");
}

#[tokio::test]
async fn a_replayed_dead_letter_goes_to_the_end_of_its_lane() {
    let mut db = Db::new().await;
    let first = enqueue(&mut db.client, "k", 1).await;
    enqueue(&mut db.client, "k", 2).await;
    enqueue(&mut db.client, "k", 3).await;
    let (_, lease) = next(&db).await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    db.client.query("select outhaul.operator_retry($1)", &[&first]).await.unwrap();
    for n in [2, 3, 1] {
        let (got, lease) = next(&db).await;
        assert_eq!(got, n);
        assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    }
}

#[tokio::test]
async fn a_lane_with_a_limit_and_a_delay_waits_for_all_three() {
    let mut db = Db::new().await;
    db.operator().await.set_queue("q", &QueueChange::new().max_running_per_key(1), None).await.unwrap();
    let job = |n: i64, lane: &str| {
        NewJob::raw("q", "t", format!("{{\"n\": {n}}}")).ordering_key(lane).limit_key("l")
    };
    for job in [job(1, "a"), job(2, "a"), job(3, "b")] {
        outhaul::enqueue(&mut db.client, &job).await.unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (got, lease) = next(&db).await;
        nothing(&db).await;
        seen.push(got);
        assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    }
    let of_a: Vec<i64> = seen.iter().copied().filter(|n| *n < 3).collect();
    assert_eq!((of_a, seen.len()), (vec![1, 2], 3));
}

#[tokio::test]
async fn many_of_one_call_keep_the_order_of_the_call_with_keys_and_without() {
    let mut db = Db::new().await;
    for keyed in [false, true] {
        let job = |n: i64| {
            let job = NewJob::raw("q", "t", format!("{{\"n\": {n}}}")).ordering_key(format!("{}", n % 3));
            if keyed { job.idempotency_key(format!("key-{}", (n * 7919) % 1009)) } else { job }
        };
        let jobs: Vec<NewJob> = (0..300).map(job).collect();
        outhaul::enqueue_many(&mut db.client, &jobs).await.unwrap();
        let mut last = [-1i64; 3];
        for _ in 0..100 {
            let leases = claim(&db.client, "q", 10).await;
            assert_eq!(leases.len(), 3, "a head for each lane");
            for lease in &leases {
                let n = number(&db, lease).await;
                let lane = &mut last[(n % 3) as usize];
                assert!(n > *lane, "{n} after {lane}");
                *lane = n;
                assert_eq!(complete(&db.client, lease, "row").await, "completed");
            }
        }
        assert_eq!(last, [297, 298, 299]);
    }
}

/// Producers, cancels and workers at once: every job runs at most one at a time in its lane, in the order of its
/// producer, and none is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn no_lane_stands_still_or_runs_twice_at_once_under_everything_together() {
    let db = Db::new().await;
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()));
    println!("SEED={seed}");
    db.client
        .batch_execute(
            "create table ran (lane text, producer int, n bigint, at bigint generated always as identity); \
            create table busy (lane text primary key)",
        )
        .await
        .unwrap();
    let url = db.url();
    let handler = move |cx: outhaul::Context| {
        let url = url.clone();
        async move {
            let job: serde_json::Value = serde_json::from_str(cx.payload()).unwrap();
            let (lane, producer, n) = (
                job["lane"].as_str().unwrap().to_owned(),
                job["p"].as_i64().unwrap() as i32,
                job["n"].as_i64().unwrap(),
            );
            let client = crate::support::connect(&url).await;
            // A second one of the lane at the same time violates the key, and fails its job for good.
            client
                .execute("insert into busy values ($1)", &[&lane])
                .await
                .map_err(outhaul::Failure::permanent)?;
            client
                .execute("insert into ran (lane, producer, n) values ($1, $2, $3)", &[&lane, &producer, &n])
                .await?;
            client.execute("delete from busy where lane = $1", &[&lane]).await?;
            match n % 11 {
                3 if cx.claim_no() == 1 => Err(outhaul::Failure::snooze(std::time::Duration::from_millis(5))),
                5 if cx.claim_no() == 1 => Err(outhaul::Failure::permanent("no more")),
                _ => Ok(()),
            }
        }
    };
    let worker = || db.worker().queue("q", 8).handle_raw("q", "t", handler.clone());
    let (a, b) = (Running::start(worker()).await, Running::start(worker()).await);
    let producer = |p: i64| {
        let url = db.url();
        async move {
            let mut client = crate::support::connect(&url).await;
            let mut random = fastrand::Rng::with_seed(seed + p as u64);
            for n in 0..120 {
                let lane = format!("lane-{}", random.u32(0..5));
                let payload = format!("{{\"lane\": \"{lane}\", \"p\": {p}, \"n\": {n}}}");
                let job = NewJob::raw("q", "t", payload).ordering_key(lane);
                let mut tx = client.transaction().await.unwrap();
                let id = outhaul::enqueue(&mut tx, &job).await.unwrap().id();
                match random.u32(0..10) {
                    0 => tx.rollback().await.unwrap(),
                    1 => {
                        tx.commit().await.unwrap();
                        client.query("select outhaul.cancel($1)", &[&id.0]).await.unwrap();
                    }
                    _ => tx.commit().await.unwrap(),
                }
            }
        }
    };
    tokio::join!(producer(1), producer(2), producer(3), producer(4));
    db.until("every lane is empty", "select not exists (select from outhaul.jobs)").await;
    a.stop().await;
    b.stop().await;
    assert_eq!(db.count("select count(*) from outhaul.ordering_lanes where job_id is not null").await, 0);
    let twice = "select count(*) from outhaul.jobs_dead where last_error_summary not like 'no more%'";
    assert_eq!(db.count(twice).await, 0, "two of one lane at the same time");
    let disorder = "select count(*) from (select n, lag(n) over (partition by lane, producer order by at) as before from ran) x where n < before";
    assert_eq!(db.count(disorder).await, 0, "seed {seed}");
}
