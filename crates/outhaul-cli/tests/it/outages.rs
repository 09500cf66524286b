//! What a worker serves over HTTP, while its database is there and while it is away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use outhaul::telemetry::{METRICS, MetricKind};
use outhaul_local::{Action, Match, Phase, Proxy, Rule, Throwaway, ThrowawayOptions};
use serde_json::Value;

use crate::support::{PATIENCE, Place, client, migrated, until, until_answer};

/// Status, head and body of an answer.
fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("the worker listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

fn address(place: &Place) -> SocketAddr {
    let lines = place.log();
    let line = lines.lines().find(|line| line.contains("/metrics")).expect("the log tells the address");
    serde_json::from_str::<Value>(line).unwrap()["address"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_database_and_metrics_outlive_it() {
    let server = Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
    let place = Place::bare().with("DATABASE_URL", &server.url());
    place.run(&["migrate"]).ok();
    place.bind("test.ok", "exit 0", "");
    place.bind("test.fail", "exit 65", "queue = \"mail\"");
    let mut worker = place.worker(&["--metrics-addr", "127.0.0.1:0"]).await;
    let address = address(&place);
    let organization = "01890000-0000-7000-8000-00000000cafe";
    for job_type in ["test.ok", "test.fail"] {
        let id = place.enqueue(&[job_type, "{\"secret\":\"swordfish\"}", "--organization", organization]);
        place.run(&["jobs", "wait", &id, "--timeout", "30s"]);
    }

    assert_eq!(get(address, "/livez").0, 200);
    assert_eq!(get(address, "/readyz").0, 200);
    let mut body = String::new();
    until("the end of both jobs is counted", || {
        body = get(address, "/metrics").2;
        body.contains("outcome=\"dead_letter\",error_code=\"exit_65\"} 1")
    })
    .await;
    let head = get(address, "/metrics").1;
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    check_exposition(&body);
    assert!(!body.contains(organization) && !body.contains("swordfish"));

    server.kill().await.unwrap();
    until("readiness turns red", || get(address, "/readyz").0 == 503).await;
    assert_eq!(get(address, "/livez").0, 200);
    assert_eq!(get(address, "/metrics").0, 200);
    server.start().await.unwrap();
    until("readiness turns green", || get(address, "/readyz").0 == 200).await;
    let id = place.enqueue(&["test.ok"]);
    place.run(&["jobs", "wait", &id, "--timeout", "30s"]).ok();

    let client = client(&server.url()).await;
    client.batch_execute("alter schema outhaul rename to elsewhere").await.unwrap();
    until("readiness turns red without a schema", || get(address, "/readyz").0 == 503).await;
    assert!(get(address, "/readyz").2.contains("there is no schema outhaul"));
    worker.term().unwrap();
    worker.wait(PATIENCE).await.unwrap();
}

/// Every sample belongs to a metric of the table, with its labels and no others.
fn check_exposition(body: &str) {
    for name in [
        "outhaul_build_info{",
        "outhaul_queue_oldest_pending_age_seconds{queue=\"mail\"}",
        "outhaul_job_execution_duration_seconds_bucket{queue=\"mail\",job_type=\"test.fail\",outcome=\"error\",le=\"900\"}",
        "outhaul_claim_duration_seconds_bucket{queue=\"mail\",le=\"0.0025\"}",
        "# HELP outhaul_jobs_claimed_total Jobs claimed.",
    ] {
        assert!(body.contains(name), "{name} in {body}");
    }
    for line in body.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap();
        let of = |metric: &&outhaul::telemetry::Metric| {
            let rest = name.strip_prefix(metric.name);
            match metric.kind {
                MetricKind::Histogram => {
                    rest.is_some_and(|rest| matches!(rest, "_bucket" | "_sum" | "_count"))
                }
                _ => rest == Some(""),
            }
        };
        let metric = METRICS.iter().find(of).unwrap_or_else(|| panic!("unknown metric: {line}"));
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let label = label.split_once('=').unwrap().0;
            let known =
                metric.labels.contains(&label) || label == "le" && metric.kind == MetricKind::Histogram;
            assert!(known, "unknown label {label}: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_job_outlasts_a_restart() {
    let server = Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
    let place = Place::bare().with("DATABASE_URL", &server.url());
    place.run(&["migrate"]).ok();
    let id = place.enqueue(&["test.none"]);
    let mut waiting = place.command(&["jobs", "wait", &id, "--timeout", "60s", "--json"]);
    let mut waiting =
        waiting.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    until_asked(&server.url()).await;
    server.kill().await.unwrap();
    server.start().await.unwrap();
    place.run(&["jobs", "cancel", &id]).ok();
    let mut out = String::new();
    waiting.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
    assert!(out.contains("\"status\":\"cancelled\""), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_job_goes_on_when_looks_are_cut_off() {
    let database = migrated().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let (behind, place) = (Place::bare().with("DATABASE_URL", &proxy.url()), Place::at(&database));
    let id = place.enqueue(&["test.none"]);
    let look = Rule::on(Match::at(Phase::BeforeForward).tag("show_job"));
    let cut = proxy.add(look.skip(1).times(2).then(Action::Cut));
    let mut waiting = behind.command(&["jobs", "wait", &id, "--timeout", "60s"]);
    let mut waiting =
        waiting.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    cut.fired_times(2, PATIENCE).await.unwrap();
    place.run(&["jobs", "cancel", &id]).ok();
    assert_eq!(waiting.wait().unwrap().code(), Some(1), "it has seen the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_is_told_as_a_time_that_is_over() {
    let database = migrated().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let behind = Place::bare().with("DATABASE_URL", &proxy.url());
    proxy.add(Rule::on(Match::at(Phase::BeforeForward).tag("show_queues")).always().then(Action::Blackhole));
    assert_eq!(behind.run(&["queues", "list", "--json"]).exits(7).problem()["exit_code"], 7);
}

/// Waits until somebody has asked for a job.
async fn until_asked(url: &str) {
    let client = client(url).await;
    let sql = "select exists (select from pg_stat_activity where query like '%outhaul:show_job */%' and pid <> pg_backend_pid())";
    until_answer("somebody asks for the job", async || {
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_whose_answer_is_lost_names_the_job_that_may_be_committed() {
    let database = migrated().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let (cut_off, place) = (Place::bare().with("DATABASE_URL", &proxy.url()), Place::at(&database));
    for (key, phase, committed) in [
        (None, Phase::AfterCommitted, 1),
        (None, Phase::BeforeForward, 1),
        (Some("k"), Phase::AfterCommitted, 2),
    ] {
        proxy.add(Rule::on(Match::at(phase).tag("enqueue")).then(Action::Cut));
        let mut args = vec!["enqueue", "test.none", "--json"];
        args.extend(key.iter().flat_map(|key| ["--idempotency-key", key]));
        let problem = cut_off.run(&args).exits(11).problem();
        assert_eq!(problem["code"], "outcome_unknown", "{problem}");
        let hint = problem["hint"].as_str().unwrap();
        let jobs = place.run(&["jobs", "list", "--json"]).ok().json()["jobs"].clone();
        assert_eq!(jobs.as_array().unwrap().len(), committed, "{phase:?}: {jobs}");
        match key {
            None => {
                let id =
                    hint.split("as job ").nth(1).expect("the hint names the job").split('.').next().unwrap();
                let there = place.run(&["jobs", "show", id]).code == Some(0);
                assert_eq!(there, matches!(phase, Phase::AfterCommitted), "{hint}");
            }
            Some(_) => assert!(hint.contains("the same key"), "{hint}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_before_an_error_is_told() {
    let database = migrated().await;
    let place = Place::at(&database);
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let ids: Vec<String> = (0..3).map(|_| place.enqueue(&["test.none"])).collect();
    proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("operator_cancel")).skip(1).then(Action::Cut));
    let place_behind = Place::bare().with("DATABASE_URL", &proxy.url());
    let ran = place_behind.run(&["jobs", "cancel", &ids[0], &ids[1], &ids[2], "--json"]).exits(11);
    assert_eq!(ran.json()["results"], serde_json::json!([{ "id": ids[0], "result": "cancelled" }]));
    let problem = ran.problem();
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains(&ids[1]) && message.contains("1 more not tried"), "{problem}");
    assert!(
        problem["hint"].as_str().unwrap().contains(&format!("outhaul jobs show {}", ids[1])),
        "{problem}"
    );
    let states: Vec<Value> = ids.iter().map(|id| place.show(id)["status"].clone()).collect();
    assert_eq!(states, ["cancelled", "cancelled", "pending"]);
}
