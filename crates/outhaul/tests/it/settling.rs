//! What the settling functions leave behind, one report at a time. Reports that come late are in `fencing`.

use outhaul::Error;
use uuid::Uuid;

use crate::calls::{Lease, claim_one, complete, fail, renew};
use crate::doors::{Door, Offer};
use crate::support::{Db, listen};

async fn leased(db: &Db, queue: &str) -> Lease {
    let sql = "select outhaul.enqueue($1, 't', '{\"n\": 1}', max_attempts => 5, priority => 3, timeout => '7 s', \
        traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', organization_id => '00000000-0000-0000-0000-00000000000f')";
    db.client.execute(sql, &[&queue]).await.unwrap();
    claim_one(&db.client, queue).await
}

async fn holds(db: &Db, what: &str, id: Uuid) {
    let sql = format!("select count(*) from ({what}) x");
    let n: i64 =
        db.client.query_one(&sql, &[&id]).await.unwrap_or_else(|error| panic!("{what}: {error:?}")).get(0);
    assert_eq!(n, 1, "{what}");
}

/// What a row of a live job, and the row that is kept of it, have in common.
const KEPT: &str =
    "created_at, id, organization_id, attempts, claim_no, max_attempts, priority, queue, job_type";

async fn as_live(db: &Db, id: Uuid) -> String {
    let sql = format!("select (locked_at, {KEPT})::text from outhaul.jobs where id = $1");
    db.client.query_one(&sql, &[&id]).await.unwrap().get(0)
}

async fn as_finished(db: &Db, id: Uuid) -> String {
    let sql = format!("select (started_at, {KEPT})::text from outhaul.jobs_finished where id = $1");
    db.client.query_one(&sql, &[&id]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_completion_keeps_what_the_queue_asks_for() {
    let db = Db::new().await;
    for (history, rows, payload) in [("none", 0, None), ("row", 1, None), ("payload", 1, Some(r#"{"n": 1}"#))]
    {
        let lease = leased(&db, history).await;
        let before = as_live(&db, lease.id).await;
        assert_eq!(complete(&db.client, &lease, history).await, "completed");
        let sql = "select payload::text, status::text, claim_no, attempts, error_code is null and started_at >= created_at \
            and finished_at >= started_at from outhaul.jobs_finished where id = $1";
        let finished = db.client.query(sql, &[&lease.id]).await.unwrap();
        assert_eq!(finished.len(), rows, "{history}");
        for row in finished {
            assert_eq!(row.get::<_, Option<&str>>(0), payload);
            assert_eq!(
                (row.get::<_, &str>(1), row.get::<_, i32>(2), row.get::<_, i32>(3)),
                ("completed", 1, 1)
            );
            assert!(row.get::<_, bool>(4));
            assert_eq!(as_finished(&db, lease.id).await, before);
        }
        assert_eq!(db.count("select count(*) from outhaul.jobs").await, 0);
        // The same report once more, its answer having been lost: done, where there is something left to tell it by.
        assert_eq!(
            complete(&db.client, &lease, history).await,
            if history == "none" { "lost" } else { "done" }
        );
    }
}

#[tokio::test]
async fn a_claim_tells_what_its_queue_keeps() {
    let db = Db::new().await;
    let operator = db.operator().await;
    for history in ["none", "row", "payload"] {
        operator.history("q", history).await.unwrap();
        let lease = leased(&db, "q").await;
        assert_eq!(lease.history, history);
        assert_eq!(complete(&db.client, &lease, &lease.history).await, "completed");
    }
    let error = operator.history("q", "everything").await.unwrap_err();
    assert_eq!((error.code(), error.field()), ("invalid_input", Some("history")));
}

#[tokio::test]
async fn each_verdict_leaves_its_job_where_it_says() {
    let db = Db::new().await;
    let attempt = |outcome: &str| {
        format!(
            "select from outhaul.job_attempts where job_id = $1 and claim_no = 1 and attempt = 1 and outcome = '{outcome}' \
            and worker_id = '00000000-0000-0000-0000-0000000000aa' and started_at <= ended_at and error_class = 'transient' \
            and error_code = 'http_503' and error_summary = 'the service was away'"
        )
    };
    let live = |status: &str, attempts: i32, message: bool| {
        let message = if message {
            "last_error_code = 'http_503' and last_error_summary = 'the service was away'"
        } else {
            "last_error_code is null"
        };
        format!(
            "select from outhaul.jobs where id = $1 and status = '{status}' and attempts = {attempts} and claim_no = 1 \
            and lease_until = '-infinity' and locked_at = '-infinity' and lease_token = '00000000-0000-0000-0000-000000000000' \
            and locked_by = '00000000-0000-0000-0000-000000000000' and {message}"
        )
    };
    for (verdict, outcome, status, attempts, message, delay) in [
        ("retry", "retry", "retrying", 1, true, 60_000),
        ("snooze", "snoozed", "pending", 0, true, 60_000),
        ("release", "released", "pending", 0, false, 0),
    ] {
        let lease = leased(&db, verdict).await;
        assert_eq!(fail(&db.client, &lease, verdict, delay).await, "settled");
        holds(&db, &attempt(outcome), lease.id).await;
        holds(&db, &live(status, attempts, message), lease.id).await;
        let due = format!(
            "select from outhaul.jobs where id = $1 and run_at - {delay} * interval '1 ms' \
            between clock_timestamp() - interval '1 min' and clock_timestamp()"
        );
        holds(&db, &due, lease.id).await;
    }
    let lease = leased(&db, "dead").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    holds(&db, &attempt("dead_letter"), lease.id).await;
    holds(&db, "select from outhaul.jobs_dead where id = $1 and queue = 'dead' and job_type = 't' and payload = '{\"n\": 1}' and attempts = 1 \
        and claim_no = 1 and max_attempts = 5 and priority = 3 and timeout = '7 s' and traceparent is not null \
        and organization_id = '00000000-0000-0000-0000-00000000000f' and locked_by = '00000000-0000-0000-0000-0000000000aa' \
        and last_error_class = 'transient' and last_error_code = 'http_503' and last_error_summary = 'the service was away'", lease.id).await;
    let lease = leased(&db, "cancelled").await;
    let before = as_live(&db, lease.id).await;
    assert_eq!(fail(&db.client, &lease, "cancel", 0).await, "settled");
    assert_eq!(as_finished(&db, lease.id).await, before);
    holds(&db, &attempt("cancelled"), lease.id).await;
    holds(&db, "select from outhaul.jobs_finished where id = $1 and status = 'cancelled' and error_code = 'http_503'", lease.id).await;
    assert_eq!(db.count("select count(*) from outhaul.jobs where queue in ('dead', 'cancelled')").await, 0);
    // Every one of these reports a second time: it was done, and nothing changes.
    assert_eq!(fail(&db.client, &lease, "retry", 0).await, "done");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 5);
}

#[tokio::test]
async fn each_job_of_a_batch_gets_its_own_verdict() {
    let db = Db::new().await;
    let mut leases = Vec::new();
    for n in 0..4 {
        leases.push(leased(&db, &format!("q{n}")).await);
    }
    leases.sort_by_key(|lease| lease.id);
    let ids: Vec<Uuid> = leases.iter().map(|lease| lease.id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|lease| lease.token).collect();
    let sql = "select * from outhaul.fail($1, $2, '{1,1,1,1}', '{retry,dead_letter,cancel,snooze}', '{60000,null,null,7200000}', \
        '{transient,permanent,revoked,null}', '{code_0,code_1,code_2,code_3}', '{words 0,words 1,words 2,words 3}')";
    assert!(db.client.query(sql, &[&ids, &tokens]).await.unwrap().is_empty());
    for (n, status) in ["retrying", "dead_letter", "cancelled", "pending"].into_iter().enumerate() {
        assert_eq!(db.status(ids[n]).await, status);
        let class = ["transient", "permanent", "revoked", "unknown"][n];
        holds(&db, &format!("select from outhaul.job_attempts where job_id = $1 and error_class = '{class}' and error_code = 'code_{n}' and error_summary = 'words {n}'"), ids[n]).await;
    }
    let due = "select from outhaul.jobs where id = $1 and run_at - clock_timestamp() between";
    holds(&db, &format!("{due} interval '1 s' and interval '1 min'"), ids[0]).await;
    holds(&db, &format!("{due} interval '1 h' and interval '2 h'"), ids[3]).await;
    holds(&db, "select from outhaul.jobs_dead where id = $1 and last_error_code = 'code_1'", ids[1]).await;
}

#[tokio::test]
async fn words_of_a_failure_are_cut_and_a_missing_delay_means_now() {
    let db = Db::new().await;
    let lease = leased(&db, "q").await;
    let sql = "select * from outhaul.fail(array[$1::uuid], array[$2::uuid], array[1], '{retry}', '{null}', '{unknown}', \
        array[repeat('ü', 65)], array[repeat('€', 1001)])";
    assert!(db.client.query(sql, &[&lease.id, &lease.token]).await.unwrap().is_empty());
    let cut = "error_code = repeat('ü', 64) and X.error_summary = repeat('€', 1000)";
    holds(
        &db,
        &format!("select from outhaul.job_attempts x where job_id = $1 and x.{}", cut.replace('X', "x")),
        lease.id,
    )
    .await;
    holds(
        &db,
        &format!(
            "select from outhaul.jobs x where id = $1 and run_at <= clock_timestamp() and x.last_{}",
            cut.replace("X.", "x.last_")
        ),
        lease.id,
    )
    .await;
}

#[tokio::test]
async fn a_snooze_or_release_gives_back_one_attempt_and_a_release_keeps_the_words_of_the_last_failure() {
    let db = Db::new().await;
    for verdict in ["snooze", "release"] {
        let lease = leased(&db, verdict).await;
        assert_eq!(fail(&db.client, &lease, "retry", 0).await, "settled");
        let lease = claim_one(&db.client, verdict).await;
        assert_eq!(lease.attempts, 2);
        let sql = "select * from outhaul.fail(array[$1::uuid], array[$2::uuid], array[2], array[$3], '{0}', '{unknown}', '{later}', '{not now}')";
        assert!(db.client.query(sql, &[&lease.id, &lease.token, &verdict]).await.unwrap().is_empty());
        let words = match verdict {
            "release" => "last_error_code = 'http_503' and last_error_summary = 'the service was away'",
            _ => "last_error_code = 'later' and last_error_summary = 'not now'",
        };
        holds(
            &db,
            &format!("select from outhaul.jobs where id = $1 and attempts = 1 and claim_no = 2 and {words}"),
            lease.id,
        )
        .await;
    }
}

#[tokio::test]
async fn a_release_wakes_and_no_other_verdict_does() {
    let db = Db::new().await;
    let mut leases = Vec::new();
    for verdict in ["retry", "snooze", "dead_letter", "cancel", "release"] {
        leases.push((verdict, leased(&db, verdict).await));
    }
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    for (verdict, lease) in leases {
        db.client.execute("select setval('outhaul.wake_gate', 1)", &[]).await.unwrap();
        assert_eq!(fail(&db.client, &lease, verdict, 0).await, "settled");
        db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
        let expected = if verdict == "release" { "" } else { "last" };
        assert_eq!(notified.recv().await.unwrap().payload(), expected, "{verdict}");
    }
}

#[tokio::test]
async fn complete_in_keeps_what_it_is_told_and_waits_for_a_lock_as_long_as_its_caller_would() {
    let db = Db::new().await;
    let sql = "select outhaul.complete_in($1, $2, 1, $3)";
    for (history, rows, payloads) in [("none", 0, 0), ("row", 1, 0), ("payload", 1, 1)] {
        let lease = leased(&db, history).await;
        db.client.execute(sql, &[&lease.id, &lease.token, &history]).await.unwrap();
        let kept = "select count(*), count(payload) from outhaul.jobs_finished where id = $1";
        let kept = db.client.query_one(kept, &[&lease.id]).await.unwrap();
        assert_eq!((kept.get::<_, i64>(0), kept.get::<_, i64>(1)), (rows, payloads), "{history}");
    }
    let lease = leased(&db, "locked").await;
    let (mut holder, caller) = (db.connect().await, db.connect().await);
    let tx = holder.transaction().await.unwrap();
    tx.execute("select from outhaul.jobs where id = $1 for update", &[&lease.id]).await.unwrap();
    let waiting = tokio::spawn(async move { caller.execute(sql, &[&lease.id, &lease.token, &"row"]).await });
    // Longer than the functions that a worker calls for many jobs would wait.
    let waits = "select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
        and clock_timestamp() - query_start > interval '400 ms'";
    db.until("it waits", waits).await;
    tx.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(db.status(lease.id).await, "completed");
}

#[tokio::test]
async fn verdicts_and_delays_that_are_none_change_nothing() {
    let db = Db::new().await;
    let lease = leased(&db, "q").await;
    for (verdicts, delays) in [
        ("array['retry ']", "array[0]"),
        ("array['complete']", "array[0]"),
        ("array['']", "array[0]"),
        ("array[null]", "array[0]"),
        ("'{}'", "array[0]"),
        ("array['retry']", "array[-1]"),
        ("array['retry']", "array[31536000001]"),
        ("array['retry']", "array[9223372036854775807]"),
        ("array['retry', 'no such verdict']", "array[0, 0]"),
    ] {
        let sql = format!(
            "select * from outhaul.fail(array[$1::uuid], array[$2::uuid], array[1], {verdicts}::text[], {delays}::bigint[], '{{}}', '{{}}', '{{}}')"
        );
        let error = Error::from(db.client.query(&sql, &[&lease.id, &lease.token]).await.expect_err(&sql));
        assert_eq!((error.code(), error.field()), ("invalid_input", Some("verdicts")), "{sql}");
    }
    assert_eq!(db.status(lease.id).await, "leased");
    assert_eq!(
        fail(&db.client, &lease, "retry", 31_536_000_000).await,
        "settled",
        "a year is the longest wait"
    );
}

#[tokio::test]
async fn a_snooze_and_a_renewal_name_the_lease() {
    let db = Db::new().await;
    let lease = leased(&db, "q").await;
    let snooze = |token: Uuid| {
        let client = &db.client;
        async move {
            let sql = "select outhaul.snooze($1, $2, 1, '90 s')";
            client.query_one(sql, &[&lease.id, &token]).await.unwrap().get::<_, String>(0)
        }
    };
    assert_eq!(crate::calls::renew(&db.client, lease.id, Uuid::now_v7()).await, "lost");
    assert_eq!(crate::calls::renew(&db.client, lease.id, lease.token).await, "renewed");
    holds(
        &db,
        "select from outhaul.jobs where id = $1 and lease_until > clock_timestamp() + interval '59 min'",
        lease.id,
    )
    .await;
    assert_eq!(snooze(Uuid::now_v7()).await, "lost");
    assert_eq!(snooze(lease.token).await, "snoozed");
    holds(&db, "select from outhaul.jobs where id = $1 and attempts = 0 and run_at > clock_timestamp() + interval '80 s'", lease.id).await;
    assert_eq!(snooze(lease.token).await, "done");
    assert_eq!(crate::calls::renew(&db.client, lease.id, lease.token).await, "lost");
}

#[tokio::test]
async fn a_cancel_of_a_running_job_is_kept_as_an_attempt_and_its_late_report_is_told_so() {
    let db = Db::new().await;
    let lease = leased(&db, "q").await;
    let cancelled: String =
        db.client.query_one("select outhaul.cancel($1, 'order_void')", &[&lease.id]).await.unwrap().get(0);
    assert_eq!(cancelled, "cancelled");
    holds(&db, "select from outhaul.job_attempts where job_id = $1 and outcome = 'cancelled' and error_class = 'revoked' and error_code = 'order_void'", lease.id).await;
    holds(&db, "select from outhaul.jobs_finished where id = $1 and status = 'cancelled' and error_code = 'order_void'", lease.id).await;
    for _ in 0..2 {
        assert_eq!(complete(&db.client, &lease, "row").await, "cancelled");
        for verdict in ["retry", "dead_letter", "snooze", "release", "cancel"] {
            assert_eq!(fail(&db.client, &lease, verdict, 0).await, "cancelled", "{verdict}");
        }
    }
    assert_eq!(db.status(lease.id).await, "cancelled");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 1);
}

#[tokio::test]
async fn all_jobs_has_every_job_once_in_every_state() {
    let db = Db::new().await;
    for (queue, verdict) in
        [("a", "retry"), ("b", "dead_letter"), ("c", "cancel"), ("d", "complete"), ("e", "")]
    {
        let lease = leased(&db, queue).await;
        match verdict {
            "complete" => assert_eq!(complete(&db.client, &lease, "payload").await, "completed"),
            "" => {}
            _ => assert_eq!(fail(&db.client, &lease, verdict, 60_000).await, "settled"),
        }
    }
    db.client.execute("select outhaul.enqueue('f', 't')", &[]).await.unwrap();
    let sql = "select string_agg(queue || ' ' || status || ' ' || (completed_at is not null) || ' ' || (payload is not null) || ' ' || (locked_by is not null), ', ' order by queue) \
        from outhaul.all_jobs";
    let all: String = db.client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(
        all,
        "a retrying false true false, b dead_letter true true true, c cancelled true false false, d completed true true false, \
        e leased false true true, f pending false true false"
    );
}

/// A renewal makes a new version of the row. A report whose snapshot is older must settle that version, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_crosses_a_renewal_settles_the_job_or_says_that_it_did_not() {
    let db = Db::new().await;
    let tokens: Vec<Uuid> = vec![Uuid::nil(); 200_000];
    let nobody: Vec<Uuid> = (0..200_000).map(Uuid::from_u128).collect();
    for (round, report) in ["fail", "complete", "fail", "complete"].into_iter().enumerate() {
        let lease = leased(&db, &format!("q{round}")).await;
        // The job stands last in a long batch, so that many renewals fall between its start and the job's turn.
        let ids: Vec<Uuid> = nobody.iter().copied().chain([lease.id]).collect();
        let tokens: Vec<Uuid> = tokens.iter().copied().chain([lease.token]).collect();
        let client = db.connect().await;
        let reporting = tokio::spawn(async move {
            let ones = vec![1i32; ids.len()];
            let sql = match report {
                "complete" => "select state from outhaul.complete($1, $2, $3) where id = $4",
                _ => {
                    "select state from outhaul.fail($1::uuid[], $2, $3, array_fill('retry'::text, array[cardinality($1::uuid[])]), \
                    array_fill(3600000::bigint, array[cardinality($1::uuid[])]), '{}', '{}', '{}') where id = $4"
                }
            };
            let state = client.query_opt(sql, &[&ids, &tokens, &ones, &lease.id]).await.unwrap();
            state.map(|row| row.get::<_, String>(0))
        });
        let mut renewals = 0;
        while !reporting.is_finished() {
            renewals += i32::from(crate::calls::renew(&db.client, lease.id, lease.token).await == "renewed");
        }
        let (state, status) = (reporting.await.unwrap(), db.status(lease.id).await);
        let settled = if report == "complete" { "completed" } else { "retrying" };
        match state.as_deref() {
            None => assert_eq!(
                status, settled,
                "{report} said that it had settled the job, after {renewals} renewals"
            ),
            Some("locked") => assert_eq!(status, "leased", "{report}"),
            Some(state) => panic!("{report}: {state}, after {renewals} renewals"),
        }
    }
}

#[tokio::test]
async fn the_id_of_a_dead_letter_can_die_again_and_the_later_death_stands_in_all_its_columns() {
    let mut db = Db::new().await;
    let again = Uuid::from_u128(0xd1);
    let first = Offer {
        id: again,
        queue: "first".into(),
        job_type: "test.first".into(),
        payload: "1".into(),
        ..Offer::keyed("first")
    };
    let second = Offer {
        id: again,
        queue: "second".into(),
        job_type: "test.second".into(),
        payload: "2".into(),
        organization: Some(Uuid::now_v7()),
        priority: 5,
        max_attempts: 3,
        timeout: Some(7_000),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..Offer::keyed("second")
    };
    // The same under an id of its own, to compare with.
    let twin = Offer { queue: "twin".into(), key: Some("twin".into()), ..second.again() };
    for (offer, verdict) in [
        (&first, "dead_letter"),
        (&second, "retry"),
        (&second, "dead_letter"),
        (&twin, "retry"),
        (&twin, "dead_letter"),
    ] {
        let live = format!("select count(*) from outhaul.jobs where id = '{}'", offer.id);
        if db.count(&live).await == 0 {
            offer.at(Door::Function, &mut db.client).await.unwrap();
        }
        let lease = claim_one(&db.client, &offer.queue).await;
        let sql = "select * from outhaul.fail(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4], '{0}', array[$5], array[$5], array[$5])";
        let words = &offer.payload;
        db.client.query(sql, &[&lease.id, &lease.token, &lease.claim_no, &verdict, words]).await.unwrap();
        if offer.job_type == "test.first" {
            let old = "update outhaul.jobs_dead set died_at = died_at - interval '9 days', created_at = created_at - interval '9 days', \
                run_at = run_at - interval '9 days', share = 77, locked_by = gen_random_uuid(), ordering_key = 'o', limit_key = 'l', \
                rate_key = 'r', source_event_id = gen_random_uuid()";
            db.client.execute(old, &[]).await.unwrap();
        }
    }
    let row = "select (to_jsonb(x) - array['id', 'queue', 'idempotency_key', 'died_at', 'created_at', 'run_at'])::text from outhaul.jobs_dead x where id = $1";
    let row_of = async |id: Uuid| -> String { db.client.query_one(row, &[&id]).await.unwrap().get(0) };
    assert_eq!(row_of(again).await, row_of(twin.id).await);
    holds(
        &db,
        "select from outhaul.jobs_dead where id = $1 and queue = 'second' and idempotency_key = 'second' \
        and least(died_at, created_at, run_at) > now() - interval '1 day'",
        again,
    )
    .await;
}

#[tokio::test]
async fn a_renewal_is_renewed_locked_or_lost() {
    let mut db = Db::new().await;
    let held = leased(&db, "held").await;
    assert_eq!(renew(&db.client, held.id, held.token).await, "renewed");
    assert_eq!(renew(&db.client, held.id, Uuid::now_v7()).await, "lost", "another claim's token");
    let waiting = "select outhaul.enqueue('waiting', 't')";
    let waiting: Uuid = db.client.query_one(waiting, &[]).await.unwrap().get(0);
    assert_eq!(
        renew(&db.client, waiting, Uuid::nil()).await,
        "lost",
        "nobody holds it, and its token is nil"
    );
    let other = db.connect().await;
    let tx = db.client.transaction().await.unwrap();
    tx.query("select from outhaul.jobs where id = $1 for update", &[&held.id]).await.unwrap();
    // It would wait for ever if it waited.
    assert_eq!(renew(&other, held.id, held.token).await, "locked");
    assert_eq!(renew(&other, held.id, Uuid::now_v7()).await, "lost");
    tx.rollback().await.unwrap();
    assert_eq!(renew(&other, held.id, held.token).await, "renewed");
}

#[tokio::test]
async fn only_leases_of_the_queue_that_have_run_out_are_swept_wherever_the_floor_is() {
    let db = Db::new().await;
    let over = leased(&db, "q").await;
    db.client.execute("update outhaul.jobs set lease_until = now() - interval '1 s'", &[]).await.unwrap();
    let running = leased(&db, "q").await;
    db.client.query("select outhaul.enqueue('q', 't', priority => 3)", &[]).await.unwrap();
    leased(&db, "other").await;
    let floors = ["", ", '{3,0}', '{0,0}', array[null, null]::timestamptz[], '{-60000,-60000}'"];
    for floors in floors {
        let sql = format!("select id, claim_no from outhaul.expired('q', 10{floors})");
        let rows = db.client.query(&sql, &[]).await.unwrap();
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(ids, [over.id], "{floors}: not {} that runs", running.id);
    }
}
