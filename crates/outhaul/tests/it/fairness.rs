//! Fair queues: organizations take turns, however much each has enqueued.

use outhaul::{NewJob, QueueChange};
use uuid::Uuid;

use crate::support::{Db, PATIENCE, Running};

async fn enqueue(db: &Db, organization: Option<Uuid>, n: usize) {
    let job = |_| NewJob::raw("q", "t", "{}");
    let of = |job: NewJob| if let Some(id) = organization { job.organization(id) } else { job };
    let jobs: Vec<NewJob> = (0..n).map(job).map(of).collect();
    outhaul::enqueue_many(&mut db.connect().await, &jobs).await.unwrap();
}

async fn fair(db: &Db) {
    db.operator().await.set_queue("q", &QueueChange::new().fair(true), None).await.unwrap();
}

/// The organizations of one claim, and the share to go on with.
async fn claim(db: &Db, n: i32, after: i32) -> (Vec<Option<Uuid>>, i32) {
    let sql = "select id, organization_id, share from outhaul.claim('q', $1, gen_random_uuid(), '60 s', tell => true, after_share => $2)";
    let rows = db.client.query(sql, &[&n, &after]).await.unwrap();
    let way = |share: i32| (i64::from(share) - i64::from(after) - 1).rem_euclid(1 << 31);
    let jobs = rows.iter().filter(|row| row.get::<_, Option<Uuid>>(0).is_some());
    let got: Vec<Option<Uuid>> = jobs.clone().map(|row| row.get(1)).collect();
    // How far it came is told by the last row, unless it had enough before.
    let came = if got.len() < n as usize { rows.iter().collect() } else { jobs.collect::<Vec<_>>() };
    let served = came.iter().map(|row| row.get::<_, i32>(2)).max_by_key(|share| way(*share)).unwrap_or(after);
    (got, served)
}

#[tokio::test]
async fn one_job_of_another_organization_is_in_the_first_two_claims_behind_fifty_thousand() {
    let db = Db::new().await;
    fair(&db).await;
    let (big, small) = (Uuid::from_u128(1), Uuid::from_u128(2));
    enqueue(&db, Some(big), 50_000).await;
    let mut after = -1;
    for n in [10, 1] {
        (_, after) = claim(&db, n, after).await;
        enqueue(&db, Some(small), 1).await;
        let (first, next) = claim(&db, n, after).await;
        let (second, next) = claim(&db, n, next).await;
        assert!(first.contains(&Some(small)) || second.contains(&Some(small)), "claims of {n}");
        assert_eq!(
            first.len() + second.len(),
            2 * n as usize,
            "nothing is left free for the sake of fairness"
        );
        after = next;
    }
}

#[tokio::test]
async fn many_organizations_get_equal_parts_and_a_lone_one_gets_everything() {
    let db = Db::new().await;
    fair(&db).await;
    for n in 1..=300u128 {
        enqueue(&db, Some(Uuid::from_u128(n)), 3).await;
    }
    enqueue(&db, None, 3).await;
    let mut served = std::collections::HashMap::new();
    let mut after = -1;
    // 301 of them, 10 a claim: whoever has had a second turn has waited for everybody's first.
    for _ in 0..31 {
        let (got, next) = claim(&db, 10, after).await;
        assert_eq!(got.len(), 10);
        for of in got {
            *served.entry(of).or_insert(0) += 1;
        }
        after = next;
    }
    assert_eq!(served.len(), 301, "each had a turn");
    assert!(served.values().all(|n| *n <= 2), "{:?}", served.values().max());
    db.client.batch_execute("delete from outhaul.jobs").await.unwrap();
    enqueue(&db, Some(Uuid::from_u128(7)), 100).await;
    assert_eq!(claim(&db, 50, after).await.0.len(), 50);
}

#[tokio::test]
async fn shares_come_through_every_door_and_survive_a_replay() {
    let db = Db::new().await;
    fair(&db).await;
    let id = Uuid::from_u128(9);
    enqueue(&db, Some(id), 2).await;
    let mut client = db.connect().await;
    outhaul::enqueue(&mut client, &NewJob::raw("q", "t", "{}").organization(id)).await.unwrap();
    outhaul::enqueue_many(&mut client, &[NewJob::raw("q", "t", "{}").organization(id).idempotency_key("k")])
        .await
        .unwrap();
    client
        .execute("insert into outhaul.jobs (queue, job_type, organization_id) values ('q', 't', $1)", &[&id])
        .await
        .unwrap();
    let shares = "select count(distinct share) from outhaul.jobs where share > 0";
    assert_eq!(
        (db.count(shares).await, db.count("select count(*) from outhaul.jobs where share > 0").await),
        (1, 5)
    );
    let lease = crate::calls::claim(&db.client, "q", 1).await.remove(0);
    assert_eq!(crate::calls::fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    db.client.query("select outhaul.operator_retry($1)", &[&lease.id]).await.unwrap();
    assert_eq!(
        (db.count(shares).await, db.count("select count(*) from outhaul.jobs where share > 0").await),
        (1, 5)
    );
    // In a queue that is not fair nobody has a share of its own.
    client
        .execute("insert into outhaul.jobs (queue, job_type, organization_id) values ('p', 't', $1)", &[&id])
        .await
        .unwrap();
    outhaul::enqueue(&mut client, &NewJob::raw("p", "t", "{}").organization(id)).await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs where queue = 'p' and share = 0").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_serves_the_others_while_one_floods_the_queue() {
    let db = Db::new().await;
    fair(&db).await;
    db.client
        .batch_execute("create table done (organization uuid, place bigint generated always as identity)")
        .await
        .unwrap();
    enqueue(&db, Some(Uuid::from_u128(1)), 1_000).await;
    for n in 2..=6u128 {
        enqueue(&db, Some(Uuid::from_u128(n)), 2).await;
    }
    let url = db.url();
    let handler = move |cx: outhaul::Context| {
        let url = url.clone();
        async move {
            let client = crate::support::connect(&url).await;
            client.execute("insert into done (organization) values ($1)", &[&cx.organization()]).await?;
            Ok(())
        }
    };
    let running = Running::start(db.worker().queue("q", 4).handle_raw("q", "t", handler)).await;
    db.until(
        "the small ones are served",
        "select count(*) = 10 from done where organization > '00000000-0000-0000-0000-000000000001'",
    )
    .await;
    running.stop().await;
    let last = "select max(place) from done where organization > '00000000-0000-0000-0000-000000000001'";
    assert!(db.count(last).await <= 100, "and not behind the thousand");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_drains_a_fair_backlog_without_waiting_for_a_rescan() {
    let db = Db::new().await;
    fair(&db).await;
    for n in 1..=20u128 {
        enqueue(&db, Some(Uuid::from_u128(n)), 100).await;
    }
    // Due long ago, so that a floor at the present would hide what a first round has left in each lane.
    let old = "update outhaul.jobs set run_at = run_at - interval '1 hour'";
    db.client.batch_execute(old).await.unwrap();
    let builder = db.worker().queue("q", 10).with(|o| (o.poll, o.canary) = (PATIENCE * 4, PATIENCE * 4));
    let running =
        Running::start(builder.handle_raw("q", "t", |_| async { Ok::<(), outhaul::Failure>(()) })).await;
    db.until("the backlog is drained", "select not exists (select from outhaul.jobs)").await;
    running.stop().await;
}
