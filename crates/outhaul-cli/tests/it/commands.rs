//! What commands do and print.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use crate::support::{Place, Ran, client, empty, keys, migrated};

#[tokio::test(flavor = "multi_thread")]
async fn migrating_is_told_and_can_be_repeated() {
    let database = empty().await;
    let place = Place::at(&database);
    let status = place.run(&["migrate", "status", "--json"]).ok().json();
    assert_eq!(keys(&status), ["current", "status"]);
    assert_eq!((&status["current"], &status["status"]["version"]), (&json!(false), &json!(0)));

    let done = place.run(&["migrate", "--json"]).ok().json();
    assert_eq!(keys(&done), ["migrated", "ms", "schema"]);
    assert_eq!(keys(&done["migrated"]), ["from", "functions", "retries", "steps", "to"]);
    assert_eq!(done["migrated"]["from"], 0);
    let again = place.run(&["migrate", "up"]).ok();
    assert!(
        again.out.contains("nothing to do") && again.err.contains("target: "),
        "{}{}",
        again.out,
        again.err
    );
    assert_eq!(place.run(&["migrate", "check", "--json"]).ok().json()["current"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_schema_without_roles_stands_beside_the_usual_one() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.run(&["migrate", "--schema", "second", "--no-roles"]).ok();
    let there = place.run(&["enqueue", "test.none", "--schema", "second", "--json"]).ok().json();
    let count = |schema: &str| {
        let list = place.run(&["jobs", "list", "--schema", schema, "--json"]).ok().json();
        list["jobs"].as_array().unwrap().len()
    };
    assert_eq!((count("second"), count("outhaul")), (1, 0), "{there}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_a_migration_makes_the_same_schema() {
    let database = empty().await;
    let place = Place::at(&database);
    let sql = Place::bare().run(&["migrate", "sql"]).ok().out;
    let client = client(&database.url()).await;
    client.batch_execute(&sql).await.unwrap();
    place.run(&["migrate", "check"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_of_enqueue_reaches_the_row() {
    let database = migrated().await;
    let place = Place::at(&database);
    let organization = "01890000-0000-7000-8000-000000000001";
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let answer = place.run_with(
        &[
            "enqueue",
            "mail.welcome",
            "-",
            "--json",
            "--queue",
            "mail",
            "--idempotency-key",
            "u7",
            "--priority",
            "-3",
            "--run-at",
            "2100-01-01T00:00:00Z",
            "--max-attempts",
            "4",
            "--timeout",
            "1m30s",
            "--organization",
            organization,
            "--traceparent",
            trace,
        ],
        "{\"user\": 7}",
    );
    let answer = answer.ok().json();
    assert_eq!(keys(&answer), ["id", "job_type", "new", "queue"]);
    assert_eq!(answer["new"], true);
    let shown =
        place.run(&["jobs", "show", answer["id"].as_str().unwrap(), "--payload", "--json"]).ok().json();
    for (key, value) in [
        ("queue", json!("mail")),
        ("job_type", json!("mail.welcome")),
        ("status", json!("pending")),
        ("idempotency_key", json!("u7")),
        ("priority", json!(-3)),
        ("run_at", json!("2100-01-01T00:00:00Z")),
        ("max_attempts", json!(4)),
        ("timeout_ms", json!(90_000)),
        ("organization_id", json!(organization)),
        ("traceparent", json!(trace)),
        ("payload", json!({"user": 7})),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    let again = place.run_with(
        &["enqueue", "mail.welcome", "-", "--idempotency-key", "u7", "--organization", organization],
        "{\"user\":7}",
    );
    let again = again.ok();
    assert!(
        again.out.contains("duplicate") && again.out.contains(answer["id"].as_str().unwrap()),
        "{}",
        again.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_stable_shapes() {
    let database = migrated().await;
    let place = Place::at(&database);
    for n in 0..3 {
        place.enqueue(&["test.none", &format!("{{\"n\":{n}}}"), "--queue", "mail"]);
    }
    let page = place.run(&["jobs", "list", "--limit", "2", "--json"]).ok().json();
    assert_eq!(keys(&page), ["jobs", "next_before"]);
    assert_eq!(
        keys(&page["jobs"][0]),
        [
            "attempts",
            "created_at",
            "ended_at",
            "id",
            "job_type",
            "last_error_code",
            "last_error_summary",
            "locked_at",
            "locked_by",
            "max_attempts",
            "organization_id",
            "priority",
            "queue",
            "run_at",
            "status"
        ]
    );
    let next = page["next_before"].as_str().unwrap();
    let rest = place.run(&["jobs", "list", "--limit", "2", "--before", next, "--json"]).ok().json();
    assert_eq!((rest["jobs"].as_array().unwrap().len(), &rest["next_before"]), (1, &Value::Null));

    let lines = place.run(&["jobs", "list", "--jsonl"]).ok().out;
    let ids: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids.len(), 3);

    let table =
        place.run(&["jobs", "list", "--queue", "mail", "--type", "test.none", "--status", "pending"]).ok();
    let rows: Vec<Vec<&str>> = table.out.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0], ["ID", "QUEUE", "TYPE", "STATUS", "ATTEMPT", "RUN_AT", "CODE", "CREATED_AT"]);
    assert!(rows.len() == 4 && rows.iter().all(|row| row.len() == 8), "{rows:?}");
    assert_eq!(rows[1][0], ids[0].as_str().unwrap());
    assert!(!table.out.contains('\x1b') && rows[1][7].ends_with('Z'), "{}", table.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_that_waits_longest_is_listed_first() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.enqueue(&["test.none", "--queue", "young"]);
    let id = place.enqueue(&["test.none", "--queue", "old"]);
    let client = client(&database.url()).await;
    let age = "update outhaul.jobs set run_at = run_at - interval '1 hour' where id = $1";
    client.execute(age, &[&id.parse::<uuid::Uuid>().unwrap()]).await.unwrap();

    let queues = place.run(&["queues", "list", "--json"]).ok().json();
    assert_eq!(keys(&queues), ["queues"]);
    assert_eq!(
        (&queues["queues"][0]["queue"], &queues["queues"][1]["queue"]),
        (&json!("old"), &json!("young"))
    );
    let table = place.run(&["queues", "list"]).ok().out;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0][..2], ["QUEUE", "OLDEST"]);
    assert!(rows[1][1].starts_with("1h00m"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_told_and_undone() {
    let database = migrated().await;
    let place = Place::at(&database);
    let pause = place.run(&["queues", "pause", "mail", "--reason", "provider is down", "--json"]).ok().json();
    assert_eq!(pause, json!({"queue": "mail", "paused": true, "changed": true}));
    let again = place.run(&["queues", "pause", "mail"]).ok();
    assert!(again.out.contains("was paused before") && again.err.contains("target: "));
    let listed = place.run(&["queues", "list", "--json"]).ok().json();
    let mail = listed["queues"].as_array().unwrap().iter().find(|queue| queue["queue"] == "mail").unwrap();
    assert_eq!(mail["paused_reason"], "provider is down");
    let resume = place.run(&["queues", "resume", "mail", "--json"]).ok().json();
    assert_eq!(resume, json!({"queue": "mail", "paused": false, "changed": true}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_word_is_answered_with_the_right_one() {
    let place = Place::bare();
    for (args, meant) in [
        (&["quues"][..], "queues"),
        (&["jobs", "lst"], "list"),
        (&["queues", "list", "--databse-url", "x"], "--database-url"),
    ] {
        let ran = place.run(args).exits(2);
        assert!(ran.err.starts_with("error[usage]: ") && ran.err.contains(meant), "{args:?}: {}", ran.err);
    }
}

#[test]
fn a_time_that_cannot_be_used_is_named_with_its_range() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    for (args, part) in [
        (&["work", "--poll", "0s"][..], "zero is out of range; use 10ms to 24h"),
        (&["work", "--poll", "0"], "its unit is missing (ms, s, m, h or d); use 10ms to 24h"),
        (&["work", "--drain", "5"], "its unit is missing (ms, s, m, h or d); use 0s to 24h"),
        (&["work", "--lease", "1x"], "\"x\" is no unit (ms, s, m, h or d); use 1s to 24h"),
        (&["work", "--lease", "-5s"], "a negative time is out of range; use 1s to 24h"),
        (&["enqueue", "t", "--delay", "-5s"], "a negative time is out of range; use 0s to 36500d"),
        (&["enqueue", "t", "--timeout", "25h"], "it is out of range; use 1ms to 24h"),
        (&["enqueue", "t", "--wait", "--wait-timeout", "0s"], "zero is out of range; use 1ms to 36500d"),
        (&["jobs", "wait", "00000000-0000-7000-8000-000000000000", "--timeout", "soon"], "it is not a time"),
        (&["enqueue", "t", "--run-at", "-infinity"], "a job is due at a point in time"),
        (&["enqueue", "t", "--run-at", "infinity"], "a job is due at a point in time"),
        (&["enqueue", "t", "--run-at", "1960-01-01"], "write date, time and zone, such as"),
        (&["enqueue", "t", "--run-at", "2200-01-01T00:00:00Z"], "run_at is out of range"),
        (&["enqueue", "t", "--max-attempts", "-1"], "max_attempts -1 is out of range"),
        (&["enqueue", "t", "--priority", "x"], "write a whole number from -10 to 10"),
    ] {
        let ran = place.run(args).exits(2);
        assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_in_the_past_means_now() {
    let database = migrated().await;
    let place = Place::at(&database);
    for past in ["1960-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "-000044-03-15T00:00:00Z"] {
        let shown = place.show(&place.enqueue(&["test.none", "--run-at", past]));
        assert_eq!(shown["run_at"], shown["created_at"], "{past}");
    }
    let shown = place.show(&place.enqueue(&["test.none", "--delay", "0s"]));
    assert_eq!(shown["run_at"], shown["created_at"]);
}

#[test]
fn what_is_no_text_is_named() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    let broken = OsStr::from_bytes(b"\xff");
    let refused = |ran: Ran, part: &str| {
        let err = ran.exits(2).err;
        assert!(err.contains(part) && err.contains("\nhint: "), "{part}: {err}");
    };
    refused(Ran::of(place.command(&["enqueue", "t"]).arg(broken), b""), "argument 3 is not valid UTF-8");
    refused(
        Ran::of(&mut place.command(&["enqueue", "t", "-"]), b"\xff"),
        "standard input is not valid UTF-8",
    );
    refused(place.run(&["enqueue", "t", "-"]), "the payload is empty");
    refused(place.run(&["enqueue", "t", ""]), "the payload is empty");
    let huge = vec![b' '; 17 * 1024 * 1024];
    refused(Ran::of(&mut place.command(&["enqueue", "t", "-"]), &huge), "larger than any payload may be");
    let mut command = place.command(&["queues", "list"]);
    refused(
        Ran::of(command.env("DATABASE_URL", broken), b""),
        "the variable DATABASE_URL is not valid UTF-8",
    );
}

#[test]
fn a_value_that_the_library_refuses_comes_with_its_hint() {
    let place = Place::bare();
    for (args, hint) in [
        (&["jobs", "show", "17"][..], "hint: Copy the id"),
        (&["jobs", "list", "--status", "done"], "hint: Use pending, leased, retrying,"),
        (
            &["queues", "list", "--database-url", "postgres://localhost/d"],
            "hint: Write it as postgres://USER@",
        ),
    ] {
        let mut command = place.command(args);
        let err = Ran::of(command.env_remove("USER"), b"").exits(2).err;
        assert!(err.contains(hint), "{args:?}: {err}");
    }
}
