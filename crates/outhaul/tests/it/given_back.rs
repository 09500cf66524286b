//! Events that an operator gave back to a subscription: each by itself, before what is new, once, and to nobody's cost.

use std::sync::{Arc, Mutex};

use outhaul::{EventContext, Failure, Hold, RecordedEvent, Start, Subscription};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Db, Running, connect, until};

/// A database with events in their places and a subscription `s` before them.
async fn outbox(events: i32, policy: &str) -> Db {
    let db = Db::new().await;
    let sql = format!(
        "select outhaul.publish('order.placed', 'order', gen_random_uuid(), '{{}}') from generate_series(1, {events}); \
         select outhaul.sequence(1000); select outhaul.subscribe('s', 'beginning', policy => '{policy}', max_attempts => 3)"
    );
    db.client.batch_execute(&sql).await.unwrap();
    db
}

/// What a claim has given out.
#[derive(Debug)]
struct Claim {
    id: Uuid,
    token: Uuid,
    claim_no: i32,
    attempts: i32,
    unparked: bool,
    positions: Vec<i64>,
}

async fn claim(db: &Db) -> Option<Claim> {
    let sql = "select subscription_id, lease_token, claim_no, attempts, unparked, position \
        from outhaul.claim_subscription('s', 10, gen_random_uuid(), '30 s')";
    let rows = db.client.query(sql, &[]).await.unwrap();
    let first = rows.first()?;
    Some(Claim {
        id: first.get(0),
        token: first.get(1),
        claim_no: first.get(2),
        attempts: first.get(3),
        unparked: first.get(4),
        positions: rows.iter().map(|row| row.get(5)).collect(),
    })
}

impl Claim {
    /// Ends it with a verdict on its first event.
    async fn fails(&self, db: &Db, verdict: &str, code: &str) {
        let sql = "select * from outhaul.hold(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4::text], '{3600000}', \
            '{permanent}', array[$5::text], '{it fails}', array[$6::bigint - 1], array[$6::bigint], array[$7::bool])";
        let rows = db
            .client
            .query(
                sql,
                &[&self.id, &self.token, &self.claim_no, &verdict, &code, &self.positions[0], &self.unparked],
            )
            .await
            .unwrap();
        assert!(rows.is_empty(), "the report changed something");
    }

    /// Ends it with all handled.
    async fn succeeds(&self, db: &Db) {
        let given_back = self.unparked.then_some(self.positions[0]);
        let sql = "select state from outhaul.checkpoint(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4::bigint], array[$5::bigint])";
        let through = if self.unparked { 0 } else { *self.positions.last().unwrap() };
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&self.id, &self.token, &self.claim_no, &through, &given_back];
        assert!(db.client.query(sql, &params).await.unwrap().is_empty(), "the report changed something");
        // An answer that is lost is asked for again.
        let again: String = db.client.query_one(sql, &params).await.unwrap().get(0);
        assert_eq!(again, "done");
    }
}

async fn skip(db: &Db, position: i64) -> Result<i64, tokio_postgres::Error> {
    let sql = "select outhaul.operator_subscription_skip('s', $1, 'nobody needs it')";
    db.client.query_one(sql, &[&position]).await.map(|row| row.get(0))
}

async fn unpark(db: &Db, position: i64) -> String {
    let sql = "select outhaul.operator_subscription_unpark('s', $1, 'it is mended')";
    db.client.query_one(sql, &[&position]).await.unwrap().get(0)
}

/// Makes what waits after a failure due, instead of waiting for it.
async fn due(db: &Db) {
    db.client.execute("update outhaul.subscriptions set due_at = '-infinity'", &[]).await.unwrap();
}

/// What stands aside: position, how, attempts, code, summary, and whether it was given back.
async fn aside(db: &Db) -> Vec<(i64, String, i32, Option<String>, Option<String>, bool)> {
    let sql = "select position, how, attempts, error_code, error_summary, unparked_at is not null \
        from outhaul.show_parked('s') order by position";
    let rows = db.client.query(sql, &[]).await.unwrap();
    rows.iter().map(|r| (r.get(0), r.get(1), r.get(2), r.get(3), r.get(4), r.get(5))).collect()
}

#[tokio::test]
async fn an_event_that_was_given_back_and_fails_again_can_be_skipped_and_no_other_is() {
    let db = outbox(4, "block").await;
    skip(&db, 1).await.unwrap();
    skip(&db, 2).await.unwrap();
    assert_eq!(unpark(&db, 2).await, "unparked");
    let at_it = claim(&db).await.unwrap();
    assert_eq!((at_it.unparked, &*at_it.positions), (true, &[2][..]));
    at_it.fails(&db, "retry", "gone").await;
    let shown = db.observer().await.subscription("s").await.unwrap().unwrap();
    assert_eq!((shown.holds, shown.blocked_position, shown.position), (Some(Hold::Blocked), Some(2), 2));

    let refused = skip(&db, 3).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "OH002");
    assert!(refused.as_db_error().unwrap().message().contains("at position 2, not 3"), "{refused:?}");
    assert_eq!(skip(&db, 2).await.unwrap(), 2, "the cursor stays");
    let reason = Some("nobody needs it".to_owned());
    assert_eq!(
        aside(&db).await,
        [
            (1, "skipped".into(), 0, None, reason.clone(), false),
            (2, "skipped".into(), 1, Some("gone".into()), reason, false)
        ]
    );
    let shown = db.observer().await.subscription("s").await.unwrap().unwrap();
    assert_eq!((shown.holds, shown.blocked_position, shown.attempts), (None, None, 0));
    assert_eq!((shown.stuck_code, shown.due_at), (None, None));
    let recorded =
        "select details::text from outhaul.audit_log where action = 'subs.skip' order by seq desc limit 1";
    let recorded: String = db.client.query_one(recorded, &[]).await.unwrap().get(0);
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded, json!({"position": 2, "given_back": true}));

    let next = claim(&db).await.unwrap();
    assert_eq!((next.unparked, next.attempts, &*next.positions), (false, 1, &[3, 4][..]));
}

#[tokio::test]
async fn an_event_given_back_that_has_not_been_tried_can_be_skipped_again_with_its_own_record() {
    let db = outbox(3, "park").await;
    let first = claim(&db).await.unwrap();
    first.fails(&db, "dead_letter", "broken").await;
    assert_eq!(unpark(&db, 1).await, "unparked");
    assert_eq!(skip(&db, 1).await.unwrap(), 1);
    let reason = Some("nobody needs it".to_owned());
    assert_eq!(aside(&db).await, [(1, "skipped".into(), 1, Some("broken".into()), reason, false)]);
}

#[tokio::test]
async fn what_the_cursor_waits_at_can_be_skipped_before_an_event_given_back_is_tried() {
    let db = outbox(3, "block").await;
    skip(&db, 1).await.unwrap();
    claim(&db).await.unwrap().fails(&db, "retry", "gone").await;
    unpark(&db, 1).await;
    assert_eq!(skip(&db, 2).await.unwrap(), 2, "it blocks, and was seen");
    let all = aside(&db).await;
    assert_eq!((all[0].5, &all[1].3), (true, &Some("gone".to_owned())));
    let next = claim(&db).await.unwrap();
    assert_eq!((next.unparked, &*next.positions), (true, &[1][..]));
    assert!(skip(&db, 3).await.is_err(), "the next that is not tried waits behind it");
}

#[tokio::test]
async fn an_event_given_back_is_tried_at_once_and_counts_its_own_attempts() {
    let db = outbox(4, "park").await;
    skip(&db, 1).await.unwrap();
    for attempts in [1, 2] {
        let at_it = claim(&db).await.unwrap();
        assert_eq!((at_it.attempts, at_it.positions[0]), (attempts, 2));
        at_it.fails(&db, "retry", "away").await;
        due(&db).await;
    }
    db.client.execute("update outhaul.subscriptions set due_at = now() + interval '1 h'", &[]).await.unwrap();
    unpark(&db, 1).await;
    let given_back = claim(&db).await.expect("it does not wait behind the failure of another");
    assert_eq!((given_back.unparked, given_back.attempts), (true, 1));
    given_back.succeeds(&db).await;
    let shown = db.observer().await.subscription("s").await.unwrap().unwrap();
    assert_eq!(
        (shown.holds, shown.blocked_position, shown.attempts),
        (Some(Hold::Blocked), Some(2), 2),
        "the other still fails, as often"
    );
    let again = claim(&db).await.unwrap();
    assert_eq!((again.unparked, again.attempts, &*again.positions), (false, 3, &[2][..]));
}

#[tokio::test]
async fn an_event_given_back_that_is_given_up_again_has_all_its_attempts_and_leaves_the_others_alone() {
    let db = outbox(4, "park").await;
    claim(&db).await.unwrap().fails(&db, "dead_letter", "broken").await;
    unpark(&db, 1).await;
    for verdict in ["retry", "retry", "dead_letter"] {
        let at_it = claim(&db).await.unwrap();
        assert!(at_it.unparked);
        at_it.fails(&db, verdict, "still").await;
        due(&db).await;
    }
    assert_eq!(
        aside(&db).await,
        [(1, "parked".into(), 4, Some("still".into()), Some("it fails".into()), false)]
    );
    let next = claim(&db).await.unwrap();
    assert_eq!((next.unparked, next.attempts, &*next.positions), (false, 1, &[2, 3, 4][..]));
}

#[tokio::test]
async fn a_rewind_delivers_each_event_once_whether_it_was_parked_skipped_or_given_back() {
    let db = outbox(6, "block").await;
    for n in 1..=5 {
        skip(&db, n).await.unwrap();
    }
    for n in [1, 2, 4] {
        unpark(&db, n).await;
    }
    let at_it = claim(&db).await.unwrap();
    at_it.fails(&db, "retry", "gone").await;
    let rewind = "select outhaul.operator_subscription_rewind('s', '2', 'again')";
    assert_eq!(db.count(rewind).await, 2);
    let kept: Vec<(i64, bool)> = aside(&db).await.into_iter().map(|row| (row.0, row.5)).collect();
    assert_eq!(kept, [(1, true), (2, true)], "what comes again by the cursor is not aside any more");
    let mut delivered = Vec::new();
    while let Some(claim) = claim(&db).await {
        delivered.extend(claim.positions.iter().copied());
        claim.succeeds(&db).await;
    }
    assert_eq!(delivered, [1, 2, 3, 4, 5, 6]);
    assert!(aside(&db).await.is_empty());
    assert_eq!(db.count("select count(*) from outhaul.reconcile_outbox()").await, 0);
}

#[tokio::test]
async fn a_rewind_keeps_what_its_cursor_will_not_bring_again() {
    let db = outbox(3, "block").await;
    for n in 1..=3 {
        skip(&db, n).await.unwrap();
    }
    unpark(&db, 2).await;
    let narrower = "select outhaul.subscribe('s', event_types => '{other}')";
    db.client.query(narrower, &[]).await.unwrap();
    db.client.query("select outhaul.operator_subscription_rewind('s', 'beginning')", &[]).await.unwrap();
    assert_eq!(aside(&db).await.len(), 3, "the filter leaves them out");
    assert_eq!(db.count("select count(*) from outhaul.reconcile_outbox()").await, 0);
    let given_back = claim(&db).await.unwrap();
    assert_eq!((given_back.unparked, &*given_back.positions), (true, &[2][..]));
    given_back.succeeds(&db).await;
    assert!(claim(&db).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_given_back_that_kills_its_worker_is_blamed_and_not_the_one_after_the_cursor() {
    let db = outbox(4, "park").await;
    claim(&db).await.unwrap().fails(&db, "dead_letter", "broken").await;
    claim(&db).await.unwrap().fails(&db, "dead_letter", "broken").await;
    unpark(&db, 1).await;
    for attempts in 1..=3 {
        let at_it = claim(&db).await.unwrap();
        assert_eq!((at_it.unparked, at_it.attempts), (true, attempts));
        // Given back while the other is at work, so nobody has tried it.
        unpark(&db, 2).await;
        db.client
            .execute("update outhaul.subscriptions set lease_until = clock_timestamp() - interval '1 s'", &[])
            .await
            .unwrap();
        let nothing = |_: RecordedEvent, _: EventContext| std::future::ready(Ok(()));
        let sweeper = db.worker().subscribe(Subscription::new("other").start(Start::Now), nothing);
        let sweeper = Running::start(sweeper).await;
        let settled = "select lease_until = '-infinity' from outhaul.subscriptions where name = 's'";
        db.until("the lease is settled", settled).await;
        sweeper.stop().await;
        due(&db).await;
    }
    let all = aside(&db).await;
    assert_eq!(all[0], (1, "parked".into(), 4, Some("lease_expired".into()), all[0].4.clone(), false));
    assert_eq!((all.len(), all[1].0, all[1].2, all[1].5), (2, 2, 1, true));
    let next = claim(&db).await.unwrap();
    assert_eq!((next.unparked, next.attempts, &*next.positions), (true, 1, &[2][..]));
    next.succeeds(&db).await;
    let next = claim(&db).await.unwrap();
    assert_eq!((next.unparked, next.attempts, &*next.positions), (false, 1, &[3, 4][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_given_back_that_commits_with_its_checkpoint_holds_nothing_back() {
    let db = outbox(1, "block").await;
    db.client.batch_execute("create table effects (position bigint)").await.unwrap();
    skip(&db, 1).await.unwrap();
    unpark(&db, 1).await;
    let (url, tries) = (db.url(), Arc::new(Mutex::new(0)));
    let handler = move |event: RecordedEvent, cx: EventContext| {
        let (url, tries) = (url.clone(), tries.clone());
        async move {
            let first = {
                let mut tries = tries.lock().unwrap();
                *tries += 1;
                *tries == 1
            };
            if first {
                return Err(Failure::transient("away").code("away"));
            }
            let mut client = connect(&url).await;
            let mut tx = client.transaction().await?;
            tx.execute("insert into effects values ($1)", &[&event.position]).await?;
            cx.advance_in(&mut tx).await?;
            tx.commit().await?;
            Ok(())
        }
    };
    let worker =
        Running::start(db.worker().subscribe(Subscription::new("s").start(Start::Beginning), handler)).await;
    let failed = "select blocked_position is not distinct from 1 from outhaul.subscriptions";
    db.until("it has failed", failed).await;
    due(&db).await;
    db.client.batch_execute("notify outhaul").await.unwrap();
    until("its effect is there", || async {
        db.count("select count(*) from effects").await == 1
            && db.count("select count(*) from outhaul.subscriptions where lease_until = '-infinity'").await
                == 1
    })
    .await;
    worker.stop().await;
    let shown = db.observer().await.subscription("s").await.unwrap().unwrap();
    assert_eq!((shown.holds, shown.blocked_position, shown.attempts), (None, None, 0));
    assert!(aside(&db).await.is_empty());
    assert_eq!(db.count("select count(*) from effects").await, 1);
}

#[tokio::test]
async fn a_checkpoint_whose_report_never_came_blocks_nothing_where_nothing_follows() {
    let db = outbox(1, "block").await;
    let at_it = claim(&db).await.unwrap();
    let sql = "select outhaul.checkpoint_in($1, $2, $3, 1)";
    db.client.query(sql, &[&at_it.id, &at_it.token, &at_it.claim_no]).await.unwrap();
    db.client
        .execute("update outhaul.subscriptions set lease_until = clock_timestamp() - interval '1 s'", &[])
        .await
        .unwrap();
    let sweep = "select * from outhaul.hold(array[$1::uuid], array[$2::uuid], array[$3::int], '{retry}', '{1000}', '{crash}', \
        '{lease_expired}', '{null}', '{null}', '{null}', '{false}', true)";
    let rows = db.client.query(sweep, &[&at_it.id, &at_it.token, &at_it.claim_no]).await.unwrap();
    assert!(rows.is_empty());
    let shown = db.observer().await.subscription("s").await.unwrap().unwrap();
    assert_eq!((shown.holds, shown.position, shown.attempts), (None, 1, 0));
}

#[tokio::test]
async fn what_was_given_back_waits_while_its_subscription_is_paused_and_goes_when_it_is_dropped() {
    let db = outbox(3, "block").await;
    skip(&db, 1).await.unwrap();
    skip(&db, 2).await.unwrap();
    unpark(&db, 1).await;
    let operator = db.operator().await;
    assert!(operator.pause_subscription("s", None).await.unwrap());
    assert!(claim(&db).await.is_none());
    assert!(operator.resume_subscription("s", None).await.unwrap());
    let at_it = claim(&db).await.unwrap();
    assert_eq!((at_it.unparked, &*at_it.positions), (true, &[1][..]));
    assert_eq!(operator.drop_subscription("s", None).await.unwrap(), 2);
    assert_eq!(db.count("select count(*) from outhaul.subscription_parked").await, 0);
}

#[tokio::test]
async fn what_is_set_aside_is_counted_once_each_and_told_by_event() {
    let db = outbox(4, "park").await;
    claim(&db).await.unwrap().fails(&db, "dead_letter", "broken").await;
    claim(&db).await.unwrap().fails(&db, "dead_letter", "broken").await;
    skip(&db, 3).await.unwrap();
    unpark(&db, 2).await;
    let observer = db.observer().await;
    let aside = observer.set_aside("s").await.unwrap();
    assert_eq!((aside.parked, aside.skipped, aside.given_back), (1, 1, 1));
    let shown = observer.subscription("s").await.unwrap().unwrap();
    assert_eq!((shown.parked, shown.behind), (1, 1));
    assert_eq!(observer.set_aside("nobody").await.unwrap(), outhaul::SetAside::default());

    let events = observer.events(&outhaul::EventFilter::default()).await.unwrap();
    let mut told = Vec::new();
    for event in events.iter().rev() {
        let of_event = observer.dispositions(event.id).await.unwrap();
        assert!(of_event.iter().all(|one| one.subscription == "s" && one.parked.event_id == event.id));
        told.push(of_event.first().map(|one| (one.parked.how.clone(), one.parked.unparked_at.is_some())));
    }
    let expected = [
        Some(("parked".into(), false)),
        Some(("parked".into(), true)),
        Some(("skipped".into(), false)),
        None,
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn pages_of_events_are_bounded_whatever_is_asked_for() {
    let db = outbox(1_001, "block").await;
    db.client
        .batch_execute(
            "set search_path = outhaul; select count(park('s', p, 1, 'parked', 'c', 'd', 'e')) from generate_series(1, 1001) p",
        )
        .await
        .unwrap();
    for (n, rows) in [("2000", 1_000), ("0", 1), ("-1", 1), ("7", 7)] {
        for page in
            [format!("outhaul.show_events(null, {n})"), format!("outhaul.show_parked('s', null, {n})")]
        {
            assert_eq!(db.count(&format!("select count(*) from {page}")).await, rows, "{page}");
        }
    }
}
