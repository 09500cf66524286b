//! Handlers of events by type: the payload is read for them, and what cannot be read is no event lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul::{
    Backoff, Event, EventContext, EventHandlers, Failure, NewEvent, Outcome, RecordedEvent, Relay, Start,
    Subscription, WorkerBuilder, publish,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Db, Running, until};

#[derive(Serialize, Deserialize)]
struct Placed {
    n: i64,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
    const AGGREGATE_TYPE: &'static str = "order";
    const SCHEMA_VERSION: i32 = 2;
}

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}

impl Event for Paid {
    const TYPE: &'static str = "order.paid";
    const AGGREGATE_TYPE: &'static str = "order";
}

/// What handlers were given.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, cx: &EventContext, words: String) -> std::future::Ready<Outcome> {
        assert_eq!(cx.event().aggregate_type, "order");
        self.0.lock().unwrap().push(format!("{}: {words}", cx.event().event_type));
        std::future::ready(Ok(()))
    }

    async fn until(&self, expected: &[&str]) {
        until(&format!("{expected:?}"), || async {
            let mut all = self.0.lock().unwrap().clone();
            all.sort();
            all == expected
        })
        .await;
    }

    fn handlers(&self) -> EventHandlers {
        let (placed, paid) = (self.clone(), self.clone());
        EventHandlers::new()
            .on(move |event: Placed, cx| placed.add(&cx, format!("n {}", event.n)))
            .on(move |event: Paid, cx| paid.add(&cx, format!("{} cents", event.cents)))
    }
}

fn worker(db: &Db) -> WorkerBuilder {
    let backoff = Backoff { base: Duration::from_millis(5), max: Duration::from_millis(20), jitter: 0.0 };
    db.worker().with(|o| o.retry.backoff = backoff)
}

async fn publish_three(db: &mut Db) {
    let order = Uuid::now_v7();
    for event in [
        NewEvent::new(&Placed { n: 1 }, order).unwrap(),
        NewEvent::raw("order.seen", "order", order, "{}"),
        NewEvent::new(&Paid { cents: 995 }, order).unwrap(),
    ] {
        publish(&mut db.client, &event).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_type_goes_to_its_handler_and_a_subscription_reads_only_those_types() {
    let mut db = Db::new().await;
    publish_three(&mut db).await;
    let notes = Notes::default();
    let subscription = Subscription::new("s").start(Start::Beginning);
    let running = Running::start(worker(&db).subscribe_typed(subscription, notes.handlers())).await;
    db.until("all is read", "select position = 3 from outhaul.subscriptions").await;
    running.stop().await;
    notes.until(&["order.paid: 995 cents", "order.placed: n 1"]).await;
    let filter = "select event_types = '{order.paid,order.placed}' from outhaul.subscriptions";
    db.until("the filter is that of the handlers", filter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_goes_to_the_handler_for_the_rest_or_is_parked_by_a_relay() {
    let mut db = Db::new().await;
    publish_three(&mut db).await;
    let notes = Notes::default();
    let rest = notes.clone();
    let all = notes
        .handlers()
        .otherwise(move |event: RecordedEvent, cx| rest.add(&cx, format!("{} bytes", event.payload.len())));
    let subscription = Subscription::new("s").start(Start::Beginning);
    let running = Running::start(worker(&db).subscribe_typed(subscription, all)).await;
    notes.until(&["order.paid: 995 cents", "order.placed: n 1", "order.seen: 2 bytes"]).await;
    running.stop().await;

    let notes = Notes::default();
    let relay = Relay::default().start(Start::Beginning);
    let running = Running::start(worker(&db).relay_typed(relay, notes.handlers())).await;
    notes.until(&["order.paid: 995 cents", "order.placed: n 1"]).await;
    let parked = "select count(*) = 1 from outhaul.outbox_events where parked_at is not null \
        and event_type = 'order.seen' and last_error like '%no handler%'";
    db.until("the type without a handler is parked", parked).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_newer_schema_waits_for_a_program_that_knows_it_and_older_ones_are_read() {
    let db = Db::new().await;
    for (n, version) in [(1i64, 1), (2, 2), (3, 3)] {
        let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), jsonb_build_object('n', $1::bigint), \
            schema_version => $2)";
        db.client.query(sql, &[&n, &version]).await.unwrap();
    }
    let notes = Notes::default();
    let subscription = || Subscription::new("s").start(Start::Beginning);
    let running = Running::start(worker(&db).subscribe_typed(subscription(), notes.handlers())).await;
    let waits = "select position = 2 and blocked_position = 3 and stuck_code = 'schema_newer' and stuck_class = 'transient' \
        from outhaul.subscriptions";
    db.until("it waits at the third", waits).await;
    running.stop().await;

    #[derive(Serialize, Deserialize)]
    struct Newer {
        n: i64,
    }
    impl Event for Newer {
        const TYPE: &'static str = "order.placed";
        const AGGREGATE_TYPE: &'static str = "order";
        const SCHEMA_VERSION: i32 = 3;
    }
    let newer = notes.clone();
    let handlers = EventHandlers::new().on(move |event: Newer, cx| newer.add(&cx, format!("n {}", event.n)));
    let running = Running::start(worker(&db).subscribe_typed(subscription(), handlers)).await;
    notes.until(&["order.placed: n 1", "order.placed: n 2", "order.placed: n 3"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_not_its_types_is_a_permanent_failure_without_its_words() {
    let db = Db::new().await;
    let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), '{\"n\": \"swordfish\"}')";
    db.client.query(sql, &[]).await.unwrap();
    let subscription = Subscription::new("s").start(Start::Beginning).park_after(5);
    let notes = Notes::default();
    let running = Running::start(worker(&db).subscribe_typed(subscription, notes.handlers())).await;
    let parked = "select count(*) = 1 from outhaul.show_parked('s') where attempts = 1 and error_class = 'permanent' \
        and error_code = 'payload_invalid' and error_summary not like '%swordfish%'";
    db.until("it is parked at once", parked).await;
    running.stop().await;
}

#[tokio::test]
async fn handlers_that_cannot_work_are_refused() {
    let db = Db::new().await;
    let on = |_: Paid, _: EventContext| std::future::ready(Ok::<(), Failure>(()));
    let twice = worker(&db).subscribe_typed(Subscription::new("s"), EventHandlers::new().on(on).on(on));
    let error = twice.build().await.err().unwrap();
    assert!(error.is_config() && error.to_string().contains("two handlers of events of type order.paid"));
    let none = worker(&db).relay_typed(Relay::default(), EventHandlers::new()).build().await.err().unwrap();
    assert!(none.is_config() && none.to_string().contains("the relay has no handlers"), "{none}");
    assert_eq!(db.count("select count(*) from outhaul.subscriptions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fails_as_one_gives_up_only_the_event_that_fails_alone() {
    let db = Db::new().await;
    for n in 1..=5i64 {
        let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), jsonb_build_object('n', $1::bigint))";
        db.client.query(sql, &[&n]).await.unwrap();
    }
    let done: Arc<Mutex<Vec<i64>>> = Arc::default();
    let notes = done.clone();
    let handler = move |events: Vec<RecordedEvent>, _: EventContext| {
        let numbers: Vec<i64> = events.iter().map(|event| event.decode::<Placed>().unwrap().n).collect();
        let bad = numbers.contains(&3);
        if !bad {
            notes.lock().unwrap().extend(numbers);
        }
        std::future::ready(if bad { Err(Failure::permanent("there is a three")) } else { Ok(()) })
    };
    let subscription = Subscription::new("s").start(Start::Beginning).park_after(1);
    let running = Running::start(worker(&db).subscribe_batches(subscription, handler)).await;
    db.until("all is read", "select position = 5 from outhaul.subscriptions").await;
    running.stop().await;
    assert_eq!(*done.lock().unwrap(), [1, 2, 4, 5]);
    assert_eq!(db.count("select position from outhaul.show_parked('s')").await, 3);
}

/// Where a log goes that a test reads.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines about failed attempts that have a field.
    fn failures(&self, field: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == "attempt failed" && !line[field].is_null()).collect()
    }
}

// On one thread, to which the log belongs.
#[tokio::test]
async fn the_log_of_a_failing_event_names_it_and_who_was_reading() {
    let log = Log::default();
    let writer = log.clone();
    let json = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(json.finish());
    let db = Db::new().await;
    let id = Uuid::now_v7();
    let publish = "select outhaul.publish('order.placed', 'order', $1, id => $1)";
    db.client.query(publish, &[&id]).await.unwrap();
    let fails = |_: RecordedEvent, _: EventContext| {
        std::future::ready(Err(Failure::permanent("never").code("never")))
    };
    let blocks = Subscription::new("s").start(Start::Beginning);
    let relay = Relay::default().start(Start::Beginning).max_attempts(3);
    let worker = Running::start(db.worker().subscribe(blocks, fails).relay(relay, fails)).await;
    until("both have failed", || async {
        !log.failures("subscription").is_empty() && !log.failures("relay").is_empty()
    })
    .await;
    worker.stop().await;
    let (subscription, relay) = (log.failures("subscription").remove(0), log.failures("relay").remove(0));
    for (line, key, value) in [
        (&subscription, "subscription", json!("s")),
        (&subscription, "position", 1.into()),
        (&subscription, "given_back", false.into()),
        (&subscription, "max_attempts", Value::Null),
        (&relay, "seq", 1.into()),
        (&relay, "max_attempts", 3.into()),
    ] {
        assert_eq!(line[key], value, "{key}: {line}");
    }
    for line in [&subscription, &relay] {
        assert_eq!(line["event_id"], id.to_string(), "{line}");
        assert_eq!((&line["event_type"], &line["attempt"]), (&"order.placed".into(), &1.into()), "{line}");
        assert!(["job_id", "job_type"].iter().all(|key| line[*key].is_null()), "{line}");
    }
}
