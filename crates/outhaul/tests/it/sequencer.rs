//! The order of the feed: every committed event gets one position, and causes come before their effects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outhaul::{MigrateOptions, migrate};
use outhaul_local::{Throwaway, ThrowawayOptions};
use tokio_postgres::{Client, IsolationLevel};
use uuid::Uuid;

use crate::support::{Db, connect, until};

/// Aggregates with versions, and what the readers that are shown to be wrong go by: a row beside each event, with
/// its number and its transaction.
const STAGE: &str = "create table aggregates (id uuid primary key, version bigint not null default 0); \
     create table noted (seq bigint primary key, xid xid8 not null default pg_current_xact_id(), aggregate uuid not null, version bigint not null)";

/// The next change of an aggregate and its event, in the caller's transaction: the row is locked before the event is
/// inserted. Returns the event's number.
async fn change(client: &Client, aggregate: Uuid) -> i64 {
    let lock = "update aggregates set version = version + 1 where id = $1 returning version";
    let version: i64 = client.query_one(lock, &[&aggregate]).await.unwrap().get(0);
    let publish =
        "select outhaul.publish('order.changed', 'order', $1, jsonb_build_object('version', $2::bigint))";
    let id: Uuid = client.query_one(publish, &[&aggregate, &version]).await.unwrap().get(0);
    let note = "insert into noted (seq, aggregate, version) \
        select e.seq, $2, $3 from outhaul.outbox_events e where e.id = $1 returning seq";
    client.query_one(note, &[&id, &aggregate, &version]).await.unwrap().get(0)
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// A reader whose cursor is the number of the event. Wrong: numbers are taken before the commit.
struct Naive {
    client: Client,
    cursor: i64,
    got: BTreeSet<i64>,
}

impl Naive {
    async fn poll(&mut self) {
        let sql = "select seq from noted where seq > $1 order by seq";
        for row in self.client.query(sql, &[&self.cursor]).await.unwrap() {
            self.cursor = row.get(0);
            self.got.insert(self.cursor);
        }
    }
}

/// A reader in the order of transactions, behind the oldest that runs. Wrong: a transaction that began first may
/// change an aggregate last.
async fn gated(client: &Client) -> Vec<(Uuid, i64)> {
    let sql = "select aggregate, version from noted n where n.xid < pg_snapshot_xmin(pg_current_snapshot()) order by n.xid, n.seq";
    client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// How often a version comes after a later one of its aggregate.
fn inversions(order: &[(Uuid, i64)]) -> usize {
    let mut last: BTreeMap<Uuid, i64> = BTreeMap::new();
    order
        .iter()
        .filter(|(aggregate, version)| last.insert(*aggregate, *version).is_some_and(|l| l > *version))
        .count()
}

/// One of eight producers: commits, rollbacks, savepoints and prepared transactions in turn.
async fn produce(client: Client, name: String, aggregates: Arc<Vec<Uuid>>) {
    for n in 0..20usize {
        let aggregate = aggregates[fastrand::usize(..aggregates.len())];
        run(&client, "begin; set local outhaul.notify = 'off'").await;
        change(&client, aggregate).await;
        match n % 5 {
            0 => run(&client, "rollback").await,
            1 => {
                run(&client, "savepoint s").await;
                change(&client, aggregate).await;
                run(&client, "rollback to savepoint s").await;
                change(&client, aggregate).await;
                run(&client, "release savepoint s; savepoint t").await;
                change(&client, aggregate).await;
                run(&client, "commit").await;
            }
            2 => {
                run(&client, &format!("prepare transaction '{name}'")).await;
                run(&client, &format!("commit prepared '{name}'")).await;
            }
            3 => {
                run(&client, &format!("prepare transaction '{name}'")).await;
                run(&client, &format!("rollback prepared '{name}'")).await;
            }
            _ => run(&client, "commit").await,
        }
    }
}

async fn turn(client: &Client, n: i32) -> i32 {
    client.query_one("select outhaul.sequence($1)", &[&n]).await.unwrap().get(0)
}

/// Numbers in the order of their positions.
async fn feed(client: &Client) -> Vec<i64> {
    let rows =
        client.query("select position, seq from outhaul.outbox_feed order by position", &[]).await.unwrap();
    for (row, n) in rows.iter().zip(1..) {
        assert_eq!(row.get::<_, i64>(0), n, "positions are dense");
    }
    rows.iter().map(|row| row.get(1)).collect()
}

/// Two transactions that cross: the one with the smaller number commits last. Returns that number.
async fn crossed_commits(early: &Client, late: &Client, aggregates: [Uuid; 2], naive: &mut Naive) -> i64 {
    run(early, "begin").await;
    let low = change(early, aggregates[0]).await;
    run(late, "begin").await;
    let high = change(late, aggregates[1]).await;
    assert!(low < high);
    run(late, "commit").await;
    naive.poll().await;
    assert!(naive.cursor >= high);
    run(early, "commit").await;
    naive.poll().await;
    low
}

/// Two transactions of which the one that began first changes an aggregate last.
async fn crossed_beginnings(first: &Client, second: &Client, aggregate: Uuid) {
    // Any write gives it its number, here one that has nothing to do with the aggregate.
    run(first, "begin; create temp table if not exists unrelated (n int); insert into unrelated values (1)")
        .await;
    run(second, "begin").await;
    change(second, aggregate).await;
    run(second, "commit").await;
    change(first, aggregate).await;
    run(first, "commit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_committed_event_has_one_position_in_the_order_of_its_aggregate_and_other_readers_fail() {
    // A server of its own: transactions of whatever database hold the gate of transaction numbers.
    let options = ThrowawayOptions::new().durable(false).setting("max_prepared_transactions", "10");
    let server = Throwaway::start_new(options).await.unwrap();
    migrate(&server.url().parse().unwrap(), &MigrateOptions::default()).await.unwrap();
    let client = connect(&server.url()).await;
    run(&client, STAGE).await;
    let ids = "insert into aggregates (id) select gen_random_uuid() from generate_series(1, 8) returning id";
    let ids: Vec<Uuid> = client.query(ids, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    // Of the last four one is locked all the while, and three are for the explicit crossings.
    let shared = Arc::new(ids[..4].to_vec());
    let mut holder = connect(&server.url()).await;
    let held = holder.transaction().await.unwrap();
    held.execute("update aggregates set version = version + 1 where id = $1", &[&ids[4]]).await.unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let mut sequencers = Vec::new();
    for n in [1, 7, 1_000] {
        let (client, over) = (connect(&server.url()).await, over.clone());
        sequencers.push(tokio::spawn(async move {
            let (mut given, mut refused) = (0, 0);
            while !over.load(Ordering::SeqCst) {
                match turn(&client, n).await {
                    -1 => refused += 1,
                    m => given += m,
                }
            }
            (given, refused)
        }));
    }
    let mut producers = Vec::new();
    for n in 0..8 {
        let name = format!("producer {n}");
        producers.push(tokio::spawn(produce(connect(&server.url()).await, name, shared.clone())));
    }
    let mut naive = Naive { client: connect(&server.url()).await, cursor: 0, got: BTreeSet::new() };
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut missed = Vec::new();
    for _ in 0..5 {
        missed.push(crossed_commits(&one, &two, [ids[5], ids[6]], &mut naive).await);
        crossed_beginnings(&one, &two, ids[7]).await;
    }
    let stalled = gated(&client).await;
    for producer in producers {
        producer.await.unwrap();
    }
    // The holder's transaction still stands, and everything else has its position.
    until("a position for all", || async {
        client.query("select from outhaul.outbox_unsequenced limit 1", &[]).await.unwrap().is_empty()
    })
    .await;
    over.store(true, Ordering::SeqCst);
    let mut given = 0;
    for sequencer in sequencers {
        given += sequencer.await.unwrap().0;
    }
    held.rollback().await.unwrap();

    let order = feed(&client).await;
    let committed =
        "select e.seq, e.aggregate_id, (e.payload->>'version')::bigint from outhaul.outbox_events e";
    let committed: BTreeMap<i64, (Uuid, i64)> = client
        .query(committed, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect();
    assert!(committed.len() > 8 * 20 / 2, "{}", committed.len());
    assert_eq!(order.len(), committed.len(), "each once");
    assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), committed.keys().copied().collect());
    assert_eq!(given as usize, order.len());
    let order: Vec<(Uuid, i64)> = order.iter().map(|seq| committed[seq]).collect();
    assert_eq!(inversions(&order), 0);
    let mut versions: BTreeMap<Uuid, Vec<i64>> = BTreeMap::new();
    order.iter().for_each(|(aggregate, version)| versions.entry(*aggregate).or_default().push(*version));
    for (aggregate, versions) in versions {
        assert_eq!(
            versions,
            (1..=versions.len() as i64).collect::<Vec<_>>(),
            "{aggregate}: every change, in order"
        );
    }

    // The same load, read in the two ways that look right.
    assert!(
        missed.iter().all(|seq| !naive.got.contains(seq)),
        "a cursor on the number passes over late commits"
    );
    let by_transaction = gated(&client).await;
    assert_eq!(by_transaction.len(), committed.len());
    assert!(inversions(&by_transaction) >= 5, "the order of transactions is not that of changes");
    assert!(stalled.is_empty(), "and an unrelated transaction holds everything back: {stalled:?}");
}

#[tokio::test]
async fn one_has_the_turn_and_the_others_are_told_at_once() {
    let mut db = Db::new().await;
    let rival = db.connect().await;
    db.client
        .execute("select outhaul.publish('order.changed', 'order', gen_random_uuid())", &[])
        .await
        .unwrap();
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(tx.query_one("select outhaul.sequence(10)", &[]).await.unwrap().get::<_, i32>(0), 1);
    assert_eq!(turn(&rival, 10).await, -1);
    tx.rollback().await.unwrap();
    assert_eq!(turn(&rival, 10).await, 1, "what was rolled back is given again");
    assert_eq!(feed(&db.client).await.len(), 1);
}

#[tokio::test]
async fn behind_a_held_snapshot_nothing_is_missed() {
    let db = Db::new().await;
    run(&db.client, STAGE).await;
    let ids = "insert into aggregates (id) select gen_random_uuid() from generate_series(1, 2) returning id";
    let ids: Vec<Uuid> = db.client.query(ids, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let mut holder = db.connect().await;
    let held =
        holder.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    held.execute("update aggregates set version = 7 where id = $1", &[&ids[1]]).await.unwrap();
    let mut expected = Vec::new();
    for _ in 0..20 {
        for _ in 0..50 {
            expected.push(change(&db.client, ids[0]).await);
        }
        // A second between two turns, as far as the floor can tell.
        let age = "update outhaul.outbox_feed_head set next_floor_at = next_floor_at - interval '1 s'";
        db.client.execute(age, &[]).await.unwrap();
        assert_eq!(turn(&db.client, 1_000).await, 50);
    }
    let floor = db.count("select floor from outhaul.outbox_feed_head").await;
    assert!(floor >= expected[800], "the floor follows: {floor}");
    assert_eq!(feed(&db.client).await, expected);
}

#[tokio::test]
async fn a_commit_far_behind_the_floor_is_found_by_the_next_look_from_the_beginning() {
    let db = Db::new().await;
    run(&db.client, STAGE).await;
    let ids = "insert into aggregates (id) select gen_random_uuid() from generate_series(1, 2) returning id";
    let ids: Vec<Uuid> = db.client.query(ids, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let late = db.connect().await;
    run(&late, "begin").await;
    let below = change(&late, ids[0]).await;
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(change(&db.client, ids[1]).await);
        // Three seconds later; looking from the beginning has become dear.
        let age = "update outhaul.outbox_feed_head set next_floor_at = next_floor_at - interval '3 s', \
            look_cost = '1 s', looked_at = clock_timestamp()";
        db.client.execute(age, &[]).await.unwrap();
        assert_eq!(turn(&db.client, 100).await, 1);
    }
    assert!(db.count("select floor from outhaul.outbox_feed_head").await > below);
    run(&late, "commit").await;
    assert_eq!(turn(&db.client, 100).await, 0, "the floor is above it, so this is what the rest is about");
    let age = "update outhaul.outbox_feed_head set looked_at = looked_at - interval '21 s'";
    db.client.execute(age, &[]).await.unwrap();
    assert_eq!(turn(&db.client, 100).await, 1);
    expected.push(below);
    assert_eq!(feed(&db.client).await, expected);
    // A clock that was set back must not put the look off.
    run(&late, "begin").await;
    let below = change(&late, ids[0]).await;
    expected.push(change(&db.client, ids[1]).await);
    let ahead =
        "update outhaul.outbox_feed_head set look_cost = '1 s', looked_at = clock_timestamp(), floor = $1";
    db.client.execute(ahead, &[&below]).await.unwrap();
    assert_eq!(turn(&db.client, 100).await, 1);
    run(&late, "commit").await;
    let ahead = "update outhaul.outbox_feed_head set looked_at = clock_timestamp() + interval '1 hour', look_cost = '1 s'";
    db.client.execute(ahead, &[]).await.unwrap();
    assert_eq!(turn(&db.client, 100).await, 1);
    expected.push(below);
    assert_eq!(feed(&db.client).await, expected);
}
