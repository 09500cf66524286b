//! Worker processes that are killed, stopped, or killed by their own jobs.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::fault::{Act, Effect, EffectLog, Post, enqueue_all};
use crate::support::{Db, PATIENCE, until};

/// The leases of a queue's jobs as the table has them.
async fn leases(db: &Db) -> BTreeMap<Uuid, Timestamp> {
    let sql = "select id, lease_until from outhaul.jobs where status = 'leased'";
    db.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Second begins, each within a sweep and a second after its lease ended.
fn assert_began_again(leases: &BTreeMap<Uuid, Timestamp>, again: &[Effect], sweep: SignedDuration) {
    for effect in again {
        let limit = leases[&effect.job] + sweep + SignedDuration::from_secs(1);
        assert!(effect.at > leases[&effect.job], "{effect:?} began while its lease stood");
        assert!(effect.at <= limit, "{effect:?} began after {limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_killed_process_begin_again_once_within_lease_and_sweep() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let post = Post { lease: 1_500, sweep: 500, concurrency: 20, ..Post::new("victim", &db.url(), &log) };
    let mut victim = post.start().await;
    let jobs = enqueue_all(&mut db.client, &vec![Act::Sleep(5_000).job(); 20]).await;
    log.until("begin", 20).await;
    let _survivor = Post { name: "survivor".into(), ..post }.start().await;
    victim.kill().await.unwrap();
    let left = leases(&db).await;
    assert_eq!(left.len(), 20, "none had ended, and its process is needed for none of them");
    // Recovery depends on the leases alone, and not on who is registered.
    db.client.execute("delete from outhaul.workers", &[]).await.unwrap();
    log.until("end", 20).await;
    db.until("all completed", "select count(*) = 20 from outhaul.jobs_finished").await;
    let begins = log.all("begin").await;
    assert_eq!(begins.len(), 40, "exactly once more each");
    let again: Vec<Effect> = begins.into_iter().filter(|begin| begin.worker == "survivor").collect();
    assert_eq!(again.iter().map(|begin| begin.job).collect::<HashSet<_>>(), jobs.into_iter().collect());
    assert_began_again(&left, &again, SignedDuration::from_millis(500));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_ahead_of_the_survivors_floors_are_found_by_the_next_sweep() {
    for _ in 0..3 {
        let mut db = Db::new().await;
        let log = EffectLog::new().await;
        let post = Post::new("victim", &db.url(), &log);
        // It looks at its start and not again, so its floors stay behind everything that comes.
        let blind = Post { name: "survivor".into(), poll: 60_000, listen: false, ..post.clone() };
        Act::Nothing.enqueue(&mut db.client).await;
        let _survivor = blind.start().await;
        log.until("end", 1).await;
        let mut victim = post.start().await;
        enqueue_all(&mut db.client, &vec![Act::Sleep(20_000).job(); 5]).await;
        log.until("begin", 6).await;
        victim.kill().await.unwrap();
        let left = leases(&db).await;
        log.until("begin", 11).await;
        let again: Vec<Effect> =
            log.all("begin").await.into_iter().filter(|begin| begin.claim_no == 2).collect();
        assert_began_again(&left, &again, SignedDuration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_finisher_changes_nothing_and_is_told() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let post = Post::new("stopped", &db.url(), &log);
    let mut stopped = post.start().await;
    let id = Act::UntilTold.enqueue(&mut db.client).await;
    log.until("begin", 1).await;
    stopped.stop().await.unwrap();
    let mut other = Post { name: "other".into(), drain: 100, ..post }.start().await;
    log.until("begin", 2).await;
    let row =
        "select (claim_no, attempts, lease_token, locked_by, status)::text from outhaul.jobs where id = $1";
    let before: String = db.client.query_one(row, &[&id]).await.unwrap().get(0);
    stopped.cont().unwrap();
    log.until("told lease_lost", 1).await;
    log.until("end", 1).await;
    // Drained, so its late report has been sent and answered.
    stopped.term().unwrap();
    assert!(stopped.wait(PATIENCE).await.unwrap().success());
    let told = log.all("told lease_lost").await;
    assert_eq!((told.len(), told[0].claim_no, told[0].worker.as_str()), (1, 1, "stopped"));
    let after: String = db.client.query_one(row, &[&id]).await.unwrap().get(0);
    assert_eq!(before, after);
    other.term().unwrap();
    assert!(other.wait(PATIENCE).await.unwrap().success());
    assert_eq!(db.status(id).await, "completed");
    assert_eq!(db.count("select claim_no::bigint from outhaul.jobs_finished").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_worker_does_not_stand_in_front_and_ends_as_a_dead_letter() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let post = Post { concurrency: 1, ..Post::new("w", &db.url(), &log) };
    let killer = outhaul::enqueue(&mut db.client, &Act::Die.job().max_attempts(3)).await.unwrap().id().0;
    let good = enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    // Somebody starts the process again, as supervisors do.
    let supervised = async {
        loop {
            let mut worker = post.start().await;
            while worker.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::select! {
        () = supervised => {}
        () = until("the end of all", || async {
            db.status(killer).await == "dead_letter" && log.jobs("end").await == 20
        }) => {}
    }
    let begins = log.all("begin").await;
    let of_killer: Vec<_> = begins.iter().filter(|begin| begin.job == killer).collect();
    assert_eq!(of_killer.len(), 3, "one for each attempt: {of_killer:?}");
    let last_good = log.all("end").await.iter().filter(|end| good.contains(&end.job)).map(|end| end.at).max();
    assert!(of_killer[1].at > last_good.unwrap(), "it ran again before what was due with it");
    assert_eq!(begins.len() - of_killer.len(), 20);
    let dead =
        db.client.query_one("select last_error_class, attempts from outhaul.jobs_dead", &[]).await.unwrap();
    assert_eq!((dead.get::<_, &str>(0), dead.get::<_, i32>(1)), ("crash", 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_cannot_be_settled_do_not_hide_the_others_from_the_sweep() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    // More than a sweep reads at once, and due before the others.
    let stuck = "insert into outhaul.jobs (id, queue, job_type, payload, run_at) \
        select gen_random_uuid(), 'acts', 'stuck', '{}', clock_timestamp() - interval '1 hour' from generate_series(1, 600)";
    db.client.execute(stuck, &[]).await.unwrap();
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    assert_eq!(crate::calls::claim(&db.client, "acts", 1_000).await.len(), 620);
    let refusal = "create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$; \
        create trigger refuse before update or delete on outhaul.jobs for each row when (old.job_type = 'stuck') \
        execute function refuse()";
    let age = "update outhaul.jobs set lease_until = clock_timestamp() - interval '1 s'";
    db.client.batch_execute(&format!("{age}; {refusal}")).await.unwrap();
    let _worker = Post::new("survivor", &db.url(), &log).start().await;
    db.until("the others completed", "select count(*) = 20 from outhaul.jobs_finished").await;
    assert_eq!(log.count("begin").await, 20);
    assert_eq!(db.count("select count(*) from outhaul.jobs where status = 'leased'").await, 600);
}

/// Never two at once: no `begin` lies between another's begin and the earliest time at which that one's lease could end.
fn assert_one_at_a_time(begins: &[Effect], ends: &[Effect], lease: SignedDuration) {
    for (n, first) in begins.iter().enumerate() {
        let ended = ends.iter().find(|end| end.job == first.job && end.claim_no == first.claim_no);
        // A holder that was killed or stopped had its lease from its begin on, at least.
        let free = ended.map_or(first.at + lease, |end| end.at.min(first.at + lease));
        if let Some(second) = begins.get(n + 1) {
            assert!(second.at >= free, "{second:?} began beside {first:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unit_of_a_killed_process_is_free_when_its_lease_ends_and_not_before() {
    let mut db = Db::new().await;
    db.operator().await.set_queue("acts", &outhaul::QueueChange::new().max_running(1), None).await.unwrap();
    let log = EffectLog::new().await;
    let post = Post { lease: 1_500, ..Post::new("victim", &db.url(), &log) };
    let mut victim = post.start().await;
    enqueue_all(&mut db.client, &[Act::Sleep(20_000).job()]).await;
    log.until("begin", 1).await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 3]).await;
    let _survivor = Post { name: "survivor".into(), ..post }.start().await;
    db.until_looked().await;
    victim.kill().await.unwrap();
    let left = leases(&db).await;
    assert_eq!(left.len(), 1, "nothing has begun beside it");
    log.until("end", 3).await;
    let begins = log.all("begin").await;
    let until = *left.values().next().unwrap();
    let next = begins.iter().filter(|begin| begin.worker == "survivor").map(|begin| begin.at).min().unwrap();
    assert!(next > until, "a unit is taken while its lease stands");
    assert!(next <= until + SignedDuration::from_secs(1), "nobody waits for the sweep, nor for the poll");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_of_a_unit_that_goes_on_is_told_and_takes_no_second_one() {
    let mut db = Db::new().await;
    db.operator()
        .await
        .set_queue("acts", &outhaul::QueueChange::new().max_running_per_key(1), None)
        .await
        .unwrap();
    let log = EffectLog::new().await;
    let post = Post::new("stopped", &db.url(), &log);
    let mut stopped = post.start().await;
    let keyed = |act: Act| act.job().limit_key("one");
    // With its last attempt, so that nobody else runs it again.
    enqueue_all(&mut db.client, &[keyed(Act::UntilTold).max_attempts(1)]).await;
    log.until("begin", 1).await;
    stopped.stop().await.unwrap();
    enqueue_all(&mut db.client, &vec![keyed(Act::Sleep(300)); 4]).await;
    let _other = Post { name: "other".into(), drain: 100, ..post }.start().await;
    log.until("end", 1).await;
    stopped.cont().unwrap();
    log.until("told lease_lost", 1).await;
    log.until("end", 4).await;
    let begins = log.all("begin").await;
    assert_one_at_a_time(&begins, &log.all("end").await, SignedDuration::from_millis(900));
    assert!(db.count("select count(*) from outhaul.permits where limit_key = 'one'").await <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_head_dies_with_its_worker_goes_on_in_order() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let post = Post::new("victim", &db.url(), &log);
    let mut victim = post.start().await;
    let lane = |act: Act| act.job().ordering_key("lane");
    let mut jobs = enqueue_all(&mut db.client, &[lane(Act::Sleep(700))]).await;
    log.until("begin", 1).await;
    jobs.extend(enqueue_all(&mut db.client, &vec![lane(Act::Nothing); 5]).await);
    victim.kill().await.unwrap();
    let _survivor = Post { name: "survivor".into(), ..post }.start().await;
    log.until("end", 6).await;
    let ended: Vec<Uuid> = log.all("end").await.iter().map(|end| end.job).collect();
    assert_eq!(ended, jobs, "the head first, then the others as they came");
    let claims: Vec<i32> = log.all("end").await.iter().map(|end| end.claim_no).collect();
    assert_eq!(claims, [2, 1, 1, 1, 1, 1]);
}
