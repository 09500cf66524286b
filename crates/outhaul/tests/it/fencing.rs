//! Reports against leases: whoever is late changes nothing, and nobody's trouble holds up the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outhaul::{Context, Failure, Job, NewJob};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{Lease, claim, renew};
use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Db, Running, connect};

/// States of what was not completed.
async fn complete(client: &Client, leases: &[Lease]) -> Vec<(Uuid, String)> {
    let (ids, tokens, claims) = arrays(leases);
    let sql = "select * from outhaul.complete($1, $2, $3)";
    let rows = client.query(sql, &[&ids, &tokens, &claims]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// States of what was not settled.
async fn fail(client: &Client, leases: &[Lease], verdict: &str, expired: bool) -> Vec<(Uuid, String)> {
    let (ids, tokens, claims) = arrays(leases);
    let n = leases.len();
    let sql = "select * from outhaul.fail($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let (verdicts, delays) = (vec![verdict; n], vec![0i64; n]);
    let (class, none) = (vec![Some("crash"); n], vec![None::<&str>; n]);
    let rows = client
        .query(sql, &[&ids, &tokens, &claims, &verdicts, &delays, &class, &none, &none, &expired])
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn arrays(leases: &[Lease]) -> (Vec<Uuid>, Vec<Uuid>, Vec<i32>) {
    let mut leases: Vec<&Lease> = leases.iter().collect();
    leases.sort_by_key(|lease| lease.id);
    (
        leases.iter().map(|lease| lease.id).collect(),
        leases.iter().map(|lease| lease.token).collect(),
        leases.iter().map(|lease| lease.claim_no).collect(),
    )
}

async fn row_of(client: &Client, id: Uuid) -> String {
    let sql = "select coalesce((select j::text from outhaul.jobs j where id = $1), 'gone')";
    client.query_one(sql, &[&id]).await.unwrap().get(0)
}

/// A job whose lease a sweep has read as expired and not settled yet.
async fn read_as_expired() -> (Db, Uuid, Vec<Lease>) {
    let mut db = Db::new().await;
    let id = Act::Nothing.enqueue(&mut db.client).await;
    let lease = claim(&db.client, "acts", 1).await;
    db.age_leases().await;
    let found = db.client.query("select id from outhaul.expired('acts', 10)", &[]).await.unwrap();
    assert_eq!(found.len(), 1, "the sweep has read it as expired");
    (db, id, lease)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_before_the_expiry_stands() {
    let (db, id, lease) = read_as_expired().await;
    assert_eq!(complete(&db.client, &lease).await, []);
    assert_eq!(fail(&db.client, &lease, "retry", true).await, [(id, "lost".to_owned())]);
    assert_eq!(db.status(id).await, "completed");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_after_the_expiry_changes_nothing() {
    let mut db = Db::new().await;
    let id = Act::Nothing.enqueue(&mut db.client).await;
    let old = claim(&db.client, "acts", 1).await;
    db.age_leases().await;
    assert_eq!(fail(&db.client, &old, "retry", true).await, []);
    let retrying = row_of(&db.client, id).await;
    assert_eq!(complete(&db.client, &old).await, [(id, "lost".to_owned())]);
    assert_eq!(row_of(&db.client, id).await, retrying);
    let new = claim(&db.client, "acts", 1).await;
    assert_eq!(new[0].claim_no, 2);
    let leased = row_of(&db.client, id).await;
    // The record of the first claim does not speak for the second.
    let forged = [Lease { token: Uuid::new_v4(), ..new[0].clone() }];
    assert_eq!(fail(&db.client, &forged, "retry", false).await, [(id, "lost".to_owned())]);
    assert_eq!(complete(&db.client, &old).await, [(id, "lost".to_owned())]);
    assert_eq!(renew(&db.client, id, old[0].token).await, "lost");
    assert_eq!(row_of(&db.client, id).await, leased);
    assert_eq!(complete(&db.client, &new).await, []);
    // Each claim learns of its own end: the completion was the new one's and never the old one's.
    assert_eq!(complete(&db.client, &new).await, [(id, "done".to_owned())]);
    assert_eq!(complete(&db.client, &old).await, [(id, "lost".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_before_the_expiry_stands() {
    let (db, id, lease) = read_as_expired().await;
    assert_eq!(renew(&db.client, id, lease[0].token).await, "renewed");
    let renewed = row_of(&db.client, id).await;
    assert_eq!(fail(&db.client, &lease, "retry", true).await, [(id, "lost".to_owned())]);
    assert_eq!(row_of(&db.client, id).await, renewed);
    assert_eq!(complete(&db.client, &lease).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_has_locked_is_not_waited_for_by_a_claim() {
    let mut db = Db::new().await;
    let ids = enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 5]).await;
    let mut operator = db.connect().await;
    let tx = operator.transaction().await.unwrap();
    tx.execute("select 1 from outhaul.jobs where id = $1 for update", &[&ids[0]]).await.unwrap();
    db.client.batch_execute("set lock_timeout = '5s'").await.unwrap();
    let claimed = claim(&db.client, "acts", 10).await;
    assert!(claimed.len() == 4 && claimed.iter().all(|lease| lease.id != ids[0]));
    tx.rollback().await.unwrap();
    assert_eq!(claim(&db.client, "acts", 10).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_repeated_reports_are_refused() {
    let mut db = Db::new().await;
    let id = Act::Nothing.enqueue(&mut db.client).await;
    let held = claim(&db.client, "acts", 1).await;
    let other = Act::Nothing.enqueue(&mut db.client).await;
    let others = claim(&db.client, "acts", 1).await;
    let (before, of_other) = (row_of(&db.client, id).await, row_of(&db.client, other).await);
    let with = |token| [Lease { token, ..held[0].clone() }];
    let (guessed, crossed, nil) = (with(Uuid::new_v4()), with(others[0].token), with(Uuid::nil()));
    for forged in [&guessed, &crossed, &nil] {
        assert_eq!(fail(&db.client, forged, "dead_letter", false).await, [(id, "lost".to_owned())]);
        assert_eq!(complete(&db.client, forged).await, [(id, "lost".to_owned())]);
    }
    assert_eq!((row_of(&db.client, id).await, row_of(&db.client, other).await), (before, of_other));
    assert_eq!(fail(&db.client, &held, "dead_letter", false).await, []);
    assert_eq!(fail(&db.client, &held, "dead_letter", false).await, [(id, "done".to_owned())]);
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 1);
    // A job that nobody holds cannot be settled with the token that stands for nobody.
    let waiting = Act::Nothing.enqueue(&mut db.client).await;
    let nobody = [Lease { id: waiting, token: Uuid::nil(), claim_no: 0, ..held[0].clone() }];
    let row = row_of(&db.client, waiting).await;
    complete(&db.client, &nobody).await;
    fail(&db.client, &nobody, "cancel", false).await;
    assert_eq!(renew(&db.client, waiting, Uuid::nil()).await, "lost");
    assert_eq!(row_of(&db.client, waiting).await, row);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_answered_for_those_only_that_it_did_not_settle() {
    let mut db = Db::new().await;
    for report in ["complete", "fail", "renew"] {
        let ids = enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 3]).await;
        let mut leases = claim(&db.client, "acts", 3).await;
        let lost = leases.iter_mut().find(|lease| lease.id == ids[1]).unwrap();
        lost.token = Uuid::new_v4();
        let (these, tokens, claims) = arrays(&leases);
        // Where nothing is kept of a completed job, nothing could tell it from a lost one.
        let missing = match report {
            "fail" => fail(&db.client, &leases, "dead_letter", false).await,
            _ => {
                let sql = match report {
                    "complete" => "select * from outhaul.complete($1, $2, $3, 'none')",
                    _ => "select * from outhaul.renew($1, $2, interval '1 hour') where $3::int[] is not null",
                };
                let rows = db.client.query(sql, &[&these, &tokens, &claims]).await.unwrap();
                rows.iter().map(|row| (row.get(0), row.get(1))).collect()
            }
        };
        assert_eq!(missing, [(ids[1], "lost".to_owned())], "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_racing_expiry_ends_each_job_one_way() {
    let mut db = Db::new().await;
    let other = db.connect().await;
    for round in 0..10 {
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 100]).await;
        let leases = claim(&db.client, "acts", 100).await;
        assert_eq!(leases.len(), 100);
        db.age_leases().await;
        // 55P03 is an answer too: then nothing was changed by it.
        let (ids, tokens, claims) = arrays(&leases);
        let completed = async {
            let sql = "select * from outhaul.complete($1, $2, $3)";
            let rows = db.client.query(sql, &[&ids, &tokens, &claims]).await;
            rows.map_or(0, |missing| 100 - missing.len())
        };
        let (completed, missing) = tokio::join!(completed, fail(&other, &leases, "retry", true));
        let expired = 100 - missing.len();
        let waiting = db.count("select count(*) from outhaul.jobs where status = 'retrying'").await;
        let finished = db.count("select count(*) from outhaul.jobs_finished").await;
        let leased = db.count("select count(*) from outhaul.jobs where status = 'leased'").await;
        assert_eq!((waiting, finished), (expired as i64, completed as i64), "round {round}");
        assert_eq!(waiting + finished + leased, 100, "round {round}");
        db.client.batch_execute("delete from outhaul.jobs; delete from outhaul.jobs_finished").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_at_any_moment_give_every_job_one_end_and_every_claim_a_record() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers
            .push(Running::start(db.worker().handle(log.actor(name)).with(|o| o.max_connections = 3)).await);
    }
    let jobs = vec![Act::Sleep(30).job().max_attempts(1000); 200];
    enqueue_all(&mut db.client, &jobs).await;
    for _ in 0..30 {
        db.age_leases().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    db.until("all completed", "select count(*) = 200 from outhaul.jobs_finished where status = 'completed'")
        .await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(db.count("select count(distinct id) from outhaul.jobs_finished").await, 200);
    let claims = db.count("select sum(claim_no) from outhaul.jobs_finished").await;
    let recorded = db.count("select count(*) from outhaul.job_attempts").await;
    assert_eq!(claims, 200 + recorded, "a claim either completed or left a record of its end");
    let ended_twice = "select count(*) from (select 1 from outhaul.job_attempts group by job_id, claim_no having count(*) > 1) x";
    assert_eq!(db.count(ended_twice).await, 0);
    assert!(log.count("begin").await <= claims);
}

/// A job whose effect is a row in the same database.
#[derive(Serialize, Deserialize)]
struct Effectful {
    n: i32,
}

impl Job for Effectful {
    const TYPE: &'static str = "test.effectful";
    const QUEUE: &'static str = "acts";
}

impl Effectful {
    async fn enqueue(client: &mut Client) {
        enqueue_all(client, &[NewJob::new(&Effectful { n: 7 }).unwrap()]).await;
    }
}

async fn effect(client: &mut Client, cx: &Context, n: i32, commit: bool) -> Result<(), Failure> {
    let mut tx = client.transaction().await?;
    tx.execute("insert into effects values ($1, $2)", &[&n, &cx.claim_no()]).await?;
    cx.complete_in(&mut tx).await?;
    if commit {
        tx.commit().await?;
    }
    Ok(())
}

/// A database with a table for the effects, and its URL for the handlers' own connections.
async fn with_effects() -> (Db, Arc<String>) {
    let db = Db::new().await;
    db.client.batch_execute("create table effects (n int, claim_no int)").await.unwrap();
    let url = Arc::new(db.url());
    (db, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_in_commits_the_effect_and_the_end_together() {
    let (mut db, url) = with_effects().await;
    let worker = Running::start(db.worker().handle(move |job: Effectful, cx| {
        let url = url.clone();
        async move { effect(&mut connect(&url).await, &cx, job.n, true).await }
    }))
    .await;
    let jobs: Vec<NewJob> = (0..20).map(|n| NewJob::new(&Effectful { n }).unwrap()).collect();
    enqueue_all(&mut db.client, &jobs).await;
    db.until("all completed", "select count(*) = 20 from outhaul.jobs_finished where status = 'completed'")
        .await;
    worker.stop().await;
    assert_eq!(db.count("select count(*) from effects").await, 20);
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_in_rolls_the_effect_back_when_the_lease_was_lost() {
    let (mut db, url) = with_effects().await;
    let (ready, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (at_handler, to_handler) = (ready.clone(), go.clone());
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let builder =
        db.worker().with(|o| o.lease = Duration::from_secs(60)).handle(move |job: Effectful, cx| {
            let (url, ready, go, refused) =
                (url.clone(), at_handler.clone(), to_handler.clone(), count.clone());
            async move {
                let mut client = connect(&url).await;
                if cx.claim_no() == 1 {
                    ready.notify_one();
                    go.notified().await;
                    let mut tx = client.transaction().await?;
                    tx.execute("insert into effects values ($1, $2)", &[&job.n, &cx.claim_no()]).await?;
                    let error = cx.complete_in(&mut tx).await.unwrap_err();
                    assert!(error.is_lease_lost(), "{error:?}");
                    refused.fetch_add(1, Ordering::SeqCst);
                    return Err(error.into());
                }
                effect(&mut client, &cx, job.n, true).await
            }
        });
    let worker = Running::start(builder).await;
    Effectful::enqueue(&mut db.client).await;
    ready.notified().await;
    db.age_leases().await;
    db.until(
        "another attempt completed",
        "select count(*) = 1 from outhaul.jobs_finished where claim_no = 2",
    )
    .await;
    go.notify_one();
    crate::support::until("the refusal", || async { refused.load(Ordering::SeqCst) == 1 }).await;
    worker.stop().await;
    let claims: Vec<i32> = db
        .client
        .query("select claim_no from effects", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(claims, [2], "the effect of the lost attempt is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn ok_after_complete_in_without_a_commit_is_retried() {
    let (mut db, url) = with_effects().await;
    let builder = db.worker().with(|o| o.retry.backoff.base = Duration::from_millis(50));
    let worker = Running::start(builder.handle(move |job: Effectful, cx| {
        let url = url.clone();
        async move { effect(&mut connect(&url).await, &cx, job.n, cx.attempt() > 1).await }
    }))
    .await;
    Effectful::enqueue(&mut db.client).await;
    db.until(
        "completed",
        "select count(*) = 1 from outhaul.jobs_finished where status = 'completed' and attempts = 2",
    )
    .await;
    worker.stop().await;
    assert_eq!(db.count("select sum(claim_no) from effects").await, 2, "one effect, of the second attempt");
    let code: String =
        db.client.query_one("select error_code from outhaul.job_attempts", &[]).await.unwrap().get(0);
    assert_eq!(code, "not_committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_in_refuses_another_isolation_level() {
    let mut db = Db::new().await;
    let url = Arc::new(db.url());
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let worker = Running::start(db.worker().handle(move |_: Effectful, cx| {
        let (url, refused) = (url.clone(), count.clone());
        async move {
            let mut client = connect(&url).await;
            let level = tokio_postgres::IsolationLevel::RepeatableRead;
            let mut tx = client.build_transaction().isolation_level(level).start().await?;
            let error = cx.complete_in(&mut tx).await.unwrap_err();
            assert!(error.is_wrong_isolation(), "{error:?}");
            refused.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }))
    .await;
    Effectful::enqueue(&mut db.client).await;
    db.until("completed", "select count(*) = 1 from outhaul.jobs_finished where status = 'completed'").await;
    worker.stop().await;
    assert_eq!(refused.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_has_locked_does_not_hold_up_the_reports_of_others() {
    let ends_after = Duration::from_millis(1_000);
    // One completes and one fails.
    let sleep = Act::Sleep(ends_after.as_millis() as u64).job();
    for job in [sleep, Act::Hang.job().timeout(ends_after).max_attempts(1)] {
        let mut db = Db::new().await;
        let log = EffectLog::new().await;
        // A lease that ends while its row is locked cannot be renewed, which is not what this is about.
        let lease = Duration::from_secs(60);
        let builder = db.worker().handle(log.actor("w")).with(|o| (o.concurrency, o.lease) = (100, lease));
        let worker = Running::start(builder).await;
        let locked = outhaul::enqueue(&mut db.client, &job).await.unwrap().id().0;
        log.until("begin", 1).await;
        let begun = Instant::now();
        let mut operator = db.connect().await;
        let tx = operator.transaction().await.unwrap();
        let lock = "select 1 from outhaul.jobs where id = $1 for update";
        assert_eq!(tx.execute(lock, &[&locked]).await.unwrap(), 1, "it runs");
        let mut others = vec![Act::Nothing.job(); 20];
        others.extend(vec![Act::Fail("no".into()).job().max_attempts(1); 20]);
        let mut bursts = 0;
        while begun.elapsed() < 2 * ends_after {
            enqueue_all(&mut db.client, &others).await;
            db.until("the others are settled", "select count(*) = 1 from outhaul.jobs").await;
            bursts += 1;
        }
        tx.rollback().await.unwrap();
        db.until("it is settled too", "select count(*) = 0 from outhaul.jobs").await;
        worker.stop().await;
        assert_eq!(log.count("begin").await, 1 + 40 * bursts, "nothing ran twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_has_locked_does_not_hold_up_the_recovery_of_others() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let ids = enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    assert_eq!(claim(&db.client, "acts", 20).await.len(), 20);
    let mut operator = db.connect().await;
    let tx = operator.transaction().await.unwrap();
    tx.execute("select 1 from outhaul.jobs where id = $1 for update", &[&ids[7]]).await.unwrap();
    // The locked row cannot be aged by an update; its own transaction does it.
    let age = "update outhaul.jobs set lease_until = clock_timestamp() - interval '1 s' where id ";
    tx.execute(&format!("{age} = $1"), &[&ids[7]]).await.unwrap();
    db.client.execute(&format!("{age} <> $1"), &[&ids[7]]).await.unwrap();
    let worker = Running::start(db.worker().handle(log.actor("w"))).await;
    log.until("end", 19).await;
    tx.commit().await.unwrap();
    log.until("end", 20).await;
    worker.stop().await;
    assert_eq!(log.count("begin").await, 20);
}

/// Makes the database refuse to store one job's dead letter.
async fn refuse_dead_letter(db: &Db, id: Uuid) {
    let sql = format!(
        "create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$;
         create trigger refuse before insert on outhaul.jobs_dead for each row when (new.id = '{id}') execute function public.refuse()"
    );
    db.client.batch_execute(&sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_database_refuses_does_not_fail_its_batch() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let jobs = vec![Act::Fail("no".into()).job().max_attempts(1); 30];
    let ids = enqueue_all(&mut db.client, &jobs).await;
    refuse_dead_letter(&db, ids[11]).await;
    let worker = Running::start(db.worker().handle(log.actor("w")).with(|o| o.concurrency = 50)).await;
    db.until("the others are dead letters", "select count(*) = 29 from outhaul.jobs_dead").await;
    db.client.batch_execute("drop trigger refuse on outhaul.jobs_dead").await.unwrap();
    db.until("the last one is too", "select count(*) = 30 from outhaul.jobs_dead").await;
    worker.stop().await;
    assert_eq!(log.count("begin").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_that_cannot_be_settled_does_not_fail_the_sweep() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let ids = enqueue_all(&mut db.client, &vec![Act::Nothing.job().max_attempts(1); 20]).await;
    assert_eq!(claim(&db.client, "acts", 20).await.len(), 20);
    refuse_dead_letter(&db, ids[3]).await;
    db.age_leases().await;
    let worker = Running::start(db.worker().handle(log.actor("w"))).await;
    db.until("19 dead letters", "select count(*) = 19 from outhaul.jobs_dead").await;
    db.client.batch_execute("drop trigger refuse on outhaul.jobs_dead").await.unwrap();
    db.until("20 dead letters", "select count(*) = 20 from outhaul.jobs_dead").await;
    worker.stop().await;
    assert_eq!(log.count("begin").await, 0);
}
