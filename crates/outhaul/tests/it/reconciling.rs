//! Reconciliation of the outbox: damage is named, and what is under way is none.

use tokio_postgres::Client;

use crate::support::Db;

async fn publish(client: &Client, n: i32) {
    let sql =
        "select outhaul.publish('order.changed', 'order', gen_random_uuid()) from generate_series(1, $1)";
    client.execute(sql, &[&n]).await.unwrap();
}

async fn sequence(client: &Client) {
    client.execute("select outhaul.sequence(1000)", &[]).await.unwrap();
}

/// What it finds: the word, the number of the event, the position, the subscription.
async fn findings(client: &Client) -> Vec<(String, Option<i64>, Option<i64>, Option<String>)> {
    let sql =
        "select finding, seq, position, subscription from outhaul.reconcile_outbox() order by 1, 2, 3, 4";
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{error:?}"));
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

async fn seq_at(client: &Client, position: i64) -> i64 {
    let sql = "select seq from outhaul.outbox_feed where position = $1";
    client.query_one(sql, &[&position]).await.unwrap().get(0)
}

#[tokio::test]
async fn every_damage_is_named() {
    type Found = (&'static str, Option<i64>, Option<i64>, Option<&'static str>);
    // What was done; what is found: the word, the position of the event meant, the position, the subscription.
    let damages: &[(&str, &[Found])] = &[
        (
            "delete from outhaul.outbox_feed where position = 5",
            &[("event_without_position", Some(5), None, None), ("hole_in_feed", None, Some(5), None)],
        ),
        (
            "delete from outhaul.outbox_feed where position = 1",
            &[("event_without_position", Some(1), None, None)],
        ),
        (
            "delete from outhaul.outbox_feed where position = 10",
            &[("event_without_position", Some(10), None, None), ("head_off_feed", None, Some(10), None)],
        ),
        (
            "delete from outhaul.outbox_events where seq = (select seq from outhaul.outbox_feed where position = 4)",
            &[("position_without_event", Some(4), Some(4), None)],
        ),
        (
            "delete from outhaul.outbox_events where seq = (select seq from outhaul.outbox_feed where position = 1)",
            &[("position_without_event", Some(1), Some(1), None)],
        ),
        (
            "update outhaul.subscriptions set position = 11 where name = 'reader'",
            &[("checkpoint_beyond_head", None, Some(11), Some("reader"))],
        ),
        (
            "update outhaul.subscriptions set history_id = gen_random_uuid() where name = 'reader'",
            &[("checkpoint_of_another_history", None, Some(7), Some("reader"))],
        ),
        (
            "insert into outhaul.outbox_feed select 11, seq, at from outhaul.outbox_feed where position = 3; \
          update outhaul.outbox_feed_head set last_position = 11",
            &[("event_with_two_positions", Some(3), Some(3), None)],
        ),
        (
            "update outhaul.outbox_feed_head set last_position = 12",
            &[("head_off_feed", None, Some(12), None)],
        ),
        ("update outhaul.outbox_feed_head set last_position = 9", &[("head_off_feed", None, Some(9), None)]),
        (
            "update outhaul.outbox_events set available_at = 'infinity' where seq = (select seq from outhaul.outbox_feed where position = 6)",
            &[("event_without_disposition", Some(6), None, None)],
        ),
        (
            "insert into outhaul.outbox_unsequenced select seq, at - interval '1 hour' from outhaul.outbox_feed where position = 2",
            &[("position_missing_for_long", Some(2), None, None)],
        ),
        (
            "delete from outhaul.outbox_feed where position <= 8",
            &[
                ("checkpoint_truncated", None, Some(7), Some("reader")),
                ("event_without_position", Some(1), None, None),
            ],
        ),
    ];
    for (damage, expected) in damages {
        let db = Db::new().await;
        publish(&db.client, 10).await;
        sequence(&db.client).await;
        db.client.execute("select outhaul.subscribe('reader', '7')", &[]).await.unwrap();
        assert_eq!(findings(&db.client).await, []);
        let mut by_position = Vec::new();
        for position in 1..=10 {
            by_position.push(seq_at(&db.client, position).await);
        }
        db.client.batch_execute(damage).await.unwrap_or_else(|error| panic!("{damage}: {error:?}"));
        let found = findings(&db.client).await;
        for (finding, of, position, subscription) in *expected {
            let seq = of.map(|position| by_position[position as usize - 1]);
            let one = ((*finding).to_owned(), seq, *position, subscription.map(str::to_owned));
            assert!(found.contains(&one), "{damage}: {one:?} is not among {found:?}");
        }
        let kinds = |names: Vec<&str>| {
            names.into_iter().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(
            found.iter().map(|one| one.0.clone()).collect::<std::collections::BTreeSet<_>>(),
            kinds(expected.iter().map(|one| one.0).collect()),
            "{damage}: nothing else"
        );
    }
}

#[tokio::test]
async fn a_direct_insert_into_a_partition_past_the_trigger_is_found() {
    let db = Db::new().await;
    publish(&db.client, 3).await;
    sequence(&db.client).await;
    let part = "select c.oid::regclass::text from outhaul.outbox_events e join pg_class c on c.oid = e.tableoid limit 1";
    let part: String = db.client.query_one(part, &[]).await.unwrap().get(0);
    let insert = |replica: &str| {
        format!(
            "{replica} insert into {part} (seq, aggregate_type, aggregate_id, event_type) \
             values (nextval('outhaul.outbox_events_seq_seq'), 'order', gen_random_uuid(), 'order.changed')"
        )
    };
    // PostgreSQL 17 and later give the identity to partitions.
    let insert = |replica: &str| insert(replica).replace("values", "overriding system value values");
    db.client.batch_execute(&insert("")).await.unwrap();
    assert_eq!(findings(&db.client).await, [], "a partition has the trigger as well");
    sequence(&db.client).await;
    db.client.batch_execute(&insert("set session_replication_role = replica;")).await.unwrap();
    db.client.batch_execute("reset session_replication_role").await.unwrap();
    let seq = db.count("select max(seq) from outhaul.outbox_events").await;
    assert_eq!(findings(&db.client).await, [("event_without_position".to_owned(), Some(seq), None, None)]);
}

#[tokio::test]
async fn an_event_that_was_parked_beyond_its_cursor_is_found() {
    let db = Db::new().await;
    publish(&db.client, 5).await;
    sequence(&db.client).await;
    db.client.execute("select outhaul.subscribe('reader', '2')", &[]).await.unwrap();
    let park = "select outhaul.park('reader', 4, 3, 'parked', 'permanent', 'code', 'summary')";
    db.client.batch_execute(&format!("set search_path = outhaul; {park}; reset search_path")).await.unwrap();
    let seq = seq_at(&db.client, 4).await;
    assert_eq!(
        findings(&db.client).await,
        [("parked_beyond_cursor".to_owned(), Some(seq), Some(4), Some("reader".to_owned()))]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_outbox_without_damage_has_no_findings() {
    let db = Db::new().await;
    db.client.execute("select outhaul.register_relay('beginning')", &[]).await.unwrap();
    db.client.execute("select outhaul.subscribe('reader', 'now')", &[]).await.unwrap();
    // Open and prepared transactions with events are no damage either.
    let open = db.connect().await;
    open.batch_execute("begin").await.unwrap();
    publish(&open, 3).await;
    let gid = db.database.name();
    let prepared = db.connect().await;
    prepared.batch_execute("begin; set local outhaul.notify = 'off'").await.unwrap();
    publish(&prepared, 3).await;
    prepared.batch_execute(&format!("prepare transaction '{gid}'")).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..4 {
        let client = db.connect().await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                match n {
                    0 | 1 => publish(&client, 3).await,
                    2 => sequence(&client).await,
                    _ => {
                        let sql = "with e as (select * from outhaul.claim_events(5, gen_random_uuid(), '30 s')) \
                            select count(*) from e cross join lateral outhaul.complete_events(array[e.seq], array[e.at], array[e.lease_token], array[e.claim_no])";
                        client.batch_execute(sql).await.unwrap();
                    }
                }
            }
        }));
    }
    let mut rounds = 0;
    while rounds == 0 || !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        assert_eq!(findings(&db.client).await, []);
        rounds += 1;
    }
    for task in tasks {
        task.await.unwrap();
    }
    db.client.batch_execute(&format!("commit prepared '{gid}'")).await.unwrap();
    open.batch_execute("commit").await.unwrap();
    assert_eq!(findings(&db.client).await, []);
    sequence(&db.client).await;
    assert_eq!(findings(&db.client).await, []);
    assert_eq!(db.count("select count(*) from outhaul.outbox_feed").await, 306);
}
