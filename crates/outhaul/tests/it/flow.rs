//! One job from the enqueue to its end.

use outhaul::{Failure, NewJob, enqueue};

use crate::support::{Counter, Db, Running, Tick};

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_job_runs_once_and_completes() {
    let mut db = Db::new().await;
    let counter = Counter::default();
    let worker = Running::start(db.worker().handle(counter.handler())).await;
    let tx = db.client.transaction().await.unwrap();
    let mut tx = tx;
    let job = enqueue(&mut tx, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap();
    tx.commit().await.unwrap();
    counter.until_ended(1).await;
    db.until("completion", "select count(*) = 1 from outhaul.jobs_finished where status = 'completed'").await;
    worker.stop().await;
    assert_eq!(db.status(job.id().0).await, "completed");
    assert_eq!((counter.begun(), counter.ended()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_rolled_back_never_runs() {
    let mut db = Db::new().await;
    let counter = Counter::default();
    let mut tx = db.client.transaction().await.unwrap();
    enqueue(&mut tx, &NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap();
    tx.rollback().await.unwrap();
    enqueue(&mut db.client, &NewJob::new(&Tick { n: 2 }).unwrap()).await.unwrap();
    let worker = Running::start(db.worker().handle(counter.handler())).await;
    counter.until_ended(1).await;
    worker.stop().await;
    assert_eq!(counter.begun(), 1, "only the committed one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_insert_from_psql_is_run_and_its_key_is_taken() {
    let db = Db::new().await;
    let insert = "insert into outhaul.jobs (id, organization_id, queue, job_type, payload, idempotency_key) \
        values (gen_random_uuid(), null, 'notifications', 'demo.hello', '{\"n\":1}', 'k-1')";
    db.client.execute(insert, &[]).await.unwrap();
    let again = db.client.execute(insert, &[]).await.unwrap_err();
    let again = again.as_db_error().unwrap();
    assert_eq!(again.code().code(), "23505");
    assert!(again.hint().unwrap().contains("enqueue"), "{again:?}");
    let builder = db.worker().handle_raw("notifications", "demo.hello", |cx| async move {
        assert_eq!(cx.payload(), r#"{"n": 1}"#);
        Ok::<(), Failure>(())
    });
    let worker = Running::start(builder).await;
    db.until("completion", "select count(*) = 1 from outhaul.jobs_finished where status = 'completed'").await;
    worker.stop().await;
}
