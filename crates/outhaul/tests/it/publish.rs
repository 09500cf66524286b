//! Publishing inside the caller's transaction, with tokio-postgres and with SQL alone.

use outhaul::{
    Event, EventId, MigrateOptions, NewEvent, NewJob, Producer, Published, SchemaName, enqueue, publish,
    publish_many,
};
use outhaul_local::TestServer;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::doors::{Door, Fact};
use crate::support::{Db, connect, listen};

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}

impl Event for Paid {
    const TYPE: &'static str = "order.paid";
    const AGGREGATE_TYPE: &'static str = "order";
    const SCHEMA_VERSION: i32 = 2;
}

fn paid(cents: i64) -> NewEvent {
    NewEvent::new(&Paid { cents }, Uuid::now_v7()).unwrap()
}

const OPEN_GATE: &str = "select setval('outhaul.wake_gate', 1)";

/// How many events there are, and how many of them wait for a position; each waits once.
async fn events(db: &Db) -> i64 {
    let stored = db.count("select count(*) from outhaul.outbox_events").await;
    let waiting = "select count(*) from (select seq, at from outhaul.outbox_unsequenced intersect select seq, at from outhaul.outbox_events) x";
    assert_eq!(db.count(waiting).await, stored);
    assert_eq!(db.count("select count(*) from outhaul.outbox_unsequenced").await, stored);
    stored
}

#[tokio::test]
async fn events_exist_if_and_only_if_their_transaction_commits() {
    let mut db = Db::new().await;
    let other = db.connect().await;
    for commit in [false, true] {
        let mut tx = db.client.transaction().await.unwrap();
        publish(&mut tx, &paid(1)).await.unwrap();
        publish_many(&mut tx, &[paid(2), paid(3)]).await.unwrap();
        tx.execute("insert into outhaul.outbox_events (aggregate_type, aggregate_id, event_type) values ('order', gen_random_uuid(), 'order.paid')", &[])
            .await
            .unwrap();
        let sql = "select (select count(*) from outhaul.outbox_events) + (select count(*) from outhaul.outbox_unsequenced)";
        assert_eq!(other.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0, "nothing before the commit");
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        assert_eq!(events(&db).await, if commit { 4 } else { 0 });
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_only_its_own_events() {
    let mut db = Db::new().await;
    let mut tx = db.client.transaction().await.unwrap();
    let kept = publish(&mut tx, &paid(1)).await.unwrap();
    let mut savepoint = tx.savepoint("s").await.unwrap();
    publish(&mut savepoint, &paid(2).idempotency_key("freed")).await.unwrap();
    publish_many(&mut savepoint, &[paid(2), paid(2)]).await.unwrap();
    savepoint.rollback().await.unwrap();
    let again = publish(&mut tx, &paid(3).idempotency_key("freed")).await.unwrap();
    tx.commit().await.unwrap();
    assert!(again.is_new());
    assert_eq!(events(&db).await, 2);
    let sql = "select id from outhaul.outbox_events order by seq";
    let ids: Vec<Uuid> = db.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(ids, [kept.id().0, again.id().0]);
}

/// Completes a session as the documentation shows it.
async fn complete(client: &mut Client, session: Uuid) -> bool {
    let mut tx = client.transaction().await.unwrap();
    let guarded = "update sessions set status = 'completed', version = version + 1 where id = $1 and status in ('active', 'paused')";
    if tx.execute(guarded, &[&session]).await.unwrap() == 0 {
        return false;
    }
    publish(&mut tx, &NewEvent::raw("session.completed", "session", session, "{}")).await.unwrap();
    tx.commit().await.unwrap();
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_changes_no_row_publishes_nothing() {
    let db = Db::new().await;
    let session = Uuid::now_v7();
    db.client
        .batch_execute("create table sessions (id uuid primary key, status text, version int)")
        .await
        .unwrap();
    db.client.execute("insert into sessions values ($1, 'paused', 1)", &[&session]).await.unwrap();
    let mut callers = Vec::new();
    for _ in 0..8 {
        let mut client = db.connect().await;
        callers.push(tokio::spawn(async move { complete(&mut client, session).await }));
    }
    let mut completed = 0;
    for caller in callers {
        completed += usize::from(caller.await.unwrap());
    }
    assert_eq!((completed, events(&db).await), (1, 1));
    // The same as one statement, for whoever writes SQL.
    let in_sql = "with changed as (update sessions set status = 'completed' where id = $1 and status in ('active', 'paused') returning id) \
        select outhaul.publish('session.completed', 'session', id) from changed";
    assert_eq!(db.client.query(in_sql, &[&session]).await.unwrap().len(), 0);
    assert_eq!(events(&db).await, 1);
    db.client.execute("update sessions set status = 'active'", &[]).await.unwrap();
    assert_eq!(db.client.query(in_sql, &[&session]).await.unwrap().len(), 1);
    assert_eq!(events(&db).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_the_lock_of_its_row_an_aggregates_events_are_numbered_in_the_order_of_its_changes() {
    const CALLERS: usize = 6;
    const CHANGES: usize = 20;
    let db = Db::new().await;
    db.client.batch_execute("create table orders (id uuid primary key, version int)").await.unwrap();
    let order = Uuid::now_v7();
    db.client.execute("insert into orders values ($1, 0)", &[&order]).await.unwrap();
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let mut client = db.connect().await;
        callers.push(tokio::spawn(async move {
            for change in 0..CHANGES {
                let mut tx = client.transaction().await.unwrap();
                let sql = "update orders set version = version + 1 where id = $1 returning version";
                let version: i32 = tx.query_one(sql, &[&order]).await.unwrap().get(0);
                let event = NewEvent::raw("order.changed", "order", order, version.to_string());
                if change % 2 == 0 {
                    publish(&mut tx, &event).await.unwrap();
                } else {
                    publish_many(&mut tx, &[event]).await.unwrap();
                }
                // Some give up: their number is missing and nothing is out of order.
                if (caller + change) % 5 == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                }
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let sql = "select payload::text::int from outhaul.outbox_events order by seq";
    let versions: Vec<i32> = db.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(versions, (1..=versions.len() as i32).collect::<Vec<_>>());
    assert_eq!(versions.len(), CALLERS * CHANGES * 4 / 5);
}

#[tokio::test]
async fn a_hundred_thousand_events_in_one_call_keep_the_order_of_the_slice() {
    const N: usize = 100_000;
    let mut db = Db::new().await;
    let order = Uuid::now_v7();
    let typed = |cents| NewEvent::new(&Paid { cents }, order).unwrap();
    let batch: Vec<NewEvent> = (0..N as i64).map(typed).collect();
    let mut tx = db.client.transaction().await.unwrap();
    let answers = publish_many(&mut tx, &batch).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(events(&db).await, 0);
    assert_eq!(publish_many(&mut db.client, &batch).await.unwrap(), answers);
    assert!(answers.iter().zip(&batch).all(|(answer, event)| *answer == Published::New(event.event_id())));
    assert_eq!(events(&db).await, N as i64);
    let out_of_order = "select count(*) from (select (payload->>'cents')::bigint as n, row_number() over (order by seq) - 1 as place \
        from outhaul.outbox_events) x where n <> place";
    assert_eq!(db.count(out_of_order).await, 0);
    assert_eq!(
        db.count("select count(*) from outhaul.outbox_events where schema_version = 2").await,
        N as i64
    );
}

#[tokio::test]
async fn one_bad_event_of_a_large_call_leaves_nothing() {
    const N: usize = 5_000;
    let mut db = Db::new().await;
    // What this machine can see is refused before anything is sent, and the place is named.
    let mut batch: Vec<NewEvent> = (0..N as i64).map(paid).collect();
    batch[N - 2] = batch[N - 2].clone().schema_version(0);
    let mut tx = db.client.transaction().await.unwrap();
    let error = publish_many(&mut tx, &batch).await.unwrap_err();
    assert_eq!((error.code(), error.field()), ("invalid_input", Some("schema_version")));
    assert!(error.to_string().starts_with("event 4998 of 5000: "), "{error}");
    tx.execute("create table still_usable (n int)", &[]).await.unwrap();
    tx.commit().await.unwrap();
    // What only the database can see aborts the statement, and with it the caller's transaction.
    for key in [None, Some("k")] {
        let large = NewEvent::raw("a.b", "a", Uuid::now_v7(), format!("[{}0]", "0,".repeat(100_000)));
        batch[N - 2] = key.map_or(large.clone(), |key| large.idempotency_key(key));
        let mut tx = db.client.transaction().await.unwrap();
        let error = publish_many(&mut tx, &batch).await.unwrap_err();
        assert_eq!((error.code(), error.field()), ("invalid_input", Some("payload")));
        assert!(tx.execute("select 1", &[]).await.is_err(), "the transaction is aborted");
        tx.rollback().await.unwrap();
    }
    assert_eq!(events(&db).await + db.count("select count(*) from outhaul.job_keys").await, 0);
}

#[tokio::test]
async fn each_answer_of_many_stands_in_the_place_of_its_event() {
    let mut db = Db::new().await;
    let held = publish(&mut db.client, &paid(1).idempotency_key("held")).await.unwrap().id();
    let of = |event: NewEvent, key: &str| event.idempotency_key(key);
    let batch = [
        paid(2),
        of(paid(1), "held"),
        NewEvent::raw("order.sent", "order", Uuid::now_v7(), "1"),
        of(paid(4), "twice"),
        of(paid(5), "a"),
        of(paid(4), "twice"),
        of(paid(1), "held").organization(Uuid::now_v7()),
        paid(6).partition_key("p"),
    ];
    let answers = publish_many(&mut db.client, &batch).await.unwrap();
    let new = |place: usize| Published::New(batch[place].event_id());
    let twice = Published::Duplicate(batch[3].event_id());
    assert_eq!(answers, [new(0), Published::Duplicate(held), new(2), new(3), new(4), twice, new(6), new(7)]);
    assert_eq!(events(&db).await, 7);
    let sql = "select id from outhaul.outbox_events order by seq";
    let ids: Vec<Uuid> = db.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let expected = [
        held,
        answers[0].id(),
        answers[2].id(),
        answers[3].id(),
        answers[4].id(),
        answers[6].id(),
        answers[7].id(),
    ];
    assert_eq!(ids, expected.map(|EventId(id)| id), "what is left out leaves the order of the others");
    assert_eq!(publish_many(&mut db.client, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn every_property_of_an_event_reaches_its_row_through_every_door() {
    let mut db = Db::new().await;
    for door in Door::ALL {
        let fact = Fact {
            event_type: "order.paid:2".into(),
            aggregate_type: "shop.order".into(),
            payload: r#"{"cents": 995}"#.into(),
            schema_version: i32::MAX,
            occurred_at: Some("1900-01-01T00:00:00.000001Z".into()),
            available_at: Some("2199-12-31T23:59:59Z".into()),
            partition_key: Some("é".repeat(127)),
            organization: Some(Uuid::now_v7()),
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            key: Fact::KEYED.contains(&door).then(|| format!("{door:?}")),
            ..Fact::default()
        };
        assert_eq!(fact.at(door, &mut db.client).await.unwrap(), fact.id, "{door:?}");
        let same = "select event_type = 'order.paid:2' and aggregate_type = 'shop.order' and aggregate_id = $2 \
            and payload::text = '{\"cents\": 995}' and schema_version = 2147483647 \
            and occurred_at = '1900-01-01 00:00:00.000001Z' and available_at = '2199-12-31 23:59:59Z' and partition_key = $3 \
            and organization_id = $4 and traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' \
            and attempts = 0 and claim_no = 0 and lease_until is null and processed_at is null and parked_at is null \
            and at between clock_timestamp() - interval '1 min' and clock_timestamp() \
            from outhaul.outbox_events where id = $1";
        let parameters = [
            &fact.id as &(dyn tokio_postgres::types::ToSql + Sync),
            &fact.aggregate_id,
            &fact.partition_key,
            &fact.organization,
        ];
        assert!(db.client.query_one(same, &parameters).await.unwrap().get::<_, bool>(0), "{door:?}");
        let plain = Fact::default();
        plain.at(door, &mut db.client).await.unwrap();
        let defaults = "select schema_version = 1 and partition_key is null and organization_id is null and traceparent is null \
            and occurred_at between clock_timestamp() - interval '1 min' and clock_timestamp() \
            and available_at between clock_timestamp() - interval '1 min' and clock_timestamp() \
            from outhaul.outbox_events where id = $1";
        assert!(db.client.query_one(defaults, &[&plain.id]).await.unwrap().get::<_, bool>(0), "{door:?}");
    }
    assert_eq!(events(&db).await, 10);
}

#[tokio::test]
async fn available_at_delays_the_relay_and_is_ignored_by_readers_in_order() {
    let mut db = Db::new().await;
    db.client.execute("select outhaul.register_relay('beginning')", &[]).await.unwrap();
    let later = paid(1).available_at("2199-01-01T00:00:00Z".parse().unwrap());
    let now = paid(2);
    publish_many(&mut db.client, &[later.clone(), now.clone()]).await.unwrap();
    db.client.execute("select outhaul.sequence(100)", &[]).await.unwrap();
    let ids = |sql: &'static str| {
        let client = &db.client;
        async move {
            let rows = client.query(sql, &[]).await.unwrap();
            rows.iter().map(|row| EventId(row.get(0))).collect::<Vec<_>>()
        }
    };
    assert_eq!(
        ids("select id from outhaul.read(0, 10) order by position").await,
        [later.event_id(), now.event_id()]
    );
    let claim = "select id from outhaul.claim_events(10, gen_random_uuid(), '60 s')";
    assert_eq!(ids(claim).await, [now.event_id()]);
    db.client
        .execute(
            "update outhaul.outbox_events set available_at = now() where id = $1",
            &[&later.event_id().0],
        )
        .await
        .unwrap();
    assert_eq!(ids(claim).await, [later.event_id()]);
}

#[tokio::test]
async fn a_commit_wakes_on_the_channel_of_the_schema_and_a_caller_may_leave_that_out() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    let quiet = Producer::default().notify(false);
    quiet.publish(&mut db.client, &paid(1)).await.unwrap();
    quiet.publish_many(&mut db.client, &[paid(2)]).await.unwrap();
    let mut tx = db.client.transaction().await.unwrap();
    tx.batch_execute("set local outhaul.notify = 'off'").await.unwrap();
    publish(&mut tx, &paid(3)).await.unwrap();
    publish_many(&mut tx, &[paid(4)]).await.unwrap();
    tx.batch_execute("insert into outhaul.outbox_events (aggregate_type, aggregate_id, event_type) values ('a', gen_random_uuid(), 'b')")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    // The setting ends with its transaction; what is sent now is the first that arrives.
    for door in Door::ALL {
        db.client.execute(OPEN_GATE, &[]).await.unwrap();
        let text = format!("\"{}\"", "x".repeat(200_000));
        Fact::of_payload(text).at(door, &mut db.client).await.unwrap();
        db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
        assert_eq!(notified.recv().await.unwrap().payload(), "", "{door:?}");
        assert_eq!(notified.recv().await.unwrap().payload(), "last", "{door:?}");
    }
}

#[tokio::test]
async fn a_transaction_that_ends_in_prepare_can_publish() {
    let mut db = Db::new().await;
    let name = db.database.name().to_owned();
    let doors = [
        "select outhaul.publish('a.b', 'a', gen_random_uuid(), notify => false)",
        "select outhaul.publish_many('{a.b}', '{a}', array[gen_random_uuid()], '{1}', array[gen_random_uuid()], notify => false)",
        "set local outhaul.notify = 'off'; select outhaul.publish('a.b', 'a', gen_random_uuid())",
        "set local outhaul.notify = 'off'; insert into outhaul.outbox_events (aggregate_type, aggregate_id, event_type) values ('a', gen_random_uuid(), 'a.b')",
    ];
    for (n, sql) in doors.iter().enumerate() {
        db.client
            .batch_execute(&format!("begin; {sql}; prepare transaction '{name}-{n}'"))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    db.client.batch_execute("begin").await.unwrap();
    Producer::default().notify(false).publish(&mut db.client, &paid(1)).await.unwrap();
    db.client.batch_execute(&format!("prepare transaction '{name}-4'")).await.unwrap();
    assert_eq!(events(&db).await, 0);
    db.client.batch_execute(&format!("rollback prepared '{name}-0'")).await.unwrap();
    for n in 1..=doors.len() {
        db.client.batch_execute(&format!("commit prepared '{name}-{n}'")).await.unwrap();
    }
    assert_eq!(events(&db).await, 4);
    // With the wake-up the server refuses the PREPARE; nothing is stored then.
    db.client.execute(OPEN_GATE, &[]).await.unwrap();
    db.client.batch_execute("begin").await.unwrap();
    publish(&mut db.client, &paid(2)).await.unwrap();
    let refused = db.client.batch_execute(&format!("prepare transaction '{name}-5'")).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "0A000");
    assert_eq!(events(&db).await, 4);
}

#[tokio::test]
async fn without_roles_no_event_is_queued_twice() {
    let database = TestServer::shared().await.unwrap().empty_database().await.unwrap();
    let options = MigrateOptions { roles: false, ..MigrateOptions::default() };
    outhaul::migrate(&database.url().parse().unwrap(), &options).await.unwrap();
    let mut db = Db { client: connect(&database.url()).await, database };
    for door in Door::ALL {
        Fact::default().at(door, &mut db.client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}"));
        let bad = Fact { schema_version: 0, ..Fact::default() };
        assert_eq!(
            bad.at(door, &mut db.client).await.unwrap_err().field(),
            Some("schema_version"),
            "{door:?}"
        );
    }
    assert_eq!(events(&db).await, 5);
    let positions = "select outhaul.sequence(100)::bigint";
    assert_eq!((db.count(positions).await, db.count(positions).await), (5, 0));
    assert_eq!(db.count("select count(distinct seq) from outhaul.outbox_feed").await, 5);
}

#[tokio::test]
async fn jobs_and_events_commit_together() {
    let mut db = Db::new().await;
    for commit in [false, true] {
        let mut tx = db.client.transaction().await.unwrap();
        publish(&mut tx, &paid(1)).await.unwrap();
        enqueue(&mut tx, &NewJob::raw("q", "t", "1")).await.unwrap();
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        let jobs = db.count("select count(*) from outhaul.jobs").await;
        assert_eq!((events(&db).await, jobs), if commit { (1, 1) } else { (0, 0) });
    }
}

#[tokio::test]
async fn publishing_works_under_a_default_of_repeatable_read() {
    let db = Db::new().await;
    let name = db.database.name();
    let sql = format!("alter database \"{name}\" set default_transaction_isolation = 'repeatable read'");
    db.client.batch_execute(&sql).await.unwrap();
    let mut client = db.connect().await;
    for door in Fact::KEYED {
        let fact = Fact::keyed(&format!("{door:?}"));
        fact.at(door, &mut client).await.unwrap();
        assert_eq!(fact.again().at(door, &mut client).await.unwrap(), fact.id, "{door:?}");
    }
    Fact::default().at(Door::Insert, &mut client).await.unwrap();
    assert_eq!(events(&db).await, 5);
}

#[tokio::test]
async fn another_schema_has_events_of_its_own() {
    let db = Db::new().await;
    let schema = SchemaName::new("second").unwrap();
    let options = MigrateOptions { schema: schema.clone(), ..MigrateOptions::default() };
    outhaul::migrate(&db.dsn(), &options).await.unwrap();
    let mut client = db.connect().await;
    let (_listener, mut notified) = listen(&db.url(), "second").await;
    let producer = Producer::in_schema(&schema);
    producer.publish(&mut client, &paid(1).idempotency_key("k")).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().channel(), "second");
    producer.publish_many(&mut client, &[paid(2)]).await.unwrap();
    assert!(
        publish(&mut client, &paid(1).idempotency_key("k")).await.unwrap().is_new(),
        "keys are not shared"
    );
    assert_eq!(db.count("select count(*) from second.outbox_events").await, 2);
    assert_eq!(events(&db).await, 1);
}
