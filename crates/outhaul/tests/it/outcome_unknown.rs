//! Answers that are lost after the server has committed, and statements that may never have arrived.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use outhaul::{Enqueued, Error, Worker, enqueue};
use outhaul_local::proxy::Proof;
use outhaul_local::{Action, Match, Phase, Proxy, Rule};

use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Db, PATIENCE, Running, connect};

async fn behind_proxy() -> (Db, Proxy) {
    let db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    (db, proxy)
}

fn worker(proxy: &Proxy, log: &EffectLog) -> outhaul::WorkerBuilder {
    Worker::builder(proxy.url().parse().unwrap()).options(crate::support::quick()).handle(log.actor("w"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_outcome_unknown_and_its_repetition_makes_one_job() {
    // Whether the server had committed, and how it was kept from the caller.
    for (phase, committed) in [(Phase::OnCommit, true), (Phase::BeforeForward, false)] {
        let (mut db, proxy) = behind_proxy().await;
        let job = Act::Nothing.job().idempotency_key("order-77");
        let mut caller = connect(&proxy.url_for("caller")).await;
        let mut tx = caller.transaction().await.unwrap();
        enqueue(&mut tx, &job).await.unwrap();
        let at = Match::at(phase).role("caller");
        let at = if committed { at } else { at.statement("commit") };
        let cut = proxy.add(Rule::on(at).then(Action::Cut));
        let error = Error::from(tx.commit().await.unwrap_err());
        let proof = cut.fired(PATIENCE).await.unwrap().proof;
        assert_eq!(proof, if committed { Proof::Committed } else { Proof::NotForwarded });
        assert!(error.is_outcome_unknown(), "{error:?}");
        assert!(!error.is_retryable(), "it must not be repeated without its key: {error:?}");
        let again = enqueue(&mut db.client, &job.clone().id(outhaul::JobId::new())).await.unwrap();
        assert_eq!(matches!(again, Enqueued::Duplicate(_)), committed);
        assert_eq!(again.id() == job.job_id(), committed);
        assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_ended_during_a_commit_leaves_its_outcome_unknown() {
    let (db, proxy) = behind_proxy().await;
    let mut caller = connect(&proxy.url_for("caller")).await;
    let pid: i32 = caller.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let mut tx = caller.transaction().await.unwrap();
    enqueue(&mut tx, &Act::Nothing.job()).await.unwrap();
    let hold =
        Rule::on(Match::at(Phase::BeforeForward).role("caller").statement("commit")).then(Action::Hold);
    let hold = proxy.add(hold);
    let ended = async {
        hold.fired(PATIENCE).await.unwrap();
        db.client.execute("select pg_terminate_backend($1)", &[&pid]).await.unwrap();
        hold.release();
    };
    let (error, ()) = tokio::join!(tx.commit(), ended);
    let error = Error::from(error.unwrap_err());
    assert!(error.is_outcome_unknown(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_whose_answer_is_lost_is_outcome_unknown_and_its_repetition_makes_one_job() {
    let (mut db, proxy) = behind_proxy().await;
    let job = Act::Nothing.job().idempotency_key("order-78");
    let mut caller = connect(&proxy.url_for("caller")).await;
    proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("enqueue").role("caller")).then(Action::Cut));
    let error = enqueue(&mut caller, &job).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    let again = enqueue(&mut db.client, &job).await.unwrap();
    assert_eq!(again.id(), job.job_id());
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_answer_is_lost_is_not_run_again_and_counted_once() {
    for history in ["row", "none"] {
        let (mut db, proxy) = behind_proxy().await;
        let log = EffectLog::new().await;
        db.operator().await.history("acts", history).await.unwrap();
        // Counters are bound where the handler is registered.
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let builder = metrics::with_local_recorder(&recorder, || worker(&proxy, &log));
        let running = Running::start(builder).await;
        let lost = proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("complete")).then(Action::Cut));
        enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 10]).await;
        lost.fired(PATIENCE).await.unwrap();
        db.until("all have ended", "select count(*) = 0 from outhaul.jobs").await;
        running.stop().await;
        assert_eq!(log.count("begin").await, 10, "none ran again");
        assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
        let kept = db.count("select count(*) from outhaul.jobs_finished where status = 'completed'").await;
        assert_eq!(kept, if history == "row" { 10 } else { 0 });
        let counted = shown.render();
        let completed = counted
            .lines()
            .find(|line| line.starts_with("outhaul_job_attempts_total") && line.contains("\"completed\""))
            .unwrap_or_else(|| panic!("{counted}"));
        assert!(completed.ends_with(" 10"), "{completed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_whose_answer_is_lost_is_settled_once() {
    let (mut db, proxy) = behind_proxy().await;
    let log = EffectLog::new().await;
    let running =
        Running::start(worker(&proxy, &log).with(|o| o.retry.backoff.base = Duration::from_millis(300)))
            .await;
    let lost = proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("fail")).then(Action::Cut));
    let job = Act::Fail("no".into()).job().max_attempts(2);
    let id = enqueue_all(&mut db.client, &[job]).await[0];
    lost.fired(PATIENCE).await.unwrap();
    db.until("it is a dead letter", "select count(*) = 1 from outhaul.jobs_dead").await;
    running.stop().await;
    assert_eq!(log.count("begin").await, 2);
    let outcomes = db
        .client
        .query("select outcome from outhaul.job_attempts where job_id = $1 order by claim_no", &[&id])
        .await
        .unwrap();
    let outcomes: Vec<&str> = outcomes.iter().map(|row| row.get(0)).collect();
    assert_eq!(outcomes, ["retry", "dead_letter"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_claim_whose_answer_is_lost_are_found_by_their_expiry() {
    let (mut db, proxy) = behind_proxy().await;
    let log = EffectLog::new().await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 10]).await;
    let lost = proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("claim")).then(Action::Cut));
    let running = Running::start(worker(&proxy, &log)).await;
    lost.fired(PATIENCE).await.unwrap();
    log.until("end", 10).await;
    db.until("all completed", "select count(*) = 10 from outhaul.jobs_finished").await;
    running.stop().await;
    assert_eq!(log.count("begin").await, 10, "nobody had begun them before");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts where error_class = 'crash'").await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_never_arrived_costs_nothing() {
    let (mut db, proxy) = behind_proxy().await;
    let log = EffectLog::new().await;
    enqueue_all(&mut db.client, &vec![Act::Nothing.job(); 10]).await;
    let lost = proxy.add(Rule::on(Match::at(Phase::BeforeForward).tag("claim")).times(2).then(Action::Cut));
    let running = Running::start(worker(&proxy, &log)).await;
    lost.fired_times(2, PATIENCE).await.unwrap();
    log.until("end", 10).await;
    running.stop().await;
    assert_eq!(log.count("begin").await, 10);
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}
