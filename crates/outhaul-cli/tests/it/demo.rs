//! `outhaul demo` as a person or a script runs it: the real binary, on real servers.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use outhaul_local::{Throwaway, ThrowawayOptions};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio_postgres::{Client, NoTls};

/// Generous: it bounds a hang and measures nothing.
const LIMIT: Duration = Duration::from_secs(150);

/// A database that is only named in the environment: a documentation address, where nothing answers.
const NOT_MEANT: &str = "postgres://me@192.0.2.1/x";

/// A small demonstration with arguments of its own.
fn demo(args: &[&str]) -> Command {
    demo_of("2", args)
}

fn demo_of(seconds: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outhaul"));
    command.args(["demo", "--jobs", "160", "--seed", "7", "--seconds", seconds]).args(args);
    command.env("DATABASE_URL", NOT_MEANT).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn output(command: &mut Command) -> Output {
    tokio::time::timeout(LIMIT, command.output()).await.expect("it hangs").unwrap()
}

fn answer(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.trim_end().lines().count(), 1, "one object on one line: {text}{errors}");
    serde_json::from_str(&text).unwrap()
}

fn number(answer: &Value, name: &str) -> u64 {
    answer[name].as_u64().unwrap_or_else(|| panic!("{name} is missing: {answer}"))
}

/// The server of one test; nobody else makes schemas or roles in it.
async fn server() -> Throwaway {
    Throwaway::start_new(ThrowawayOptions::new().durable(false)).await.unwrap()
}

async fn connect(server: &Throwaway) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Everything that a run could leave behind.
async fn inventory(client: &Client) -> Vec<String> {
    let query = "select 'schema ' || nspname from pg_namespace where nspname !~ '^pg_(toast_)?temp_'
                 union all select 'relation ' || oid::regclass from pg_class
                 union all select 'function ' || oid::regprocedure from pg_proc
                 union all select 'role ' || rolname from pg_roles
                 union all select 'database ' || datname from pg_database
                 order by 1";
    client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn sessions(client: &Client) -> i64 {
    let query = "select count(*) from pg_stat_activity where application_name like 'outhaul%'";
    client.query_one(query, &[]).await.unwrap().get(0)
}

async fn schema_exists(client: &Client, schema: &str) -> bool {
    let query = "select exists (select from pg_namespace where nspname = $1)";
    client.query_one(query, &[&schema]).await.unwrap().get(0)
}

/// Polls until the condition holds.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A demonstration in a given database whose workers have begun to work.
async fn at_work(server: &Throwaway, client: &Client) -> Child {
    let url = server.url();
    let mut command = demo_of("60", &["--database-url", &url, "--json"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    eventually("handlers begin", async || {
        let begun = client.query_one("select count(*) from outhaul_demo_effects.runs", &[]).await;
        begun.is_ok_and(|row| row.get::<_, i64>(0) > 0)
    })
    .await;
    child
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_committed_is_lost_when_a_worker_is_killed() {
    let output = output(&mut demo(&["--json"])).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(0), "{answer}");
    assert_eq!(output.stderr, b"", "--json says nothing else");
    let server = answer["server"].as_str().unwrap();
    assert!(server.starts_with("private PostgreSQL"), "DATABASE_URL alone is not used: {server}");
    let number = |name| number(&answer, name);

    assert_eq!(number("committed"), 160);
    assert_eq!((number("lost"), number("phantom"), number("duplicates_effect")), (0, 0, 0));
    assert_eq!(number("completed") + number("dead") + number("cancelled"), 160);
    assert_eq!(answer["worker_killed"], true);
    assert!(number("recovered") >= 1, "{answer}");

    // What it claims to show has happened.
    for name in
        ["dead", "cancelled", "rolled_back", "enqueued_twice", "retries", "snoozes", "repeats_explained"]
    {
        assert!(number(name) > 0, "{name}: {answer}");
    }
    for class in ["transient", "rate_limited", "permanent", "revoked", "crash", "unknown"] {
        assert!(answer["classes"][class].as_i64().is_some_and(|n| n > 0), "{class}: {answer}");
    }
    assert_eq!(number("answered_duplicate"), number("enqueued_twice"));
    let loyalty =
        answer["queues"].as_array().unwrap().iter().find(|queue| queue["queue"] == "loyalty").unwrap();
    assert_eq!(loyalty["completed"], answer["points_booked"], "one booking for each completed job");
    assert_eq!(number("unfinished"), 0);

    let events = &answer["events"];
    let fact = |name: &str| events[name].as_u64().unwrap_or_else(|| panic!("{name}: {events}"));
    assert_eq!((fact("committed"), fact("handled")), (60, 60), "three facts of each of twenty orders");
    assert_eq!((fact("twice"), fact("out_of_order"), fact("phantom")), (0, 0, 0));
    assert_eq!(events["lost_events"].as_array().map(Vec::len), Some(0));
    assert!(fact("rolled_back") > 0, "{events}");
    assert!(fact("jobs") > 60, "the projection makes more than one job of a fact: {events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_live_row_is_found_lost_and_named() {
    let output = output(&mut demo(&["--json", "--sabotage", "delete-live-row"])).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert_eq!(number(&answer, "lost"), 1);
    assert_eq!(answer["ok"], false);
    assert!(answer["sabotaged_operation"].is_string(), "{answer}");
    assert_eq!(answer["lost_operations"][0]["operation"], answer["sabotaged_operation"]);
    assert_eq!((number(&answer, "phantom"), number(&answer, "duplicates_effect")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_database_is_left_as_it_was() {
    let server = server().await;
    let client = connect(&server).await;
    let before = inventory(&client).await;
    let output = output(&mut demo(&["--database-url", &server.url()])).await;
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.contains("lost 0   phantom 0   second effects 0"), "{text}");
    assert_eq!(inventory(&client).await, before);
    eventually("its sessions end", async || sessions(&client).await == 0).await;

    // Standard output was a pipe.
    for text in [&text, &errors] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "no terminal's language: {text:?}");
    }
    assert!(errors.lines().count() < 10, "only a few lines: {errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_is_not_overwritten_and_stop_drops_it() {
    let server = server().await;
    let (client, url) = (connect(&server).await, server.url());
    let before = inventory(&client).await;
    let kept = output(&mut demo(&["--database-url", &url, "--keep", "--json"])).await;
    assert_eq!(kept.status.code(), Some(0), "{}", String::from_utf8_lossy(&kept.stderr));
    let operations = "select count(*) from outhaul_demo_shop.operations";
    assert_eq!(client.query_one(operations, &[]).await.unwrap().get::<_, i64>(0), 160);

    let again = output(&mut demo(&["--database-url", &url, "--json"])).await;
    assert_eq!(again.status.code(), Some(4));
    let problem: Value = serde_json::from_slice(&again.stderr).unwrap();
    assert_eq!(problem["error"]["code"], "schema_exists", "{problem}");

    // A schema of that name which the demonstration did not make is not its to drop.
    client.batch_execute("comment on schema outhaul_demo_effects is 'mine'").await.unwrap();
    stop(&url).await;
    assert!(schema_exists(&client, "outhaul_demo_effects").await);
    client.batch_execute("drop schema outhaul_demo_effects cascade").await.unwrap();
    assert_eq!(inventory(&client).await, before);
}

async fn stop(url: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outhaul"));
    let stopped = output(command.args(["demo", "--stop", "--json", "--database-url", url])).await;
    assert_eq!(stopped.status.code(), Some(0), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(answer(&stopped)["stopped"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_demo_leaves_nothing_behind() {
    let server = server().await;
    let client = connect(&server).await;
    let before = inventory(&client).await;
    let mut child = at_work(&server, &client).await;
    signal(&child, "-INT");
    let status = tokio::time::timeout(LIMIT, child.wait()).await.expect("it hangs").unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(inventory(&client).await, before);
    eventually("its sessions end", async || sessions(&client).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workers_of_a_killed_demo_end() {
    let server = server().await;
    let client = connect(&server).await;
    let before = inventory(&client).await;
    let mut child = at_work(&server, &client).await;
    child.kill().await.unwrap();
    eventually("the workers' sessions end", async || sessions(&client).await == 0).await;

    stop(&server.url()).await;
    assert_eq!(inventory(&client).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_elsewhere_is_not_touched_without_a_word() {
    let refused =
        output(&mut demo(&["--database-url", "postgres://me:swordfish@192.0.2.1/x", "--json"])).await;
    assert_eq!(refused.status.code(), Some(4));
    let problem = String::from_utf8(refused.stderr).unwrap();
    assert!(problem.contains("not_local") && !problem.contains("swordfish"), "{problem}");
}
