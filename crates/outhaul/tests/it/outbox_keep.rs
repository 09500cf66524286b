//! Retention of events and of their places in the feed, and the ranges of both: nothing goes that somebody needs,
//! and what nobody needs does go.

use outhaul::{Failure, MigrateOptions, UpkeepView, migrate};
use outhaul_local::{Action, Match, Phase, Proxy, Rule};
use tokio_postgres::Client;

use crate::support::{Db, Running, Tick, connect, until};

/// Midnight of so many days from today, UTC, as SQL.
fn day(n: i64) -> String {
    format!("(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' + interval '{n} days')")
}

type Cuts<'a> = &'a [(&'a str, Option<i64>, Option<i64>)];

/// Two days that are past their time on every clock, one partition for all days ahead, and the tail.
const OLD: Cuts<'_> = &[
    ("past", None, Some(-9)),
    ("20010101", Some(-9), Some(-8)),
    ("20010102", Some(-8), Some(-7)),
    ("first", Some(-7), Some(15)),
    ("tail", Some(15), None),
];

/// Gives a table these partitions and no others: name, beginning, end; in days from today, or in positions.
async fn cut(client: &Client, table: &str, parts: Cuts<'_>) {
    let mut sql = format!(
        "set role outhaul_owner; do $do$ declare r record; begin \
         for r in select c.oid::regclass as t from pg_class c where relnamespace = 'outhaul'::regnamespace and relkind = 'r' and relname ~ '^{table}_([0-9]+|past|first|tail)' loop \
           execute format('drop table %s', r.t); end loop; "
    );
    let bound = |end: &Option<i64>, open: &str| match end {
        Some(n) if table == "outbox_feed" => format!("'{n}'"),
        Some(n) => format!("quote_literal({})", day(*n)),
        None => format!("'{open}'"),
    };
    for (name, low, high) in parts {
        sql.push_str(&format!(
            "execute format('create table outhaul.%I partition of outhaul.{table} for values from (%s) to (%s)', '{table}_{name}', {}, {}); ",
            bound(low, "minvalue"),
            bound(high, "maxvalue")
        ));
    }
    sql.push_str("end $do$; reset role");
    client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn as_owner(client: &Client, sql: &str) {
    client.batch_execute("set role outhaul_owner").await.unwrap();
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    client.batch_execute("reset role").await.unwrap();
}

/// A plain INSERT of an event, an hour after midnight of a day.
fn insert_on(n: i64) -> String {
    format!(
        "insert into outhaul.outbox_events (at, aggregate_type, aggregate_id, event_type) \
         values ({} + interval '1 hour', 'order', gen_random_uuid(), 'order.changed') returning seq",
        day(n)
    )
}

async fn event_on(client: &Client, n: i64) -> i64 {
    client.query_one(&insert_on(n), &[]).await.unwrap_or_else(|error| panic!("day {n}: {error:?}")).get(0)
}

async fn publish(client: &Client, n: i32) {
    let sql =
        "select outhaul.publish('order.changed', 'order', gen_random_uuid()) from generate_series(1, $1)";
    client.execute(sql, &[&n]).await.unwrap();
}

async fn sequence(client: &Client) {
    while client.query_one("select outhaul.sequence(1000)", &[]).await.unwrap().get::<_, i32>(0) != 0 {}
}

async fn subscribe(client: &Client, name: &str, start: &str) {
    client.execute("select outhaul.subscribe($1, $2)", &[&name, &start]).await.unwrap();
}

async fn move_cursor(client: &Client, name: &str, position: i64) {
    let sql = "update outhaul.subscriptions set position = $2 where name = $1";
    assert_eq!(client.execute(sql, &[&name, &position]).await.unwrap(), 1);
}

/// What upkeep does, once.
async fn keep(db: &Db) {
    migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
}

/// The same, done by a worker at its start; what it says about it.
async fn kept_by_a_worker(db: &Db) -> UpkeepView {
    db.client.execute("delete from outhaul.upkeep where task = 'partitions'", &[]).await.unwrap();
    let worker = db.worker().handle(|_: Tick, _| async { Ok::<(), Failure>(()) });
    let worker = Running::start(worker).await;
    let ran = "select count(*) = 1 from outhaul.upkeep where task = 'partitions' and duration_ms is not null";
    db.until("upkeep of partitions", ran).await;
    worker.stop().await;
    let upkeep = db.observer().await.upkeep().await.unwrap();
    upkeep.into_iter().find(|task| task.task == "partitions").unwrap()
}

/// Whether these events are there, each in the order given.
async fn are_there(client: &Client, seqs: &[i64]) -> Vec<bool> {
    let sql = "select exists (select from outhaul.outbox_events e where e.seq = u.s) \
        from unnest($1::bigint[]) with ordinality u(s, o) order by u.o";
    client.query(sql, &[&seqs]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn part_of(client: &Client, seq: i64) -> String {
    let sql = "select c.relname::text from outhaul.outbox_events e join pg_class c on c.oid = e.tableoid where e.seq = $1";
    client.query_one(sql, &[&seq]).await.unwrap().get(0)
}

/// Everything that is wrong with the ranges of the outbox: gaps, pending or forgotten pieces, too few ahead.
async fn wrong(client: &Client) -> Vec<String> {
    let sql = "with p as (select * from outhaul.ranges() where parent in ('outbox_events', 'outbox_feed')), \
         r as (select *, lag(high) over w as before, lag(name) over w as previous from p where not orphan window w as (partition by parent order by low nulls first)) \
         select 'a gap or an overlap before ' || name from r where previous is not null and low is distinct from before \
         union all select 'not one beginning: ' || parent from r group by parent having count(*) filter (where low is null) <> 1 \
         union all select 'not one tail: ' || parent from r group by parent having count(*) filter (where high is null) <> 1 \
         union all select 'the tail is not called so: ' || name from r where high is null and name <> parent || '_tail' \
         union all select 'half detached: ' || name from p where detach_pending \
         union all select 'forgotten: ' || name from p where orphan \
         union all select 'retired: ' || name from p where retired \
         union all select 'too old: ' || name from p where high <= edge and name <> parent || '_past' \
         union all select 'not far enough ahead: ' || parent from p group by parent having max(high) < (max(now) / max(step) + 1 + max(ahead)) * max(step) \
         union all select 'a leftover constraint of ' || c.conrelid::regclass from pg_constraint c join p on c.conrelid = format('outhaul.%I', p.name)::regclass where c.contype = 'c' \
         union all select 'no index on ' || name from p where not exists (select from pg_index i where i.indrelid = format('outhaul.%I', p.name)::regclass and i.indisvalid) \
         union all select 'no trigger on ' || name from p where parent = 'outbox_events' and not orphan and not exists (select from pg_trigger t where t.tgrelid = format('outhaul.%I', p.name)::regclass and t.tgenabled = 'O') \
         union all select 'another owner of ' || name from p join pg_class c on c.oid = format('outhaul.%I', p.name)::regclass \
             where c.relowner <> (select relowner from pg_class where oid = 'outhaul.outbox_events'::regclass)";
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

async fn all_is_well(db: &Db) {
    assert_eq!(wrong(&db.client).await, Vec::<String>::new());
    let found = "select finding || coalesce(' ' || seq, '') || coalesce(' at ' || position, '') from outhaul.reconcile_outbox()";
    let found: Vec<String> =
        db.client.query(found, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(found, Vec::<String>::new());
}

/// A new reader from the beginning gets these events, and no error.
async fn reads_from_the_beginning(db: &Db, expected: &[i64]) {
    let sql = "select seq from outhaul.read(outhaul.start_position('beginning'), 1000)";
    let rows = db.client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), expected);
    subscribe(&db.client, "late", "beginning").await;
    let claim = "select seq from outhaul.claim_subscription('late', 1000, gen_random_uuid(), '30 s')";
    let rows = db.client.query(claim, &[]).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), expected);
    db.client.execute("delete from outhaul.subscriptions where name = 'late'", &[]).await.unwrap();
}

#[tokio::test]
async fn events_past_their_time_go_and_a_new_reader_begins_behind_them() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let mut seqs = Vec::new();
    for n in [-400, -9, -8, -7, 0] {
        seqs.push(event_on(&db.client, n).await);
    }
    sequence(&db.client).await;
    reads_from_the_beginning(&db, &seqs).await;
    keep(&db).await;
    all_is_well(&db).await;
    assert_eq!(are_there(&db.client, &seqs).await, [false, false, false, true, true]);
    reads_from_the_beginning(&db, &seqs[3..]).await;
    let by_time = "select outhaul.start_position('2001-01-01')";
    assert_eq!(db.count(by_time).await, 3, "a time before the beginning");
    // What a clock that was set back writes finds a place all the same, and goes with the next day.
    event_on(&db.client, -400).await;
    sequence(&db.client).await;
    keep(&db).await;
    all_is_well(&db).await;
}

#[tokio::test]
async fn nothing_goes_that_a_cursor_has_not_passed() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let mut seqs = Vec::new();
    for n in [-9, -8, 0] {
        seqs.push(event_on(&db.client, n).await);
    }
    sequence(&db.client).await;
    subscribe(&db.client, "slow", "beginning").await;
    subscribe(&db.client, "quick", "now").await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &seqs).await, [true, true, true]);
    move_cursor(&db.client, "slow", 1).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &seqs).await, [false, true, true], "as far as the slowest cursor");
    all_is_well(&db).await;
    move_cursor(&db.client, "slow", 2).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &seqs).await, [false, false, true]);
    all_is_well(&db).await;
}

#[tokio::test]
async fn nothing_goes_before_it_has_a_position() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let seq = event_on(&db.client, -9).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[seq]).await, [true]);
    sequence(&db.client).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[seq]).await, [false]);
    all_is_well(&db).await;
}

#[tokio::test]
async fn a_prepared_transaction_keeps_what_it_has_written_and_upkeep_says_so() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let old = event_on(&db.client, -9).await;
    sequence(&db.client).await;
    let mut other = db.connect().await;
    let held = other.transaction().await.unwrap();
    held.batch_execute("set local outhaul.notify = 'off'").await.unwrap();
    let late: i64 = held.query_one(&insert_on(-8), &[]).await.unwrap().get(0);
    held.batch_execute(&format!("prepare transaction '{}'", db.database.name())).await.unwrap();
    let upkeep = kept_by_a_worker(&db).await;
    assert_eq!(upkeep.error, None);
    assert_eq!(upkeep.findings["held"], serde_json::json!(["outbox_events_20010102"]), "{upkeep:?}");
    assert_eq!(are_there(&db.client, &[old]).await, [false], "what it has not written to goes");
    assert_eq!(wrong(&db.client).await, ["too old: outbox_events_20010102"]);
    db.client.batch_execute(&format!("commit prepared '{}'", db.database.name())).await.unwrap();
    subscribe(&db.client, "reader", "now").await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[late]).await, [true], "it has no position yet");
    sequence(&db.client).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[late]).await, [true], "a cursor has not passed it");
    let claim = "select seq from outhaul.claim_subscription('reader', 10, gen_random_uuid(), '30 s')";
    assert_eq!(db.count(claim).await, late, "old as it is, it is delivered");
    move_cursor(&db.client, "reader", 2).await;
    let upkeep = kept_by_a_worker(&db).await;
    assert_eq!(upkeep.findings["held"], serde_json::json!([]));
    assert_eq!(are_there(&db.client, &[late]).await, [false]);
    all_is_well(&db).await;
}

#[tokio::test]
async fn an_event_that_commits_while_the_lock_is_awaited_is_seen_by_the_proof() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let mut other = db.connect().await;
    let open = other.transaction().await.unwrap();
    let late: i64 = open.query_one(&insert_on(-9), &[]).await.unwrap().get(0);
    let upkeep = tokio::spawn({
        let dsn = db.dsn();
        async move { migrate(&dsn, &MigrateOptions::default()).await.map(drop) }
    });
    let waits = "select exists (select from pg_locks l where not l.granted and l.mode = 'ShareRowExclusiveLock' \
        and l.relation = to_regclass('outhaul.outbox_events_20010101'))";
    db.until("the lock is awaited", waits).await;
    open.commit().await.unwrap();
    upkeep.await.unwrap().unwrap();
    assert_eq!(are_there(&db.client, &[late]).await, [true]);
    sequence(&db.client).await;
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[late]).await, [false]);
    all_is_well(&db).await;
}

#[tokio::test]
async fn what_waits_for_a_registered_relay_stays_and_without_one_nothing_waits() {
    for (relay, stays) in [(None, false), (Some("beginning"), true), (Some("now"), false)] {
        let db = Db::new().await;
        cut(&db.client, "outbox_events", OLD).await;
        let seq = event_on(&db.client, -9).await;
        sequence(&db.client).await;
        if let Some(start) = relay {
            db.client.execute("select outhaul.register_relay($1)", &[&start]).await.unwrap();
        }
        keep(&db).await;
        assert_eq!(are_there(&db.client, &[seq]).await, [stays], "{relay:?}");
        let done = "update outhaul.outbox_events set processed_at = clock_timestamp()";
        db.client.execute(done, &[]).await.unwrap();
        keep(&db).await;
        assert_eq!(are_there(&db.client, &[seq]).await, [false], "{relay:?}");
        all_is_well(&db).await;
    }
}

#[tokio::test]
async fn what_the_relay_has_parked_stays_for_its_time() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let seq = event_on(&db.client, -9).await;
    sequence(&db.client).await;
    db.client.execute("select outhaul.register_relay('beginning')", &[]).await.unwrap();
    let parked = |ago: &str| {
        format!(
            "update outhaul.outbox_events set parked_at = clock_timestamp() - interval '{ago}', available_at = 'infinity'"
        )
    };
    db.client.execute(&parked("29 days"), &[]).await.unwrap();
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[seq]).await, [true]);
    db.client.execute(&parked("31 days"), &[]).await.unwrap();
    keep(&db).await;
    assert_eq!(are_there(&db.client, &[seq]).await, [false]);
    all_is_well(&db).await;
}

#[tokio::test]
async fn a_hole_left_by_a_late_commit_does_not_stop_a_new_reader() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let mut seqs = Vec::new();
    // The second was written long ago and committed after the first.
    for n in [0, -9, 0, 0] {
        seqs.push(event_on(&db.client, n).await);
        sequence(&db.client).await;
    }
    keep(&db).await;
    all_is_well(&db).await;
    assert_eq!(are_there(&db.client, &seqs).await, [true, false, true, true]);
    reads_from_the_beginning(&db, &seqs[2..]).await;
    assert_eq!(db.count("select outhaul.start_position('2001-01-01')").await, 2);
    let old = db.client.execute("select * from outhaul.read(0, 10)", &[]).await.unwrap_err();
    assert_eq!(old.code().unwrap().code(), "OH006", "who was before the hole is told");
}

#[tokio::test]
async fn a_retired_partition_that_is_needed_again_is_opened() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let seq = event_on(&db.client, -9).await;
    sequence(&db.client).await;
    subscribe(&db.client, "reader", "now").await;
    // Somebody died after the proof, and then the cursor was set back.
    let retire = "alter table outhaul.outbox_events_20010101 add constraint retired check (false) not valid";
    as_owner(&db.client, retire).await;
    assert_eq!(db.count("select outhaul.start_position('beginning')").await, 1, "it may go at any moment");
    let refused = db.client.query_one(&insert_on(-9), &[]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "23514", "nothing is written to what was proven");
    move_cursor(&db.client, "reader", 0).await;
    keep(&db).await;
    all_is_well(&db).await;
    assert_eq!(are_there(&db.client, &[seq]).await, [true]);
    event_on(&db.client, -9).await;
}

#[tokio::test]
async fn what_was_detached_by_hand_is_not_dropped() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    let detach = "alter table outhaul.outbox_events detach partition outhaul.outbox_events_20010101";
    as_owner(&db.client, detach).await;
    keep(&db).await;
    assert_eq!(db.count("select count(*) from outhaul.outbox_events_20010101").await, 0, "it is there");
    assert_eq!(wrong(&db.client).await, ["forgotten: outbox_events_20010101"]);
}

const BY_TEN: &str = "update outhaul.ranged_tables set positions = 10, ahead = 2 where name = 'outbox_feed'";
const FEED: Cuts<'_> = &[("first", None, Some(20)), ("tail", Some(20), None)];

#[tokio::test]
async fn places_in_the_feed_are_carved_ahead_of_the_head_and_go_after_their_events() {
    let db = Db::new().await;
    db.client.execute(BY_TEN, &[]).await.unwrap();
    cut(&db.client, "outbox_feed", FEED).await;
    cut(&db.client, "outbox_events", OLD).await;
    subscribe(&db.client, "slow", "beginning").await;
    for _ in 0..5 {
        event_on(&db.client, -9).await;
    }
    sequence(&db.client).await;
    let upkeep = kept_by_a_worker(&db).await;
    let created = upkeep.findings["created"].as_array().unwrap();
    assert!(created.contains(&serde_json::json!("outbox_feed_000000000000000020")), "{upkeep:?}");
    all_is_well(&db).await;

    // A head that has run past everything that was ready: rows in the tail, which is closed where it is.
    for _ in 0..60 {
        event_on(&db.client, -9).await;
    }
    publish(&db.client, 10).await;
    sequence(&db.client).await;
    move_cursor(&db.client, "slow", 60).await;
    let in_tail = "select count(*) from outhaul.outbox_feed_tail";
    assert_eq!(db.count(in_tail).await, 46, "positions 30 to 75");
    let upkeep = kept_by_a_worker(&db).await;
    assert_eq!(upkeep.findings["late_tails"], serde_json::json!(["outbox_feed"]), "{upkeep:?}");
    assert_eq!(db.count(in_tail).await, 0);
    all_is_well(&db).await;
    assert_eq!(
        db.count("select min(position) from outhaul.outbox_feed").await,
        1,
        "a cursor is among the old ones"
    );
    move_cursor(&db.client, "slow", 70).await;
    keep(&db).await;
    all_is_well(&db).await;
    // [30, 90) was closed as one, and holds events that are kept.
    assert_eq!(db.count("select min(position) from outhaul.outbox_feed").await, 30);
    assert_eq!(db.count("select count(*) from outhaul.outbox_feed").await, 46);
    assert_eq!(db.count("select count(*) from outhaul.read(65, 100)").await, 10);
    assert_eq!(db.count("select outhaul.start_position('beginning')").await, 65);
    // Nothing fails however far it goes.
    publish(&db.client, 500).await;
    sequence(&db.client).await;
    keep(&db).await;
    all_is_well(&db).await;
}

#[tokio::test]
async fn places_go_in_whole_partitions_and_not_before_the_last_event_of_them() {
    let db = Db::new().await;
    db.client.execute(BY_TEN, &[]).await.unwrap();
    let parts: Cuts<'_> = &[
        ("first", None, Some(10)),
        ("000000000000000010", Some(10), Some(20)),
        ("000000000000000020", Some(20), Some(60)),
        ("tail", Some(60), None),
    ];
    cut(&db.client, "outbox_feed", parts).await;
    cut(&db.client, "outbox_events", OLD).await;
    for n in 1..=30 {
        event_on(&db.client, if n == 15 { 0 } else { -9 }).await;
    }
    sequence(&db.client).await;
    keep(&db).await;
    all_is_well(&db).await;
    assert_eq!(db.count("select min(position) from outhaul.outbox_feed").await, 10, "15 is there");
    assert_eq!(db.count("select outhaul.start_position('beginning')").await, 30, "behind the last hole");
    as_owner(&db.client, "delete from outhaul.outbox_events").await;
    // As if it had gone with its day.
    cut(
        &db.client,
        "outbox_events",
        &[("past", None, Some(1)), ("x", Some(1), Some(2)), ("tail", Some(2), None)],
    )
    .await;
    keep(&db).await;
    assert_eq!(db.count("select min(position) from outhaul.outbox_feed").await, 20);
    assert_eq!(db.count("select outhaul.start_position('beginning')").await, 30);
    assert_eq!(wrong(&db.client).await, Vec::<String>::new());
    publish(&db.client, 1).await;
    sequence(&db.client).await;
    assert_eq!(
        db.count("select position from outhaul.read(outhaul.start_position('beginning'), 10)").await,
        31
    );
}

#[tokio::test]
async fn events_of_a_clock_ahead_move_out_of_the_tail_and_keep_their_positions() {
    let few: Cuts<'_> = &[("first", None, Some(2)), ("tail", Some(2), None)];
    let cut_off = format!(
        "alter table outhaul.outbox_events detach partition outhaul.outbox_events_tail; \
         do $$ begin execute format('create table outhaul.outbox_events_x partition of outhaul.outbox_events for values from (%L) to (%L)', {}, {}); end $$",
        day(2),
        day(9)
    );
    for killed in [false, true] {
        let db = Db::new().await;
        cut(&db.client, "outbox_events", few).await;
        let known = event_on(&db.client, 5).await;
        // One that the doors would refuse now, as a parked one is.
        let park = "update outhaul.outbox_events set parked_at = now(), available_at = 'infinity'";
        db.client.execute(park, &[]).await.unwrap();
        sequence(&db.client).await;
        let new = event_on(&db.client, 6).await;
        let far = event_on(&db.client, 60).await;
        if killed {
            as_owner(&db.client, &cut_off).await;
        }
        let upkeep = kept_by_a_worker(&db).await;
        assert_eq!(upkeep.error, None);
        assert_eq!(upkeep.findings["late_tails"], serde_json::json!(["outbox_events"]), "{upkeep:?}");
        for seq in [known, new] {
            assert_ne!(part_of(&db.client, seq).await, "outbox_events_tail");
        }
        assert_eq!(part_of(&db.client, far).await, "outbox_events_tail");
        sequence(&db.client).await;
        reads_from_the_beginning(&db, &[known, new, far]).await;
        all_is_well(&db).await;
    }
}

/// Cuts the connection of upkeep after its first statement has reached the server, then after the second, and so on, each
/// time over, until it comes through. Returns how many there were.
async fn killed_everywhere(build: impl AsyncFn(&Db), check: impl AsyncFn(&Db)) -> u64 {
    let killed_at = async |nth| {
        let db = Db::new().await;
        build(&db).await;
        let proxy = Proxy::start(&db.url()).await.unwrap();
        let kill =
            proxy.add(Rule::on(Match::at(Phase::AfterForward).tag("ranges")).skip(nth).then(Action::Cut));
        // What upkeep meets does not fail a migration.
        migrate(&proxy.url().parse().unwrap(), &MigrateOptions::default()).await.unwrap();
        // The server may still be at it.
        let over = "select count(*) = 0 from pg_stat_activity where datname = current_database() \
            and pid <> pg_backend_pid() and query like '/* outhaul:ranges%'";
        db.until("the end of the session", over).await;
        keep(&db).await;
        check(&db).await;
        kill.count() == 0
    };
    for nth in (0..).step_by(4) {
        let through =
            tokio::join!(killed_at(nth), killed_at(nth + 1), killed_at(nth + 2), killed_at(nth + 3));
        if through.0 || through.3 {
            return nth;
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread")]
async fn carving_and_dropping_go_on_from_wherever_upkeep_was_killed() {
    let build = async |db: &Db| {
        db.client.execute(BY_TEN, &[]).await.unwrap();
        let feed: Cuts<'_> = &[
            ("first", None, Some(10)),
            ("000000000000000010", Some(10), Some(20)),
            ("tail", Some(20), None),
        ];
        cut(&db.client, "outbox_feed", feed).await;
        let mut parts = OLD.to_vec();
        parts[3].2 = Some(4);
        parts[4].1 = Some(4);
        cut(&db.client, "outbox_events", &parts).await;
        db.client
            .execute("update outhaul.ranged_tables set ahead = 5 where name = 'outbox_events'", &[])
            .await
            .unwrap();
        for n in [-9, -9, -9, -8, -8, -8, -400, -9, -9, -9, -9, 0, 0] {
            event_on(&db.client, n).await;
        }
        sequence(&db.client).await;
    };
    let check = async |db: &Db| {
        all_is_well(db).await;
        assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 2);
        assert_eq!(
            db.count("select min(position) from outhaul.outbox_feed").await,
            10,
            "the first ten are whole"
        );
        assert_eq!(db.count("select count(*) from outhaul.read(11, 10)").await, 2);
        assert_eq!(db.count("select outhaul.start_position('beginning')").await, 11);
        event_on(&db.client, -400).await;
        publish(&db.client, 50).await;
        sequence(&db.client).await;
    };
    let statements = killed_everywhere(build, check).await;
    assert!(statements > 30, "{statements}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_and_publishing_go_on_while_any_number_of_processes_keep_partitions() {
    let db = Db::new().await;
    db.client.execute(BY_TEN, &[]).await.unwrap();
    cut(
        &db.client,
        "outbox_feed",
        &[
            ("first", None, Some(10)),
            ("000000000000000010", Some(10), Some(9_000)),
            ("tail", Some(9_000), None),
        ],
    )
    .await;
    let old: Vec<(String, i64)> = (10..30).map(|n| (format!("200101{n}"), i64::from(n) - 37)).collect();
    let mut parts: Vec<(&str, Option<i64>, Option<i64>)> = vec![("past", None, Some(-27))];
    parts.extend(old.iter().map(|(name, low)| (&**name, Some(*low), Some(low + 1))));
    parts.extend([("first", Some(-7), Some(2)), ("tail", Some(2), None)]);
    cut(&db.client, "outbox_events", &parts).await;
    for n in -27..-7 {
        event_on(&db.client, n).await;
    }
    sequence(&db.client).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let dsn = db.dsn();
        tasks.push(tokio::spawn(async move { migrate(&dsn, &MigrateOptions::default()).await.map(drop) }));
    }
    let (mut cursor, mut rounds) = (20, 0);
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        publish(&db.client, 1).await;
        // Where the tail of the feed is off for a moment and the head has come to it, the next turn gives the position.
        until("a position", || async {
            matches!(db.client.query_one("select outhaul.sequence(10)", &[]).await, Ok(row) if row.get::<_, i32>(0) == 1)
        })
        .await;
        let rows = db.client.query("select position from outhaul.read($1, 10)", &[&cursor]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [cursor + 1]);
        cursor += 1;
        rounds += 1;
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(rounds > 0);
    until("all is well", || async {
        keep(&db).await;
        wrong(&db.client).await.is_empty()
    })
    .await;
    all_is_well(&db).await;
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, rounds);
}

#[tokio::test]
async fn a_table_that_waits_does_not_keep_the_others_waiting() {
    let db = Db::new().await;
    cut(&db.client, "outbox_events", OLD).await;
    event_on(&db.client, -9).await;
    sequence(&db.client).await;
    // Somebody reads finished jobs for long, and a step is missing there.
    let reader = connect(&db.url()).await;
    db.client
        .execute("update outhaul.ranged_tables set ahead = 15 where name = 'jobs_finished'", &[])
        .await
        .unwrap();
    reader.batch_execute("begin; select count(*) from outhaul.jobs_finished").await.unwrap();
    keep(&db).await;
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 0);
    reader.batch_execute("commit").await.unwrap();
    keep(&db).await;
    all_is_well(&db).await;
}
