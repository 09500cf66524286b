//! A transaction that somebody left open, with a snapshot and a transaction id.

use crate::fault::{Act, enqueue_all};
use crate::support::{Db, Running};

#[tokio::test(flavor = "multi_thread")]
async fn a_held_snapshot_does_not_stop_claims() {
    let mut db = Db::new().await;
    let mut holder = db.connect().await;
    db.client.batch_execute("create table notes (n int)").await.unwrap();
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let held = holder.build_transaction().isolation_level(level).start().await.unwrap();
    held.batch_execute("insert into notes values (1); select count(*) from outhaul.jobs").await.unwrap();
    let builder = db.worker().handle(|_: Act, _| std::future::ready(Ok(()))).with(|o| o.concurrency = 50);
    let worker = Running::start(builder).await;
    let mut done = 0;
    for _ in 0..10 {
        enqueue_all(&mut db.client, &vec![Act::Silent.job(); 1_000]).await;
        done += 1_000;
        db.until("the round", &format!("select count(*) = {done} from outhaul.jobs_finished")).await;
    }
    assert_eq!(db.count("select sum(claim_no) from outhaul.jobs_finished").await, done);
    held.rollback().await.unwrap();
    worker.stop().await;
}
