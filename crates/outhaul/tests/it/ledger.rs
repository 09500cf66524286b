//! Every committed event once, in the order of its aggregate, while producers cross and readers die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_postgres::Client;
use uuid::Uuid;

use crate::fault::{EffectLog, Post};
use crate::support::Db;

const TABLES: &str = "create table things (id uuid primary key, version bigint not null default 0); \
    create table ledger (entry bigint generated always as identity, event uuid, position bigint, aggregate uuid, payload jsonb)";

/// Changes one thing after another, each change with its fact, until told to stop. Some changes are rolled back, alone or
/// with their transaction, and some transactions hold several.
async fn produce(client: Client, things: Arc<Vec<Uuid>>, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::SeqCst) {
        client.batch_execute("begin").await.unwrap();
        // In one order, so that producers wait for one another and do not deadlock.
        let mut chosen: Vec<&Uuid> =
            (0..random.usize(1..4)).map(|_| &things[random.usize(..things.len())]).collect();
        chosen.sort();
        chosen.dedup();
        for thing in chosen {
            client.batch_execute("savepoint s").await.unwrap();
            let change = "with changed as (update things set version = version + 1 where id = $1 returning id, version) \
                select outhaul.publish('thing.changed', 'thing', id, jsonb_build_object('version', version)) from changed";
            client.query(change, &[thing]).await.unwrap();
            if random.u8(..5) == 0 {
                client.batch_execute("rollback to s").await.unwrap();
            }
        }
        let end = if random.u8(..6) == 0 { "rollback" } else { "commit" };
        client.batch_execute(end).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_committed_event_is_handled_once_in_the_order_of_its_aggregate_through_kills() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    db.client.batch_execute(TABLES).await.unwrap();
    let things: Arc<Vec<Uuid>> = Arc::new((0..5).map(|_| Uuid::now_v7()).collect());
    db.client.execute("insert into things select unnest($1::uuid[])", &[&*things]).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut producers = Vec::new();
    for n in 0..8 {
        let producer = produce(db.connect().await, things.clone(), seed.wrapping_add(n), stop.clone());
        producers.push(tokio::spawn(producer));
    }
    // Two at a time: when the one that holds the cursor is killed, the other has to wait for its lease.
    let post = |name: &str| Post { events: Some("ledger".into()), ..Post::new(name, &db.url(), &log) };
    let mut standing = post("worker 0").start().await;
    for round in 1..=4 {
        let next = post(&format!("worker {round}")).start().await;
        let before = db.count("select count(*) from ledger").await;
        db.until("entries are made", &format!("select count(*) > {before} + 20 from ledger")).await;
        std::mem::replace(&mut standing, next).kill().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for producer in producers {
        producer.await.unwrap();
    }
    let behind = "select not exists (select from outhaul.outbox_unsequenced) and position = (select last_position \
        from outhaul.outbox_feed_head) from outhaul.subscriptions";
    db.until("all is read", behind).await;
    let (entries, versions) = ("select count(*) from ledger", "select sum(version)::bigint from things");
    assert_eq!(db.count(entries).await, db.count(versions).await, "one entry for each committed change");
    assert_eq!(db.count("select count(*) - count(distinct event) from ledger").await, 0, "none twice");
    let order = "select count(*) from (select entry, position, (payload->>'version')::bigint as version, \
          row_number() over (partition by aggregate order by entry) as place, lag(position) over (order by entry) as before \
        from ledger) x where version <> place or before >= position";
    assert_eq!(db.count(order).await, 0, "in order");
    assert_eq!(db.count("select count(*) from outhaul.reconcile_outbox()").await, 0);
}
