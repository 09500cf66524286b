//! Each exit code, by what leads to it.

use std::process::Stdio;

use outhaul_local::{Child, ChildOptions, TestDatabase};
use serde_json::Value;

use crate::support::{PATIENCE, Place, Ran, client, empty, migrated, until};

const NOBODY: &str = "00000000-0000-7000-8000-000000000000";

#[tokio::test(flavor = "multi_thread")]
async fn exit_0_what_worked() {
    let place = Place::bare();
    assert!(place.run(&["version"]).ok().out.starts_with("outhaul "));
    for args in [&["--help"][..], &["--version"], &["help", "work"], &["completions", "bash"]] {
        assert!(!place.run(args).ok().out.is_empty(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_1_a_job_that_ended_badly() {
    let database = migrated().await;
    let place = Place::at(&database);
    let id = place.enqueue(&["test.none"]);
    place.run(&["jobs", "cancel", &id]).ok();
    let ran = place.run(&["jobs", "wait", &id, "--json"]).exits(1);
    assert_eq!(ran.json()["status"], "cancelled");
    assert_eq!(ran.problem()["code"], "cancelled");
    assert_eq!(ran.problem()["exit_code"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_2_a_command_line_or_configuration_that_is_wrong() {
    let database = migrated().await;
    let place = Place::at(&database);
    for (args, code) in [
        (&["quues"][..], "usage"),
        (&[], "usage"),
        (&["jobs", "show", "17"], "usage"),
        (&["jobs", "list", "--status", "succeeded"], "usage"),
        (&["enqueue", "test.none", "{}", "--timeout", "30"], "usage"),
        (&["enqueue", "test.none", "{"], "invalid_input"),
        (&["enqueue", "no such type"], "invalid_input"),
        (&["enqueue", "test.none", "--priority", "11"], "invalid_input"),
        (&["queues", "list", "--schema", "Bad-Name"], "invalid_input"),
        (&["queues", "list", "--database-url", "mysql://h/d"], "config"),
        (&["queues", "list", "--config", "missing.toml"], "config"),
        (&["work"], "no_jobs"),
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let problem = place.run(&args).exits(2).problem();
        assert_eq!(problem["code"], code, "{args:?}: {problem}");
        assert!(problem["hint"].is_string() && problem["exit_code"] == 2, "{args:?}: {problem}");
    }
    assert_eq!(
        Place::bare().run(&["queues", "list", "--json"]).exits(2).problem()["code"],
        "no_database_url"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_3_what_is_not_there() {
    let database = migrated().await;
    let place = Place::at(&database);
    for args in [
        &["jobs", "show", NOBODY][..],
        &["jobs", "wait", NOBODY],
        &["jobs", "cancel", NOBODY],
        &["jobs", "retry", NOBODY],
        &["dev", "--dir", "nowhere", "url"],
    ] {
        let ran = place.run(args).exits(3);
        assert!(ran.err.contains("error[not_") && ran.err.contains("\nhint: "), "{args:?}: {}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_4_what_is_refused() {
    let database = migrated().await;
    let place = Place::at(&database);
    let id = place.enqueue(&["test.none", "{\"n\":1}", "--idempotency-key", "k"]);
    let conflict =
        place.run(&["enqueue", "test.none", "{\"n\":2}", "--idempotency-key", "k", "--json"]).exits(4);
    assert_eq!(conflict.problem()["code"], "conflict");
    place.run(&["jobs", "cancel", &id]).ok();
    for verb in ["cancel", "retry"] {
        let ran = place.run(&["jobs", verb, &id, "--json"]).exits(4);
        assert_eq!(ran.json()["results"][0]["result"], "ended");
        assert_eq!(ran.problem()["code"], "ended");
    }
    let ran = place.run(&["dev", "--dir", "data", "down", "--remove", "--json"]).exits(4);
    assert_eq!(ran.problem()["code"], "not_confirmed");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_4_a_role_that_lacks_the_right() {
    let database = migrated().await;
    let (role, client) = role_with(&database, "outhaul_observer").await;
    let place = as_role(&database, &role);
    place.bind("test.ok", "exit 0", "");
    place.run(&["queues", "list"]).ok();
    for (args, needed) in [
        (&["queues", "pause", "mail"][..], "outhaul_operator"),
        (&["jobs", "retry", NOBODY], "outhaul_operator"),
        (&["enqueue", "test.ok"], "outhaul_producer"),
        (&["work"], "outhaul_worker"),
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let problem = place.run(&args).exits(4).problem();
        assert_eq!(problem["code"], "refused", "{args:?}: {problem}");
        let hint = problem["hint"].as_str().unwrap();
        assert!(hint.contains(&format!("`grant {needed} to \"{role}\"`")), "{args:?}: {problem}");
    }
    drop_role(&client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_4_a_record_of_migrations_that_is_not_for_a_producer() {
    let database = migrated().await;
    let (role, client) = role_with(&database, "outhaul_producer").await;
    let place = as_role(&database, &role);
    for verb in ["status", "check"] {
        let problem = place.run(&["migrate", verb, "--json"]).exits(4).problem();
        let message = problem["message"].as_str().unwrap();
        assert!(
            message.contains(&role) && message.contains("SELECT on outhaul.schema_migrations"),
            "{problem}"
        );
        assert!(problem["hint"].as_str().unwrap().contains("a member of outhaul_owner"), "{problem}");
    }
    drop_role(&client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_4_who_may_not_look_stores_nothing_to_wait_for() {
    let database = migrated().await;
    let (role, client) = role_with(&database, "outhaul_producer").await;
    let place = as_role(&database, &role);
    let problem = place.run(&["enqueue", "test.none", "--wait", "--json"]).exits(4).problem();
    assert!(problem["hint"].as_str().unwrap().contains("outhaul_observer"), "{problem}");
    assert_eq!(jobs_of(&database).await, 0);
    drop_role(&client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_4_a_login_that_is_refused_is_told_once() {
    let database = migrated().await;
    // With TLS and without it the server says the same.
    let url = database.tcp_url().replace("outhaul@", "nobody_of_that_name@");
    let problem = Place::bare().run(&["queues", "list", "--json", "--database-url", &url]).exits(4).problem();
    let message = problem["message"].as_str().unwrap();
    assert_eq!(message.matches("does not exist (SQLSTATE 28000)").count(), 1, "{message}");
    assert!(problem["hint"].as_str().unwrap().starts_with("Check the user, the password"), "{problem}");
}

/// A role of the test's own that may log in, and the client that made it.
async fn role_with(database: &TestDatabase, right: &str) -> (String, tokio_postgres::Client) {
    let client = client(&database.url()).await;
    let name = database.name().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let role = format!("role_{name}");
    client.batch_execute(&format!("create role {role} login; grant {right} to {role}")).await.unwrap();
    (role, client)
}

async fn drop_role(client: &tokio_postgres::Client, role: &str) {
    client.batch_execute(&format!("drop role {role}")).await.unwrap();
}

fn as_role(database: &TestDatabase, role: &str) -> Place {
    Place::bare().with("DATABASE_URL", &database.url().replace("user=outhaul", &format!("user={role}")))
}

async fn jobs_of(database: &TestDatabase) -> i64 {
    let client = client(&database.url()).await;
    client.query_one("select count(*) from outhaul.all_jobs", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_5_a_database_that_is_not_there() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    place.bind("test.ok", "exit 0", "");
    for args in [
        &["queues", "list"][..],
        &["jobs", "list"],
        &["migrate"],
        &["migrate", "status"],
        &["enqueue", "test.ok"],
        &["work"],
    ] {
        let ran = place.run(args).exits(5);
        assert!(ran.err.contains("error[unavailable]: "), "{args:?}: {}", ran.err);
        assert!(ran.out.is_empty(), "{args:?}: {}", ran.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_6_a_schema_that_does_not_fit() {
    let database = empty().await;
    let place = Place::at(&database);
    place.bind("test.ok", "exit 0", "");
    for args in [
        &["queues", "list"][..],
        &["jobs", "list"],
        &["enqueue", "test.ok"],
        &["work"],
        &["migrate", "check"],
    ] {
        let ran = place.run(args).exits(6);
        assert!(
            ran.err.contains("error[schema_") && ran.err.contains("outhaul migrate"),
            "{args:?}: {}",
            ran.err
        );
    }
    place.run(&["migrate", "status"]).ok();
    place.run(&["migrate"]).ok();
    place.run(&["migrate", "check"]).ok();
    place.run(&["queues", "list"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_7_a_time_that_is_over() {
    let database = migrated().await;
    let place = Place::at(&database);
    let ran = place.run(&["enqueue", "test.none", "--wait", "--wait-timeout", "2s", "--json"]).exits(7);
    assert_eq!(ran.problem()["code"], "timed_out");
    let answer = ran.json();
    assert_eq!(answer["job"]["status"], "pending");
    let id = answer["id"].as_str().unwrap();
    let ran = place.run(&["jobs", "wait", id, "--timeout", "2s"]).exits(7);
    assert!(ran.out.contains("pending") && ran.err.contains("error[timed_out]"), "{}{}", ran.out, ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_11_what_was_done_and_could_not_be_told() {
    let database = migrated().await;
    let place = Place::at(&database);
    let untold = |ran: Ran, done: &str, look: &str| {
        let problem = ran.exits(11).problem();
        assert_eq!(problem["code"], "untold", "{problem}");
        let message = problem["message"].as_str().unwrap().to_owned();
        assert!(message.contains(done), "{done}: {problem}");
        assert!(message.contains("but standard output cannot be written"), "{problem}");
        assert!(problem["hint"].as_str().unwrap().contains(look), "{problem}");
        message
    };
    let mut ids = Vec::new();
    for run in [Place::run_full, Place::run_closed] {
        for wait in [&[][..], &["--wait", "--wait-timeout", "10ms"]] {
            let args: Vec<&str> = ["enqueue", "test.none", "--json"].iter().chain(wait).copied().collect();
            let message = untold(run(&place, &args), "is committed", "outhaul jobs show ");
            let id = message.split(' ').nth(1).unwrap().to_owned();
            assert_eq!(place.show(&id)["status"], "pending", "{message}");
            ids.push(id);
        }
    }
    untold(place.run_full(&["jobs", "retry", &ids[0], "--json"]), &format!("{} due", ids[0]), "jobs show");
    let ran = place.run_full(&["jobs", "cancel", &ids[0], NOBODY, "--json"]);
    untold(ran, &format!("({} cancelled, {NOBODY} not_found)", ids[0]), "jobs show");
    assert_eq!(place.show(&ids[0])["status"], "cancelled");
    // Here nothing was done.
    let ran = place.run_full(&["jobs", "cancel", &ids[0], NOBODY, "--json"]).exits(4);
    assert_eq!(ran.problem()["code"], "ended");

    untold(place.run_full(&["queues", "pause", "mail", "--json"]), "queue mail is paused", "queues list");
    untold(place.run_closed(&["queues", "resume", "mail", "--json"]), "queue mail goes on", "queues list");
    untold(place.run_full(&["migrate", "--json"]), "schema outhaul is at version", "migrate status");
    let plain = place.run_full(&["enqueue", "test.none"]).exits(11);
    assert!(plain.err.contains("error[untold]: job ") && plain.err.contains("\nhint: "), "{}", plain.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_11_a_job_that_is_committed_when_the_waiting_fails() {
    let database = migrated().await;
    let (role, client) = role_with(&database, "outhaul_producer, outhaul_observer").await;
    let place = as_role(&database, &role);
    let log = place.path("log");
    let mut waiting = place.command(&["enqueue", "test.none", "--wait"]);
    waiting.stdout(Stdio::null());
    let mut waiting = Child::spawn(waiting, ChildOptions::new().output_to(&log)).unwrap();
    let mut id = String::new();
    until("the job is told before it has ended", || {
        let said = place.read("log");
        let line = said.lines().find(|line| line.contains("is committed, waiting for its end"));
        line.inspect(|line| id = line.split(' ').nth(1).unwrap().to_owned()).is_some()
    })
    .await;
    client.batch_execute(&format!("revoke outhaul_observer from {role}")).await.unwrap();
    assert_eq!(waiting.wait(PATIENCE).await.unwrap().code(), Some(11), "{}", place.read("log"));
    let said = place.read("log");
    assert!(said.contains(&format!("error[untold]: job {id} is committed, but waiting for")), "{said}");
    assert_eq!(Place::at(&database).show(&id)["status"], "pending");
    drop_role(&client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_output_changes_no_exit_code_of_what_only_reads() {
    let database = migrated().await;
    let place = Place::at(&database);
    let id = place.enqueue(&["test.none"]);
    for args in [
        &["jobs", "list"][..],
        &["jobs", "list", "--json"],
        &["jobs", "list", "--jsonl"],
        &["jobs", "show", &id],
        &["queues", "list"],
        &["migrate", "status"],
        &["migrate", "check"],
        &["migrate", "sql"],
        &["config", "show"],
        &["completions", "zsh"],
        &["version"],
        &["--help"],
    ] {
        let ran = place.run_closed(args).ok();
        assert_eq!(ran.err, "", "{args:?}");
    }
    place.run(&["jobs", "cancel", &id]).ok();
    let problem = place.run_closed(&["jobs", "wait", &id, "--json"]).exits(1).problem();
    assert_eq!(problem["code"], "cancelled");
    let full: Value = place.run_full(&["jobs", "list", "--json"]).exits(1).problem();
    assert_eq!(full["code"], "output", "{full}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_130_a_worker_interrupted_before_it_works() {
    // Accepts connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let place =
        Place::bare().with("DATABASE_URL", &format!("postgres://u@127.0.0.1:{port}/d?connect_timeout=0"));
    place.bind("test.ok", "exit 0", "");
    let log = ChildOptions::new().output_to(place.path("log"));
    let mut worker = Child::spawn(place.command(&["work"]), log).unwrap();
    // It has its signals in hand before it connects.
    silent.set_nonblocking(true).unwrap();
    let mut connection = None;
    until("the worker connects", || {
        connection = silent.accept().ok();
        connection.is_some()
    })
    .await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(130), "{}", place.read("log"));
}
