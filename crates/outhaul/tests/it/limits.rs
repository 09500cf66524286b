//! Limits of a queue and of keys: how much of it runs at the same time in the whole cluster.

use std::collections::HashMap;

use outhaul::{NewJob, QueueChange};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{Lease, claim, complete, fail, renew};
use crate::support::{Db, Running};

async fn set(db: &Db, change: QueueChange) {
    db.operator().await.set_queue("q", &change, None).await.unwrap();
}

async fn enqueue(db: &Db, n: usize, key: Option<&str>) {
    let job = |_| NewJob::raw("q", "t", "{}");
    let keyed = |job: NewJob| if let Some(key) = key { job.limit_key(key) } else { job };
    let jobs: Vec<NewJob> = (0..n).map(job).map(keyed).collect();
    outhaul::enqueue_many(&mut db.connect().await, &jobs).await.unwrap();
}

async fn expire(db: &Db, lease: &Lease) {
    let back = "lease_until = clock_timestamp() - interval '1 ms'";
    for table in ["jobs", "permits"] {
        let sql = format!("update outhaul.{table} set {back} where lease_token = $1");
        db.client.execute(&sql, &[&lease.token]).await.unwrap();
    }
}

#[tokio::test]
async fn no_more_of_a_queue_is_leased_than_its_limit_says_and_each_end_makes_room_for_one() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(2)).await;
    enqueue(&db, 10, None).await;
    let first = claim(&db.client, "q", 10).await;
    assert_eq!(first.len(), 2);
    assert!(claim(&db.client, "q", 10).await.is_empty());
    // Whatever way a claim ends, its unit is free: completed, retried, given back, dead, cancelled.
    assert_eq!(complete(&db.client, &first[0], "row").await, "completed");
    let mut lease = claim(&db.client, "q", 10).await.pop().expect("one unit");
    assert!(claim(&db.client, "q", 10).await.is_empty());
    for verdict in ["retry", "release", "snooze", "dead_letter", "cancel"] {
        assert_eq!(fail(&db.client, &lease, verdict, 3_600_000).await, "settled");
        lease = claim(&db.client, "q", 10).await.pop().unwrap_or_else(|| panic!("{verdict} frees the unit"));
        assert!(claim(&db.client, "q", 10).await.is_empty(), "and only one");
    }
    db.client.query("select outhaul.cancel($1)", &[&lease.id]).await.unwrap();
    let held = db.count("select count(*) from outhaul.permits where lease_until > now()").await;
    assert_eq!(held, 1, "a cancelled job leaves its unit");
    let mut client = db.connect().await;
    let tx = client.transaction().await.unwrap();
    let sql = "select outhaul.complete_in($1, $2, $3)";
    tx.query(sql, &[&first[1].id, &first[1].token, &first[1].claim_no]).await.unwrap();
    assert_eq!(
        db.count("select count(*) from outhaul.permits where lease_until > now()").await,
        1,
        "not yet"
    );
    tx.commit().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.permits where lease_until > now()").await, 0);
}

#[tokio::test]
async fn a_killed_holder_frees_its_unit_when_its_lease_ends_and_a_zombie_cannot_take_it_back() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(1)).await;
    enqueue(&db, 2, None).await;
    let zombie = claim(&db.client, "q", 1).await.remove(0);
    assert_eq!(renew(&db.client, zombie.id, zombie.token).await, "renewed");
    let until = "select count(*) from outhaul.permits p join outhaul.jobs j using (lease_token) \
        where abs(extract(epoch from p.lease_until - j.lease_until)) < 0.1 and j.lease_until > now() + interval '50 min'";
    assert_eq!(db.count(until).await, 1, "the unit is renewed with its job");
    expire(&db, &zombie).await;
    // Nobody has swept: the unit is free by itself.
    let heir = claim(&db.client, "q", 10).await;
    assert_eq!(heir.len(), 1);
    assert_eq!(renew(&db.client, zombie.id, zombie.token).await, "lost", "its unit is another's");
    assert_eq!(renew(&db.client, heir[0].id, heir[0].token).await, "renewed");
    // Its completion still counts, since nobody else has the job; the heir's unit stays.
    assert_eq!(complete(&db.client, &zombie, "row").await, "completed");
    assert!(claim(&db.client, "q", 10).await.is_empty());
    assert_eq!(db.count("select count(*) from outhaul.permits where lease_until > now()").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_claimers_never_have_one_unit_at_the_same_time() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(1).max_running_per_key(1)).await;
    enqueue(&db, 500, Some("k")).await;
    enqueue(&db, 500, Some("l")).await;
    // The holder's own ledger: a second one at the same time violates the key.
    db.client.batch_execute("create table holders (one bool primary key, id uuid)").await.unwrap();
    let racer = || {
        let url = db.url();
        async move {
            let client = crate::support::connect(&url).await;
            let mut won = 0;
            let mut empty = 0;
            while empty < 2_000 {
                let Some(lease) = claim(&client, "q", 3).await.pop() else {
                    empty += 1;
                    if db_is_empty(&client).await {
                        break;
                    }
                    continue;
                };
                client
                    .execute("insert into holders values (true, $1)", &[&lease.id])
                    .await
                    .expect("the only holder");
                client.execute("delete from holders", &[]).await.unwrap();
                assert_eq!(complete(&client, &lease, "row").await, "completed");
                won += 1;
            }
            won
        }
    };
    let (a, b) = tokio::join!(tokio::spawn(racer()), tokio::spawn(racer()));
    let (a, b): (usize, usize) = (a.unwrap(), b.unwrap());
    assert_eq!(a + b, 1_000, "{a} and {b}");
    assert!(a > 0 && b > 0, "{a} and {b}");
}

async fn db_is_empty(client: &Client) -> bool {
    client.query_one("select not exists (select from outhaul.jobs)", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_key_that_is_used_up_hides_no_other() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running_per_key(2)).await;
    enqueue(&db, 3_000, Some("big")).await;
    enqueue(&db, 1, Some("small")).await;
    enqueue(&db, 1, None).await;
    // A claim gives up after 50 ms and goes on with the next call.
    let mut leases = Vec::new();
    for _ in 0..100 {
        leases.extend(claim(&db.client, "q", 10).await);
    }
    assert_eq!(leases.len(), 4, "two of the big one, the small one, and the one without a key");
    assert!(claim(&db.client, "q", 10).await.is_empty());
    let waiting = "select count(*) from outhaul.jobs where held_for = 'permit' and held";
    assert_eq!(db.count(waiting).await, 2_998);
    // One ends, one is let in, and it is the oldest.
    let big = "select limit_key is not distinct from 'big' from outhaul.jobs where id = $1";
    for lease in &leases {
        let is_big: bool = db.client.query_one(big, &[&lease.id]).await.unwrap().get(0);
        assert_eq!(complete(&db.client, lease, "row").await, "completed");
        assert_eq!(claim(&db.client, "q", 10).await.len(), usize::from(is_big));
    }
    assert_eq!(db.count(waiting).await, 2_996);
}

#[tokio::test]
async fn a_limit_of_zero_stops_a_key_and_taking_it_back_lets_all_in() {
    let db = Db::new().await;
    let operator = db.operator().await;
    operator.limit_key("q", "bad", Some(0), Some("it floods us")).await.unwrap();
    enqueue(&db, 5, Some("bad")).await;
    enqueue(&db, 1, Some("good")).await;
    assert_eq!(claim(&db.client, "q", 10).await.len(), 1);
    operator.limit_key("q", "bad", Some(2), None).await.unwrap();
    assert_eq!(claim(&db.client, "q", 10).await.len(), 2, "a higher limit lets in at once");
    operator.limit_key("q", "bad", None, None).await.unwrap();
    assert_eq!(claim(&db.client, "q", 10).await.len(), 3);
    let governed = "select count(*) from outhaul.queues where name = 'q' and governed";
    assert_eq!(db.count(governed).await, 0, "claims look at limits no longer");
    let audited = "select count(*) from outhaul.audit_log where action = 'queues.key_limit'";
    assert_eq!(db.count(audited).await, 3);
}

#[tokio::test]
async fn a_lower_limit_lets_what_runs_go_on_and_begins_nothing_until_it_fits() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(5)).await;
    enqueue(&db, 20, None).await;
    let running = claim(&db.client, "q", 10).await;
    assert_eq!(running.len(), 5);
    set(&db, QueueChange::new().max_running(2)).await;
    let units = "select count(*) from outhaul.permits";
    assert_eq!(db.count(units).await, 5, "units in use stay");
    for lease in &running[..3] {
        assert_eq!(renew(&db.client, lease.id, lease.token).await, "renewed");
        assert_eq!(complete(&db.client, lease, "row").await, "completed");
        assert!(claim(&db.client, "q", 10).await.is_empty(), "more run than the limit allows, or as many");
    }
    assert_eq!(complete(&db.client, &running[3], "row").await, "completed");
    assert_eq!(claim(&db.client, "q", 10).await.len(), 1);
    set(&db, QueueChange::new().without("max_running")).await;
    assert_eq!(claim(&db.client, "q", 20).await.len(), 14);
}

#[tokio::test]
async fn a_job_that_was_let_in_and_cancelled_leaves_its_chance_to_the_next() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running_per_key(1)).await;
    enqueue(&db, 3, Some("k")).await;
    let first = claim(&db.client, "q", 10).await.remove(0);
    assert_eq!(complete(&db.client, &first, "row").await, "completed");
    let in_now: Uuid =
        db.client.query_one("select id from outhaul.jobs where not held", &[]).await.unwrap().get(0);
    db.client.query("select outhaul.cancel($1)", &[&in_now]).await.unwrap();
    assert_eq!(claim(&db.client, "q", 10).await.len(), 1);
}

#[tokio::test]
async fn a_sweep_lets_in_what_nothing_else_has_let_in() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running_per_key(2)).await;
    for key in ["a", "b", "c"] {
        enqueue(&db, 4, Some(key)).await;
    }
    let leases = claim(&db.client, "q", 20).await;
    assert_eq!(leases.len(), 6);
    // Their ends without what an end does for others.
    db.client
        .batch_execute(
            "begin; set local session_replication_role = replica; delete from outhaul.jobs where not held; \
        update outhaul.permits set lease_until = '-infinity'; commit",
        )
        .await
        .unwrap();
    assert!(claim(&db.client, "q", 20).await.is_empty());
    let one: i64 = db.client.query_one("select outhaul.promote_waiting('q', 2)", &[]).await.unwrap().get(0);
    let rest: i64 = db.client.query_one("select outhaul.promote_waiting('q', 2)", &[]).await.unwrap().get(0);
    assert_eq!((one, rest), (4, 2), "a call goes on where the one before has stopped");
    assert_eq!(claim(&db.client, "q", 20).await.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_keep_the_limits_of_a_cluster_and_finish_everything() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(4).max_running_per_key(2)).await;
    for key in ["a", "b", "c"] {
        enqueue(&db, 60, Some(key)).await;
    }
    db.client
        .batch_execute(
            "create table seen (all_running bigint, of_key bigint); create index on seen (all_running)",
        )
        .await
        .unwrap();
    let handler = |url: String| {
        move |cx: outhaul::Context| {
            let url = url.clone();
            async move {
                let client = crate::support::connect(&url).await;
                // Counted by the database while it runs.
                let sql = "insert into seen select count(*), max(n) from (select count(*) over () as c, count(*) over (partition by limit_key) as n \
                    from outhaul.jobs where lease_until > clock_timestamp()) x";
                client.execute(sql, &[]).await?;
                drop(cx);
                Ok(())
            }
        }
    };
    let worker = || db.worker().queue("q", 10).handle_raw("q", "t", handler(db.url()));
    let (a, b) = (Running::start(worker()).await, Running::start(worker()).await);
    db.until("all are done", "select count(*) = 180 from outhaul.jobs_finished").await;
    a.stop().await;
    b.stop().await;
    let most: HashMap<&str, i64> = HashMap::from([
        ("all", db.count("select max(all_running) from seen").await),
        ("key", db.count("select max(of_key) from seen").await),
    ]);
    assert!(most["all"] <= 4 && most["key"] <= 2, "{most:?}");
    assert!(most["all"] >= 2, "they did run side by side: {most:?}");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}

#[tokio::test]
async fn units_and_buckets_of_keys_that_nobody_uses_are_removed_and_made_again() {
    let db = Db::new().await;
    set(&db, QueueChange::new().max_running(9).max_running_per_key(2)).await;
    enqueue(&db, 2, Some("k")).await;
    let leases = claim(&db.client, "q", 10).await;
    let upkeep = "select outhaul.remove_expired(100)";
    let of_key = "select count(*) from outhaul.permits where limit_key = 'k'";
    let old = "update outhaul.permits set used_at = now() - interval '2 hours'; insert into outhaul.rates (queue, rate_key) values ('q', 'r')";
    db.client.batch_execute(old).await.unwrap();
    db.client.query(upkeep, &[]).await.unwrap();
    assert_eq!(db.count(of_key).await, 2, "in use");
    for lease in &leases {
        assert_eq!(complete(&db.client, lease, "row").await, "completed");
    }
    db.client.query(upkeep, &[]).await.unwrap();
    assert_eq!(db.count(of_key).await, 2, "used a moment ago");
    db.client.batch_execute(old.split(';').next().unwrap()).await.unwrap();
    db.client.query(upkeep, &[]).await.unwrap();
    assert_eq!((db.count(of_key).await, db.count("select count(*) from outhaul.rates").await), (0, 0));
    assert_eq!(
        db.count("select count(*) from outhaul.permits where limit_key = ''").await,
        9,
        "the queue's own stay"
    );
    enqueue(&db, 3, Some("k")).await;
    assert_eq!(claim(&db.client, "q", 10).await.len(), 2);
}
