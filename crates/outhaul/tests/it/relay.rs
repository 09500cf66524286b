//! The leased relay: each event to one of the workers that compete, until it is processed or parked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul::{EventContext, Failure, RecordedEvent, Relay, Start};
use uuid::Uuid;

use crate::fault::{EffectLog, Post};
use crate::support::{Db, Running, until};

async fn publish(db: &Db, n: i64, ms: u64) {
    let payload = format!("{{\"ms\": {ms}}}");
    let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), $1::text::jsonb) from generate_series(1, $2::bigint)";
    db.client.query(sql, &[&payload, &n]).await.expect("publish");
}

fn from_the_beginning() -> Relay {
    Relay::default().start(Start::Beginning)
}

const PROCESSED: &str = "select count(*) from outhaul.outbox_events where processed_at is not null";

async fn until_processed(db: &Db, n: i64) {
    until(&format!("{n} events processed"), || async { db.count(PROCESSED).await == n }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn competing_relays_process_each_event_once() {
    let db = Db::new().await;
    publish(&db, 300, 0).await;
    let log = EffectLog::new().await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(Running::start(db.worker().relay(from_the_beginning(), log.listener(name))).await);
    }
    publish(&db, 100, 0).await;
    until_processed(&db, 400).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!((log.count("begin").await, log.jobs("begin").await), (400, 400));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_waits_for_a_relay_that_is_not_registered_and_one_begins_where_it_says() {
    let db = Db::new().await;
    publish(&db, 3, 0).await;
    let pending = "select coalesce(relay_pending, 0) from outhaul.show_outbox()";
    assert_eq!(db.count(pending).await, 0);
    assert_eq!(db.count("select count(*) from outhaul.claim_events(10, gen_random_uuid(), '30 s')").await, 0);
    let log = EffectLog::new().await;
    let worker = Running::start(db.worker().relay(Relay::default(), log.listener("now"))).await;
    publish(&db, 2, 0).await;
    log.until("end", 2).await;
    until_processed(&db, 2).await;
    worker.stop().await;
    assert_eq!(log.count("begin").await, 2, "those before its start are not its business");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_event_is_retried_then_parked_with_its_error_and_given_back() {
    let db = Db::new().await;
    publish(&db, 1, 0).await;
    let (tries, broken) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(true)));
    let (count, fails) = (tries.clone(), broken.clone());
    let handler = move |_: RecordedEvent, _: EventContext| {
        *count.lock().unwrap() += 1;
        let outcome = if *fails.lock().unwrap() {
            Err(Failure::transient("HTTP 503").code("http_503"))
        } else {
            Ok(())
        };
        std::future::ready(outcome)
    };
    let builder = db.worker().with(|o| {
        o.retry.backoff = outhaul::Backoff {
            base: Duration::from_millis(10),
            max: Duration::from_millis(30),
            ..o.retry.backoff
        };
    });
    let worker = Running::start(builder.relay(from_the_beginning().max_attempts(3), handler)).await;
    db.until("it is parked", "select bool_and(parked_at is not null) from outhaul.outbox_events").await;
    assert_eq!(*tries.lock().unwrap(), 3);
    let row = db
        .client
        .query_one("select id, last_error, available_at = 'infinity' from outhaul.outbox_events", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(1), row.get::<_, bool>(2)), ("transient: http_503: HTTP 503", true));
    // The plain statement of a relay in SQL does not find it either.
    let plain =
        "select count(*) from outhaul.outbox_events where processed_at is null and available_at <= now()";
    assert_eq!(db.count(plain).await, 0);
    *broken.lock().unwrap() = false;
    let id: Uuid = row.get(0);
    let due: String = db
        .client
        .query_one("select outhaul.operator_relay_retry($1, 'it is back')", &[&id])
        .await
        .unwrap()
        .get(0);
    assert_eq!(due, "due");
    until_processed(&db, 1).await;
    worker.stop().await;
    assert_eq!(*tries.lock().unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_relay_held_goes_to_another_after_the_lease() {
    let db = Db::new().await;
    publish(&db, 10, 30_000).await;
    let log = EffectLog::new().await;
    let post = Post { events: Some("relay".into()), ..Post::new("victim", &db.url(), &log) };
    let mut victim = post.start().await;
    log.until("begin", 10).await;
    victim.kill().await.unwrap();
    let held: HashSet<String> = db
        .client
        .query("select distinct claimed_by from outhaul.outbox_events where lease_until is not null", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(held.len(), 1);
    db.client.execute("update outhaul.outbox_events set payload = '{\"ms\": 0}'", &[]).await.unwrap();
    let _other = Post { name: "other".into(), ..post }.start().await;
    until_processed(&db, 10).await;
    let owned = "select count(*) from outhaul.outbox_events where claimed_by = any ($1)";
    let held: Vec<String> = held.into_iter().collect();
    assert_eq!(
        db.client.query_one(owned, &[&held]).await.unwrap().get::<_, i64>(0),
        0,
        "none is owned by the dead"
    );
    assert_eq!((log.count("begin").await, log.jobs("begin").await), (20, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_handler_keeps_its_lease_and_a_zombie_changes_nothing() {
    let db = Db::new().await;
    publish(&db, 1, 3_000).await;
    let log = EffectLog::new().await;
    let post = Post { events: Some("relay".into()), ..Post::new("slow", &db.url(), &log) };
    let mut slow = post.start().await;
    log.until("begin", 1).await;
    let other = Post { name: "other".into(), ..post.clone() }.start().await;
    log.until("end", 1).await;
    until_processed(&db, 1).await;
    assert_eq!(log.count("begin").await, 1, "three leases long, and renewed");

    publish(&db, 1, 60_000).await;
    log.until("begin", 2).await;
    // Whichever has it is stopped until the other has taken over.
    let mut other = other;
    let held_by_slow = log.all("begin").await[1].worker == "slow";
    let stopped = if held_by_slow { &mut slow } else { &mut other };
    stopped.stop().await.unwrap();
    // Short for the other, so that the first is still at it when it goes on, however long it was stopped.
    db.client.execute("update outhaul.outbox_events set payload = '{\"ms\": 0}'", &[]).await.unwrap();
    until_processed(&db, 2).await;
    stopped.cont().unwrap();
    log.until("told LeaseLost", 1).await;
    assert_eq!(
        db.count("select claim_no::bigint from outhaul.outbox_events order by seq desc limit 1").await,
        2
    );
    assert_eq!(log.count("begin").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_claim_in_sql_and_the_relay_leave_each_others_events_alone() {
    let db = Db::new().await;
    publish(&db, 4, 0).await;
    db.client.query("select outhaul.register_relay('beginning')", &[]).await.unwrap();
    // The claim as a relay in plain SQL writes it.
    let plain = "with candidates as (select id from outhaul.outbox_events where processed_at is null and available_at <= now() \
        and (claimed_at is null or claimed_at < now() - interval '1 minute') order by occurred_at, id for update skip locked limit $1) \
        update outhaul.outbox_events o set claimed_at = now(), claimed_by = 'plain', attempts = attempts + 1 \
        from candidates c where o.id = c.id returning o.seq";
    let seqs = |rows: Vec<tokio_postgres::Row>| {
        rows.iter().map(|row| row.get::<_, i64>(0)).collect::<HashSet<i64>>()
    };
    let theirs = seqs(db.client.query(plain, &[&2i64]).await.unwrap());
    let ours = seqs(
        db.client
            .query("select seq from outhaul.claim_events(10, gen_random_uuid(), '5 min')", &[])
            .await
            .unwrap(),
    );
    assert_eq!((theirs.len(), ours.len()), (2, 2));
    assert!(theirs.is_disjoint(&ours));
    assert!(
        db.client.query(plain, &[&10i64]).await.unwrap().is_empty(),
        "ours are not taken while they are renewed"
    );
    let renew = "select outhaul.renew_events(array_agg(seq), array_agg(at), array_agg(lease_token), '5 min') from outhaul.outbox_events where lease_until is not null";
    db.client
        .execute("update outhaul.outbox_events set claimed_at = claimed_at - interval '2 min'", &[])
        .await
        .unwrap();
    assert!(db.client.query(renew, &[]).await.unwrap().is_empty(), "all were renewed");
    let again = seqs(db.client.query(plain, &[&10i64]).await.unwrap());
    assert_eq!(again, theirs, "only what was theirs has run out");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_fails_is_tried_by_one_of_many_relays_at_a_time_and_no_sooner_than_its_backoff() {
    let db = Db::new().await;
    publish(&db, 1, 0).await;
    let (tries, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(())));
    let wait = Duration::from_millis(300);
    let mut workers = Vec::new();
    for _ in 0..6 {
        let (tries, inside) = (tries.clone(), inside.clone());
        let handler = move |_: RecordedEvent, _: EventContext| {
            let (tries, inside) = (tries.clone(), inside.clone());
            async move {
                let alone = inside.try_lock().is_ok();
                tries.lock().unwrap().push((std::time::Instant::now(), alone));
                Err(Failure::transient("the other side is away"))
            }
        };
        let backoff = outhaul::Backoff { base: wait, max: wait, jitter: 0.0 };
        let builder = db.worker().relay(from_the_beginning(), handler);
        workers.push(Running::start(builder.with(|o| o.retry.backoff = backoff)).await);
    }
    until("five tries", || async { tries.lock().unwrap().len() >= 5 }).await;
    for worker in workers {
        worker.stop().await;
    }
    let tries = tries.lock().unwrap();
    assert!(tries.iter().all(|(_, alone)| *alone), "never two at once");
    assert!(tries.windows(2).all(|pair| pair[1].0 - pair[0].0 >= wait), "{tries:?}");
}
