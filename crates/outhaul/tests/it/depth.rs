//! A million rows: what the functions read does not grow with the tables.
//!
//! The hardest case is measured: statistics were taken, and every plan was made and kept, while the tables were
//! empty, and nothing has told the server since.

use std::collections::BTreeMap;

use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use crate::calls::claim;
use crate::support::Db;

/// What a call read: rows of each large table by sequential scan and by index, and pages in all.
#[derive(Clone, Debug, Default)]
struct Cost {
    scanned: BTreeMap<String, i64>,
    fetched: i64,
    pages: i64,
    rows: i64,
}

async fn counters(tx: &Transaction<'_>) -> BTreeMap<String, (i64, i64)> {
    let sql = "select relname::text, coalesce(seq_tup_read, 0)::bigint, coalesce(idx_tup_fetch, 0)::bigint from pg_stat_xact_user_tables \
        where schemaname = 'outhaul' and relname ~ '^(jobs|job_keys|job_attempts|audit_log)'";
    tx.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// Runs a call in a transaction that is rolled back, and tells what it read.
async fn cost(client: &mut Client, call: &str) -> Cost {
    let tx = client.transaction().await.unwrap();
    let before = counters(&tx).await;
    let explain = format!("explain (analyze, buffers, timing off, format json) select * from {call}");
    let plan: serde_json::Value =
        tx.query_one(&explain, &[]).await.unwrap_or_else(|error| panic!("{call}: {error:?}")).get(0);
    let after = counters(&tx).await;
    tx.rollback().await.unwrap();
    let top = &plan[0]["Plan"];
    let number = |name: &str| top[name].as_i64().unwrap_or_default();
    let mut cost = Cost {
        pages: number("Shared Hit Blocks") + number("Shared Read Blocks"),
        rows: top["Actual Rows"].as_f64().unwrap_or_default() as i64,
        ..Cost::default()
    };
    for (table, (scanned, fetched)) in after {
        let (scanned_before, fetched_before) = before.get(&table).copied().unwrap_or_default();
        cost.fetched += fetched - fetched_before;
        if scanned > scanned_before {
            cost.scanned.insert(table, scanned - scanned_before);
        }
    }
    cost
}

/// The calls of one test, and what was wrong with them.
struct Bounds<'a> {
    client: &'a mut Client,
    broken: Vec<String>,
}

impl Bounds<'_> {
    /// Notes a call that scanned a large table, or read more rows or pages than these. Some hundred pages are the
    /// catalogue's, when the server has to plan again.
    async fn check(&mut self, call: &str, rows: i64, pages: i64) -> Cost {
        let cost = cost(self.client, call).await;
        if !cost.scanned.is_empty() || cost.fetched > rows || cost.pages > pages {
            let call: String = call.chars().take(90).collect();
            self.broken.push(format!("{call}: at most {rows} rows and {pages} pages, but {cost:?}"));
        }
        cost
    }

    fn hold(self) {
        assert!(self.broken.is_empty(), "{:#?}", self.broken);
    }
}

/// Statistics of empty tables, and nobody to take others.
async fn freeze_statistics(db: &Db) {
    let sql = "do $$ declare t regclass; begin \
          for t in select oid from pg_class where relnamespace = 'outhaul'::regnamespace and relkind = 'r' loop \
            execute format('alter table %s set (autovacuum_enabled = off)', t); end loop; end $$; \
        set outhaul.x = ''; analyze outhaul.jobs, outhaul.job_keys, outhaul.jobs_dead, outhaul.jobs_finished, outhaul.job_attempts, outhaul.audit_log";
    db.client.batch_execute(sql).await.unwrap();
}

/// As the owner, so that no trigger runs.
async fn fill(db: &Db, sql: &str) {
    let filler = db.connect().await;
    filler.batch_execute("set role outhaul_owner").await.unwrap();
    filler.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

const NOBODY: &str = "'00000000-0000-0000-0000-000000000001'::uuid";

/// Makes every plan, and has it kept, while there is nothing to plan for.
async fn plan_on_empty_tables(client: &Client) {
    let calls = [
        "outhaul.claim('q1', 10, gen_random_uuid(), '60 s')".to_owned(),
        "outhaul.claim('q1', 10, gen_random_uuid(), '60 s', '{0}', '{0}', '{-infinity}', '{null}')"
            .to_owned(),
        "outhaul.next_due('q1')".to_owned(),
        "outhaul.expired('q1', 10)".to_owned(),
        format!("outhaul.renew(array[{NOBODY}], array[{NOBODY}], '60 s')"),
        format!("outhaul.complete(array[{NOBODY}], array[{NOBODY}], '{{1}}')"),
        format!(
            "outhaul.fail(array[{NOBODY}], array[{NOBODY}], '{{1}}', '{{retry}}', '{{0}}', '{{a}}', '{{b}}', '{{c}}')"
        ),
        format!("outhaul.cancel({NOBODY})"),
        "outhaul.remove_expired(100)".to_owned(),
        "outhaul.show_queues(100)".to_owned(),
        "outhaul.show_jobs(n => 50)".to_owned(),
        format!("outhaul.show_job({NOBODY})"),
        format!("outhaul.show_payload({NOBODY})"),
        format!("outhaul.show_attempts({NOBODY})"),
        "outhaul.show_audit()".to_owned(),
        format!("outhaul.operator_retry({NOBODY})"),
        format!("outhaul.operator_cancel({NOBODY})"),
    ];
    for _ in 0..8 {
        for call in &calls {
            client
                .query(&format!("select * from {call}"), &[])
                .await
                .unwrap_or_else(|error| panic!("{call}: {error:?}"));
        }
        // The paths of a key in use, without leaving one.
        let keyed = format!(
            "begin; select outhaul.enqueue('q1', 't', idempotency_key => 'k'); select outhaul.enqueue('q1', 't', idempotency_key => 'k'); \
             select outhaul.enqueue_many('q1', 't', '{{1,1}}', array[gen_random_uuid(), gen_random_uuid()], '{{k,l}}', notify => false); \
             savepoint s; do $$ begin perform outhaul.complete_in({NOBODY}, {NOBODY}, 1); exception when others then null; end $$; rollback"
        );
        client.batch_execute(&keyed.replace("'{1,1}'", "'{\"{}\",\"{}\"}'")).await.unwrap();
    }
}

#[tokio::test]
async fn no_function_reads_more_at_a_million_jobs_than_at_none() {
    let mut db = Db::new().await;
    freeze_statistics(&db).await;
    plan_on_empty_tables(&db.client).await;
    // Twenty queues of three lanes; one job in a hundred is for later, one in fifty has a key.
    fill(
        &db,
        "insert into outhaul.jobs (id, queue, job_type, priority, run_at, created_at, idempotency_key) \
         select lpad(to_hex(n), 32, '0')::uuid, 'q' || n % 20, 't', n / 20 % 3 - 1, now() + case when n % 100 = 0 then interval '1 h' else -n * interval '1 ms' end, now(), \
           case when n % 50 = 0 then 'k' || n end from generate_series(1, 1000000) n; \
         insert into outhaul.job_keys (scope, kind, key, job_id, digest) select '00000000-0000-0000-0000-000000000000', 't', 'k' || n, \
           lpad(to_hex(n), 32, '0')::uuid, hashtextextended('{}', 0) from generate_series(50, 1000000, 50) n; \
         insert into outhaul.jobs_finished (created_at, started_at, id, attempts, claim_no, max_attempts, priority, status, queue, job_type) \
         select now(), now(), ('f' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1, 10, 0, 'completed', 'q' || n % 20, 't' from generate_series(1, 100000) n; \
         insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, payload, locked_by, last_error_class) \
         select now(), now(), ('d' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1, 10, 0, 0, 'q' || n % 20, 't', '{}', gen_random_uuid(), 'unknown' from generate_series(1, 50000) n; \
         insert into outhaul.job_attempts (started_at, job_id, claim_no, attempt, worker_id, outcome, error_class) \
         select now(), ('d' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1, gen_random_uuid(), 'dead_letter', 'unknown' from generate_series(1, 50000) n",
    )
    .await;
    let mut c = Bounds { client: &mut db.client, broken: Vec::new() };
    repairs_are_bounded(&mut c).await;
    claims_are_bounded(&mut c).await;
    reports_are_bounded(&mut c).await;
    producers_are_bounded(&mut c).await;
    people_are_bounded(&mut c).await;
    c.hold();
}

/// Claims: of a process without a memory, with floors, of one job and of many.
async fn claims_are_bounded(c: &mut Bounds<'_>) {
    let claimed = c.check("outhaul.claim('q1', 100, gen_random_uuid(), '60 s')", 1_000, 4_000).await;
    assert_eq!(claimed.rows, 100);
    let one = c.check("outhaul.claim('q1', 1, gen_random_uuid(), '60 s')", 10, 600).await;
    assert_eq!(one.rows, 1);
    let floors = "'{1,0,-1}', '{0,0,0}', array[now() - interval '500 s', null, null], '{null,100,100}'";
    let claimed = c
        .check(&format!("outhaul.claim('q1', 100, gen_random_uuid(), '60 s', {floors})"), 1_000, 4_000)
        .await;
    assert_eq!(claimed.rows, 100);
    let skipping = "outhaul.claim('q1', 100, gen_random_uuid(), '60 s', each => 40)";
    assert_eq!(c.check(skipping, 1_000, 4_000).await.rows, 100);
    c.check("outhaul.claim('no such queue', 100, gen_random_uuid(), '60 s')", 0, 600).await;
    governed_claims_are_bounded(c).await;
    c.check("outhaul.next_due('q1')", 10, 600).await;
    c.check("outhaul.next_due('q0')", 10, 600).await;
}

/// Claims that look at limits, rates and shares, and what the sweep does for waiting jobs.
async fn governed_claims_are_bounded(c: &mut Bounds<'_>) {
    let set = "select outhaul.operator_queue_set('q2', '{\"max_running\": 1000, \"max_running_per_key\": 5, \"rate\": 1000000, \
        \"rate_per_seconds\": 1, \"key_rate\": 1000, \"key_rate_per_seconds\": 1, \"fair\": true}')";
    c.client.batch_execute(set).await.unwrap();
    let claim = "outhaul.claim('q2', 100, gen_random_uuid(), '60 s', tell => true)";
    assert!(c.check(claim, 2_000, 8_000).await.rows >= 100);
    c.check("outhaul.promote_waiting('q2')", 0, 600).await;
    c.check("outhaul.promote_waiting('q1')", 0, 600).await;
}

/// Reports of a batch, as a worker sends them.
async fn reports_are_bounded(c: &mut Bounds<'_>) {
    let leases = claim(&*c.client, "q0", 500).await;
    assert_eq!(leases.len(), 500);
    let quoted = |ids: Vec<Uuid>| {
        format!("'{{{}}}'::uuid[]", ids.iter().map(Uuid::to_string).collect::<Vec<_>>().join(","))
    };
    let ids = quoted(leases.iter().map(|lease| lease.id).collect());
    let tokens = quoted(leases.iter().map(|lease| lease.token).collect());
    let ones = "array(select 1 from generate_series(1, 500))";
    let words = |word: &str| format!("array(select '{word}' from generate_series(1, 500))");
    let zeros = "array(select 0::bigint from generate_series(1, 500))";
    c.check(&format!("outhaul.renew({ids}, {tokens}, '60 s')"), 1_500, 12_000).await;
    for history in ["none", "row", "payload"] {
        c.check(&format!("outhaul.complete({ids}, {tokens}, {ones}, '{history}')"), 2_000, 25_000).await;
    }
    for verdict in ["retry", "snooze", "release", "dead_letter", "cancel"] {
        let call = format!(
            "outhaul.fail({ids}, {tokens}, {ones}, {}, {zeros}, {}, {}, {})",
            words(verdict),
            words("unknown"),
            words("code"),
            words("summary")
        );
        c.check(&call, 2_500, 40_000).await;
    }
    let stale = format!("outhaul.complete({ids}, {ids}, {ones})");
    assert_eq!(c.check(&stale, 1_500, 40_000).await.rows, 500, "all lost");
    let lease = &leases[0];
    c.check(&format!("outhaul.complete_in('{}', '{}', 1)", lease.id, lease.token), 10, 1_500).await;
    c.check(&format!("outhaul.snooze('{}', '{}', 1, '1 s')", lease.id, lease.token), 10, 1_500).await;
    c.check("outhaul.expired('q0', 500)", 21_000 * 3, 70_000).await;
    let at_floor = "'{1,0,-1}', '{0,0,0}', array[now(), now(), now()], '{null,null,null}'";
    c.client
        .execute(
            "update outhaul.jobs set lease_until = now() - interval '1 s' where lease_until > '-infinity'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(cost(c.client, &format!("outhaul.expired('q0', 500, {at_floor})")).await.rows, 500);
}

/// New keys, keys in use, cancellations.
async fn producers_are_bounded(c: &mut Bounds<'_>) {
    c.check("outhaul.enqueue('q1', 't')", 10, 600).await;
    c.check("outhaul.enqueue('q1', 't', idempotency_key => 'new')", 10, 600).await;
    c.check("outhaul.enqueue('q1', 't', idempotency_key => 'k500000')", 10, 600).await;
    let many = |key: &str| {
        format!(
            "outhaul.enqueue_many('q1', 't', array(select '{{}}' from generate_series(1, 200)), array(select gen_random_uuid() from generate_series(1, 200)), \
             array(select {key} from generate_series(1, 200) n))"
        )
    };
    c.check(&many("'new' || n"), 1_000, 10_000).await;
    c.check(&many("'k' || n * 50"), 3_000, 15_000).await;
    let waiting = "'00000000-0000-0000-0000-000000000007'::uuid";
    c.check(&format!("outhaul.cancel({waiting})"), 10, 1_500).await;
    c.check("outhaul.cancel(lpad(to_hex(500000), 32, '0')::uuid)", 10, 1_500).await;
    c.check("outhaul.cancel('f0000000-0000-0000-0000-000000000007'::uuid)", 10, 1_500).await;
    c.check("outhaul.cancel('eeeeeeee-0000-0000-0000-000000000007'::uuid)", 10, 1_500).await;
}

/// Pages of dead letters, one of them discarded, a key cancelled, and the steps of operations.
async fn repairs_are_bounded(c: &mut Bounds<'_>) {
    for filter in ["{}", r#"{"queue": "q1"}"#, r#"{"job_type": "t", "class": "unknown"}"#, r#"{"code": ""}"#]
    {
        assert_eq!(
            c.check(&format!("outhaul.show_dead('{filter}')"), 5_000, 8_000).await.rows,
            50,
            "{filter}"
        );
    }
    let dead = "'d0000000-0000-0000-0000-000000000007'::uuid";
    c.check(&format!("outhaul.operator_discard({dead}, 'r')"), 20, 1_500).await;
    c.check("outhaul.cancel_key('t', 'k500000')", 20, 1_500).await;
    c.check("outhaul.cancel_key('t', 'no such key')", 20, 1_500).await;
    for (name, kind) in [("replay", "replay"), ("discard", "discard"), ("cancel", "cancel")] {
        let make = format!(
            "select outhaul.operation_create('{name}', '{kind}', '{{\"queue\": \"q1\"}}', 10000, 'r'), outhaul.operation_switch('{name}', 'start')"
        );
        c.client.execute(&make, &[]).await.unwrap();
        let due = "update outhaul.operations set due_at = clock_timestamp() - interval '1 second'";
        c.client.execute(due, &[]).await.unwrap();
        let step = c.check(&format!("outhaul.operation_step('{name}')"), 8_000, 90_000).await;
        assert_eq!(step.rows, 1);
    }
    c.client.execute("delete from outhaul.operations", &[]).await.unwrap();
    c.check("outhaul.operation_step()", 10, 600).await;
}

/// One job, pages from the start and from the middle, counts up to a cap.
async fn people_are_bounded(c: &mut Bounds<'_>) {
    let waiting = "'00000000-0000-0000-0000-000000000007'::uuid";
    for id in [
        waiting,
        "'f0000000-0000-0000-0000-000000000007'::uuid",
        "'d0000000-0000-0000-0000-000000000007'::uuid",
        "'eeeeeeee-0000-0000-0000-000000000007'::uuid",
    ] {
        c.check(&format!("outhaul.show_job({id})"), 20, 1_500).await;
        c.check(&format!("outhaul.show_payload({id})"), 20, 1_500).await;
        c.check(&format!("outhaul.show_attempts({id})"), 20, 1_500).await;
        c.check(&format!("outhaul.operator_retry({id})"), 20, 1_500).await;
        c.check(&format!("outhaul.operator_cancel({id})"), 20, 1_500).await;
    }
    assert_eq!(c.check("outhaul.show_jobs(n => 50)", 1_000, 2_000).await.rows, 50);
    let middle = "outhaul.show_jobs(before => lpad(to_hex(500000), 32, '0')::uuid, n => 50)";
    assert_eq!(c.check(middle, 1_000, 2_000).await.rows, 50);
    // And those that every installation has settings of.
    assert_eq!(c.check("outhaul.show_queues(100)", 27 * 1_500, 60_000).await.rows, 20 + 7);
    c.check("outhaul.remove_expired(100)", 300, 2_000).await;
}

#[tokio::test]
async fn due_jobs_are_found_among_many_for_later_and_a_million_finished() {
    let mut db = Db::new().await;
    freeze_statistics(&db).await;
    plan_on_empty_tables(&db.client).await;
    fill(
        &db,
        "insert into outhaul.jobs_finished (created_at, started_at, id, attempts, claim_no, max_attempts, priority, status, queue, job_type) \
         select now(), now(), ('f' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1, 10, 0, 'completed', 'q1', 't' from generate_series(1, 1000000) n; \
         insert into outhaul.jobs (id, queue, job_type, run_at, created_at) \
         select lpad(to_hex(n), 32, '0')::uuid, 'q1', 't', now() + case when n % 201 = 0 then -n * interval '1 ms' else interval '1 h' + n * interval '1 s' end, now() from generate_series(1, 201000) n",
    )
    .await;
    let mut c = Bounds { client: &mut db.client, broken: Vec::new() };
    let all = c.check("outhaul.claim('q1', 1000, gen_random_uuid(), '60 s')", 5_000, 30_000).await;
    assert_eq!(all.rows, 1_000);
    let behind = "outhaul.claim('q1', 1000, gen_random_uuid(), '60 s', '{0}', '{0}', '{null}', '{1000}')";
    c.check(behind, 1_000, 3_000).await;
    c.check("outhaul.next_due('q1')", 10, 600).await;
    assert_eq!(claim(&*c.client, "q1", 1_000).await.len(), 1_000);
    assert_eq!(
        c.check("outhaul.claim('q1', 1000, gen_random_uuid(), '60 s')", 2_000, 4_000).await.rows,
        0,
        "nothing else is due"
    );
    assert_eq!(c.check("outhaul.show_jobs(n => 50)", 1_000, 2_000).await.rows, 50);
    c.hold();
}
