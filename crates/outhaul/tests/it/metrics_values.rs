//! Metrics that need a cause of their own: what the gauges of a queue say, reports that come too late, and a
//! listener that does not hear.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use outhaul::{Context, Failure, NewJob, WorkerOptions, enqueue};
use outhaul_local::{Action, Match, Phase, Proxy, Rule};
use uuid::Uuid;

use crate::metrics_text::{recorder, total};
use crate::support::{Counter, Db, Running, quick, until};

/// So rare that it does not happen within a test.
const NEVER: Duration = Duration::from_secs(3600);

/// The value of a series, 0 where it was never moved.
fn value(shown: &PrometheusHandle, name: &str, labels: &[(&str, &str)]) -> f64 {
    total(&shown.render(), name, labels).unwrap_or(0.0)
}

#[tokio::test]
async fn the_gauges_of_a_queue_say_what_the_tables_hold() {
    let shown = recorder();
    let db = Db::new().await;
    let rows = "begin; set local session_replication_role = replica; \
        insert into outhaul.jobs (queue, job_type, run_at, status, lease_until) values \
        ('gauged', 't', now() - interval '50 s', 'pending', '-infinity'), ('gauged', 't', now() - interval '2 s', 'pending', '-infinity'), \
        ('gauged', 't', now() + interval '1 h', 'pending', '-infinity'), ('gauged', 't', now() + interval '1 h', 'pending', '-infinity'), \
        ('gauged', 't', now() + interval '1 h', 'pending', '-infinity'), ('gauged', 't', now(), 'leased', now() - interval '70 s'), \
        ('gauged', 't', now() + interval '1 h', 'retrying', '-infinity'), ('gauged', 't', now() + interval '1 h', 'retrying', '-infinity'), \
        ('gauged', 't', now() + interval '1 h', 'retrying', '-infinity'), ('gauged', 't', now() + interval '1 h', 'retrying', '-infinity'); \
        insert into outhaul.jobs (queue, job_type, run_at) select 'gauged.long', 't', now() + interval '1 h' from generate_series(1, 10001); \
        insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, payload, locked_by, last_error_class) \
        select now(), now(), gen_random_uuid(), 1, 1, 1, 0, 0, 'gauged', 't', '1', gen_random_uuid(), 'unknown' from generate_series(1, 5); \
        insert into outhaul.queues (name, paused_at, age_objective) values ('gauged', now(), '90 s'); \
        insert into outhaul.workers (id, host, pid, version, schema_version, queues) \
        select gen_random_uuid(), 'h', 1, 'v', 1, '{\"gauged\": 1}' from generate_series(1, 3); commit";
    db.client.batch_execute(rows).await.unwrap();
    let observer = db.observer().await;
    observer.record_gauges().await.unwrap();
    let gauge = |name: &str, queue: &str| value(&shown, name, &[("queue", queue)]);
    let state = |state: &str| value(&shown, "outhaul_queue_jobs", &[("queue", "gauged"), ("state", state)]);
    let states = ["pending", "scheduled", "leased", "retrying", "dead_letter"].map(state);
    assert_eq!(states, [2.0, 3.0, 1.0, 4.0, 5.0]);
    for (name, from) in [
        ("outhaul_queue_oldest_pending_age_seconds", 50.0),
        ("outhaul_queue_oldest_expired_lease_seconds", 70.0),
    ] {
        assert!((from..from + 30.0).contains(&gauge(name, "gauged")), "{name} {}", gauge(name, "gauged"));
        assert_eq!(gauge(name, "gauged.long"), 0.0, "{name}");
    }
    assert_eq!(gauge("outhaul_queue_age_objective_seconds", "gauged"), 90.0);
    for (name, one, other) in [
        ("outhaul_queue_jobs_capped", 0.0, 1.0),
        ("outhaul_queue_paused", 1.0, 0.0),
        ("outhaul_queue_workers", 3.0, 0.0),
    ] {
        assert_eq!((gauge(name, "gauged"), gauge(name, "gauged.long")), (one, other), "{name}");
    }
    let none: [(&str, &str); 0] = [];
    let usage = total(&shown.render(), "outhaul_notification_queue_usage_ratio", &none);
    assert!(usage.is_some_and(|usage| (0.0..=1.0).contains(&usage)), "{usage:?}");
}

/// Takes a lease away from whoever holds it, as a claim after its expiry would.
async fn take_over(db: &Db, id: Uuid) {
    let sql = "update outhaul.jobs set lease_token = gen_random_uuid(), claim_no = claim_no + 1, \
        lease_until = clock_timestamp() + interval '1 hour' where id = $1";
    assert_eq!(db.client.execute(sql, &[&id]).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_come_too_late_are_counted_by_kind() {
    let shown = recorder();
    let mut db = Db::new().await;
    let counter = Counter::default();
    let begun = counter.clone();
    let released = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = released.clone();
    let handler = move |cx: Context| {
        let (counter, gate) = (begun.clone(), gate.clone());
        async move {
            counter.begin();
            if cx.payload() == "\"renew\"" {
                cx.cancelled().await;
                return Ok(());
            }
            gate.acquire().await.expect("it is never closed").forget();
            if cx.payload() == "\"fail\"" { Err(Failure::transient("too late")) } else { Ok(()) }
        }
    };
    for (report, lease) in [("complete", 3600), ("fail", 3600), ("renew", 2)] {
        let (counted, before) =
            (counter.begun(), value(&shown, "outhaul_stale_reports_total", &[("report", report)]));
        let queue = format!("late.{report}");
        let lost = [("queue", queue.as_str()), ("outcome", "lease_lost")];
        let options = WorkerOptions { lease: Duration::from_secs(lease), ..quick() };
        let worker =
            Running::start(db.worker().options(options).handle_raw(&queue, "test.late", handler.clone()))
                .await;
        let job = NewJob::raw(&queue, "test.late", format!("\"{report}\""));
        let id = enqueue(&mut db.client, &job).await.unwrap().id().0;
        until("it has begun", || async { counter.begun() > counted }).await;
        take_over(&db, id).await;
        released.add_permits(usize::from(report != "renew"));
        until(&format!("a late report is counted: {report}"), || async {
            value(&shown, "outhaul_stale_reports_total", &[("report", report)]) > before
        })
        .await;
        if report == "renew" {
            assert!(value(&shown, "outhaul_lease_renewals_total", &[("result", "lost")]) >= 1.0);
        } else {
            until("the attempt is counted", || async {
                value(&shown, "outhaul_job_attempts_total", &lost) == 1.0
            })
            .await;
        }
        worker.stop().await;
        assert_eq!(db.status(id).await, "leased", "the report changed nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_report_of_a_cancelled_job_counts_as_cancelled_and_as_no_error() {
    let shown = recorder();
    let mut db = Db::new().await;
    for (queue, fails) in [("late.done", false), ("late.failed", true)] {
        let counter = Counter::default();
        let begun = counter.clone();
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let opens = gate.clone();
        let handler = move |_: Context| {
            let (counter, gate) = (begun.clone(), gate.clone());
            async move {
                counter.begin();
                gate.acquire().await.expect("it is never closed").forget();
                if fails { Err(Failure::transient("too late")) } else { Ok(()) }
            }
        };
        let options = WorkerOptions { lease: Duration::from_secs(3600), ..quick() };
        let worker =
            Running::start(db.worker().options(options).handle_raw(queue, "test.late", handler)).await;
        let job = NewJob::raw(queue, "test.late", "1");
        let id = enqueue(&mut db.client, &job).await.unwrap().id();
        until("it has begun", || async { counter.begun() > 0 }).await;
        outhaul::Producer::default().cancel(&mut db.client, id).await.unwrap();
        opens.add_permits(1);
        let attempts =
            |outcome| value(&shown, "outhaul_job_attempts_total", &[("queue", queue), ("outcome", outcome)]);
        until("the attempt is counted", || async { attempts("cancelled") == 1.0 }).await;
        assert_eq!((attempts("lease_lost"), attempts("completed"), attempts("retry")), (0.0, 0.0, 0.0));
        worker.stop().await;
        assert_eq!(db.status(id.0).await, "cancelled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_counted_when_they_are_renewed_and_when_their_row_is_locked() {
    let shown = recorder();
    let mut db = Db::new().await;
    let options = WorkerOptions { lease: Duration::from_secs(2), ..quick() };
    let builder = db.worker().options(options).handle_raw("renewed", "test.long", |cx: Context| async move {
        cx.cancelled().await;
        Err(Failure::transient("told to stop"))
    });
    let worker = Running::start(builder).await;
    let id = enqueue(&mut db.client, &NewJob::raw("renewed", "test.long", "1")).await.unwrap().id().0;
    let renewals =
        |result: &'static str| value(&shown, "outhaul_lease_renewals_total", &[("result", result)]);
    let before = renewals("renewed");
    until("a renewal", || async { renewals("renewed") > before }).await;
    let timed = || value(&shown, "outhaul_batch_db_seconds_count", &[("phase", "renew")]);
    until("its time", || async { timed() >= 1.0 }).await;
    let before = renewals("locked");
    let mut other = db.connect().await;
    let tx = other.transaction().await.unwrap();
    tx.execute("select from outhaul.jobs where id = $1 for update", &[&id]).await.unwrap();
    until("a renewal that meets a lock", || async { renewals("locked") > before }).await;
    tx.rollback().await.unwrap();
    worker.stopper().now();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_does_not_hear_is_counted_by_stage_and_shown() {
    let shown = recorder();
    for stage in ["probe", "canary", "listen"] {
        let db = Db::new().await;
        let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
        let often = Duration::from_millis(200);
        let (probe, canary) = match stage {
            "probe" => (often, NEVER),
            "canary" => (NEVER, often),
            _ => (NEVER, NEVER),
        };
        let failures = || value(&shown, "outhaul_notification_failures_total", &[("stage", stage)]);
        let state = |state: &str| value(&shown, "outhaul_listener_state", &[("state", state)]);
        let connected = || value(&shown, "outhaul_listener_connected", &[]);
        let builder =
            db.worker().listen_dsn(proxy.url().parse().unwrap()).handle(Counter::default().handler());
        let worker = Running::start(builder.with(|o| (o.probe, o.canary) = (probe, canary))).await;
        until("it hears", || async { state("proven") == 1.0 && connected() == 1.0 }).await;
        let before = failures();
        match stage {
            "probe" => proxy.blackhole_role("outhaul/listen"),
            "canary" => {
                proxy.add(Rule::on(Match::at(Phase::Notification)).always().then(Action::DropNotifications));
            }
            _ => {
                proxy.add(Rule::on(Match::at(Phase::BeforeForward).tag("listen")).always().then(Action::Cut));
                proxy.cut_role("outhaul/listen");
            }
        }
        until(&format!("{stage} fails"), || async { failures() > before }).await;
        until("it is shown", || async {
            state("polling") == 1.0 && connected() == 0.0 && state("proven") == 0.0
        })
        .await;
        worker.stop().await;
    }
}

#[tokio::test]
async fn the_gauges_of_the_outbox_say_what_the_tables_hold() {
    let shown = recorder();
    let db = Db::new().await;
    // Five events with a position and two without; one subscription between them, one at the head, and a relay.
    let rows = "select outhaul.register_relay('beginning');
        select outhaul.subscribe('gauge.behind', 'beginning', policy => 'park'), outhaul.subscribe('gauge.head', 'beginning');
        select outhaul.publish('a.b', 'a', gen_random_uuid()) from generate_series(1, 5);
        select outhaul.sequence(100);
        select outhaul.publish('a.b', 'a', gen_random_uuid()) from generate_series(1, 2);
        update outhaul.outbox_events set at = at - interval '70 s' where seq <= 5;
        update outhaul.outbox_feed set at = at - interval '70 s';
        update outhaul.outbox_unsequenced set at = at - interval '40 s';
        update outhaul.relay set starts_at = '-infinity';
        update outhaul.outbox_events set processed_at = now() where seq = 1;
        update outhaul.outbox_events set lease_until = now() + interval '1 h' where seq = 2;
        update outhaul.outbox_events set parked_at = now(), available_at = 'infinity' where seq = 3;
        update outhaul.subscriptions set position = 2, attempts = 3, blocked_position = 3, stuck_class = 'transient',
          moved_at = now() - interval '50 s', caught_up_at = now() - interval '60 s' where name = 'gauge.behind';
        update outhaul.subscriptions set position = 5, moved_at = now() - interval '1 h' where name = 'gauge.head';
        insert into outhaul.subscription_parked select 'gauge.behind', f.position, now(), e.id, null, 'a', e.aggregate_id, 'a.b', 1,
            '{}', now(), null, null, e.seq, e.at, 1, 'parked'
          from outhaul.outbox_feed f join outhaul.outbox_events e on e.seq = f.seq where f.position <= 2;";
    db.client.batch_execute(rows).await.unwrap();
    db.observer().await.record_gauges().await.unwrap();
    let gauge = |name: &str, labels: &[(&str, &str)]| value(&shown, name, labels);
    let near = |name: &str, labels: &[(&str, &str)], from: f64| {
        let value = gauge(name, labels);
        assert!((from..from + 30.0).contains(&value), "{name} {labels:?} is {value}, not {from}");
    };
    assert_eq!(gauge("outhaul_outbox_head_position", &[]), 5.0);
    assert_eq!(gauge("outhaul_outbox_unsequenced_events", &[]), 2.0);
    near("outhaul_outbox_unsequenced_age_seconds", &[], 40.0);
    near("outhaul_outbox_watermark_lag_seconds", &[], 70.0);
    let relay = ["pending", "leased", "parked"]
        .map(|state| gauge("outhaul_outbox_relay_events", &[("state", state)]));
    assert_eq!(relay, [4.0, 1.0, 1.0]);
    let (behind, head) = ([("subscription", "gauge.behind")], [("subscription", "gauge.head")]);
    for (name, one, other) in [
        ("outhaul_subscription_position", 2.0, 5.0),
        ("outhaul_subscription_lag_events", 5.0, 2.0),
        ("outhaul_subscription_attempts", 3.0, 0.0),
        ("outhaul_subscription_parked_events", 2.0, 0.0),
    ] {
        assert_eq!((gauge(name, &behind), gauge(name, &head)), (one, other), "{name}");
    }
    near("outhaul_subscription_lag_seconds", &behind, 70.0);
    near("outhaul_subscription_lag_seconds", &head, 40.0);
    near("outhaul_subscription_checkpoint_lag_seconds", &behind, 50.0);
    near("outhaul_subscription_checkpoint_lag_seconds", &head, 40.0);
    near("outhaul_subscription_caught_up_age_seconds", &behind, 60.0);
    for hold in ["blocked", "paused", "gone", "truncated", "diverged", "idle_consumer"] {
        let held = gauge("outhaul_subscription_held", &[("subscription", "gauge.behind"), ("hold", hold)]);
        assert_eq!(held, if hold == "blocked" { 1.0 } else { 0.0 }, "{hold}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_timed_once_from_its_first_claim_to_its_end() {
    let shown = recorder();
    let mut db = Db::new().await;
    let counter = Counter::default();
    let drains = || value(&shown, "outhaul_drain_duration_seconds_count", &[("queue", "ticks")]);
    let running = Running::start(db.worker().handle(counter.handler())).await;
    for round in 1..=2 {
        let jobs: Vec<NewJob> = (0..50).map(|n| NewJob::new(&crate::support::Tick { n }).unwrap()).collect();
        outhaul::enqueue_many(&mut db.client, &jobs).await.unwrap();
        counter.until_ended(50 * round).await;
        until("the drain is timed", || async { drains() >= round as f64 }).await;
    }
    // Looks that find nothing are no drains.
    db.until_looked().await;
    running.stop().await;
    assert!(drains() <= 100.0 && drains() >= 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_what_is_in_use_and_what_cools_down_is_in_the_metrics_without_a_key() {
    let shown = recorder();
    let mut db = Db::new().await;
    let operator = db.operator().await;
    let change = outhaul::QueueChange::new().max_running(2).max_running_per_key(1);
    operator.set_queue("apart", &change, None).await.unwrap();
    let job = || NewJob::raw("apart", "test.apart", "1").limit_key("canary-key").rate_key("canary-host");
    for _ in 0..3 {
        enqueue(&mut db.client, &job()).await.unwrap();
    }
    let lane = || NewJob::raw("apart", "test.apart", "1").ordering_key("canary-lane").delay(NEVER);
    for _ in 0..2 {
        enqueue(&mut db.client, &lane()).await.unwrap();
    }
    let released = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = released.clone();
    let handler = move |_: Context| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.expect("it is never closed").forget();
            Err(Failure::rate_limited("slow down"))
        }
    };
    let of_queue = |name: &str| value(&shown, name, &[("queue", "apart")]);
    let before = (of_queue("outhaul_cooldowns_total"), of_queue("outhaul_claims_kept_back_total"));
    let options =
        WorkerOptions { retry: outhaul::RetryPolicy { backoff: slow(), ..Default::default() }, ..quick() };
    let running =
        Running::start(db.worker().options(options).handle_raw("apart", "test.apart", handler)).await;
    db.until("one runs, two wait", "select count(*) = 2 from outhaul.jobs where held_for = 'permit'").await;
    let observer = db.observer().await;
    let waiting =
        |reason: &str| value(&shown, "outhaul_queue_waiting_jobs", &[("queue", "apart"), ("reason", reason)]);
    let units = |kind: &str| value(&shown, "outhaul_queue_units", &[("queue", "apart"), ("kind", kind)]);
    until("the gauges have it", || async {
        observer.record_gauges().await.unwrap();
        (waiting("lane"), waiting("permit"), units("used"), units("limit")) == (1.0, 2.0, 1.0, 2.0)
    })
    .await;
    assert!(of_queue("outhaul_queue_oldest_waiting_age_seconds") > 0.0);
    until("a claim was kept back", || async { of_queue("outhaul_claims_kept_back_total") > before.1 }).await;
    released.add_permits(1);
    until("a cooldown was told", || async { of_queue("outhaul_cooldowns_total") > before.0 }).await;
    until("the gauges have that", || async {
        observer.record_gauges().await.unwrap();
        of_queue("outhaul_queue_cooling_keys") == 1.0 && waiting("rate") >= 1.0
    })
    .await;
    assert_eq!(of_queue("outhaul_queue_cooling_seconds"), 0.0, "only the key waits, not the queue");
    assert!(!shown.render().contains("canary-"), "keys are no labels");
    let none = outhaul::QueueChange::new().without("max_running");
    operator.set_queue("apart", &none, None).await.unwrap();
    observer.record_gauges().await.unwrap();
    assert_eq!(units("limit"), 0.0, "a limit that was taken back does not stay");
    running.stopper().now();
    running.stop().await;
}

/// So that what is to come back does not within the test.
fn slow() -> outhaul::Backoff {
    outhaul::Backoff { base: NEVER, max: NEVER, jitter: 0.0 }
}
