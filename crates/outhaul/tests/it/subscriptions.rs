//! Ordered subscriptions: every committed event, in order, by one worker at a time, whatever dies.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul::{EventContext, Failure, Outcome, RecordedEvent, Start, Subscription, WorkerBuilder};
use tokio_postgres::Client;

use crate::fault::{EffectLog, Post};
use crate::support::{Db, Running, until};

/// Publishes events of one aggregate with the numbers of a range, each in a transaction of its own.
async fn publish(client: &Client, event_type: &str, numbers: std::ops::Range<i64>) {
    for n in numbers {
        let payload = format!("{{\"n\": {n}}}");
        let sql =
            "select outhaul.publish($1, 'order', '00000000-0000-0000-0000-000000000001', $2::text::jsonb)";
        client.query(sql, &[&event_type, &payload]).await.expect("publish");
    }
}

#[derive(serde::Deserialize)]
struct Number {
    n: i64,
}

fn number(event: &RecordedEvent) -> i64 {
    event.read::<Number>().expect("a number").n
}

/// What handlers were given, in order of their beginning.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<i64>>>);

impl Seen {
    fn note(&self, n: i64) {
        self.0.lock().unwrap().push(n);
    }

    fn all(&self) -> Vec<i64> {
        self.0.lock().unwrap().clone()
    }

    async fn until(&self, n: usize) {
        until(&format!("{n} deliveries"), || async { self.0.lock().unwrap().len() >= n }).await;
    }

    /// A handler that notes the number and answers by it.
    fn handler<F>(
        &self,
        answer: F,
    ) -> impl Fn(RecordedEvent, EventContext) -> std::future::Ready<Outcome> + use<F>
    where
        F: Fn(i64) -> Outcome + Send + Sync + 'static,
    {
        let seen = self.clone();
        move |event, _| {
            let n = number(&event);
            seen.note(n);
            std::future::ready(answer(n))
        }
    }
}

fn subscriber(db: &Db) -> WorkerBuilder {
    db.worker().with(|o| o.subscription_lease = Duration::from_secs(1))
}

fn all(name: &str) -> Subscription {
    Subscription::new(name).start(Start::Beginning)
}

async fn position(db: &Db, name: &str) -> i64 {
    let sql = "select position from outhaul.subscriptions where name = $1";
    db.client.query_one(sql, &[&name]).await.unwrap().get(0)
}

async fn until_at(db: &Db, name: &str, at: i64) {
    until(&format!("{name} stands at {at}"), || async { position(db, name).await == at }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_handled_once_each_in_the_order_of_their_positions() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..150).await;
    let seen = Seen::default();
    let worker =
        Running::start(subscriber(&db).subscribe(all("s").batch(20), seen.handler(|_| Ok(())))).await;
    publish(&db.client, "order.placed", 150..200).await;
    seen.until(200).await;
    until_at(&db, "s", 200).await;
    worker.stop().await;
    assert_eq!(seen.all(), (0..200).collect::<Vec<_>>());
    assert_eq!(db.count("select count(*) from outhaul.outbox_unsequenced").await, 0);
    assert_eq!(db.count("select count(*) from outhaul.reconcile_outbox()").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_one_subscription_never_handle_at_the_same_time() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..100).await;
    let (seen, inside) = (Seen::default(), Arc::new(Mutex::new(())));
    let mut workers = Vec::new();
    for _ in 0..3 {
        let (seen, inside) = (seen.clone(), inside.clone());
        let handler = move |event: RecordedEvent, _: EventContext| {
            let (seen, inside) = (seen.clone(), inside.clone());
            async move {
                let alone = inside.try_lock().is_ok();
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen.note(number(&event));
                if alone { Ok(()) } else { Err(Failure::permanent("two at once")) }
            }
        };
        workers.push(Running::start(subscriber(&db).subscribe(all("s").batch(7), handler)).await);
    }
    until_at(&db, "s", 100).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(seen.all(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_lets_through_what_it_names_and_the_cursor_goes_past_the_rest() {
    let db = Db::new().await;
    for round in 0..5 {
        publish(&db.client, "order.placed", round * 10..round * 10 + 3).await;
        publish(&db.client, "order.seen", 0..300).await;
    }
    let seen = Seen::default();
    let wanted = all("s").events(["order.placed"]).batch(2);
    let worker = Running::start(subscriber(&db).subscribe(wanted, seen.handler(|_| Ok(())))).await;
    until_at(&db, "s", 1515).await;
    worker.stop().await;
    let expected: Vec<i64> = (0..5).flat_map(|round| round * 10..round * 10 + 3).collect();
    assert_eq!(seen.all(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_subscription_starts_where_it_says() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..3).await;
    db.client.batch_execute("select outhaul.sequence(100)").await.unwrap();
    let third: jiff::Timestamp = db
        .client
        .query_one("select at from outhaul.outbox_feed where position = 3", &[])
        .await
        .unwrap()
        .get(0);
    let starts = [
        ("begin", Start::Beginning, 0),
        ("now", Start::Now, 3),
        ("p", Start::Position(1), 1),
        ("t", Start::Time(third), 2),
    ];
    for (name, start, stands) in starts {
        let subscription = Subscription::new(name).start(start);
        subscriber(&db).subscribe(subscription, Seen::default().handler(|_| Ok(()))).build().await.unwrap();
        assert_eq!(position(&db, name).await, stands, "{name}");
    }
    // One that exists keeps its position.
    let again = Subscription::new("now").start(Start::Beginning);
    subscriber(&db).subscribe(again, Seen::default().handler(|_| Ok(()))).build().await.unwrap();
    assert_eq!(position(&db, "now").await, 3);
    let beyond = Subscription::new("x").start(Start::Position(4));
    let error =
        subscriber(&db).subscribe(beyond, Seen::default().handler(|_| Ok(()))).build().await.err().unwrap();
    assert!(error.is_invalid_input() && error.to_string().contains("beyond the head"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_blocks_waits_at_the_event_says_why_and_goes_on_when_it_succeeds() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..5).await;
    let (seen, broken) = (Seen::default(), Arc::new(Mutex::new(true)));
    let fails = broken.clone();
    let handler = seen.handler(move |n| {
        if n == 2 && *fails.lock().unwrap() {
            Err(Failure::permanent("no such order").code("gone"))
        } else {
            Ok(())
        }
    });
    let builder = subscriber(&db).with(|o| {
        o.retry.backoff = outhaul::Backoff {
            base: Duration::from_millis(50),
            max: Duration::from_millis(200),
            ..o.retry.backoff
        };
    });
    let worker = Running::start(builder.subscribe(all("s"), handler)).await;
    seen.until(6).await;
    let row = db
        .client
        .query_one("select position, behind, attempts, blocked_position, stuck_code, stuck_summary, holds from outhaul.show_subscriptions()", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 3), "before the event that fails");
    assert!(row.get::<_, i32>(2) >= 1);
    assert_eq!(row.get::<_, Option<i64>>(3), Some(3));
    assert_eq!(
        (row.get::<_, &str>(4), row.get::<_, &str>(5), row.get::<_, &str>(6)),
        ("gone", "no such order", "blocked")
    );
    *broken.lock().unwrap() = false;
    until_at(&db, "s", 5).await;
    worker.stop().await;
    let all = seen.all();
    assert_eq!(all[..3], [0, 1, 2]);
    assert_eq!(all[all.len() - 3..], [2, 3, 4], "each of those before once, then on: {all:?}");
    assert!(all[3..all.len() - 2].iter().all(|n| *n == 2), "{all:?}");
    assert_eq!(
        db.count("select count(*) from outhaul.subscriptions where stuck_class is not null or attempts > 0")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_parks_sets_the_event_aside_after_its_attempts_and_takes_it_back() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..5).await;
    let (seen, broken) = (Seen::default(), Arc::new(Mutex::new(true)));
    let fails = broken.clone();
    let handler =
        seen.handler(
            move |n| {
                if n == 2 && *fails.lock().unwrap() { Err(Failure::transient("away")) } else { Ok(()) }
            },
        );
    let builder = subscriber(&db).with(|o| {
        o.retry.backoff = outhaul::Backoff {
            base: Duration::from_millis(20),
            max: Duration::from_millis(50),
            ..o.retry.backoff
        };
    });
    let worker = Running::start(builder.subscribe(all("s").park_after(3), handler)).await;
    until_at(&db, "s", 5).await;
    assert_eq!(seen.all(), [0, 1, 2, 2, 2, 3, 4]);
    let row = db
        .client
        .query_one(
            "select position, attempts, how, error_class, error_summary from outhaul.show_parked('s')",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (3, 3));
    assert_eq!(
        (row.get::<_, &str>(2), row.get::<_, &str>(3), row.get::<_, &str>(4)),
        ("parked", "transient", "away")
    );

    *broken.lock().unwrap() = false;
    let unparked: String = db
        .client
        .query_one("select outhaul.operator_subscription_unpark('s', 3, 'it is back')", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(unparked, "unparked");
    seen.until(8).await;
    db.until("nothing is parked", "select count(*) = 0 from outhaul.subscription_parked").await;
    worker.stop().await;
    assert_eq!(seen.all(), [0, 1, 2, 2, 2, 3, 4, 2]);
    assert_eq!(position(&db, "s").await, 5, "the cursor has not moved for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_pauses_resumes_skips_rewinds_and_drops() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..4).await;
    let seen = Seen::default();
    let handler = seen.handler(|n| if n == 1 { Err(Failure::permanent("never")) } else { Ok(()) });
    let worker = Running::start(subscriber(&db).subscribe(all("s"), handler)).await;
    seen.until(2).await;
    db.until(
        "it is blocked",
        "select coalesce(bool_and(stuck_class is not null), false) from outhaul.subscriptions",
    )
    .await;
    let call = async |sql: &str| db.client.query_one(sql, &[]).await;
    let refused = call("select outhaul.operator_subscription_skip('s', 4, 'x')").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "OH002", "another event than the one seen");
    let refused = call("select outhaul.operator_subscription_skip('s', 2, ' ')").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "OH001", "no reason");
    call("select outhaul.operator_subscription_skip('s', 2, 'nobody needs it')").await.unwrap();
    until_at(&db, "s", 4).await;
    assert_eq!(seen.all(), [0, 1, 2, 3]);

    assert!(
        call("select outhaul.operator_subscription_pause('s', true, 'inventory')")
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
    publish(&db.client, "order.placed", 4..6).await;
    db.until_looked().await;
    assert_eq!(position(&db, "s").await, 4);
    call("select outhaul.operator_subscription_pause('s', false)").await.unwrap();
    until_at(&db, "s", 6).await;

    let ahead = call("select outhaul.operator_subscription_rewind('s', '7')").await.unwrap_err();
    assert_eq!(ahead.code().unwrap().code(), "OH001");
    call("select outhaul.operator_subscription_rewind('s', '4', 'again')").await.unwrap();
    seen.until(8).await;
    until_at(&db, "s", 6).await;
    assert_eq!(seen.all()[6..], [4, 5]);
    assert_eq!(db.count("select epoch::bigint from outhaul.subscriptions").await, 1);
    let parked: i64 = call("select outhaul.operator_subscription_drop('s')").await.unwrap().get(0);
    assert_eq!(parked, 1, "the event that was skipped");
    worker.stop().await;
    let actions = "select string_agg(action, ' ' order by seq) from outhaul.audit_log";
    let actions: String = db.client.query_one(actions, &[]).await.unwrap().get(0);
    assert_eq!(actions, "subs.skip subs.pause subs.resume subs.rewind subs.drop");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_effect_and_the_checkpoint_commit_together_or_not_at_all() {
    let db = Db::new().await;
    db.client.batch_execute("create table effects (n bigint)").await.unwrap();
    publish(&db.client, "order.placed", 0..20).await;
    let (url, tries) = (db.url(), Seen::default());
    let count = tries.clone();
    // Every third try rolls back: with an error, or, worse, as if nothing had been.
    let handler = move |event: RecordedEvent, cx: EventContext| {
        let (url, tries) = (url.clone(), count.clone());
        async move {
            let n = number(&event);
            tries.note(n);
            let round = tries.all().len();
            let mut client = crate::support::connect(&url).await;
            let mut tx = client.transaction().await?;
            tx.execute("insert into effects values ($1)", &[&n]).await?;
            cx.advance_in(&mut tx).await?;
            match round % 6 {
                2 => return Err(Failure::transient("after the effect")),
                5 => {
                    tx.rollback().await?;
                    return Ok(());
                }
                _ => tx.commit().await?,
            }
            Ok(())
        }
    };
    let builder = subscriber(&db).with(|o| {
        o.retry.backoff = outhaul::Backoff {
            base: Duration::from_millis(10),
            max: Duration::from_millis(50),
            ..o.retry.backoff
        };
    });
    let worker = Running::start(builder.subscribe(all("s").batch(5), handler)).await;
    until_at(&db, "s", 20).await;
    worker.stop().await;
    let effects: Vec<i64> = db
        .client
        .query("select n from effects order by ctid", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(effects, (0..20).collect::<Vec<_>>(), "each once, in order");
    assert!(tries.all().len() > 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_ends_after_the_event_at_hand_when_its_worker_stops() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..50).await;
    let (seen, go) = (Seen::default(), Arc::new(tokio::sync::Semaphore::new(0)));
    let (notes, gate) = (seen.clone(), go.clone());
    let handler = move |event: RecordedEvent, _: EventContext| {
        let (seen, go) = (notes.clone(), gate.clone());
        async move {
            seen.note(number(&event));
            go.acquire().await.unwrap().forget();
            Ok(())
        }
    };
    let worker = Running::start(subscriber(&db).subscribe(all("s"), handler)).await;
    go.add_permits(2);
    seen.until(3).await;
    worker.stopper().drain();
    go.add_permits(1);
    worker.stop().await;
    assert_eq!(seen.all(), [0, 1, 2]);
    assert_eq!(position(&db, "s").await, 3, "what was handled is not handled again");
    let free = "select count(*) from outhaul.subscriptions where lease_until = '-infinity'";
    assert_eq!(db.count(free).await, 1);
}

/// Publishes one event that takes so long.
async fn publish_lasting(client: &Client, ms: u64) {
    let payload = format!("{{\"ms\": {ms}}}");
    let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), $1::text::jsonb)";
    client.query(sql, &[&payload]).await.expect("publish");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_repeats_the_event_it_was_at_and_none_before() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    for ms in [0, 0, 60_000] {
        publish_lasting(&db.client, ms).await;
    }
    let post = Post { events: Some("subscribe".into()), ..Post::new("victim", &db.url(), &log) };
    let mut victim = post.start().await;
    log.until("begin", 3).await;
    victim.kill().await.unwrap();
    // The third is the first of its batch from now on, and shorter.
    let shorter = "update outhaul.outbox_events set payload = '{\"ms\": 0}' where payload <> '{\"ms\": 0}'";
    db.client.execute(shorter, &[]).await.unwrap();
    let _other = Post { name: "other".into(), ..post }.start().await;
    until_at(&db, "acts", 3).await;
    let begins = log.all("begin").await;
    // Nothing of the batch had been checkpointed: at least once.
    assert_eq!(begins.len(), 6, "{begins:?}");
    assert!(begins[3..].iter().all(|begin| begin.worker == "other"));
    let order: Vec<_> = begins[..3].iter().map(|begin| begin.job).collect();
    assert_eq!(begins[3..].iter().map(|begin| begin.job).collect::<Vec<_>>(), order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_advances_nothing_and_is_told() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    publish_lasting(&db.client, 60_000).await;
    let post = Post { events: Some("subscribe".into()), ..Post::new("zombie", &db.url(), &log) };
    let mut zombie = post.start().await;
    log.until("begin", 1).await;
    zombie.stop().await.unwrap();
    // Short for the other, so that the first is still at it when it goes on, however long it was stopped.
    db.client.execute("update outhaul.outbox_events set payload = '{\"ms\": 0}'", &[]).await.unwrap();
    let other = Post { name: "other".into(), ..post }.start().await;
    until_at(&db, "acts", 1).await;
    // Nobody but the zombie is left, and nothing is for it to do: what follows waits for the end of its report.
    drop(other);
    zombie.cont().unwrap();
    log.until("told LeaseLost", 1).await;
    log.until("end", 2).await;
    publish_lasting(&db.client, 0).await;
    until_at(&db, "acts", 2).await;
    assert_eq!(
        db.count("select claim_no::bigint from outhaul.subscriptions").await,
        3,
        "each claim had its one end"
    );
    assert_eq!(log.all("begin").await.len(), 3);
    zombie.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_kills_its_worker_is_set_aside_where_that_is_asked_for() {
    let db = Db::new().await;
    for n in 0..3 {
        publish(&db.client, "order.placed", n..n + 1).await;
    }
    db.client
        .query("select outhaul.subscribe('s', 'beginning', policy => 'park', max_attempts => 2)", &[])
        .await
        .unwrap();
    db.client.query("select outhaul.sequence(100)", &[]).await.unwrap();
    // Two workers die with the cursor: the whole batch first, then its first event alone.
    for (claimed, attempts) in [(3, 1), (1, 2)] {
        let sql = "select attempts from outhaul.claim_subscription('s', 10, gen_random_uuid(), '30 s')";
        let rows = db.client.query(sql, &[]).await.unwrap();
        assert_eq!((rows.len(), rows[0].get::<_, i32>(0)), (claimed, attempts));
        db.client
            .execute("update outhaul.subscriptions set lease_until = clock_timestamp() - interval '1 s'", &[])
            .await
            .unwrap();
        let seen = Seen::default();
        let sweeper = subscriber(&db).subscribe(all("other"), seen.handler(|_| Ok(())));
        let sweeper = Running::start(sweeper).await;
        db.until(
            "the lease is settled",
            "select lease_until = '-infinity' from outhaul.subscriptions where name = 's'",
        )
        .await;
        sweeper.stop().await;
        db.client.execute("update outhaul.subscriptions set due_at = '-infinity'", &[]).await.unwrap();
    }
    assert_eq!(position(&db, "s").await, 1);
    let parked = db
        .client
        .query_one("select position, attempts, error_class, error_code from outhaul.show_parked('s')", &[])
        .await
        .unwrap();
    assert_eq!((parked.get::<_, i64>(0), parked.get::<_, i32>(1)), (1, 2));
    assert_eq!((parked.get::<_, &str>(2), parked.get::<_, &str>(3)), ("crash", "lease_expired"));
}

#[tokio::test]
async fn a_failure_behind_an_event_that_is_not_checkpointed_gives_up_neither() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..4).await;
    db.client
        .query("select outhaul.subscribe('s', 'beginning', policy => 'park', max_attempts => 1)", &[])
        .await
        .unwrap();
    db.client.query("select outhaul.sequence(100)", &[]).await.unwrap();
    // A handler said done for the second and never committed its checkpoint; the third failed for good.
    for verdict in ["dead_letter", "cancel"] {
        let claim = "select subscription_id, lease_token, claim_no from outhaul.claim_subscription('s', 10, gen_random_uuid(), '30 s')";
        let row = &db.client.query(claim, &[]).await.unwrap()[0];
        let hold = "select * from outhaul.hold(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4::text], '{0}', '{permanent}', \
            '{null}', '{null}', '{1}', '{3}', '{false}')";
        let (id, token, claim_no) =
            (row.get::<_, uuid::Uuid>(0), row.get::<_, uuid::Uuid>(1), row.get::<_, i32>(2));
        assert!(db.client.query(hold, &[&id, &token, &claim_no, &verdict]).await.unwrap().is_empty());
        assert_eq!(position(&db, "s").await, 1);
        assert_eq!(db.count("select count(*) from outhaul.show_parked('s')").await, 0);
        let next = "select blocked_position from outhaul.subscriptions where attempts = 1 or attempts = 2";
        assert_eq!(db.count(next).await, 2, "which is next, and comes by itself");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_transactions_that_stay_open_hold_up_nobody_elses_events() {
    let db = Db::new().await;
    // A hundred numbers that nobody will ever see, one session that is idle in a transaction, and one that has published.
    for _ in 0..100 {
        db.client.batch_execute("begin").await.unwrap();
        publish(&db.client, "order.placed", 0..1).await;
        db.client.batch_execute("rollback").await.unwrap();
    }
    let (idle, writer) = (db.connect().await, db.connect().await);
    idle.batch_execute("begin isolation level repeatable read; select count(*) from outhaul.jobs")
        .await
        .unwrap();
    writer.batch_execute("begin").await.unwrap();
    publish(&writer, "order.placed", 7..8).await;
    let seen = Seen::default();
    let worker = Running::start(subscriber(&db).subscribe(all("s"), seen.handler(|_| Ok(())))).await;
    publish(&db.client, "order.placed", 1..4).await;
    seen.until(3).await;
    until_at(&db, "s", 3).await;
    // The late one comes last, and is not lost.
    writer.batch_execute("commit").await.unwrap();
    seen.until(4).await;
    worker.stop().await;
    assert_eq!(seen.all(), [1, 2, 3, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_on_where_thirty_two_bits_end() {
    let db = Db::new().await;
    let sequences = "do $$ declare r record; begin \
        for r in select c.oid::regclass as s from pg_class c where relnamespace = 'outhaul'::regnamespace and relkind = 'S' \
          and relname <> 'wake_gate' loop perform setval(r.s, 2147483646); end loop; end $$; \
        update outhaul.outbox_feed_head set last_position = 2147483646, floor = 2147483646, next_floor = 2147483646";
    db.client.batch_execute(sequences).await.unwrap();
    let seen = Seen::default();
    let now = Subscription::new("s").start(Start::Now);
    let worker = Running::start(subscriber(&db).subscribe(now, seen.handler(|_| Ok(())))).await;
    publish(&db.client, "order.placed", 0..10).await;
    seen.until(10).await;
    until_at(&db, "s", 2_147_483_656).await;
    worker.stop().await;
    assert_eq!(db.count("select count(*) from outhaul.reconcile_outbox()").await, 0);
    let row = "select count(*) from outhaul.outbox_events where seq > 2147483647";
    assert_eq!(db.count(row).await, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_anew_tries_the_blocked_event_at_once() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..3).await;
    let (seen, hour) =
        (Seen::default(), outhaul::Backoff { base: Duration::from_secs(3_600), ..Default::default() });
    let fails = seen.handler(|n| if n == 1 { Err(Failure::permanent("a bug")) } else { Ok(()) });
    let broken = subscriber(&db).with(|o| o.retry.backoff = hour).subscribe(all("s"), fails);
    let worker = Running::start(broken).await;
    let waits = "select stuck_class is not distinct from 'permanent' and due_at > now() + interval '50 min' \
        from outhaul.subscriptions";
    db.until("it waits", waits).await;
    worker.stop().await;
    let mended = Running::start(subscriber(&db).subscribe(all("s"), seen.handler(|_| Ok(())))).await;
    until_at(&db, "s", 3).await;
    mended.stop().await;
    assert_eq!(seen.all(), [0, 1, 1, 2]);
}

#[tokio::test]
async fn an_event_that_its_handler_has_checkpointed_is_not_given_up_for_a_failure_after_that() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 0..4).await;
    db.client
        .query("select outhaul.subscribe('s', 'beginning', policy => 'park', max_attempts => 1)", &[])
        .await
        .unwrap();
    db.client.query("select outhaul.sequence(100)", &[]).await.unwrap();
    for (verdict, at) in [("dead_letter", 2i64), ("cancel", 3), ("retry", 4)] {
        let claim = "select subscription_id, lease_token, claim_no from outhaul.claim_subscription('s', 10, gen_random_uuid(), '30 s')";
        let row = &db.client.query(claim, &[]).await.unwrap()[0];
        let (id, token, claim_no) =
            (row.get::<_, uuid::Uuid>(0), row.get::<_, uuid::Uuid>(1), row.get::<_, i32>(2));
        db.client
            .query("select outhaul.checkpoint_in($1, $2, $3, $4)", &[&id, &token, &claim_no, &at])
            .await
            .unwrap();
        let hold = "select * from outhaul.hold(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4::text], '{0}', '{permanent}', \
            '{null}', '{null}', '{0}', array[$5::bigint], '{false}')";
        assert!(db.client.query(hold, &[&id, &token, &claim_no, &verdict, &at]).await.unwrap().is_empty());
        assert_eq!(position(&db, "s").await, at, "{verdict}");
        assert_eq!(db.count("select count(*) from outhaul.show_parked('s')").await, 0, "{verdict}");
        assert_eq!(db.count("select attempts::bigint from outhaul.subscriptions").await, 0, "{verdict}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_nobody_reads_is_reported_by_the_workers_of_others() {
    let db = Db::new().await;
    let names = "select outhaul.subscribe('away', 'beginning', gone_after => '1 s'), outhaul.subscribe('here', 'beginning')";
    db.client.query(names, &[]).await.unwrap();
    let aged = "update outhaul.subscriptions set seen_at = seen_at - interval '1 h' where name = 'away'";
    db.client.execute(aged, &[]).await.unwrap();
    let counter = crate::support::Counter::default();
    let worker = Running::start(db.worker().handle(counter.handler())).await;
    let reported = "select count(*) = 1 from outhaul.show_upkeep() where task = 'subscriptions' \
        and findings::jsonb = '{\"held\": {\"away\": \"gone\"}}'";
    db.until("it is reported", reported).await;
    worker.stop().await;
}
