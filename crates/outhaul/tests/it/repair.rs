//! Repairing one job: replay, discard and cancel, each told as it was, and whatever races with it.

use std::time::Duration;

use outhaul::{Cancelled, Discarded, Enqueued, JobId, NewJob, Producer, Retried, cancel_by_key, enqueue};
use outhaul_local::Proxy;
use uuid::Uuid;

use crate::calls::{Lease, claim, claim_one, complete, fail, renew};
use crate::fault::{Act, EffectLog};
use crate::support::{Db, Running, Tick, until};

fn keyed(key: &str) -> NewJob {
    NewJob::new(&Tick { n: 1 }).unwrap().idempotency_key(key)
}

/// A job that has died of its first claim.
async fn dead(db: &mut Db, job: &NewJob) -> (JobId, Lease) {
    let id = enqueue(&mut db.client, job).await.unwrap().id();
    let lease = claim_one(&db.client, "ticks").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    (id, lease)
}

#[tokio::test]
async fn a_dead_letter_holds_its_key_and_a_replay_runs_it_once() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    let job = keyed("k");
    let (id, _) = dead(&mut db, &job).await;
    let again = || NewJob::new(&Tick { n: 1 }).unwrap().idempotency_key("k");
    assert_eq!(enqueue(&mut db.client, &again()).await.unwrap(), Enqueued::Duplicate(id));
    assert_eq!(operator.retry(id, None).await.unwrap(), Retried::Replayed);
    assert_eq!(enqueue(&mut db.client, &again()).await.unwrap(), Enqueued::Duplicate(id));
    let lease = claim_one(&db.client, "ticks").await;
    assert_eq!((lease.id, lease.claim_no, lease.attempts), (id.0, 2, 1));
    assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    assert_eq!(enqueue(&mut db.client, &again()).await.unwrap(), Enqueued::Duplicate(id));
    assert!(claim(&db.client, "ticks", 10).await.is_empty());
}

#[tokio::test]
async fn a_discarded_job_is_recorded_and_its_key_is_kept_for_seven_days() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    let (id, _) = dead(&mut db, &keyed("k")).await;
    for reason in ["", "  "] {
        assert!(operator.discard(id, reason).await.unwrap_err().is_invalid_input());
    }
    assert_eq!(operator.discard(id, "void").await.unwrap(), Discarded::Discarded);
    let row = "select count(*) from outhaul.jobs_finished where status = 'cancelled' and error_code = 'discarded' and claim_no = 1";
    assert_eq!(db.count(row).await, 1);
    let kept = "select count(*) from outhaul.job_keys where expires_at between now() + interval '7 days' - interval '1 minute' and now() + interval '7 days 1 minute'";
    assert_eq!(db.count(kept).await, 1);
    assert_eq!(enqueue(&mut db.client, &keyed("k")).await.unwrap(), Enqueued::Duplicate(id));
    let audit = db.observer().await.audit(None, 1).await.unwrap();
    assert_eq!((&*audit[0].action, audit[0].reason.as_deref()), ("jobs.discard", Some("void")));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_replay_at_once_make_one_job_of_it() {
    let mut db = Db::new().await;
    let (id, _) = dead(&mut db, &keyed("k")).await;
    let operator = db.operator().await;
    let mut first = db.connect().await;
    let tx = first.transaction().await.unwrap();
    let retry = "select outhaul.operator_retry($1)";
    assert_eq!(tx.query_one(retry, &[&id.0]).await.unwrap().get::<_, &str>(0), "replayed");
    let second = tokio::spawn(async move { operator.retry(id, None).await });
    db.until("the second one waits", "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").await;
    tx.commit().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), Retried::Due, "it is live, which was wanted");
    assert_eq!(claim(&db.client, "ticks", 10).await.len(), 1);
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_and_retention_leave_the_job_live_or_removed_and_never_both() {
    let mut db = Db::new().await;
    for retention_first in [true, false] {
        let (id, _) = dead(&mut db, &keyed(&retention_first.to_string())).await;
        db.client
            .execute("update outhaul.jobs_dead set died_at = now() - interval '31 days'", &[])
            .await
            .unwrap();
        let operator = db.operator().await;
        let mut first = db.connect().await;
        let tx = first.transaction().await.unwrap();
        if retention_first {
            assert_eq!(
                tx.query_one("select dead from outhaul.remove_expired(10)", &[])
                    .await
                    .unwrap()
                    .get::<_, i64>(0),
                1
            );
            let retry = tokio::spawn(async move { operator.retry(id, None).await });
            db.until("the replay waits", "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").await;
            tx.commit().await.unwrap();
            assert_eq!(retry.await.unwrap().unwrap(), Retried::NotFound);
            assert_eq!(db.status(id.0).await, "none");
        } else {
            tx.execute("select outhaul.operator_retry($1)", &[&id.0]).await.unwrap();
            assert_eq!(
                db.count("select dead from outhaul.remove_expired(10)").await,
                0,
                "it steps over the lock"
            );
            tx.commit().await.unwrap();
            assert_eq!(db.count("select dead from outhaul.remove_expired(10)").await, 0);
            assert_eq!(db.status(id.0).await, "retrying");
            assert_eq!(claim_one(&db.client, "ticks").await.id, id.0);
        }
    }
}

#[tokio::test]
async fn a_report_of_the_claim_it_died_of_changes_nothing_after_a_replay() {
    let mut db = Db::new().await;
    let (id, zombie) = dead(&mut db, &keyed("k")).await;
    db.operator().await.retry(id, None).await.unwrap();
    let row = "select j::text from outhaul.jobs j";
    let nothing_changed = async |db: &Db, fail_says: &str| {
        let before: String = db.client.query_one(row, &[]).await.unwrap().get(0);
        assert_eq!(complete(&db.client, &zombie, "row").await, "lost");
        for verdict in ["retry", "dead_letter", "release", "cancel"] {
            assert_eq!(fail(&db.client, &zombie, verdict, 0).await, fail_says, "it was settled by its death");
        }
        assert_eq!(renew(&db.client, zombie.id, zombie.token).await, "lost");
        assert_eq!(db.client.query_one(row, &[]).await.unwrap().get::<_, String>(0), before);
    };
    nothing_changed(&db, "done").await;
    let lease = claim_one(&db.client, "ticks").await;
    nothing_changed(&db, "done").await;
    assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    assert_eq!(complete(&db.client, &zombie, "row").await, "lost");
    assert_eq!(db.status(id.0).await, "completed");
}

#[tokio::test]
async fn a_key_cancels_its_job_in_the_callers_transaction() {
    let mut db = Db::new().await;
    let (waiting, running) = (keyed("waiting"), keyed("running"));
    enqueue(&mut db.client, &running).await.unwrap();
    let lease = claim_one(&db.client, "ticks").await;
    enqueue(&mut db.client, &waiting).await.unwrap();
    let organization = Uuid::now_v7();
    enqueue(&mut db.client, &keyed("waiting").organization(organization)).await.unwrap();
    let tick = "test.tick";
    let tx = db.client.transaction().await.unwrap();
    let mut tx = tx;
    assert_eq!(cancel_by_key(&mut tx, tick, "waiting", None).await.unwrap(), Cancelled::Cancelled);
    assert_eq!(cancel_by_key(&mut tx, tick, "waiting", None).await.unwrap(), Cancelled::Ended);
    tx.rollback().await.unwrap();
    let producer = Producer::default();
    let client = &mut db.client;
    for key in ["waiting", "running"] {
        assert_eq!(
            producer.cancel_by_key(client, tick, key, None).await.unwrap(),
            Cancelled::Cancelled,
            "{key}"
        );
        assert_eq!(producer.cancel_by_key(client, tick, key, None).await.unwrap(), Cancelled::Ended, "{key}");
    }
    for (job_type, key, organization) in
        [(tick, "never", None), ("other", "waiting", None), (tick, "waiting", Some(Uuid::now_v7()))]
    {
        let found = producer.cancel_by_key(client, job_type, key, organization).await.unwrap();
        assert_eq!(found, Cancelled::NotFound, "{job_type} {key}");
    }
    let of_organization = producer.cancel_by_key(client, tick, "waiting", Some(organization)).await.unwrap();
    assert_eq!(of_organization, Cancelled::Cancelled, "the organization's own");
    // An event's key is no job's.
    client
        .execute("select outhaul.publish('a.b', 'a', outhaul.uuid7(), idempotency_key => 'e')", &[])
        .await
        .unwrap();
    assert_eq!(producer.cancel_by_key(client, "@a.b", "e", None).await.unwrap(), Cancelled::NotFound);
    // The row is gone before the key.
    client.execute("delete from outhaul.jobs_finished", &[]).await.unwrap();
    assert_eq!(producer.cancel_by_key(client, tick, "running", None).await.unwrap(), Cancelled::Ended);
    assert_eq!(complete(&db.client, &lease, "row").await, "cancelled");
    // As an operator it is on the record.
    enqueue(&mut db.client, &keyed("new")).await.unwrap();
    let operator = db.operator().await;
    assert_eq!(operator.cancel_by_key(tick, "new", None, Some("void")).await.unwrap(), Cancelled::Cancelled);
    assert_eq!(operator.cancel_by_key(tick, "new", None, None).await.unwrap(), Cancelled::Ended);
    let audit = db.observer().await.audit(None, 10).await.unwrap();
    assert_eq!((audit.len(), &*audit[0].action, &*audit[0].object), (1, "jobs.cancel_key", "new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_notification_a_handler_hears_of_its_cancellation_by_the_next_renewal() {
    let mut db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    let log = EffectLog::new().await;
    let lease = Duration::from_secs(3);
    let builder = db.worker().listen_dsn(proxy.url().parse().unwrap()).handle(log.actor("w"));
    let worker = builder.with(|o| o.lease = lease).build().await.unwrap();
    let listener = worker.listener();
    let worker = Running::of(worker);
    until("the listener is proven", || async { listener() == outhaul::ListenerState::Proven }).await;
    proxy.blackhole_role("outhaul/listen");
    let id = Act::UntilTold.enqueue(&mut db.client).await;
    log.until("begin", 1).await;
    assert_eq!(db.operator().await.cancel(JobId(id), None).await.unwrap(), Cancelled::Cancelled);
    let at: jiff::Timestamp = db.client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
    log.until("told cancelled", 1).await;
    let after = log.all("told cancelled").await[0].at.duration_since(at).as_secs_f64();
    // A third of the lease until it is renewed, a twelfth until that is noticed, and a second for a slow machine.
    let bound = lease.as_secs_f64() * (1.0 / 3.0 + 1.0 / 12.0) + 1.0;
    assert!(after < bound, "told {after} s after the cancellation, not within {bound} s");
    worker.stop().await;
    assert_eq!(log.count("end").await, 1, "its effects stay");
    assert_eq!(db.status(id).await, "cancelled");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 1);
}

#[tokio::test]
async fn a_cancellation_and_complete_in_have_one_winner_even_when_the_answer_is_lost() {
    let mut db = Db::new().await;
    for cancel_first in [true, false] {
        let id = enqueue(&mut db.client, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap().id();
        let lease = claim_one(&db.client, "ticks").await;
        let mut handler = db.connect().await;
        let operator = db.operator().await;
        if cancel_first {
            assert_eq!(operator.cancel(id, None).await.unwrap(), Cancelled::Cancelled);
        }
        let tx = handler.transaction().await.unwrap();
        let done = tx
            .execute("select outhaul.complete_in($1, $2, $3)", &[&lease.id, &lease.token, &lease.claim_no])
            .await;
        if cancel_first {
            assert!(outhaul::Error::from(done.unwrap_err()).is_lease_lost());
            drop(tx);
            assert_eq!(db.status(id.0).await, "cancelled");
        } else {
            done.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(operator.cancel(id, None).await.unwrap(), Cancelled::Ended);
            assert_eq!(db.status(id.0).await, "completed");
        }
        // Whoever did not hear the answer asks again.
        assert_eq!(operator.cancel(id, None).await.unwrap(), Cancelled::Ended);
    }
}

/// Every action by id, as SQL, in the state where it does something: what the first call says, what the second one says,
/// and what it says of an id that nobody has.
#[tokio::test]
async fn every_action_by_id_says_what_happened_also_the_second_time_and_for_nobody() {
    let mut db = Db::new().await;
    let state = "coalesce((select state from outhaul.{f}(array[{id}], array[{token}], array[{claim}]{more})), 'settled')";
    let settle = |f: &str, more: &str| state.replace("{f}", f).replace("{more}", more);
    let failing = |verdict: &str| {
        settle("fail", &format!(", '{{{verdict}}}', '{{0}}', '{{transient}}', '{{c}}', '{{s}}'"))
    };
    let cases: [(&str, String, [&str; 3]); 14] = [
        ("leased", settle("complete", ""), ["settled", "done", "lost"]),
        ("leased", failing("retry"), ["settled", "done", "lost"]),
        ("leased", failing("dead_letter"), ["settled", "done", "lost"]),
        ("leased", failing("cancel"), ["settled", "done", "lost"]),
        ("leased", failing("release"), ["settled", "done", "lost"]),
        ("leased", "outhaul.snooze({id}, {token}, {claim}, '1 s')".into(), ["snoozed", "done", "lost"]),
        ("pending", "outhaul.cancel({id})".into(), ["cancelled", "ended", "not_found"]),
        ("leased", "outhaul.cancel({id})".into(), ["cancelled", "ended", "not_found"]),
        ("pending", "outhaul.operator_cancel({id})".into(), ["cancelled", "ended", "not_found"]),
        ("dead", "outhaul.operator_cancel({id})".into(), ["ended", "ended", "not_found"]),
        ("pending", "outhaul.operator_retry({id})".into(), ["due", "due", "not_found"]),
        ("dead", "outhaul.operator_retry({id})".into(), ["replayed", "due", "not_found"]),
        ("dead", "outhaul.operator_discard({id}, 'void')".into(), ["discarded", "ended", "not_found"]),
        ("leased", "outhaul.operator_discard({id}, 'void')".into(), ["live", "live", "not_found"]),
    ];
    for (begin, action, expected) in cases {
        let job = NewJob::new(&Tick { n: 1 }).unwrap();
        let id = enqueue(&mut db.client, &job).await.unwrap().id();
        let (mut token, mut claim_no) = (Uuid::nil(), 0);
        if begin != "pending" {
            let lease = claim_one(&db.client, "ticks").await;
            (token, claim_no) = (lease.token, lease.claim_no);
            if begin == "dead" {
                assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
            }
        }
        let call = async |id: Uuid| {
            let sql = format!("select {action}")
                .replace("{id}", &format!("'{id}'::uuid"))
                .replace("{token}", &format!("'{token}'::uuid"))
                .replace("{claim}", &claim_no.to_string());
            let row = db.client.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            row.get::<_, String>(0)
        };
        let said = [call(id.0).await, call(id.0).await, call(Uuid::now_v7()).await];
        assert_eq!(said, expected, "{begin} {action}");
        db.client.batch_execute("delete from outhaul.jobs; delete from outhaul.jobs_dead").await.unwrap();
    }
    // Of subscriptions and events.
    let relay = "select outhaul.operator_relay_retry(outhaul.uuid7())";
    assert_eq!(db.client.query_one(relay, &[]).await.unwrap().get::<_, &str>(0), "not_found");
    db.client.execute("select outhaul.subscribe('s')", &[]).await.unwrap();
    let unpark = "select outhaul.operator_subscription_unpark('s', 1)";
    assert_eq!(db.client.query_one(unpark, &[]).await.unwrap().get::<_, &str>(0), "not_found");
    for (paused, said) in [(true, true), (true, false), (false, true), (false, false)] {
        let pause = "select outhaul.operator_subscription_pause('s', $1)";
        assert_eq!(db.client.query_one(pause, &[&paused]).await.unwrap().get::<_, bool>(0), said);
    }
    db.client.execute("select outhaul.operator_subscription_drop('s')", &[]).await.unwrap();
    for call in ["pause('s', true)", "rewind('s', '0')", "skip('s', 1, 'r')", "unpark('s', 1)", "drop('s')"] {
        let sql = format!("select outhaul.operator_subscription_{call}");
        let error = outhaul::Error::from(db.client.execute(&sql, &[]).await.expect_err(&sql));
        assert!(error.is_not_found(), "{sql}: {error:?}");
    }
}
