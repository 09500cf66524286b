//! What a claim takes: the predicate, the order, the scan floors, and what one claimer leaves to another.

use std::collections::BTreeSet;

use outhaul::Error;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{claim, claim_one, complete, fail, renew, try_claim};
use crate::support::Db;

/// A job as the claim sees it; stored as it is, without the trigger.
#[derive(Clone, Debug)]
struct Row {
    id: Uuid,
    queue: &'static str,
    job_type: &'static str,
    priority: i16,
    share: i32,
    /// Seconds from now; negative is due.
    due_in: i64,
    /// Seconds from now that a lease still lasts.
    lease: Option<i64>,
    held: bool,
}

impl Default for Row {
    fn default() -> Row {
        Row {
            id: Uuid::now_v7(),
            queue: "q",
            job_type: "t",
            priority: 0,
            share: 0,
            due_in: -10,
            lease: None,
            held: false,
        }
    }
}

async fn store(client: &Client, rows: &[Row]) {
    let sql = "insert into outhaul.jobs (id, queue, job_type, priority, share, run_at, lease_until, lease_token, status, held) \
        values ($1, $2, $3, $4, $5, now() + $6::bigint * interval '1 s', coalesce(now() + $7::bigint * interval '1 s', '-infinity'), \
        case when $7::bigint is null then '00000000-0000-0000-0000-000000000000' else gen_random_uuid() end, \
        case when $7::bigint is null then 'pending' else 'leased' end::outhaul.job_status, $8)";
    client.batch_execute("begin; set local session_replication_role = replica").await.unwrap();
    for row in rows {
        client
            .execute(
                sql,
                &[
                    &row.id,
                    &row.queue,
                    &row.job_type,
                    &row.priority,
                    &row.share,
                    &row.due_in,
                    &row.lease,
                    &row.held,
                ],
            )
            .await
            .unwrap();
    }
    client.batch_execute("commit").await.unwrap();
}

fn ids(rows: &[tokio_postgres::Row]) -> BTreeSet<Uuid> {
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_claim_takes_a_job_exactly_when_every_condition_holds() {
    let db = Db::new().await;
    for paused in [false, true] {
        db.client.batch_execute("truncate outhaul.jobs, outhaul.queues").await.unwrap();
        if paused {
            db.client
                .batch_execute("insert into outhaul.queues (name, paused_at) values ('q', now())")
                .await
                .unwrap();
        }
        let mut rows = Vec::new();
        for queue in ["q", "other"] {
            for job_type in ["t", "skipped"] {
                for due_in in [-10, 60] {
                    for lease in [None, Some(60), Some(-60)] {
                        for held in [false, true] {
                            rows.push(Row { queue, job_type, due_in, lease, held, ..Row::default() });
                        }
                    }
                }
            }
        }
        // A status that does not fit decides nothing: it is for people.
        store(&db.client, &rows).await;
        db.client
            .batch_execute("update outhaul.jobs set status = 'retrying' where random() < 0.3")
            .await
            .unwrap();
        let expected: BTreeSet<Uuid> = rows
            .iter()
            .filter(|r| {
                !paused && r.queue == "q" && r.job_type == "t" && r.due_in < 0 && r.lease.is_none() && !r.held
            })
            .map(|r| r.id)
            .collect();
        assert_eq!(expected.len(), usize::from(!paused));
        let sql =
            "select id from outhaul.claim('q', 10000, gen_random_uuid(), '60 s', skip_types => '{skipped}')";
        assert_eq!(ids(&db.client.query(sql, &[]).await.unwrap()), expected, "paused: {paused}");
        assert_eq!(db.client.query(sql, &[]).await.unwrap().len(), 0, "nothing twice");
    }
}

/// The claim without floors in plain words: the best `n` by lane, then by time, at most `each` of a lane.
fn model(rows: &[Row], n: usize, each: usize, skip: &str) -> BTreeSet<Uuid> {
    let mut due: Vec<&Row> = rows
        .iter()
        .filter(|r| r.queue == "q" && r.job_type != skip && r.due_in < 0 && r.lease.is_none() && !r.held)
        .collect();
    due.sort_by_key(|r| (std::cmp::Reverse(r.priority), r.share, r.due_in, r.id));
    let mut taken = std::collections::HashMap::new();
    due.retain(|r| {
        let lane: &mut usize = taken.entry((r.priority, r.share)).or_default();
        *lane += 1;
        *lane <= each
    });
    due.iter().take(n).map(|r| r.id).collect()
}

#[tokio::test]
async fn a_claim_takes_the_best_lanes_first_and_the_oldest_of_a_lane() {
    let db = Db::new().await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..150 {
        db.client.batch_execute("truncate outhaul.jobs").await.unwrap();
        let rows: Vec<Row> = (0..random.usize(1..30))
            .map(|_| Row {
                queue: if random.u8(..6) == 0 { "other" } else { "q" },
                job_type: if random.u8(..5) == 0 { "skipped" } else { "t" },
                priority: random.i16(-2..=2),
                share: random.i32(0..3),
                due_in: -random.i64(1..5) + if random.u8(..6) == 0 { 100 } else { 0 },
                lease: (random.u8(..6) == 0).then(|| random.i64(-50..50)),
                held: random.u8(..8) == 0,
                ..Row::default()
            })
            .collect();
        store(&db.client, &rows).await;
        let (n, each) = (random.i32(1..12), random.i32(1..6));
        let skip = if random.bool() { "skipped" } else { "nothing" };
        let sql = "select id from outhaul.claim('q', $1, gen_random_uuid(), '60 s', each => $2, skip_types => array[$3])";
        let claimed = ids(&db.client.query(sql, &[&n, &each, &skip]).await.unwrap());
        assert_eq!(
            claimed,
            model(&rows, n as usize, each as usize, skip),
            "seed {seed}, round {round}: {rows:?} {n} {each}"
        );
    }
}

#[tokio::test]
async fn a_claim_writes_the_lease_and_returns_what_it_wrote() {
    let db = Db::new().await;
    let sql = "select outhaul.enqueue('q', 't', '{\"b\":1,\"a\":[2]}', timeout => '90 s', organization_id => '00000000-0000-0000-0000-00000000000f', \
        traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', max_attempts => 7, priority => 4)";
    db.client.execute(sql, &[]).await.unwrap();
    db.client.execute("select outhaul.enqueue('q', 't', priority => 4)", &[]).await.unwrap();
    let claimed = db
        .client
        .query("select * from outhaul.claim('q', 10, '00000000-0000-0000-0000-0000000000bb', '90 s')", &[])
        .await
        .unwrap();
    assert_eq!(claimed.len(), 2);
    for row in &claimed {
        let written = "select lease_until - locked_at between interval '89.9 s' and interval '90 s' and locked_at = $3 and lease_token = $2 \
            and locked_by = '00000000-0000-0000-0000-0000000000bb' and status = 'leased' and attempts = 1 and claim_no = 1 \
            and locked_at between clock_timestamp() - interval '1 min' and clock_timestamp() from outhaul.jobs where id = $1";
        let (id, token): (Uuid, Uuid) = (row.get("id"), row.get("lease_token"));
        let at: jiff::Timestamp = row.get("locked_at");
        assert!(db.client.query_one(written, &[&id, &token, &at]).await.unwrap().get::<_, bool>(0));
        assert_eq!(
            (row.get::<_, i32>("attempts"), row.get::<_, i32>("claim_no"), row.get::<_, &str>("history")),
            (1, 1, "row")
        );
    }
    let full = claimed.iter().find(|row| row.get::<_, &str>("payload") != "{}").unwrap();
    assert_eq!(full.get::<_, &str>("payload"), r#"{"a": [2], "b": 1}"#, "text, as jsonb prints it");
    assert_eq!(full.get::<_, Option<i64>>("timeout_ms"), Some(90_000));
    assert_eq!(full.get::<_, i32>("max_attempts"), 7);
    assert_eq!(full.get::<_, Option<Uuid>>("organization_id"), Some(Uuid::from_u128(15)));
    assert!(full.get::<_, Option<&str>>("traceparent").is_some());
}

#[tokio::test]
async fn every_claim_of_a_job_has_a_token_of_its_own_and_a_growing_number() {
    let db = Db::new().await;
    db.client.execute("select outhaul.enqueue('q', 't', max_attempts => 1000)", &[]).await.unwrap();
    let mut tokens = BTreeSet::new();
    for n in 1..=20 {
        let lease = claim_one(&db.client, "q").await;
        assert_eq!(lease.claim_no, n, "also where the attempt is given back");
        assert!(tokens.insert(lease.token));
        let verdict = ["retry", "snooze", "release"][n as usize % 3];
        assert_eq!(fail(&db.client, &lease, verdict, 0).await, "settled");
    }
}

#[tokio::test]
async fn two_open_claims_share_no_job_and_do_not_wait() {
    let db = Db::new().await;
    let rows: Vec<Row> = (0..30).map(|n| Row { due_in: n - 100, ..Row::default() }).collect();
    store(&db.client, &rows).await;
    let (mut one, mut two) = (db.connect().await, db.connect().await);
    let (one, two) = (one.transaction().await.unwrap(), two.transaction().await.unwrap());
    let first: BTreeSet<Uuid> = claim(&one, "q", 10).await.iter().map(|lease| lease.id).collect();
    let second: BTreeSet<Uuid> = claim(&two, "q", 10).await.iter().map(|lease| lease.id).collect();
    assert_eq!((first.len(), second.len()), (10, 10));
    assert!(first.is_disjoint(&second));
    // What the first gives up is there for the next.
    one.rollback().await.unwrap();
    let third: BTreeSet<Uuid> = claim(&db.client, "q", 30).await.iter().map(|lease| lease.id).collect();
    two.commit().await.unwrap();
    assert_eq!(third.len(), 20);
    assert!(first.is_subset(&third) && second.is_disjoint(&third));
}

/// A claim with floors, as the engine sends it.
async fn claim_from(
    client: &Client,
    lanes: &[(i16, i32, Option<i64>, Option<i64>)],
    discover: bool,
) -> BTreeSet<Uuid> {
    let priorities: Vec<i16> = lanes.iter().map(|lane| lane.0).collect();
    let shares: Vec<i32> = lanes.iter().map(|lane| lane.1).collect();
    let at: Vec<Option<i64>> = lanes.iter().map(|lane| lane.2).collect();
    let behind: Vec<Option<i64>> = lanes.iter().map(|lane| lane.3).collect();
    let sql = "select id from outhaul.claim('q', 100, gen_random_uuid(), '60 s', $1, $2, \
        (select array_agg(now() + s * interval '1 s' order by o) from unnest($3::bigint[]) with ordinality u(s, o)), $4, discover => $5)";
    client.batch_execute("begin").await.unwrap();
    let claimed = ids(&client.query(sql, &[&priorities, &shares, &at, &behind, &discover]).await.unwrap());
    client.batch_execute("rollback").await.unwrap();
    claimed
}

#[tokio::test]
async fn a_floor_hides_only_what_lies_below_it_in_its_lane() {
    let db = Db::new().await;
    let row = |priority, share, due_in| Row { priority, share, due_in, ..Row::default() };
    let rows =
        [row(5, 0, -30), row(5, 0, -10), row(0, 0, -30), row(0, 0, -10), row(0, 1, -30), row(0, 1, -10)];
    store(&db.client, &rows).await;
    let of = |places: &[usize]| -> BTreeSet<Uuid> { places.iter().map(|place| rows[*place].id).collect() };
    let all = of(&[0, 1, 2, 3, 4, 5]);
    let c = &db.client;
    assert_eq!(
        claim_from(c, &[(5, 0, Some(-20), None), (0, 0, Some(-1_000), None), (0, 1, Some(-20), None)], false)
            .await,
        of(&[1, 2, 3, 5])
    );
    // The same by age instead of by time: a lane that was found empty is scanned from so long before now.
    assert_eq!(
        claim_from(
            c,
            &[(5, 0, None, Some(20_000)), (0, 0, None, Some(100_000)), (0, 1, None, Some(5_000))],
            false
        )
        .await,
        of(&[1, 2, 3])
    );
    // Exactly at the floor is not below it.
    let sql = "select run_at from outhaul.jobs where id = $1";
    let exact: jiff::Timestamp = db.client.query_one(sql, &[&rows[0].id]).await.unwrap().get(0);
    let sql = "select count(*) from outhaul.claim('q', 9, gen_random_uuid(), '60 s', '{5}', '{0}', array[$1::timestamptz], '{null}')";
    db.client.batch_execute("begin").await.unwrap();
    assert_eq!(db.client.query_one(sql, &[&exact]).await.unwrap().get::<_, i64>(0), 2);
    db.client.batch_execute("rollback").await.unwrap();
    // No floor in a known lane, and no lanes at all: from the beginning.
    assert_eq!(
        claim_from(c, &[(5, 0, None, None), (0, 0, None, None), (0, 1, None, None)], false).await,
        all
    );
    assert_eq!(claim(&db.client, "q", 100).await.len(), 6);
}

#[tokio::test]
async fn a_lane_that_the_caller_does_not_know_is_found_by_discovery_or_when_it_is_more_urgent() {
    let db = Db::new().await;
    let row = |priority, share| Row { priority, share, ..Row::default() };
    let rows = [row(5, 0), row(0, 0), row(0, 7), row(-5, 0)];
    store(&db.client, &rows).await;
    let of = |places: &[usize]| -> BTreeSet<Uuid> { places.iter().map(|place| rows[*place].id).collect() };
    let c = &db.client;
    assert_eq!(
        claim_from(c, &[(5, 0, None, None)], false).await,
        of(&[0]),
        "less urgent ones wait for a rescan"
    );
    assert_eq!(claim_from(c, &[(5, 0, None, None)], true).await, of(&[0, 1, 2, 3]));
    assert_eq!(
        claim_from(c, &[(0, 0, Some(-5), None)], false).await,
        of(&[0, 2, 3]),
        "above the best known one all are looked for"
    );
    assert_eq!(
        claim_from(c, &[], false).await,
        of(&[0, 1, 2, 3]),
        "whoever knows nothing looks for everything"
    );
}

#[tokio::test]
async fn under_repeatable_read_a_claim_that_meets_another_says_run_again() {
    let db = Db::new().await;
    let name = db.database.name();
    let default = format!("alter database \"{name}\" set default_transaction_isolation = 'repeatable read'");
    db.client.batch_execute(&default).await.unwrap();
    store(&db.client, &[Row::default(), Row::default()]).await;
    let (mut one, two) = (db.connect().await, db.connect().await);
    let one = one.transaction().await.unwrap();
    one.execute("select count(*) from outhaul.jobs", &[]).await.unwrap();
    let lease = claim(&two, "q", 1).await.remove(0);
    let error = Error::from(try_claim(&one, "q", 10).await.unwrap_err());
    assert_eq!((error.sqlstate(), error.is_retryable()), (Some("40001"), true));
    one.rollback().await.unwrap();
    // A statement of its own has a snapshot of its own: claims as workers send them meet nobody's past.
    assert_eq!(claim(&two, "q", 10).await.len(), 1);
    assert_eq!(renew(&two, lease.id, lease.token).await, "renewed");
    assert_eq!(complete(&two, &lease, "row").await, "completed");
}

#[tokio::test]
async fn arguments_of_a_claim_are_checked() {
    let db = Db::new().await;
    for call in [
        "claim('q', null, gen_random_uuid(), '60 s')",
        "claim('q', 0, gen_random_uuid(), '60 s')",
        "claim('q', 10001, gen_random_uuid(), '60 s')",
        "claim('q', 1, null, '60 s')",
        "claim('q', 1, gen_random_uuid(), null)",
        "claim('q', 1, gen_random_uuid(), '999 ms')",
        "claim('q', 1, gen_random_uuid(), '24 hours 1 ms')",
        "renew('{}', '{}', '999 ms')",
        "renew('{}', '{}', null)",
    ] {
        let error = Error::from(
            db.client.query(&format!("select * from outhaul.{call}"), &[]).await.expect_err(call),
        );
        assert_eq!((error.code(), error.sqlstate()), ("invalid_input", Some("OH001")), "{call}");
    }
}

#[tokio::test]
async fn next_due_tells_the_shortest_wait_over_all_lanes() {
    let db = Db::new().await;
    let next = || async {
        db.client.query_one("select outhaul.next_due('q')", &[]).await.unwrap().get::<_, Option<i64>>(0)
    };
    assert_eq!(next().await, None, "nothing waits");
    let row = |priority, due_in| Row { priority, due_in, ..Row::default() };
    store(&db.client, &[row(0, -10)]).await;
    assert_eq!(next().await, None, "what is due already is the claim's affair");
    store(
        &db.client,
        &[row(9, 500), row(-9, 100), Row { held: true, ..row(0, 10) }, Row { queue: "other", ..row(0, 20) }],
    )
    .await;
    let ms = next().await.unwrap();
    assert!((40_000..=100_000).contains(&ms), "{ms}");
}

#[tokio::test]
async fn the_sweep_sees_leases_that_ran_out_and_no_others() {
    let db = Db::new().await;
    let row = |due_in, lease| Row { due_in, lease, ..Row::default() };
    let rows = [
        row(-100, Some(-5)),
        row(-10, Some(-5)),
        row(-10, Some(60)),
        row(-10, None),
        Row { priority: 3, ..row(-10, Some(-90)) },
        Row { queue: "other", ..row(-10, Some(-5)) },
        Row { held: true, ..row(-10, Some(-5)) },
        // Below the floors that are given here.
        row(-100, Some(60)),
        row(-100, None),
        Row { queue: "other", ..row(-100, Some(-5)) },
        Row { held: true, ..row(-100, Some(-5)) },
    ];
    store(&db.client, &rows).await;
    let of = |places: &[usize]| -> BTreeSet<Uuid> { places.iter().map(|place| rows[*place].id).collect() };
    let all = db.client.query("select id, overdue_ms from outhaul.expired('q', 100)", &[]).await.unwrap();
    assert_eq!(ids(&all), of(&[0, 1, 4]));
    assert!(all.iter().all(|row| row.get::<_, i64>(1) >= 5_000));
    assert_eq!(db.client.query("select id from outhaul.expired('q', 2)", &[]).await.unwrap().len(), 2);
    // Floors only say where to look first: what a process that is gone had claimed lies beyond them.
    for floors in [
        "'{0}', '{0}', array[now() - interval '50 s'], '{null}'",
        "'{3,0}', '{0,0}', '{null,null}', '{1000,50000}'",
    ] {
        let sql = format!("select id from outhaul.expired('q', 100, {floors})");
        assert_eq!(ids(&db.client.query(&sql, &[]).await.unwrap()), of(&[0, 1, 4]), "{floors}");
    }
}

#[tokio::test]
async fn one_caller_in_an_interval_gets_the_turn_to_sweep_and_a_clock_set_back_gives_it_at_once() {
    let db = Db::new().await;
    let turn = |every: &'static str| {
        let client = &db.client;
        async move {
            client
                .query_one("select outhaul.take_sweep('q', $1::text::interval)", &[&every])
                .await
                .unwrap()
                .get::<_, bool>(0)
        }
    };
    assert!(turn("1 hour").await, "the first");
    assert!(!turn("1 hour").await);
    assert!(turn("0").await);
    db.client
        .execute("update outhaul.queue_floors set swept_at = clock_timestamp() + interval '1 day'", &[])
        .await
        .unwrap();
    assert!(turn("1 hour").await);
    // A turn that is being taken is not waited for.
    let mut other = db.connect().await;
    let tx = other.transaction().await.unwrap();
    tx.execute("select from outhaul.queue_floors for update", &[]).await.unwrap();
    assert!(!turn("0").await);
}

#[tokio::test]
async fn floors_are_published_for_the_next_process() {
    let db = Db::new().await;
    let publish = "select outhaul.publish_floors('q', '{5,0}', '{0,1}', array['2026-01-02 03:04:05.678901Z'::timestamptz, null], '{null,60000}')";
    for _ in 0..2 {
        db.client.execute(publish, &[]).await.unwrap();
        let read = "select priorities = '{5,0}' and shares = '{0,1}' and run_ats[1] = '2026-01-02 03:04:05.678901Z' \
            and run_ats[2] between now() - interval '2 min' and now() - interval '50 s' from outhaul.floors('q')";
        assert!(db.client.query_one(read, &[]).await.unwrap().get::<_, bool>(0));
    }
    assert_eq!(db.count("select count(*) from outhaul.floors('other')").await, 0);
}

#[tokio::test]
async fn lanes_are_the_pairs_in_the_table_best_first() {
    let db = Db::new().await;
    let mut random = fastrand::Rng::new();
    let rows: Vec<Row> = (0..200)
        .map(|_| Row {
            priority: random.i16(-3..=3),
            share: random.i32(-2..3),
            held: random.u8(..3) == 0,
            ..Row::default()
        })
        .collect();
    store(&db.client, &rows).await;
    let all = "select array(select (l.priority, l.share)::text from outhaul.lanes('q') l) = \
        array(select (priority, share)::text from (select distinct priority, share from outhaul.jobs where queue = 'q' and not held) d \
              order by priority desc, share)";
    assert!(db.client.query_one(all, &[]).await.unwrap().get::<_, bool>(0));
    assert_eq!(db.count("select count(*) from outhaul.lanes('nothing')").await, 0);
    // Whatever is known beforehand, in the table or not, is among them, and nothing is missing or twice.
    for _ in 0..50 {
        let mut known: Vec<(i16, i32)> =
            (0..random.usize(..8)).map(|_| (random.i16(-4..=4), random.i32(-3..4))).collect();
        known.sort_by_key(|(priority, share)| (std::cmp::Reverse(*priority), *share));
        known.dedup();
        let (priorities, shares): (Vec<i16>, Vec<i32>) = known.iter().copied().unzip();
        let sql = "select priority, share from outhaul.lanes('q', $1, $2)";
        let found = db.client.query(sql, &[&priorities, &shares]).await.unwrap();
        let found: Vec<(i16, i32)> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
        let mut expected = known.clone();
        expected.extend(rows.iter().filter(|row| !row.held).map(|row| (row.priority, row.share)));
        expected.sort_by_key(|(priority, share)| (std::cmp::Reverse(*priority), *share));
        expected.dedup();
        assert_eq!(found, expected, "known: {known:?}");
    }
}

/// The claim writes only fixed-width columns that no index knows, and half of each page is left free.
#[tokio::test]
async fn every_claim_is_a_heap_only_update() {
    let db = Db::new().await;
    let payloads = [
        ("small", "'{\"n\": 1}'"),
        ("4 KiB that compress", "to_jsonb(repeat('x', 4090))"),
        (
            "4 KiB that do not",
            "to_jsonb((select string_agg(md5(random()::text), '') from generate_series(1, 128)))",
        ),
        (
            "1.5 KiB in the row",
            "to_jsonb((select string_agg(md5(random()::text || s), '') from generate_series(1, 48) s))",
        ),
    ];
    for (what, payload) in payloads {
        db.client.batch_execute("truncate outhaul.jobs").await.unwrap();
        let fill = format!(
            "insert into outhaul.jobs (id, queue, job_type, payload) select gen_random_uuid(), 'q', 't', {payload} from generate_series(1, 2000) g"
        );
        db.client.batch_execute(&fill).await.unwrap();
        let counts = "select pg_stat_get_xact_tuples_updated('outhaul.jobs'::regclass), pg_stat_get_xact_tuples_hot_updated('outhaul.jobs'::regclass)";
        let counts = || async {
            let row = db.client.query_one(counts, &[]).await.unwrap();
            (row.get::<_, i64>(0), row.get::<_, i64>(1))
        };
        db.client.batch_execute("begin").await.unwrap();
        let before = counts().await;
        let mut claimed = 0;
        while claimed < 2_000 {
            claimed += claim(&db.client, "q", 300).await.len();
        }
        let after = counts().await;
        db.client.batch_execute("commit").await.unwrap();
        assert_eq!((after.0 - before.0, after.1 - before.1), (2_000, 2_000), "{what}");
    }
}
