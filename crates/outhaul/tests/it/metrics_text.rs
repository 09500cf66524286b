//! The metrics as a scraper reads them, after a run that has put secrets wherever they can get in.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outhaul::{Context, Failure, NewJob, WorkerOptions, enqueue, enqueue_many, telemetry};
use uuid::Uuid;

use crate::support::{Db, PATIENCE, Running, quick, until};

const CANARY: &str = "swordfish";

/// The recorder of this process: metrics are global, and the worker's threads must find it.
pub(crate) fn recorder() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder).expect("no other recorder");
            telemetry::describe();
            handle
        })
        .clone()
}

/// One line of the text: a metric's name, its labels, its value.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

/// The sum of all samples of one name that have these labels among theirs; `None` where there is no such sample.
pub(crate) fn total(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |sample: &Sample, wanted: &(&str, &str)| {
        sample.labels.iter().any(|(label, value)| (label.as_str(), value.as_str()) == *wanted)
    };
    samples(text)
        .into_iter()
        .filter(|sample| sample.name == name && labels.iter().all(|wanted| has(sample, wanted)))
        .map(|sample| sample.value)
        .reduce(|sum, value| sum + value)
}

/// Reads the exposition format; a label's value ends at a quote that is not escaped.
pub(crate) fn samples(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (head, rest) = match line.split_once('{') {
            Some((name, rest)) => (name, rest),
            None => (line.split(' ').next().unwrap(), ""),
        };
        let mut labels = Vec::new();
        let mut rest = rest;
        while let Some((name, value)) = rest.split_once("=\"") {
            let mut end = 0;
            let bytes = value.as_bytes();
            while bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            labels.push((name.trim_start_matches(',').to_owned(), value[..end].to_owned()));
            rest = &value[end + 1..];
        }
        let value = line.rsplit(' ').next().and_then(|word| word.parse().ok());
        let value = value.unwrap_or_else(|| panic!("no value: {line}"));
        samples.push(Sample { name: head.to_owned(), labels, value });
    }
    samples
}

/// Fails on a metric or a label that the table of metrics does not name, and on a value that is a secret.
fn check(text: &str, secrets: &BTreeSet<String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for sample in samples(text) {
        let known = telemetry::METRICS.iter().find(|metric| {
            sample.name == metric.name
                || ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|end| sample.name.strip_suffix(end) == Some(metric.name))
        });
        let known = known.unwrap_or_else(|| panic!("{} is no metric of the table", sample.name));
        seen.insert(known.name.to_owned());
        for (label, _) in &sample.labels {
            assert!(
                known.labels.contains(&label.as_str()) || matches!(label.as_str(), "le" | "quantile"),
                "{}: no label {label} in the table",
                known.name
            );
        }
    }
    for secret in secrets {
        assert!(!text.contains(secret.as_str()), "{secret} is in the text:\n{}", line_with(text, secret));
    }
    seen
}

fn line_with<'a>(text: &'a str, word: &str) -> &'a str {
    text.lines().find(|line| line.contains(word)).unwrap_or_default()
}

/// Fails as its payload says, with as much as it knows in every word.
async fn betray(cx: Context) -> Result<(), Failure> {
    let secret = format!("{} {:?} {} {}", cx.payload(), cx.organization(), cx.id(), cx.lease_token());
    let n: usize = cx.payload().split('"').nth(3).unwrap().parse().unwrap();
    let codes = [
        cx.id().to_string(),
        cx.id().0.simple().to_string(),
        cx.organization().unwrap_or_default().to_string(),
        cx.organization().unwrap_or_default().simple().to_string(),
        CANARY.to_uppercase(),
        format!("{CANARY} {n}"),
        format!("user_{}", 1_000_000 + n),
        format!("{CANARY}@example.test"),
        "a'; drop table jobs; --".into(),
        "x\"} 1\nevil_metric{a=\"".into(),
        "\0\n\r\u{1b}[31m".into(),
        "ü€😀".into(),
        String::new(),
        "x".repeat(5_000),
        "http_503".into(),
    ];
    let code = codes[n % codes.len()].clone();
    match n % 7 {
        0 => Ok(()),
        1 => Err(Failure::transient(&secret).code(code)),
        2 => Err(Failure::permanent(&secret).code(code)),
        3 => Err(Failure::revoked(&secret).code(code)),
        4 => Err(Failure::rate_limited(&secret).code(code)),
        5 => Err(Failure::snooze(Duration::from_millis(5)).code(code)),
        _ => panic!("{secret} {code}"),
    }
}

const QUEUES: [&str; 2] = ["betrayals", "second.queue:b"];

/// Jobs with everything secret in them, and the words that may be seen nowhere.
fn secrets_of(jobs: &[NewJob], organizations: &[Uuid]) -> BTreeSet<String> {
    let ids = jobs.iter().map(|job| job.job_id().0).chain(organizations.iter().copied());
    let mut secrets: BTreeSet<String> =
        ids.flat_map(|id| [id.to_string(), id.simple().to_string()]).collect();
    secrets.extend([
        CANARY.to_owned(),
        CANARY.to_uppercase(),
        "user_1".to_owned(),
        "evil_metric".to_owned(),
        "drop table".to_owned(),
    ]);
    secrets
}

fn hostile_jobs(n: usize) -> (Vec<NewJob>, Vec<Uuid>) {
    let organizations: Vec<Uuid> = (0..n).map(|_| Uuid::new_v4()).collect();
    let jobs = organizations.iter().enumerate().map(|(place, organization)| {
        let payload = format!("{{\"n\": \"{place}\", \"secret\": \"{CANARY}\"}}");
        let job_type = match place % 10 {
            7 => format!("strange.{CANARY}-{place}"),
            8 => format!("o{}", organization.simple()),
            9 => "test.slow".to_owned(),
            _ => "test.betray".to_owned(),
        };
        NewJob::raw(QUEUES[place % 2], job_type, payload)
            .organization(*organization)
            .idempotency_key(format!("{CANARY} {organization}"))
            .max_attempts(2)
    });
    (jobs.collect(), organizations)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_organization_payload_or_id_and_no_unknown_label_is_in_the_metrics_of_a_hostile_run() {
    let shown = recorder();
    let mut db = Db::new().await;
    let mut options = WorkerOptions { lease: Duration::from_secs(2), ..quick() };
    options.retry.free_snoozes = 5;
    let builder = db.worker().options(options).handle_raw(QUEUES[0], "test.betray", betray);
    let builder = builder.handle_raw(QUEUES[0], "test.slow", |cx| async move {
        let stop = cx.cancelled().await;
        Err(Failure::unknown(format!("{stop:?} {CANARY}")).code(cx.id().0.simple().to_string()))
    });
    let builder = QUEUES.iter().fold(builder, |builder, queue| builder.queue(*queue, 50));
    let worker = Running::start(builder).await;
    let (jobs, organizations) = hostile_jobs(140);
    enqueue_many(&mut db.client, &jobs).await.unwrap();
    // Leases that run out under handlers that wait, and reports that come too late.
    let swept = || total(&shown.render(), "outhaul_lease_expirations_total", &[("queue", QUEUES[1])]);
    until("leases have run out and were swept", async || {
        db.age_leases().await;
        swept().is_some_and(|n| n >= 1.0)
    })
    .await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    for job in jobs.iter().filter(|job| format!("{job:?}").contains("test.slow")) {
        operator.cancel(job.job_id(), Some(CANARY)).await.unwrap();
    }
    let unknown = format!("job_type like 'strange.{CANARY}%' or job_type ~ '^o[0-9a-f]{{32}}$'");
    db.until(
        "all but the unknown have ended",
        &format!("select count(*) = 0 from outhaul.jobs where not ({unknown})"),
    )
    .await;
    observer.record_gauges().await.unwrap();
    trouble(&mut db).await;
    let started = Instant::now();
    loop {
        let missing = unmoved(&shown.render());
        if missing.is_empty() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "these have not moved: {missing:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.stop().await;
    let text = shown.render();

    check(&text, &secrets_of(&jobs, &organizations));
    counters_agree_with_the_tables(&db, &text, &unknown).await;
    // Labels of our queues take words of closed lists only, whatever handlers and producers wrote.
    let words: [(&str, &[&str]); 3] = [
        ("job_type", &["test.betray", "test.slow", "unknown"]),
        (
            "outcome",
            &[
                "ok",
                "error",
                "completed",
                "retry",
                "dead_letter",
                "cancelled",
                "snoozed",
                "released",
                "lease_lost",
            ],
        ),
        ("error_code", &["none", "other", "http_503", "panic"]),
    ];
    let ours = samples(&text).into_iter().filter(|sample| {
        sample.labels.iter().any(|(name, value)| name == "queue" && QUEUES.contains(&value.as_str()))
    });
    for sample in ours {
        for (label, value) in &sample.labels {
            let allowed = words.iter().find(|(name, _)| name == label);
            assert!(allowed.is_none_or(|(_, words)| words.contains(&value.as_str())), "{sample:?}");
        }
    }
}

/// What no handler can cause: an upkeep task that fails, sessions that are lost, and a sleep until a job is due.
async fn trouble(db: &mut Db) {
    db.client.batch_execute("alter function outhaul.publish_floors rename to gone").await.unwrap();
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
        where application_name in ('outhaul/listen', 'outhaul/claim') and datname = current_database()";
    assert!(db.count(end).await >= 2);
    let later = NewJob::raw(QUEUES[0], "test.betray", "{\"n\": \"0\"}").delay(Duration::from_secs(2));
    enqueue(&mut db.client, &later).await.unwrap();
}

/// The series that a run must have moved and did not. What needs trouble of its own is in `metrics_values`.
fn unmoved(text: &str) -> Vec<String> {
    let first = &[("queue", QUEUES[0])][..];
    let second = &[("queue", QUEUES[1])][..];
    let ours: [&[(&str, &str)]; 2] = [first, second];
    let mut missing = Vec::new();
    let mut at_least = |name: &str, labels: &[(&str, &str)], least: f64| {
        if total(text, name, labels).is_none_or(|value| value < least) {
            missing.push(format!("{name} {labels:?}"));
        }
    };
    for queue in ours {
        for name in ["outhaul_queue_oldest_pending_age_seconds", "outhaul_queue_oldest_expired_lease_seconds"]
        {
            at_least(name, queue, 0.0);
        }
        at_least("outhaul_queue_workers", queue, 1.0);
        at_least("outhaul_claim_duration_seconds_count", queue, 1.0);
        at_least("outhaul_jobs_claimed_total", queue, 1.0);
        at_least("outhaul_batches_total", queue, 1.0);
        at_least("outhaul_drain_empty_total", queue, 1.0);
        at_least("outhaul_unknown_job_type_total", queue, 1.0);
    }
    at_least("outhaul_queue_jobs", &[("queue", QUEUES[0]), ("state", "dead_letter")], 1.0);
    at_least("outhaul_queue_slots", &[("queue", QUEUES[0]), ("kind", "used")], 0.0);
    at_least("outhaul_queue_slots", &[("queue", QUEUES[0]), ("kind", "limit")], 50.0);
    for name in ["outhaul_job_wait_seconds_count", "outhaul_job_repeats_total"] {
        at_least(name, &[("queue", QUEUES[0]), ("job_type", "test.betray")], 1.0);
    }
    for outcome in ["ok", "error"] {
        let labels = [("queue", QUEUES[0]), ("job_type", "test.betray"), ("outcome", outcome)];
        at_least("outhaul_job_execution_duration_seconds_count", &labels, 1.0);
    }
    for phase in ["claim", "settle", "expire"] {
        at_least("outhaul_batch_db_seconds_count", &[("phase", phase)], 1.0);
    }
    for cause in ["notification", "poll", "linger", "due", "reconnect", "rescan"] {
        at_least("outhaul_wakes_total", &[("cause", cause)], 1.0);
    }
    at_least("outhaul_lease_expirations_total", second, 1.0);
    at_least("outhaul_reconnects_total", &[("result", "connected")], 1.0);
    at_least("outhaul_upkeep_failures_total", &[("task", "floors")], 1.0);
    at_least("outhaul_upkeep_duration_seconds_count", &[("task", "retention")], 1.0);
    at_least("outhaul_listener_connected", &[], 1.0);
    at_least("outhaul_listener_state", &[], 1.0);
    at_least("outhaul_notification_queue_usage_ratio", &[], 0.0);
    at_least("outhaul_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    missing
}

/// What the counters have counted is what the tables say has happened, once nothing runs any more.
async fn counters_agree_with_the_tables(db: &Db, text: &str, unknown: &str) {
    let ours = |name: &str, label: (&str, &str)| -> f64 {
        QUEUES.iter().filter_map(|queue| total(text, name, &[("queue", queue), label])).sum()
    };
    let all = |name: &str| -> f64 {
        QUEUES.iter().filter_map(|queue| total(text, name, &[("queue", queue)])).sum()
    };
    let told = async |sql: String| db.count(&sql).await as f64;
    let claims = "select sum(claim_no)::bigint from (select claim_no, job_type from outhaul.jobs \
        union all select claim_no, job_type from outhaul.jobs_finished \
        union all select claim_no, job_type from outhaul.jobs_dead) j";
    assert_eq!(all("outhaul_jobs_claimed_total"), told(claims.to_owned()).await);
    assert_eq!(all("outhaul_job_wait_seconds_count"), told(claims.to_owned()).await);
    assert_eq!(all("outhaul_unknown_job_type_total"), told(format!("{claims} where {unknown}")).await);
    let attempts = "select count(*) from outhaul.job_attempts where error_class";
    assert_eq!(all("outhaul_lease_expirations_total"), told(format!("{attempts} = 'crash'")).await);
    // A crash is settled by the sweep. A handler whose job an operator has cancelled reports, and is counted, too.
    for outcome in ["retry", "dead_letter", "cancelled", "snoozed", "released"] {
        let settled = format!("{attempts} <> 'crash' and outcome = '{outcome}'");
        assert_eq!(
            ours("outhaul_job_attempts_total", ("outcome", outcome)),
            told(settled).await,
            "{outcome}"
        );
    }
    let completed = "select count(*) from outhaul.jobs_finished where status = 'completed'".to_owned();
    assert_eq!(ours("outhaul_job_attempts_total", ("outcome", "completed")), told(completed).await);
    assert!(all("outhaul_batches_total") <= all("outhaul_jobs_claimed_total"));
    assert_eq!(ours("outhaul_queue_slots", ("kind", "used")), 0.0, "nothing runs any more");
}

#[test]
fn the_check_itself_sees_what_it_should() {
    let text = "# HELP x\nouthaul_wakes_total{cause=\"a \\\"quoted\\\" one\"} 1\nouthaul_claim_duration_seconds_bucket{queue=\"q\",le=\"0.1\"} 2\n";
    let read = samples(text);
    assert_eq!(read.len(), 2);
    assert_eq!(read[0].labels, [("cause".to_owned(), "a \\\"quoted\\\" one".to_owned())]);
    assert_eq!((read[0].value, read[1].value), (1.0, 2.0));
    let bucket = "outhaul_claim_duration_seconds_bucket";
    assert_eq!(total(&text.repeat(2), bucket, &[("queue", "q")]), Some(4.0));
    assert_eq!(total(text, bucket, &[("queue", "r")]), None);
    check(text, &BTreeSet::new());
    let refuses = |text: &str, secrets: &[&str]| {
        let secrets = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        std::panic::catch_unwind(|| check(text, &secrets)).is_err()
    };
    assert!(refuses("outhaul_secret_total 1", &[]));
    assert!(refuses("outhaul_wakes_total{organization=\"x\"} 1", &[]));
    assert!(refuses("outhaul_wakes_total{cause=\"swordfish\"} 1", &[CANARY]));
}
