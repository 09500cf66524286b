//! What each kind of failure does to a real row.

use std::time::Duration;

use outhaul::{Context, Failure, Job, JobId, NewJob};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Db, Running, Tick, until};

/// How the handler of the test ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum End {
    Transient,
    RateLimited,
    Permanent,
    Revoked,
    Unknown,
    Snooze(u64),
    Panic,
    PanicInDrop,
    Hang,
    Hostile,
}

impl Job for End {
    const TYPE: &'static str = "test.end";
    const QUEUE: &'static str = "ends";
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// An error that breaks whoever shows it.
struct Hostile;

impl std::fmt::Display for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format!("\0\u{1b}[2J'; drop table jobs; --{}", "\u{202e}€\n".repeat(200_000)))
    }
}

impl std::fmt::Debug for Hostile {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no debug")
    }
}

impl std::error::Error for Hostile {}

async fn end(end: End, _: Context) -> Result<(), Failure> {
    match end {
        End::Transient => Err(Failure::transient("away").code("http_503")),
        End::RateLimited => Err(Failure::rate_limited("slow down")),
        End::Permanent => Err(Failure::permanent("never").code("bad_address")),
        End::Revoked => Err(Failure::revoked("not wanted any more")),
        End::Unknown => Err(Failure::unknown("?")),
        End::Snooze(ms) => Err(Failure::snooze(Duration::from_millis(ms))),
        End::Panic => panic!("at the disco"),
        End::PanicInDrop => {
            let _bomb = PanicsWhenDropped;
            std::future::pending().await
        }
        End::Hang => std::future::pending().await,
        End::Hostile => Err(Hostile)?,
    }
}

fn worker(db: &Db) -> outhaul::WorkerBuilder {
    db.worker().handle(end).with(|o| {
        o.retry.backoff.base = Duration::from_millis(20);
        o.timeout = Duration::from_millis(200);
    })
}

async fn enqueue(db: &mut Db, end: End, max_attempts: i32) -> Uuid {
    let job = NewJob::new(&end).unwrap().max_attempts(max_attempts);
    outhaul::enqueue(&mut db.client, &job).await.unwrap().id().0
}

/// Outcome, class and code of each attempt in order.
async fn attempts(db: &Db, id: Uuid) -> Vec<(String, String, Option<String>)> {
    let detail = db.observer().await.job(JobId(id)).await.unwrap().unwrap();
    let mut attempts = detail.attempt_history;
    attempts.sort_by_key(|attempt| attempt.claim_no);
    attempts.into_iter().map(|one| (one.outcome, one.error_class, one.error_code)).collect()
}

async fn until_ended(db: &Db, id: Uuid) -> String {
    until("the end of the job", || async { JOB_ENDS.contains(&db.status(id).await.as_str()) }).await;
    db.status(id).await
}

const JOB_ENDS: [&str; 3] = ["completed", "cancelled", "dead_letter"];

#[tokio::test(flavor = "multi_thread")]
async fn each_class_ends_as_its_verdict_says_and_leaves_its_attempts() {
    let mut db = Db::new().await;
    let running = Running::start(worker(&db)).await;
    /// End, most attempts, how the job ends, its attempts, the class and code of each.
    type Case = (End, i32, &'static str, usize, &'static str, Option<&'static str>);
    let cases: [Case; 9] = [
        (End::Transient, 4, "dead_letter", 4, "transient", Some("http_503")),
        (End::RateLimited, 2, "dead_letter", 2, "rate_limited", None),
        (End::Permanent, 10, "dead_letter", 1, "permanent", Some("bad_address")),
        (End::Revoked, 10, "cancelled", 1, "revoked", None),
        (End::Unknown, 10, "dead_letter", 3, "unknown", None),
        (End::Unknown, 2, "dead_letter", 2, "unknown", None),
        (End::Panic, 10, "dead_letter", 3, "unknown", Some("panic")),
        (End::Hang, 2, "dead_letter", 2, "transient", Some("timeout")),
        (End::PanicInDrop, 10, "dead_letter", 3, "unknown", Some("panic")),
    ];
    for (end, max, status, n, class, code) in cases {
        let id = enqueue(&mut db, end.clone(), max).await;
        assert_eq!(until_ended(&db, id).await, status, "{end:?}");
        let attempts = attempts(&db, id).await;
        let outcome = |at| if at + 1 < n { "retry" } else { status };
        for (at, attempt) in attempts.iter().enumerate() {
            let expected = (outcome(at).to_owned(), class.to_owned(), code.map(str::to_owned));
            assert_eq!(*attempt, expected, "{end:?}, attempt {}", at + 1);
        }
        assert_eq!(attempts.len(), n, "{end:?}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_between_attempts_are_at_least_the_backoff() {
    let mut db = Db::new().await;
    let running =
        Running::start(worker(&db).with(|o| o.retry.backoff.base = Duration::from_millis(200))).await;
    let id = enqueue(&mut db, End::Transient, 4).await;
    until_ended(&db, id).await;
    running.stop().await;
    let waits = "select extract(epoch from started_at - lag(ended_at) over (order by claim_no))::float8 from outhaul.job_attempts";
    let rows = db.client.query(waits, &[]).await.unwrap();
    let waits: Vec<f64> = rows.iter().filter_map(|row| row.get(0)).collect();
    assert_eq!(waits.len(), 3);
    for (n, wait) in waits.iter().enumerate() {
        let least = 0.2 * f64::from(1 << n) * 0.8;
        assert!(*wait >= least, "wait {n} took {wait} s and not {least}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_begins_when_it_is_due_although_the_worker_polls_rarely() {
    let mut db = Db::new().await;
    let builder = worker(&db).with(|o| {
        (o.poll, o.listen) = (Duration::from_secs(3600), false);
        o.retry.backoff.base = Duration::from_millis(300);
    });
    // It looks at its start, and then only for what it knows to become due.
    let id = enqueue(&mut db, End::Transient, 3).await;
    let running = Running::start(builder).await;
    until_ended(&db, id).await;
    running.stop().await;
    assert_eq!(attempts(&db, id).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_costs_no_attempt_until_the_limit() {
    let mut db = Db::new().await;
    let running = Running::start(worker(&db).with(|o| o.retry.free_snoozes = 5)).await;
    let id = enqueue(&mut db, End::Snooze(1), 2).await;
    assert_eq!(until_ended(&db, id).await, "dead_letter");
    running.stop().await;
    let outcomes: Vec<String> = attempts(&db, id).await.into_iter().map(|attempt| attempt.0).collect();
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "snoozed").count(), 5, "{outcomes:?}");
    assert_eq!(outcomes[5..], ["retry", "dead_letter"], "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_error_text_is_stored_clean_and_breaks_nothing() {
    let mut db = Db::new().await;
    let running = Running::start(worker(&db).with(|o| o.concurrency = 50)).await;
    let ids = {
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(enqueue(&mut db, End::Hostile, 1).await);
            ids.push(enqueue(&mut db, End::Permanent, 1).await);
        }
        ids
    };
    for id in &ids {
        assert_eq!(until_ended(&db, *id).await, "dead_letter");
    }
    running.stop().await;
    let sql = "select last_error_summary from outhaul.jobs_dead where last_error_class = 'unknown'";
    for row in db.client.query(sql, &[]).await.unwrap() {
        let summary: String = row.get(0);
        assert!(summary.len() <= outhaul::limits::ERROR_SUMMARY_BYTES);
        assert!(!summary.chars().any(char::is_control), "{summary:?}");
    }
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_cannot_be_decoded_fails_alone_and_for_good() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let running = Running::start(db.worker().handle(log.actor("w"))).await;
    let mut jobs = vec![Act::Nothing.job(); 99];
    jobs.insert(50, NewJob::raw("acts", "test.act", r#"{"secret": "swordfish"}"#));
    let ids = enqueue_all(&mut db.client, &jobs).await;
    log.until("end", 99).await;
    assert_eq!(until_ended(&db, ids[50]).await, "dead_letter");
    running.stop().await;
    let attempts = attempts(&db, ids[50]).await;
    let expected = ("dead_letter".to_owned(), "permanent".to_owned(), Some("payload_invalid".to_owned()));
    assert_eq!(attempts, [expected]);
    let leaked = "select count(*) from outhaul.jobs_dead where last_error_summary like '%swordfish%'";
    assert_eq!(db.count(leaked).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_jobs_end_by_their_timeout_and_short_ones_are_not_stopped() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let builder = db.worker().handle(log.actor("w")).queue("acts", 4);
    let running = Running::start(builder).await;
    let hang = Act::Hang.job().timeout(Duration::from_millis(300)).max_attempts(2);
    let hanging = enqueue_all(&mut db.client, &vec![hang; 8]).await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    log.until("end", 20).await;
    let short = log.all("end").await;
    let second = log.all("begin").await.into_iter().filter(|b| b.attempt == 2 && hanging.contains(&b.job));
    let earliest = second.map(|begin| begin.at).min();
    assert!(earliest.is_none_or(|at| at > short[0].at), "what hangs went to the front again");
    for id in hanging {
        assert_eq!(until_ended(&db, id).await, "dead_letter");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_claimed_ahead_do_not_wait_behind_handlers_that_hang() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let hogging =
        db.worker().handle(log.actor("hog")).queue("acts", 2).with(|o| o.lease = Duration::from_secs(2));
    let hog = Running::start(hogging).await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 500]).await;
    log.until("end", 500).await;
    let mut jobs = vec![Act::Hang.job(); 2];
    jobs.extend(vec![Act::Nothing.job(); 100]);
    enqueue_all(&mut db.client, &jobs).await;
    log.until("begin", 502).await;
    let other = Running::start(db.worker().handle(log.actor("other"))).await;
    log.until("end", 600).await;
    assert_eq!(db.count("select count(*) from outhaul.job_attempts where outcome <> 'released'").await, 0);
    hog.stopper().now();
    hog.stop().await;
    other.stopper().now();
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_type_is_given_back_at_no_cost_and_left_to_a_worker_that_knows_it() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let stranger = Running::start(db.worker().handle(log.actor("stranger"))).await;
    let unknown = NewJob::raw("acts", "test.tick", r#"{"n": 1}"#);
    let id = enqueue_all(&mut db.client, &[unknown]).await[0];
    db.until("it was given back", "select count(*) = 1 from outhaul.job_attempts where outcome = 'released'")
        .await;
    db.until("it waits", "select count(*) = 1 from outhaul.jobs where status = 'pending' and attempts = 0")
        .await;
    // Others of its queue are worked, and it is left alone.
    for _ in 0..5 {
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 20]).await;
    }
    log.until("end", 100).await;
    let claims = "select claim_no::bigint from outhaul.jobs where job_type = 'test.tick'";
    assert_eq!(db.count(claims).await, 1);
    let known = db.worker().handle(|_: Tick, cx: Context| async move {
        assert_eq!((cx.attempt(), cx.claim_no()), (1, 2));
        Ok(())
    });
    let knowing = Running::start(known.queue("acts", 5)).await;
    assert_eq!(until_ended(&db, id).await, "completed");
    stranger.stop().await;
    knowing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_stops_claims_and_a_resume_wakes() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    // Only a wake-up makes it look.
    let builder = db.worker().handle(log.actor("w")).with(|o| {
        (o.poll, o.canary) = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let running = Running::start(builder).await;
    let operator = db.operator().await;
    assert!(!operator.resume("acts", None).await.unwrap(), "it was not paused");
    assert_eq!(
        db.count("select count(*) from outhaul.queues where name = 'acts'").await,
        0,
        "and nothing is said of it"
    );
    assert!(operator.pause("acts", Some("test")).await.unwrap());
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 10]).await;
    db.until_looked().await;
    assert_eq!(db.count("select count(*) from outhaul.jobs where status = 'pending'").await, 10);
    assert!(operator.resume("acts", None).await.unwrap());
    log.until("end", 10).await;
    running.stop().await;
}
