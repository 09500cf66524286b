//! The read-model of the outbox shows what is there, and what operators do is done, recorded, or changes nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use outhaul::{
    EventDetail, EventFilter, EventId, Hold, Observer, Operator, OutboxFinding, ParkedView, RelayView, Start,
    SubscriptionView,
};
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::doors::{Door, Fact};
use crate::support::{Db, listen};

const WORKER: &str = "00000000-0000-0000-0000-0000000000bb";
const HISTORY: &str = "00000000-0000-0000-0000-00000000cafe";

fn id(text: &str) -> Uuid {
    text.parse().unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn near(millis: Option<i64>, seconds: i64) {
    let millis = millis.expect("an age");
    assert!((seconds * 1_000..seconds * 1_000 + 30_000).contains(&millis), "{millis} ms, not {seconds} s");
}

/// Publishes events, each in a transaction of its own, and gives them positions.
async fn publish(db: &mut Db, types: &[&str]) -> Vec<EventId> {
    let mut ids = Vec::new();
    for event_type in types {
        let fact = Fact { event_type: (*event_type).to_owned(), ..Fact::default() };
        ids.push(EventId(fact.at(Door::Library, &mut db.client).await.unwrap()));
    }
    sequence(&db.client).await;
    ids
}

async fn sequence(client: &Client) {
    client.execute("select outhaul.sequence(1000)", &[]).await.unwrap();
}

async fn run(db: &Db, sql: &str) {
    db.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn subscription(observer: &Observer, name: &str) -> SubscriptionView {
    observer.subscription(name).await.unwrap().unwrap_or_else(|| panic!("no {name}"))
}

#[tokio::test]
async fn every_field_of_a_subscription_is_shown() {
    let mut db = Db::new().await;
    publish(&mut db, &["order.placed"; 9]).await;
    run(
        &db,
        &format!(
            "select outhaul.subscribe('full', '4', '{{order.placed,order.paid}}', '{{order,cart}}', policy => 'park'); \
             select outhaul.subscribe('bare', '9'); \
             update outhaul.outbox_feed set at = at - interval '70 s' where position = 5; \
             update outhaul.outbox_events set at = at - interval '70 s' where seq = (select seq from outhaul.outbox_feed where position = 5); \
             update outhaul.subscriptions set epoch = 11, attempts = 12, blocked_position = 5, due_at = '2030-01-01 00:00:01+00', \
             locked_by = '{WORKER}', lease_until = '2030-01-01 00:00:02+00', moved_at = '2030-01-01 00:00:03+00', \
             caught_up_at = '2030-01-01 00:00:04+00', seen_at = '2030-01-01 00:00:05+00', paused_reason = 'why', \
             stuck_class = 'transient', stuck_code = 'http_503', stuck_summary = 'it was away' where name = 'full'; \
             set search_path = outhaul; select park('full', 1, 1, 'parked', 'c', 'd', 'e'); select park('full', 2, 1, 'skipped', 'c', 'd', 'e'); \
             select park('full', 3, 1, 'parked', 'c', 'd', 'e'); reset search_path"
        ),
    )
    .await;
    let observer = db.observer().await;
    let full = subscription(&observer, "full").await;
    assert_eq!((full.name.as_str(), full.position, full.head, full.behind), ("full", 4, 9, 5));
    near(full.oldest_ms, 70);
    assert_eq!(full.policy, "park");
    assert_eq!(full.event_types, Some(vec!["order.placed".to_owned(), "order.paid".to_owned()]));
    assert_eq!(full.aggregate_types, Some(vec!["order".to_owned(), "cart".to_owned()]));
    assert_eq!((full.epoch, full.attempts, full.blocked_position), (11, 12, Some(5)));
    assert_eq!((full.leased_by, full.due_at), (Some(id(WORKER)), Some(at("2030-01-01T00:00:01Z"))));
    assert_eq!(
        (full.lease_until, full.moved_at),
        (Some(at("2030-01-01T00:00:02Z")), at("2030-01-01T00:00:03Z"))
    );
    assert_eq!(
        (full.caught_up_at, full.seen_at),
        (Some(at("2030-01-01T00:00:04Z")), at("2030-01-01T00:00:05Z"))
    );
    assert_eq!(full.paused_reason.as_deref(), Some("why"));
    assert_eq!(
        (full.stuck_class.as_deref(), full.stuck_code.as_deref(), full.stuck_summary.as_deref()),
        (Some("transient"), Some("http_503"), Some("it was away"))
    );
    assert_eq!((full.parked, full.holds), (2, Some(Hold::Blocked)), "a skipped event is not counted");
    let row = "select id from outhaul.subscriptions where name = 'full'";
    assert_eq!(full.id, db.client.query_one(row, &[]).await.unwrap().get::<_, Uuid>(0));

    let bare = subscription(&observer, "bare").await;
    assert_eq!((bare.position, bare.behind, bare.oldest_ms, &*bare.policy), (9, 0, None, "block"));
    assert_eq!((bare.event_types, bare.aggregate_types, bare.blocked_position), (None, None, None));
    assert_eq!((bare.due_at, bare.leased_by, bare.lease_until, bare.caught_up_at), (None, None, None, None));
    assert_eq!(
        (bare.paused_reason, bare.stuck_class, bare.stuck_code, bare.stuck_summary),
        (None, None, None, None)
    );
    assert_eq!((bare.parked, bare.holds, bare.epoch, bare.attempts), (0, None, 0, 0));

    let names: Vec<String> = observer.subscriptions().await.unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["bare", "full"]);
    assert!(observer.subscription("nobody").await.unwrap().is_none());
}

#[tokio::test]
async fn every_hold_is_named_and_the_most_serious_one_is_told() {
    let mut db = Db::new().await;
    publish(&mut db, &["order.placed"; 4]).await;
    run(&db, "select outhaul.subscribe('s', '1', gone_after => '1 hour')").await;
    let observer = db.observer().await;
    assert_eq!(subscription(&observer, "s").await.holds, None);
    // Each comes on top of those before it, from the least serious to the most.
    let steps = [
        ("update outhaul.subscriptions set seen_at = now() - interval '31 s'", Hold::IdleConsumer),
        ("update outhaul.subscriptions set stuck_class = 'transient'", Hold::Blocked),
        ("update outhaul.subscriptions set seen_at = now() - interval '61 min'", Hold::Gone),
        ("update outhaul.subscriptions set paused_at = now()", Hold::Paused),
        ("delete from outhaul.outbox_feed where position = 2", Hold::Truncated),
        ("update outhaul.subscriptions set history_id = gen_random_uuid()", Hold::Diverged),
    ];
    for (sql, hold) in steps {
        run(&db, sql).await;
        assert_eq!(subscription(&observer, "s").await.holds, Some(hold), "{sql}");
    }
    let worse: Vec<Hold> = steps.iter().rev().map(|(_, hold)| *hold).collect();
    assert_eq!(worse, Hold::ALL);
    run(&db, "update outhaul.subscriptions s set history_id = h.history_id, position = 5 from outhaul.outbox_feed_head h").await;
    assert_eq!(subscription(&observer, "s").await.holds, Some(Hold::Diverged), "beyond the head");
    for hold in Hold::ALL {
        assert_eq!(json!(hold), json!(hold.as_str()));
        assert_eq!(
            (hold.to_string().parse::<Hold>().unwrap(), hold.to_string().as_str()),
            (hold, hold.as_str())
        );
    }
    assert!("held".parse::<Hold>().unwrap_err().is_invalid_input());
}

#[tokio::test]
async fn parked_events_are_shown_in_pages_the_latest_first() {
    let mut db = Db::new().await;
    let ids = publish(&mut db, &["order.placed"; 60]).await;
    let thing = Uuid::now_v7();
    run(
        &db,
        &format!(
            "select outhaul.subscribe('s', '60'), outhaul.subscribe('other', '60'); \
             update outhaul.outbox_events set event_type = 'order.paid', aggregate_type = 'cart', aggregate_id = '{thing}' \
             where seq = (select seq from outhaul.outbox_feed where position = 60); \
             set search_path = outhaul; select park('s', g, g::integer, 'parked', 'transient', 'http_503', 'away') from generate_series(1, 59) g; \
             select park('s', 60, 7, 'skipped', 'permanent', 'gone', 'nobody needs it'); \
             select park('other', 3, 1, 'parked', null, null, null); reset search_path; \
             update outhaul.subscription_parked set parked_at = '2030-01-01 00:00:01+00', unparked_at = '2030-01-01 00:00:02+00' where position = 60"
        ),
    )
    .await;
    let observer = db.observer().await;
    let page = observer.parked("s", None, 0).await.unwrap();
    assert_eq!(page.len(), 50, "the default page");
    let last = &page[0];
    assert_eq!((last.position, last.event_id, last.aggregate_id), (60, ids[59], thing));
    assert_eq!((&*last.event_type, &*last.aggregate_type, &*last.how), ("order.paid", "cart", "skipped"));
    assert_eq!(
        (last.parked_at, last.unparked_at),
        (at("2030-01-01T00:00:01Z"), Some(at("2030-01-01T00:00:02Z")))
    );
    assert_eq!(last.attempts, 7);
    assert_eq!(
        (last.error_class.as_deref(), last.error_code.as_deref(), last.error_summary.as_deref()),
        (Some("permanent"), Some("gone"), Some("nobody needs it"))
    );
    let (mut seen, mut before): (Vec<ParkedView>, _) = (Vec::new(), None);
    loop {
        let page = observer.parked("s", before, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.position);
        seen.extend(page);
    }
    assert_eq!(
        seen.iter().map(|event| event.position).collect::<Vec<_>>(),
        (1..=60).rev().collect::<Vec<_>>()
    );
    assert!(seen[1..].iter().all(|event| event.how == "parked" && event.unparked_at.is_none()));
    let other = observer.parked("other", None, 10).await.unwrap();
    assert_eq!((other.len(), other[0].error_class.as_ref(), other[0].error_code.as_ref()), (1, None, None));
    assert_eq!(observer.parked("s", None, -3).await.unwrap().len(), 1);
    assert!(observer.parked("nobody", None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_outbox_is_shown_in_numbers() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    let empty = observer.outbox().await.unwrap();
    assert_eq!(
        (empty.head, empty.unsequenced, empty.oldest_unsequenced_ms, empty.capped),
        (0, 0, None, false)
    );
    assert!(empty.relay.is_none(), "nobody is registered, so nothing waits");

    publish(&mut db, &["order.placed"; 17]).await;
    Fact::default().at(Door::Library, &mut db.client).await.unwrap();
    run(
        &db,
        &format!(
            "update outhaul.outbox_feed_head set history_id = '{HISTORY}'; \
             update outhaul.outbox_unsequenced set at = at - interval '80 s'; select outhaul.register_relay('beginning'); \
             update outhaul.outbox_events set lease_until = now() + interval '1 min' where seq in (select seq from outhaul.outbox_feed where position <= 2); \
             update outhaul.outbox_events set parked_at = now(), available_at = 'infinity' where seq in (select seq from outhaul.outbox_feed where position between 3 and 6); \
             update outhaul.outbox_events set processed_at = now() where seq in (select seq from outhaul.outbox_feed where position between 7 and 13); \
             update outhaul.outbox_events set at = at - interval '90 s' where seq = (select seq from outhaul.outbox_feed where position = 14)"
        ),
    )
    .await;
    let outbox = observer.outbox().await.unwrap();
    assert_eq!(
        (outbox.head, outbox.history_id, outbox.unsequenced, outbox.capped),
        (17, id(HISTORY), 1, false)
    );
    near(outbox.oldest_unsequenced_ms, 80);
    let RelayView { since, pending, leased, parked, oldest_ms } = outbox.relay.unwrap();
    assert_eq!((since, pending, leased, parked), (None, 5, 2, 4), "from the beginning");
    near(oldest_ms, 90);

    run(
        &db,
        "update outhaul.relay set starts_at = '2020-01-01 00:00:00+00'; \
         insert into outhaul.outbox_unsequenced (seq, at) select g, now() from generate_series(1000000, 1010500) g",
    )
    .await;
    let outbox = observer.outbox().await.unwrap();
    assert_eq!(outbox.relay.unwrap().since, Some(at("2020-01-01T00:00:00Z")));
    assert_eq!((outbox.unsequenced, outbox.capped), (10_001, true), "counting stops, and says so");
}

#[tokio::test]
async fn one_event_is_shown_with_what_became_of_it() {
    let mut db = Db::new().await;
    let (observer, thing, organization) = (db.observer().await, Uuid::now_v7(), Uuid::now_v7());
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    publish(&mut db, &["order.placed"; 2]).await;
    let fact = Fact {
        event_type: "order.paid".into(),
        aggregate_type: "cart".into(),
        aggregate_id: thing,
        schema_version: 3,
        occurred_at: Some("2020-01-01T00:00:01Z".into()),
        available_at: Some("2030-01-01T00:00:02Z".into()),
        partition_key: Some("shelf 4".into()),
        organization: Some(organization),
        traceparent: Some(trace.into()),
        ..Fact::default()
    };
    let event = EventId(fact.at(Door::Library, &mut db.client).await.unwrap());
    let shown = async || -> EventDetail {
        let mut stored = observer.event(event).await.unwrap();
        assert_eq!(stored.len(), 1);
        stored.remove(0)
    };
    let fresh = shown().await;
    assert_eq!((fresh.event.position, fresh.event.relay), (None, None), "no reader, no relay");
    sequence(&db.client).await;
    run(
        &db,
        &format!(
            "select outhaul.register_relay('beginning'); update outhaul.outbox_events \
             set attempts = 4, processed_at = '2030-01-01 00:00:03+00', last_error = 'transient: http_503' where id = '{event}'"
        ),
    )
    .await;
    let detail = shown().await;
    let row = db.client.query_one("select max(seq), max(at) from outhaul.outbox_events", &[]).await.unwrap();
    let e = &detail.event;
    assert_eq!((e.seq, e.at), (row.get(0), row.get(1)));
    assert_eq!((e.id, &*e.event_type, &*e.aggregate_type), (event, "order.paid", "cart"));
    assert_eq!((e.aggregate_id, e.schema_version, e.position), (thing, 3, Some(3)));
    assert_eq!((e.occurred_at, e.relay.as_deref()), (at("2020-01-01T00:00:01Z"), Some("processed")));
    assert_eq!(
        (detail.organization_id, detail.partition_key.as_deref()),
        (Some(organization), Some("shelf 4"))
    );
    assert_eq!((detail.traceparent.as_deref(), detail.attempts), (Some(trace), 4));
    assert_eq!(detail.available_at, Some(at("2030-01-01T00:00:02Z")));
    assert_eq!(detail.processed_at, Some(at("2030-01-01T00:00:03Z")));
    assert_eq!(detail.last_error.as_deref(), Some("transient: http_503"));
    assert!(
        json!(detail).get("event").is_none() && json!(detail)["event_type"] == "order.paid",
        "one flat object"
    );

    for (change, relay, available) in [
        ("processed_at = null, parked_at = now(), available_at = 'infinity'", "parked", None),
        (
            "parked_at = null, available_at = '2030-01-01 00:00:02+00', lease_until = now()",
            "leased",
            detail.available_at,
        ),
        ("lease_until = null", "pending", detail.available_at),
    ] {
        run(&db, &format!("update outhaul.outbox_events set {change} where id = '{event}'")).await;
        let detail = shown().await;
        assert_eq!((detail.event.relay.as_deref(), detail.available_at), (Some(relay), available));
    }
    assert_eq!(observer.event_payload(event).await.unwrap().as_deref(), Some(r#"{"cents": 995}"#));
    assert!(observer.event(EventId::new()).await.unwrap().is_empty());
    assert_eq!(observer.event_payload(EventId::new()).await.unwrap(), None);

    let twice = Fact { payload: "2".into(), ..fact.clone() };
    twice.at(Door::Library, &mut db.client).await.unwrap();
    let stored = observer.event(event).await.unwrap();
    assert_eq!(stored.iter().map(|one| one.event.id).collect::<Vec<_>>(), [event, event]);
    assert!(stored[0].event.seq < stored[1].event.seq);
    assert_eq!(observer.event_payload(event).await.unwrap().as_deref(), Some(r#"{"cents": 995}"#));
}

#[tokio::test]
async fn events_are_listed_by_filters_and_in_pages_while_others_come() {
    let mut db = Db::new().await;
    let (observer, thing) = (db.observer().await, Uuid::now_v7());
    let mut ids = Vec::new();
    for n in 0..60usize {
        let fact = Fact {
            event_type: ["a", "b", "c"][n % 3].into(),
            aggregate_type: ["x", "y"][n % 2].into(),
            aggregate_id: if n % 10 == 0 { thing } else { Uuid::now_v7() },
            ..Fact::default()
        };
        ids.push(EventId(fact.at(Door::Library, &mut db.client).await.unwrap()));
    }
    ids.reverse();
    run(
        &db,
        "update outhaul.outbox_events set parked_at = now() where event_type = 'c' and aggregate_type = 'y'",
    )
    .await;
    let list = async |filter: EventFilter| observer.events(&filter).await.unwrap();
    let limit = 100;
    for (filter, n) in [
        (EventFilter { limit, ..EventFilter::default() }, 60),
        (EventFilter { event_type: Some("a".into()), limit, ..EventFilter::default() }, 20),
        (EventFilter { aggregate_type: Some("y".into()), limit, ..EventFilter::default() }, 30),
        (EventFilter { aggregate_id: Some(thing), limit, ..EventFilter::default() }, 6),
        (EventFilter { only_parked: true, limit, ..EventFilter::default() }, 10),
        (
            EventFilter {
                event_type: Some("a".into()),
                aggregate_type: Some("x".into()),
                limit,
                ..EventFilter::default()
            },
            10,
        ),
        (EventFilter { event_type: Some("d".into()), limit, ..EventFilter::default() }, 0),
        (EventFilter::default(), 50),
        (EventFilter { limit: -3, ..EventFilter::default() }, 1),
    ] {
        let events = list(filter.clone()).await;
        assert_eq!(events.len(), n, "{filter:?}");
        assert!(events.windows(2).all(|pair| pair[0].seq > pair[1].seq), "{filter:?}");
        let fits = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        for event in events {
            assert!(
                fits(&filter.event_type, &event.event_type)
                    && fits(&filter.aggregate_type, &event.aggregate_type)
            );
            assert!(filter.aggregate_id.is_none_or(|wanted| wanted == event.aggregate_id), "{filter:?}");
            assert!(!filter.only_parked || event.relay.as_deref() == Some("parked"), "{filter:?}");
        }
    }
    let (mut seen, mut filter) = (Vec::new(), EventFilter { limit: 7, ..EventFilter::default() });
    loop {
        let page = list(filter.clone()).await;
        let Some(last) = page.last() else { break };
        filter.before = Some(last.seq);
        seen.extend(page.iter().map(|event| event.id));
        Fact::default().at(Door::Library, &mut db.client).await.unwrap();
    }
    assert_eq!(seen, ids);
    run(&db, "select outhaul.publish('a', 'x', gen_random_uuid()) from generate_series(1, 1100)").await;
    assert_eq!(list(EventFilter { limit: i32::MAX, ..EventFilter::default() }).await.len(), 1_000);
}

#[tokio::test]
async fn the_tail_shows_each_event_once_in_the_order_of_positions() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    // Written first, committed last.
    let mut late = db.connect().await;
    let tx = late.transaction().await.unwrap();
    tx.execute("select outhaul.publish('late', 'x', gen_random_uuid())", &[]).await.unwrap();
    publish(&mut db, &["a", "b", "a", "b", "b", "a", "b"]).await;
    tx.commit().await.unwrap();
    let (mut from, mut seen) = (Start::Beginning, Vec::new());
    for round in 0..6 {
        let tail = observer.tail(from, &[], 3).await.unwrap();
        from = Start::Position(tail.through);
        seen.extend(tail.events);
        if round == 2 {
            assert_eq!((tail.through, seen.len()), (7, 7), "the late one has no position yet");
            sequence(&db.client).await;
        }
    }
    assert_eq!(
        seen.iter().map(|event| event.position).collect::<Vec<_>>(),
        (1..=8).map(Some).collect::<Vec<_>>()
    );
    assert_eq!((&*seen[7].event_type, from), ("late", Start::Position(8)));
    assert!(seen[7].seq < seen[0].seq);

    // A filter lets through what it names, and the look goes past the rest all the same.
    let only = |types: &[&str]| types.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let tail = observer.tail(Start::Position(1), &only(&["a", "late"]), 100).await.unwrap();
    let found: Vec<_> =
        tail.events.iter().map(|event| (event.position.unwrap(), &*event.event_type)).collect();
    assert_eq!((tail.through, found), (8, vec![(3, "a"), (6, "a"), (8, "late")]));
    let nothing = observer.tail(Start::Position(1), &only(&["c"]), 2).await.unwrap();
    assert_eq!((nothing.through, nothing.events.len()), (3, 0));
    let e = &tail.events[0];
    let detail = &observer.event(e.id).await.unwrap()[0];
    assert_eq!(json!(e), {
        let mut event = json!(detail.event);
        event["relay"] = Value::Null;
        event
    });

    // With no positions to look at it tells where a start is.
    let third = detail.event.at;
    for (start, place) in [
        (Start::Beginning, 0),
        (Start::Now, 8),
        (Start::Position(4), 4),
        (Start::Time(third), 2),
        (Start::Time(third + SignedDuration::from_hours(1)), 8),
    ] {
        let tail = observer.tail(start, &[], 0).await.unwrap();
        assert_eq!((tail.through, tail.events.len()), (place, 0), "{start:?}");
    }
    assert_eq!(observer.tail(Start::Now, &[], 100).await.unwrap().through, 8);
    assert_eq!(observer.tail(Start::Beginning, &[], -1).await.unwrap().through, 0);
    let beyond = observer.tail(Start::Position(9), &[], 1).await.unwrap_err();
    assert!(beyond.is_history_diverged() && beyond.to_string().contains("beyond the head"), "{beyond:?}");
}

#[tokio::test]
async fn the_tail_stops_where_events_are_missing() {
    for (damage, place) in [
        ("delete from outhaul.outbox_feed where position in (3, 5)", 3),
        (
            "delete from outhaul.outbox_events where seq = (select seq from outhaul.outbox_feed where position = 4)",
            4,
        ),
    ] {
        let mut db = Db::new().await;
        publish(&mut db, &["a"; 6]).await;
        run(&db, damage).await;
        let observer = db.observer().await;
        assert_eq!(observer.tail(Start::Position(0), &[], 2).await.unwrap().events.len(), 2);
        let error = observer.tail(Start::Position(0), &[], 6).await.unwrap_err();
        assert!(error.is_history_truncated(), "{error:?}");
        assert!(error.to_string().contains(&format!("position {place} is not there")), "{error}");
    }
}

#[tokio::test]
async fn reconciliation_shows_every_field_and_keeps_its_limit() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    assert!(observer.reconcile_outbox(10).await.unwrap().is_empty());
    publish(&mut db, &["a"; 6]).await;
    run(&db, "select outhaul.subscribe('reader', '6')").await;
    assert!(observer.reconcile_outbox(10).await.unwrap().is_empty());
    let seqs = "select array_agg(seq order by position) from outhaul.outbox_feed";
    let seqs: Vec<i64> = db.client.query_one(seqs, &[]).await.unwrap().get(0);
    run(
        &db,
        "delete from outhaul.outbox_feed where position in (2, 4); update outhaul.subscriptions set position = 9",
    )
    .await;
    let found = observer.reconcile_outbox(10).await.unwrap();
    let of = |found: &[OutboxFinding], word: &str| -> Vec<(Option<i64>, Option<i64>, Option<String>)> {
        let these = found.iter().filter(|one| one.finding == word);
        these.map(|one| (one.seq, one.position, one.subscription.clone())).collect()
    };
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(
        of(&found, "event_without_position"),
        [(Some(seqs[1]), None, None), (Some(seqs[3]), None, None)]
    );
    assert_eq!(of(&found, "hole_in_feed"), [(None, Some(2), None), (None, Some(4), None)]);
    assert_eq!(of(&found, "checkpoint_beyond_head"), [(None, Some(9), Some("reader".to_owned()))]);
    let beyond = found.iter().find(|one| one.subscription.is_some()).unwrap();
    assert_eq!(beyond.details, "the head is at 6: rewind it to where it shall go on");
    let one_each = observer.reconcile_outbox(1).await.unwrap();
    assert_eq!((of(&one_each, "hole_in_feed").len(), of(&one_each, "event_without_position").len()), (1, 1));
    assert_eq!(observer.reconcile_outbox(-1).await.unwrap().len(), one_each.len());
}

/// What the audit record says, oldest first: action, object, details, reason.
async fn recorded(observer: &Observer) -> Vec<(String, String, Value, Option<String>)> {
    let mut rows = observer.audit(None, 100).await.unwrap();
    rows.reverse();
    rows.into_iter().map(|row| (row.action, row.object, row.details, row.reason)).collect()
}

#[tokio::test]
async fn every_action_is_done_and_leaves_one_row_on_the_record() {
    let mut db = Db::new().await;
    let ids = publish(&mut db, &["a"; 6]).await;
    let (observer, operator) = (db.observer().await, db.operator().await);
    run(&db, "select outhaul.subscribe('s', '4')").await;
    let stands = async || subscription(&observer, "s").await;
    let mut expected: Vec<(&str, String, Value, Option<&str>)> = Vec::new();

    assert!(operator.pause_subscription("s", Some("inventory")).await.unwrap());
    assert_eq!(
        (stands().await.holds, stands().await.paused_reason.as_deref()),
        (Some(Hold::Paused), Some("inventory"))
    );
    expected.push(("subs.pause", "s".into(), json!({}), Some("inventory")));
    assert!(!operator.pause_subscription("s", Some("again")).await.unwrap());
    assert_eq!(stands().await.paused_reason.as_deref(), Some("inventory"));
    assert!(operator.resume_subscription("s", None).await.unwrap());
    assert_eq!((stands().await.holds, stands().await.paused_reason), (None, None));
    expected.push(("subs.resume", "s".into(), json!({}), None));
    assert!(!operator.resume_subscription("s", None).await.unwrap());

    assert_eq!(operator.skip_event("s", 5, "nobody needs it").await.unwrap(), 5);
    assert_eq!(stands().await.position, 5);
    let parked = observer.parked("s", None, 0).await.unwrap();
    assert_eq!(
        (parked.len(), parked[0].position, parked[0].event_id, &*parked[0].how),
        (1, 5, ids[4], "skipped")
    );
    expected.push(("subs.skip", "s".into(), json!({"position": 5}), Some("nobody needs it")));

    assert!(operator.unpark_event("s", 5, Some("it does")).await.unwrap());
    assert!(observer.parked("s", None, 0).await.unwrap()[0].unparked_at.is_some());
    expected.push(("subs.unpark", "s".into(), json!({"position": 5}), Some("it does")));
    assert!(!operator.unpark_event("s", 5, None).await.unwrap(), "given back already");
    assert!(!operator.unpark_event("s", 4, None).await.unwrap(), "never parked");

    let third = observer.event(ids[2]).await.unwrap()[0].event.at;
    for (to, place, epoch) in
        [(Start::Time(third), 2, 1), (Start::Position(1), 1, 2), (Start::Beginning, 0, 3)]
    {
        let from = stands().await.position;
        assert_eq!(operator.rewind_subscription("s", to, Some("again")).await.unwrap(), place);
        assert_eq!((stands().await.position, stands().await.epoch), (place, epoch));
        let mut details = json!({"from": from, "to": place, "epoch": epoch});
        if from == 5 {
            // The one that was given back comes again in its place.
            details["set_aside"] = 1.into();
        }
        expected.push(("subs.rewind", "s".into(), details, Some("again")));
    }

    assert_eq!(operator.skip_event("s", 1, "of no use").await.unwrap(), 1);
    expected.push(("subs.skip", "s".into(), json!({"position": 1}), Some("of no use")));
    assert_eq!(operator.drop_subscription("s", Some("moved")).await.unwrap(), 1);
    assert!(observer.subscription("s").await.unwrap().is_none());
    assert!(observer.parked("s", None, 0).await.unwrap().is_empty());
    expected.push(("subs.drop", "s".into(), json!({"position": 1, "parked": 1}), Some("moved")));

    let park = format!(
        "select outhaul.register_relay('beginning'); update outhaul.outbox_events \
         set parked_at = now(), available_at = 'infinity', attempts = 10 where id = '{}'",
        ids[0]
    );
    run(&db, &park).await;
    assert!(operator.retry_event(ids[0], Some("it is back")).await.unwrap());
    let retried = observer.event(ids[0]).await.unwrap().remove(0);
    assert_eq!((retried.event.relay.as_deref(), retried.attempts), (Some("pending"), 0));
    assert!(retried.available_at.is_some_and(|due| due <= Timestamp::now() + SignedDuration::from_mins(1)));
    expected.push(("outbox.retry", ids[0].to_string(), json!({}), Some("it is back")));
    assert!(!operator.retry_event(ids[0], None).await.unwrap(), "not parked any more");
    assert!(!operator.retry_event(EventId::new(), None).await.unwrap());

    let was = observer.outbox().await.unwrap().history_id;
    let now = operator.rotate_history(Some("restored")).await.unwrap();
    assert_eq!(observer.outbox().await.unwrap().history_id, now);
    assert_ne!(was, now);
    expected.push((
        "outbox.rotate_history",
        now.to_string(),
        json!({"was": was, "position": 6}),
        Some("restored"),
    ));

    let expected: Vec<_> = expected
        .into_iter()
        .map(|(action, object, details, reason)| {
            (action.to_owned(), object, details, reason.map(str::to_owned))
        })
        .collect();
    assert_eq!(recorded(&observer).await, expected);
    assert!(observer.verify_audit().await.unwrap().is_empty());
}

/// Everything that an action could change.
async fn state(db: &Db) -> BTreeMap<&'static str, String> {
    let mut state = BTreeMap::new();
    for table in
        ["subscriptions", "subscription_parked", "outbox_events", "outbox_feed_head", "audit_log", "relay"]
    {
        let sql =
            format!("select coalesce(string_agg(t::text, ';' order by t::text), '') from outhaul.{table} t");
        state.insert(table, db.client.query_one(&sql, &[]).await.unwrap().get(0));
    }
    state
}

#[tokio::test]
async fn what_is_refused_changes_nothing_and_says_why() {
    let mut db = Db::new().await;
    publish(&mut db, &["a"; 4]).await;
    let operator = db.operator().await;
    run(&db, "select outhaul.subscribe('s', '2')").await;
    let before = state(&db).await;

    let unknown = |operator: Operator| async move {
        let [a, b, c] = [Start::Beginning, Start::Position(1), Start::Time(Timestamp::now())];
        vec![
            operator.pause_subscription("x", None).await.map(drop),
            operator.resume_subscription("x", None).await.map(drop),
            operator.rewind_subscription("x", a, None).await.map(drop),
            operator.rewind_subscription("x", b, None).await.map(drop),
            operator.rewind_subscription("x", c, None).await.map(drop),
            operator.skip_event("x", 1, "why").await.map(drop),
            operator.unpark_event("x", 1, None).await.map(drop),
            operator.drop_subscription("x", None).await.map(drop),
        ]
    };
    for (n, result) in unknown(operator.clone()).await.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(
            error.is_not_found() && error.to_string() == "subscription x does not exist",
            "{n}: {error:?}"
        );
    }
    let now = operator.rewind_subscription("s", Start::Now, None).await.unwrap_err();
    assert!(now.is_invalid_input() && now.field() == Some("start"), "{now:?}");
    assert!(now.to_string().contains("leave out what was not handled") && now.hint().is_some(), "{now:?}");
    let ahead = operator.rewind_subscription("s", Start::Position(3), None).await.unwrap_err();
    assert!(ahead.is_invalid_input() && ahead.to_string().contains("ahead of the cursor"), "{ahead:?}");
    let beyond = operator.rewind_subscription("s", Start::Position(5), None).await.unwrap_err();
    assert!(beyond.is_invalid_input() && beyond.to_string().contains("beyond the head"), "{beyond:?}");
    let other = operator.skip_event("s", 4, "why").await.unwrap_err();
    assert!(other.is_conflict() && other.to_string().contains("is at position 3, not 4"), "{other:?}");
    let silent = operator.skip_event("s", 3, " ").await.unwrap_err();
    assert!(silent.is_invalid_input() && silent.field() == Some("reason"), "{silent:?}");
    assert!(!operator.unpark_event("s", 1, None).await.unwrap());
    assert!(!operator.resume_subscription("s", None).await.unwrap());
    assert!(!operator.retry_event(EventId::new(), None).await.unwrap());
    assert_eq!(state(&db).await, before);

    run(&db, "delete from outhaul.outbox_feed where position = 1").await;
    let gone = operator.rewind_subscription("s", Start::Position(0), None).await.unwrap_err();
    assert!(gone.is_history_truncated() && gone.to_string().contains("the oldest is 1"), "{gone:?}");
    assert_eq!(state(&db).await, before);
}

#[tokio::test]
async fn what_gives_readers_something_to_do_wakes_them() {
    let mut db = Db::new().await;
    let ids = publish(&mut db, &["a"; 4]).await;
    let operator = db.operator().await;
    run(
        &db,
        "select outhaul.subscribe('s', '2'); select outhaul.register_relay('beginning'); \
         update outhaul.outbox_events set parked_at = now(), available_at = 'infinity'",
    )
    .await;
    operator.pause_subscription("s", None).await.unwrap();
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    for act in ["resume", "skip", "unpark", "rewind", "retry"] {
        run(&db, "select setval('outhaul.wake_gate', 1)").await;
        match act {
            "resume" => assert!(operator.resume_subscription("s", None).await.unwrap()),
            "skip" => assert_eq!(operator.skip_event("s", 3, "why").await.unwrap(), 3),
            "unpark" => assert!(operator.unpark_event("s", 3, None).await.unwrap()),
            "rewind" => {
                assert_eq!(operator.rewind_subscription("s", Start::Position(1), None).await.unwrap(), 1)
            }
            _ => assert!(operator.retry_event(ids[0], None).await.unwrap()),
        }
        run(&db, "select pg_notify('outhaul', 'last')").await;
        assert_eq!(notified.recv().await.unwrap().payload(), "", "{act}");
        assert_eq!(notified.recv().await.unwrap().payload(), "last", "{act}");
    }
}
