//! Statements that are kept prepared on a connection of tokio-postgres.

use outhaul::{NewEvent, NewJob, Published, enqueue, publish, publish_many};

use crate::support::{Db, Tick};

fn tick(n: i64) -> NewJob {
    NewJob::new(&Tick { n }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_answer_like_others() {
    let mut db = Db::new().await;
    let statements = outhaul::StatementCache::default();
    let keyed = tick(1).idempotency_key("prepared");
    let first = enqueue(&mut statements.on(&db.client), &keyed).await.unwrap();
    assert!(first.is_new());
    for _ in 0..3 {
        let again =
            enqueue(&mut statements.on(&db.client), &tick(1).idempotency_key("prepared")).await.unwrap();
        assert_eq!((again.is_new(), again.id()), (false, first.id()));
    }
    let tx = db.client.transaction().await.unwrap();
    let jobs: Vec<NewJob> = (0..10).map(tick).collect();
    assert_eq!(outhaul::enqueue_many(&mut statements.on(&tx), &jobs).await.unwrap().len(), 10);
    let conflict = enqueue(&mut statements.on(&tx), &tick(2).idempotency_key("prepared")).await.unwrap_err();
    assert!(conflict.is_conflict());
    tx.rollback().await.unwrap();
    assert!(
        enqueue(&mut statements.on(&db.client), &tick(3)).await.unwrap().is_new(),
        "prepared outlives a rollback"
    );
    assert_eq!(
        db.count("select count(*) from pg_prepared_statements where statement like '/* outhaul:%'").await,
        2
    );
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_through_prepared_statements() {
    let mut db = Db::new().await;
    let statements = outhaul::StatementCache::default();
    let moved = |n: i64| NewEvent::raw("parcel.moved", "parcel", uuid::Uuid::now_v7(), n.to_string());
    let keyed = moved(1).idempotency_key("prepared");
    for _ in 0..3 {
        let answer = publish(&mut statements.on(&db.client), &keyed).await.unwrap();
        assert_eq!(answer, Published::New(keyed.event_id()), "the very same");
    }
    let tx = db.client.transaction().await.unwrap();
    let batch: Vec<NewEvent> = (0..10).map(moved).collect();
    for _ in 0..2 {
        assert_eq!(publish_many(&mut statements.on(&tx), &batch).await.unwrap().len(), 10);
    }
    tx.commit().await.unwrap();
    assert_eq!(
        db.count("select count(*) from pg_prepared_statements where statement like '/* outhaul:%'").await,
        2
    );
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 21);
}
