//! Operator actions: each leaves one row of a chain in which nothing can be changed unseen.

use outhaul::{JobId, Retried};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{claim_one, fail};
use crate::doors::{Door, Offer};
use crate::support::{Db, PATIENCE, listen};

async fn job(db: &mut Db, queue: &str) -> JobId {
    let offer = Offer { queue: queue.into(), ..Offer::default() };
    JobId(offer.at(Door::Function, &mut db.client).await.unwrap())
}

#[tokio::test]
async fn every_action_that_changes_something_appends_exactly_one_row() {
    let mut db = Db::new().await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    let (waiting, cancelled, dead, running) =
        (job(&mut db, "a").await, job(&mut db, "b").await, job(&mut db, "c").await, job(&mut db, "d").await);
    let lease = claim_one(&db.client, "c").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    claim_one(&db.client, "d").await;

    let mut expected: Vec<(&str, String, &str, Option<&str>)> = Vec::new();
    assert!(operator.pause("a", Some("inventory")).await.unwrap());
    expected.push(("queues.pause", "a".into(), "{}", Some("inventory")));
    assert!(!operator.pause("a", Some("again")).await.unwrap(), "paused already: no row");
    assert!(operator.resume("a", None).await.unwrap());
    expected.push(("queues.resume", "a".into(), "{}", None));
    assert!(!operator.resume("a", None).await.unwrap());
    assert!(!operator.resume("never heard of", None).await.is_ok_and(|resumed| resumed));
    operator.history("a", "none").await.unwrap();
    expected.push(("queues.history", "a".into(), r#"{"history":"none"}"#, None));
    assert_eq!(operator.retry(waiting, Some("now")).await.unwrap(), Retried::Due);
    expected.push(("jobs.retry", waiting.to_string(), r#"{"outcome":"due"}"#, Some("now")));
    assert_eq!(operator.cancel(cancelled, Some("void")).await.unwrap(), outhaul::Cancelled::Cancelled);
    expected.push(("jobs.cancel", cancelled.to_string(), "{}", Some("void")));
    assert_eq!(operator.retry(dead, None).await.unwrap(), Retried::Replayed);
    expected.push(("jobs.retry", dead.to_string(), r#"{"outcome":"replayed"}"#, None));
    // What changes nothing leaves no row.
    assert_eq!(operator.cancel(cancelled, None).await.unwrap(), outhaul::Cancelled::Ended);
    assert_eq!(operator.cancel(JobId::new(), None).await.unwrap(), outhaul::Cancelled::NotFound);
    assert_eq!(operator.retry(cancelled, None).await.unwrap(), Retried::Ended);
    assert_eq!(operator.retry(running, None).await.unwrap(), Retried::Leased);
    assert_eq!(operator.retry(JobId::new(), None).await.unwrap(), Retried::NotFound);

    let mut rows = observer.audit(None, 100).await.unwrap();
    rows.reverse();
    let user: String = db.client.query_one("select session_user::text", &[]).await.unwrap().get(0);
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for (n, (row, (action, object, details, reason))) in rows.iter().zip(&expected).enumerate() {
        assert_eq!(
            (row.seq, &*row.action, &row.object, row.reason.as_deref()),
            (n as i64 + 1, *action, object, *reason)
        );
        assert_eq!((row.details.to_string(), &row.actor), ((*details).to_owned(), &user));
    }
    assert!(observer.verify_audit().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_action_and_its_row_are_rolled_back_together() {
    let mut db = Db::new().await;
    let tx = db.client.transaction().await.unwrap();
    tx.execute("select outhaul.operator_pause('q', true)", &[]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.audit_log").await, 0);
    db.operator().await.pause("q", None).await.unwrap();
    assert_eq!(db.count("select max(seq) from outhaul.audit_log").await, 1, "and no number is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_at_the_same_time_form_one_chain() {
    let db = Db::new().await;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let operator = db.operator().await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                operator.pause(&format!("q{n}"), None).await.unwrap();
                operator.resume(&format!("q{n}"), None).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.count("select count(*) from outhaul.audit_log").await, 160);
    assert_eq!(db.count("select max(seq) from outhaul.audit_log").await, 160);
    assert!(db.observer().await.verify_audit().await.unwrap().is_empty());
}

/// What the check finds after a change, which is undone again.
async fn found_after(client: &mut Client, tampering: &str) -> Vec<(i64, String)> {
    let tx = client.transaction().await.unwrap();
    tx.batch_execute(tampering).await.unwrap_or_else(|error| panic!("{tampering}: {error:?}"));
    let rows = tx.query("select seq, finding from outhaul.audit_verify()", &[]).await.unwrap();
    tx.rollback().await.unwrap();
    let mut found: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(found.is_sorted_by_key(|(seq, _)| *seq), "from the first on");
    found.sort();
    found
}

#[tokio::test]
async fn every_kind_of_tampering_is_located() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    for n in 0..5 {
        operator.pause(&format!("q{n}"), Some("because")).await.unwrap();
        operator.history(&format!("q{n}"), "none").await.unwrap();
    }
    assert!(db.observer().await.verify_audit().await.unwrap().is_empty());
    let rehash = "update outhaul.audit_log set hash = outhaul.audit_hash(prev_hash, seq, at, actor, action, object, details, reason)";
    let copy = |seq: &str, of: i64| {
        format!(
            "insert into outhaul.audit_log select {seq}, at, actor, action, object, details, reason, prev_hash, hash from outhaul.audit_log where seq = {of}"
        )
    };
    let changed = "was changed";
    let cases: Vec<(String, Vec<(i64, &str)>)> = vec![
        ("update outhaul.audit_log set actor = 'somebody else' where seq = 4".into(), vec![(4, changed)]),
        ("update outhaul.audit_log set at = at + interval '1 us' where seq = 4".into(), vec![(4, changed)]),
        ("update outhaul.audit_log set action = 'queues.resume' where seq = 5".into(), vec![(5, changed)]),
        ("update outhaul.audit_log set object = 'q9' where seq = 5".into(), vec![(5, changed)]),
        ("update outhaul.audit_log set details = '{\"history\": \"row\"}' where seq = 4".into(), vec![(4, changed)]),
        ("update outhaul.audit_log set reason = null where seq = 1".into(), vec![(1, changed)]),
        ("update outhaul.audit_log set reason = '' where seq = 2".into(), vec![(2, changed)]),
        ("update outhaul.audit_log set reason = 'x' where seq = 10".into(), vec![(10, changed)]),
        // With a new hash the row itself fits, and the one behind it does not.
        (format!("update outhaul.audit_log set reason = 'x' where seq = 4; {rehash} where seq = 4"), vec![(5, "does not follow the row before it")]),
        (format!("update outhaul.audit_log set reason = 'x' where seq = 10; {rehash} where seq = 10"), vec![(10, "is not the row that the chain ended with")]),
        // Nor does it help to let the next row follow: its hash covers the one before it.
        (format!("update outhaul.audit_log set reason = 'x' where seq = 4; {rehash} where seq = 4; \
            update outhaul.audit_log set prev_hash = (select hash from outhaul.audit_log where seq = 4) where seq = 5"), vec![(5, changed)]),
        ("delete from outhaul.audit_log where seq = 6".into(), vec![(7, "rows are missing before it")]),
        ("delete from outhaul.audit_log where seq in (3, 7, 8)".into(), vec![(4, "rows are missing before it"), (9, "rows are missing before it")]),
        ("delete from outhaul.audit_log where seq <= 2".into(), vec![(3, "rows are missing before it")]),
        ("delete from outhaul.audit_log where seq = 10".into(), vec![(10, "rows are missing at the end")]),
        ("delete from outhaul.audit_log where seq > 4".into(), vec![(10, "rows are missing at the end")]),
        ("delete from outhaul.audit_log".into(), vec![(10, "rows are missing at the end")]),
        ("truncate outhaul.audit_log, outhaul.audit_head".into(), vec![(0, "the head of the chain is missing")]),
        ("delete from outhaul.audit_head".into(), vec![(10, "the head of the chain is missing")]),
        // Renumbered so that none seems to be missing.
        ("delete from outhaul.audit_log where seq = 6; update outhaul.audit_log set seq = seq - 1 where seq > 6".into(), vec![
            (6, "does not follow the row before it"), (7, changed), (8, changed), (9, changed), (10, "rows are missing at the end"),
        ]),
        // Inserted with a copy of a row that is right by itself.
        (format!("update outhaul.audit_log set seq = -seq where seq > 6; update outhaul.audit_log set seq = 1 - seq where seq < 0; {}", copy("7", 6)), vec![
            (7, "does not follow the row before it"), (8, changed), (9, changed), (10, changed), (10, "rows were added at the end"), (11, changed),
        ]),
        (format!("{}; update outhaul.audit_log set prev_hash = (select hash from outhaul.audit_log where seq = 10) where seq = 11; {rehash} where seq = 11", copy("11", 10)), vec![
            (10, "rows were added at the end"),
        ]),
        // Two rows that have changed places.
        ("update outhaul.audit_log set seq = case seq when 4 then -5 else -4 end where seq in (4, 5); update outhaul.audit_log set seq = -seq where seq < 0".into(), vec![
            (4, "does not follow the row before it"), (5, "does not follow the row before it"), (6, "does not follow the row before it"),
        ]),
    ];
    for (tampering, expected) in cases {
        let found = found_after(&mut db.client, &tampering).await;
        let mut expected: Vec<(i64, String)> =
            expected.into_iter().map(|(seq, finding)| (seq, finding.to_owned())).collect();
        expected.sort();
        assert_eq!(found, expected, "{tampering}");
    }
    assert!(db.observer().await.verify_audit().await.unwrap().is_empty(), "all of it was undone");
}

#[tokio::test]
async fn the_log_is_read_in_pages_from_the_newest_on() {
    let db = Db::new().await;
    let operator = db.operator().await;
    for n in 0..25 {
        operator.history(&format!("q{n}"), "row").await.unwrap();
    }
    let observer = db.observer().await;
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page = observer.audit(before, 10).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.seq);
        seen.extend(page.iter().map(|row| row.seq));
        // What happens meanwhile does not shift the pages.
        operator.history("meanwhile", "row").await.unwrap();
    }
    assert_eq!(seen, (1..=25).rev().collect::<Vec<i64>>());
}

/// Lets the next notification through, whatever was sent just before.
async fn open_the_gate(db: &Db) {
    db.client.batch_execute("select setval('outhaul.wake_gate', 1)").await.unwrap();
}

#[tokio::test]
async fn a_dead_letter_comes_back_as_it_was_but_for_its_attempts() {
    let mut db = Db::new().await;
    let offer = Offer {
        queue: "c".into(),
        payload: r#"{"n": 1}"#.into(),
        organization: Some(Uuid::now_v7()),
        priority: 5,
        max_attempts: 7,
        timeout: Some(7_000),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..Offer::keyed("k")
    };
    let id = JobId(offer.at(Door::Function, &mut db.client).await.unwrap());
    let kept = "select (to_jsonb(j) - array['status', 'attempts', 'claim_no', 'run_at', 'lease_until', 'lease_token', 'locked_at', \
        'locked_by', 'last_error_code', 'last_error_summary'])::text from outhaul.jobs j where id = $1";
    let before: String = db.client.query_one(kept, &[&id.0]).await.unwrap().get(0);
    let lease = claim_one(&db.client, "c").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    let (_listener, mut heard) = listen(&db.url(), "outhaul").await;
    open_the_gate(&db).await;
    let operator = db.operator().await;
    assert_eq!(operator.retry(id, None).await.unwrap(), Retried::Replayed);
    let after: String = db.client.query_one(kept, &[&id.0]).await.unwrap().get(0);
    assert_eq!(after, before);
    let words =
        "select last_error_code, last_error_summary, claim_no, attempts from outhaul.jobs where id = $1";
    let row = db.client.query_one(words, &[&id.0]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("http_503", "the service was away"));
    assert_eq!((row.get::<_, i32>(2), row.get::<_, i32>(3)), (1, 0));
    tokio::time::timeout(PATIENCE, heard.recv()).await.expect("a retry wakes");
    open_the_gate(&db).await;
    operator.pause("c", None).await.unwrap();
    tokio::time::timeout(PATIENCE, heard.recv()).await.expect("a pause wakes");
    open_the_gate(&db).await;
    operator.resume("c", None).await.unwrap();
    tokio::time::timeout(PATIENCE, heard.recv()).await.expect("a resume wakes");
}

#[tokio::test]
async fn a_chain_whose_beginning_was_removed_or_rewritten_does_not_hold() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    for queue in ["a", "b", "c"] {
        operator.pause(queue, None).await.unwrap();
    }
    let tx = db.client.transaction().await.unwrap();
    // The first row follows another, in a way that its own hash agrees with.
    let sql = "update outhaul.audit_log a set prev_hash = '\\x01', \
        hash = outhaul.audit_hash('\\x01', a.seq, a.at, a.actor, a.action, a.object, a.details, a.reason) where seq = 1";
    tx.execute(sql, &[]).await.unwrap();
    let first = tx.query("select seq, finding from outhaul.audit_verify(1)", &[]).await.unwrap();
    assert_eq!(first.len(), 1, "the most findings that were asked for");
    assert_eq!(
        (first[0].get::<_, i64>(0), first[0].get::<_, &str>(1)),
        (1, "does not follow the row before it")
    );
    tx.rollback().await.unwrap();
}
