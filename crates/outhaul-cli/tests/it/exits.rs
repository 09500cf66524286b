//! Each exit code, by what leads to it.

use crate::support::{PATIENCE, Place, empty, migrated, until};
use outhaul_local::{Child, ChildOptions};

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
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let role = format!("observer_{}", database.name().replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    client
        .batch_execute(&format!("create role {role} login; grant outhaul_observer to {role}"))
        .await
        .unwrap();
    let dsn = database.url().replace("user=outhaul", &format!("user={role}"));
    let place = Place::bare().with("DATABASE_URL", &dsn);
    place.run(&["queues", "list"]).ok();
    assert_eq!(place.run(&["queues", "pause", "mail", "--json"]).exits(4).problem()["code"], "refused");
    client.batch_execute(&format!("drop role {role}")).await.unwrap();
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
