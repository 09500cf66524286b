//! `outhaul work`: commands bound in `outhaul.toml`, and how they end.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use outhaul_local::Child;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, client, is_alive, migrated, until, until_answer};

/// Drains the worker and expects a clean end.
async fn stop(mut worker: Child, place: &Place) {
    worker.term().unwrap();
    let status = worker.wait(PATIENCE).await.expect("the worker ends");
    assert_eq!(status.code(), Some(0), "{}", place.log());
}

/// A process id that a script has written.
async fn pid_in(place: &Place, name: &str) -> i32 {
    until(&format!("a script writes {name}"), || place.read(name).ends_with('\n')).await;
    place.read(name).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_exit_code_has_its_verdict() {
    let database = migrated().await;
    let place = Place::at(&database);
    for code in [0, 1, 65, 75, 77] {
        let body = format!("echo first >&2; echo \"reason {code}\" >&2; exit {code}");
        place.bind(&format!("test.exit{code}"), &body, "");
    }
    place.bind("test.killed", "kill -KILL $$", "");
    place.write(
        "outhaul.toml",
        &(place.read("outhaul.toml") + "[jobs.\"test.absent\"]\ncommand = [\"./absent\"]\n"),
    );
    let worker = place.worker(&[]).await;

    let expected = [
        ("test.exit0", "completed", None, None, None),
        ("test.exit1", "retrying", Some("unknown"), Some("exit_1"), Some("first; reason 1")),
        ("test.exit65", "dead_letter", Some("permanent"), Some("exit_65"), Some("first; reason 65")),
        ("test.exit75", "retrying", Some("transient"), Some("exit_75"), Some("first; reason 75")),
        ("test.exit77", "cancelled", Some("revoked"), Some("exit_77"), Some("first; reason 77")),
        ("test.killed", "retrying", Some("crash"), Some("signal_9"), Some("killed by signal 9")),
        ("test.absent", "retrying", Some("transient"), Some("spawn"), None),
    ];
    let ids: BTreeMap<&str, String> =
        expected.iter().map(|(name, ..)| (*name, place.enqueue(&[name]))).collect();
    for (job_type, status, class, code, summary) in expected {
        // A retry may follow at any time, so that a retrying job is known by its first attempt.
        let mut shown = Value::Null;
        until(&format!("{job_type} has ended once"), || {
            shown = place.show(&ids[job_type]);
            shown["status"] == status
                || shown["attempt_history"][0]["outcome"] == "retry" && status == "retrying"
        })
        .await;
        let first = &shown["attempt_history"][0];
        assert_eq!(first["error_class"].as_str(), class, "{job_type}: {shown}");
        assert_eq!(first["error_code"].as_str(), code, "{job_type}: {shown}");
        if let Some(summary) = summary {
            assert_eq!(first["error_summary"], summary, "{job_type}");
        }
    }
    let shown = place.run(&["jobs", "show", &ids["test.exit65"]]).ok().out;
    let timeline: Vec<&str> = shown.lines().skip_while(|line| *line != "timeline").collect();
    assert!(timeline.len() == 4 && timeline[1].ends_with("Z  enqueued"), "{shown}");
    assert!(timeline[2].contains("claim 1  attempt 1  dead_letter after "), "{shown}");
    assert!(timeline[2].ends_with("permanent exit_65: first; reason 65"), "{shown}");
    assert!(timeline[3].ends_with("Z  dead_letter"), "{shown}");
    assert!(place.log().contains("cannot be started") && place.log().contains("/absent"), "{}", place.log());
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_passes_on_how_long_to_wait() {
    let database = migrated().await;
    let place = Place::at(&database);
    let cases = [
        ("test.seconds", "Retry-After: 1800", "75", "rate_limited", 1800..=2160),
        (
            "test.date",
            "Date: Sun, 06 Nov 1994 08:19:37 GMT\nretry-after: Sun, 06 Nov 1994 08:49:37 GMT",
            "75",
            "rate_limited",
            1800..=2160,
        ),
        ("test.absurd", "Retry-After: 99999999999999999999", "75", "rate_limited", 3600..=4320),
        ("test.senseless", "Retry-After: soon", "75", "transient", 0..=2),
        ("test.other", "Retry-After: 1800", "1", "unknown", 0..=2),
    ];
    for (job_type, says, code, ..) in &cases {
        // Each has a queue of its own, so that none waits for what happened to another.
        let queue = format!("queue = \"{job_type}\"");
        place.bind(job_type, &format!("printf '{says}\\nslow down\\n' >&2; exit {code}"), &queue);
    }
    let worker = place.worker(&[]).await;
    for (job_type, _, code, class, wait) in cases {
        let id = place.enqueue(&[job_type]);
        let mut shown = Value::Null;
        until(&format!("{job_type} has ended once"), || {
            shown = place.show(&id);
            shown["attempt_history"][0]["outcome"] == "retry"
        })
        .await;
        let first = &shown["attempt_history"][0];
        assert_eq!(first["error_class"], class, "{job_type}: {shown}");
        assert_eq!(first["error_code"], format!("exit_{code}"), "{job_type}");
        if wait.contains(&1800) || wait.contains(&3600) {
            // The job may have been read before its attempt was settled.
            let shown = place.show(&id);
            let time = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
            let waits = time(&shown["run_at"]).duration_since(time(&first["ended_at"])).as_secs();
            assert!(wait.contains(&waits) || wait.contains(&(waits + 1)), "{job_type} waits {waits} s");
        }
    }
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_is_told_everything() {
    let database = migrated().await;
    // What the worker itself was started with is not the job's.
    let place = Place::at(&database).with("TRACEPARENT", "worker's own").with("OWN", "kept");
    place.bind("test.told", "cat > $OUTHAUL_JOB_ID.payload; env > $OUTHAUL_JOB_ID.env", "queue = \"mail\"");
    let worker = place.worker(&[]).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let id =
        place.enqueue(&["test.told", "{\"a\": [1, \"x\"]}", "--max-attempts", "4", "--traceparent", trace]);
    let plain = place.enqueue(&["test.told"]);
    place.until_status(&id, "completed").await;
    place.until_status(&plain, "completed").await;

    let payload: Value = serde_json::from_str(&place.read(&format!("{id}.payload"))).unwrap();
    assert_eq!(payload, json!({"a": [1, "x"]}));
    let told = place.read(&format!("{id}.env"));
    for line in [
        &format!("OUTHAUL_JOB_ID={id}"),
        "OUTHAUL_JOB_TYPE=test.told",
        "OUTHAUL_QUEUE=mail",
        "OUTHAUL_ATTEMPT=1",
        "OUTHAUL_MAX_ATTEMPTS=4",
        "OUTHAUL_CLAIM_NO=1",
        &format!("TRACEPARENT={trace}"),
        "OWN=kept",
    ] {
        assert!(told.lines().any(|told| told == line), "{line} in {told}");
    }
    let token = told.lines().find_map(|line| line.strip_prefix("OUTHAUL_LEASE_TOKEN=")).unwrap();
    assert!(token.parse::<uuid::Uuid>().is_ok(), "{token}");
    assert!(!place.read(&format!("{plain}.env")).contains("TRACEPARENT"));
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_need_not_read_its_payload() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.unread", "exit 0", "");
    place.bind("test.closed", "exec <&-; echo closed > closed; exit 0", "");
    let worker = place.worker(&[]).await;
    // More than a pipe holds.
    let large = format!("{{\"text\":\"{}\"}}", "x".repeat(200_000));
    for job_type in ["test.unread", "test.closed"] {
        let ran = place.run_with(&["enqueue", job_type, "-", "--wait", "--wait-timeout", "30s"], &large);
        assert!(ran.ok().out.contains("completed"));
    }
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_of_errors_leave_a_short_summary_and_no_memory() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.loud", "yes 'a line of noise' | head -c 60000000 >&2; echo 'the end' >&2; exit 65", "");
    let worker = place.worker(&[]).await;
    let id = place.enqueue(&["test.loud"]);
    let shown = place.until_status(&id, "dead_letter").await;
    let summary = shown["last_error_summary"].as_str().unwrap();
    assert!(summary.len() <= 1_000 && summary.ends_with("the end"), "{summary}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    match peak.map(|text| text.trim_end_matches("kB").trim().parse::<u64>().unwrap()) {
        // What was written is 60 MB, so that keeping it would show.
        Some(kib) => assert!(kib < 50_000, "{kib} KiB"),
        None => outhaul_local::skip("this system does not tell the memory of a process"),
    }
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_its_limit_the_whole_group_is_ended() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.write("outhaul.toml", "grace = \"300ms\"\n");
    // Neither the command nor its grandchild listens to SIGTERM; the grandchild keeps standard error open.
    let stubborn = "trap '' TERM\n(trap '' TERM; sh -c 'echo $$ > grandchild; while :; do sleep 1; done') &\n\
                    echo $$ > leader; echo 'still here' >&2; while :; do sleep 1; done";
    place.bind("test.stubborn", stubborn, "timeout = \"500ms\"");
    let worker = place.worker(&[]).await;
    let id = place.enqueue(&["test.stubborn", "--max-attempts", "1"]);
    let (leader, grandchild) = (pid_in(&place, "leader").await, pid_in(&place, "grandchild").await);
    let shown = place.until_status(&id, "dead_letter").await;
    assert_eq!(shown["attempt_history"][0]["error_code"], "timeout", "{shown}");
    assert_eq!(shown["attempt_history"][0]["error_class"], "transient");
    until("the group has ended", || !is_alive(leader) && !is_alive(grandchild)).await;
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_job_goes_before_that_of_its_type() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind(
        "test.slow",
        "trap 'echo told > told; exit 1' TERM\necho $$ > pid; while :; do sleep 0.05; done",
        "",
    );
    let worker = place.worker(&[]).await;
    let id = place.enqueue(&["test.slow", "--max-attempts", "1", "--timeout", "2s"]);
    let pid = pid_in(&place, "pid").await;
    let shown = place.until_status(&id, "dead_letter").await;
    assert_eq!(shown["attempt_history"][0]["error_code"], "timeout", "{shown}");
    assert_eq!(place.read("told"), "told\n", "SIGTERM comes before SIGKILL");
    assert!(!is_alive(pid));
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_behind_ends_with_it() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind(
        "test.parent",
        "sh -c 'echo $$ > child; while :; do sleep 1; done' &\nwhile [ ! -s child ]; do sleep 0.02; done",
        "",
    );
    let worker = place.worker(&[]).await;
    let id = place.enqueue(&["test.parent"]);
    place.until_status(&id, "completed").await;
    let child = pid_in(&place, "child").await;
    until("the child has ended", || !is_alive(child)).await;
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_loses_its_command() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.long", "echo $$ > pid; while :; do sleep 0.1; done", "");
    let worker = place.worker(&["--lease", "1s"]).await;
    let id = place.enqueue(&["test.long"]);
    let pid = pid_in(&place, "pid").await;
    assert!(is_alive(pid));
    place.run(&["jobs", "cancel", &id, "--reason", "not needed"]).ok();
    until("the command has ended", || !is_alive(pid)).await;
    assert_eq!(place.show(&id)["status"], "cancelled");
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_lets_what_runs_finish() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.wait", "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done", "");
    let mut worker = place.worker(&["--queue", "default=1"]).await;
    let (first, second) = (place.enqueue(&["test.wait"]), place.enqueue(&["test.wait"]));
    pid_in(&place, "pid").await;
    worker.signal(Signal::SIGINT).unwrap();
    until("the worker is stopping", || place.log().contains("nothing more is claimed")).await;
    assert!(worker.try_wait().unwrap().is_none());
    place.write("go", "");
    let status = worker.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", place.log());
    let mut states =
        [place.show(&first), place.show(&second)].map(|job| job["status"].as_str().unwrap().to_owned());
    states.sort_unstable();
    assert_eq!(states, ["completed", "pending"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_signal_gives_jobs_back_at_once() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.stubborn", "trap '' TERM INT\necho $$ > pid; while :; do sleep 1; done", "");
    let mut worker = place.worker(&["--drain", "10m"]).await;
    let id = place.enqueue(&["test.stubborn"]);
    let pid = pid_in(&place, "pid").await;
    worker.term().unwrap();
    until("the worker is stopping", || place.log().contains("nothing more is claimed")).await;
    worker.term().unwrap();
    let status = worker.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(130), "{}", place.log());
    assert!(!is_alive(pid));
    let shown = place.show(&id);
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("pending"), &json!(0)), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_drain_limit_has_passed_the_group_is_ended() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.write("outhaul.toml", "grace = \"300ms\"\n");
    place.bind("test.stubborn", "trap '' TERM\necho $$ > pid; while :; do sleep 1; done", "");
    let worker = place.worker(&["--drain", "200ms"]).await;
    let id = place.enqueue(&["test.stubborn"]);
    let pid = pid_in(&place, "pid").await;
    stop(worker, &place).await;
    assert!(!is_alive(pid));
    let shown = place.show(&id);
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("pending"), &json!(0)), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_which_nothing_is_kept_is_waited_for_until_it_is_gone() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("test.ok", "exit 0", "");
    let client = client(&database.url()).await;
    client.batch_execute("select outhaul.operator_history('default', 'none')").await.unwrap();
    let worker = place.worker(&[]).await;
    place.run(&["enqueue", "test.ok", "--wait", "--wait-timeout", "30s"]).ok();
    let kept = client.query_one("select count(*) from outhaul.all_jobs", &[]).await.unwrap();
    assert_eq!(kept.get::<_, i64>(0), 0);
    stop(worker, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_come_from_flags_or_from_the_bound_types() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.write("outhaul.toml", "[queues]\nmail = 3\n");
    place.bind("test.mail", "exit 0", "queue = \"mail\"");
    place.bind("test.other", "exit 0", "");
    let client = client(&database.url()).await;
    for (args, queues) in [
        (&[][..], json!({"default": 10, "mail": 3})),
        (&["--queue", "mail", "--queue", "bulk=7"][..], json!({"mail": 3, "bulk": 7})),
    ] {
        std::fs::remove_file(place.path("worker.log")).ok();
        let worker = place.worker(args).await;
        let id = place.log().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["worker"].as_str()?.parse::<uuid::Uuid>().unwrap())
        });
        let sql = "select queues::text from outhaul.workers where id = $1";
        let mut registered = None;
        until_answer("the worker is registered", async || {
            registered = client.query_opt(sql, &[&id.unwrap()]).await.unwrap();
            registered.is_some()
        })
        .await;
        let registered: Value = serde_json::from_str(registered.unwrap().get(0)).unwrap();
        assert_eq!(registered, queues);
        stop(worker, &place).await;
    }
}
