//! Repair from the terminal: dead letters, operations, and the guide that shows them.

use outhaul_local::TestDatabase;
use serde_json::{Value, json};

use crate::support::{Place, client, keys, migrated, until};

const NOBODY: &str = "01a22d96-f667-741b-9170-ea2010b260f0";

/// Lets the jobs of a queue die, as a worker would after their last attempt.
async fn kill(database: &TestDatabase, queue: &str, code: &str) {
    let sql = "select f.* from outhaul.claim($1, 1000, gen_random_uuid(), '60 s') c cross join lateral \
        outhaul.fail(array[c.id], array[c.lease_token], array[c.claim_no], '{dead_letter}', '{0}', '{transient}', array[$2], '{away}') f";
    client(&database.url()).await.query(sql, &[&queue, &code]).await.unwrap();
}

async fn dead(database: &TestDatabase, place: &Place, queue: &str, n: usize) -> Vec<String> {
    let ids = (0..n).map(|n| place.enqueue(&["hook.call", &n.to_string(), "--queue", queue])).collect();
    kill(database, queue, "http_503").await;
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_grouped_and_discarded() {
    let database = migrated().await;
    let place = Place::at(&database);
    let ids = dead(&database, &place, "hooks", 3).await;
    dead(&database, &place, "mail", 1).await;
    let page = place.run(&["dead", "list", "--queue", "hooks", "--limit", "2", "--json"]).ok().json();
    assert_eq!(keys(&page), ["dead_letters", "next_cursor"]);
    assert_eq!(
        keys(&page["dead_letters"][0]),
        [
            "attempts",
            "claim_no",
            "created_at",
            "died_at",
            "error_class",
            "error_code",
            "error_summary",
            "id",
            "idempotency_key",
            "job_type",
            "max_attempts",
            "ordering_key",
            "organization_id",
            "queue"
        ]
    );
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = place.run(&["dead", "list", "--queue", "hooks", "--cursor", cursor, "--json"]).ok().json();
    assert_eq!((rest["dead_letters"].as_array().unwrap().len(), &rest["next_cursor"]), (1, &Value::Null));
    let table = place
        .run(&["dead", "list", "--type", "hook.call", "--code", "http_503", "--class", "transient"])
        .ok();
    assert_eq!(table.out.lines().count(), 5);
    assert!(
        table.out.starts_with("ID\tQUEUE\tTYPE\tATTEMPTS\tCLASS\tCODE\tDIED_AT\tSUMMARY\n"),
        "{}",
        table.out
    );
    for (filter, lines) in [
        (&["--since", "2100-01-01T00:00:00Z"][..], 1),
        (&["--before", "2100-01-01T00:00:00Z"], 5),
        (&["--code", ""], 1),
        (&["--organization", NOBODY], 1),
    ] {
        let args: Vec<&str> = ["dead", "list"].iter().chain(filter).copied().collect();
        assert_eq!(place.run(&args).ok().out.lines().count(), lines, "{filter:?}");
    }
    assert_eq!(place.run(&["dead", "list", "--jsonl"]).ok().out.lines().count(), 4);

    let groups = place.run(&["dead", "groups", "--json"]).ok().json();
    let group = &groups["groups"][0];
    assert_eq!(
        (&group["queue"], &group["error_code"], &group["jobs"]),
        (&json!("hooks"), &json!("http_503"), &json!(3))
    );
    assert!(ids.iter().any(|id| group["sample_id"] == **id), "{group}");
    let table = place.run(&["dead", "groups"]).ok().out;
    assert!(table.lines().nth(1).unwrap().starts_with("hooks\thook.call\thttp_503\t3\t"), "{table}");

    assert_eq!(place.run(&["dead", "discard", &ids[0], "--json"]).exits(2).problem()["code"], "usage");
    let discard = |id: &str| place.run(&["dead", "discard", id, "--reason", "void", "--json"]);
    assert_eq!(discard(&ids[0]).ok().json()["results"][0]["result"], "discarded");
    assert_eq!(discard(&ids[0]).exits(4).problem()["code"], "ended");
    assert_eq!(discard(NOBODY).exits(3).problem()["code"], "not_found");
    place.run(&["jobs", "retry", &ids[1]]).ok();
    assert_eq!(discard(&ids[1]).exits(4).problem()["code"], "live");
    let shown = place.show(&ids[0]);
    assert_eq!((&shown["status"], &shown["last_error_code"]), (&json!("cancelled"), &json!("discarded")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_chosen_looked_at_confirmed_and_done_without_a_worker() {
    let database = migrated().await;
    let place = Place::at(&database);
    let ids = dead(&database, &place, "hooks", 5).await;
    let made =
        place.run(&["operations", "replay", "monday", "--queue", "hooks", "--per-second", "10000"]).ok();
    assert!(made.out.starts_with("monday  replay 5 jobs  ready\n"), "{}", made.out);
    assert!(
        made.out.contains("5  hooks  hook.call  http_503") && made.err.contains("operations start monday")
    );
    // What dies now is not part of it.
    dead(&database, &place, "hooks", 1).await;
    assert_eq!(
        place.run(&["operations", "start", "monday", "--json"]).exits(2).problem()["code"],
        "not_confirmed"
    );
    let shown = place.run(&["operations", "show", "monday", "--json"]).ok().json();
    assert_eq!((&shown["state"], &shown["total"], &shown["done"]), (&json!("ready"), &json!(5), &json!(0)));
    place.run(&["jobs", "retry", &ids[0]]).ok();
    let done = place.run(&["operations", "start", "monday", "--yes", "--wait"]).ok();
    assert_eq!(done.out, "operation monday is done: 4 of 5 done, 1 skipped\n");
    let items = place.run(&["operations", "items", "monday", "--outcome", "live", "--json"]).ok().json();
    assert_eq!(items, json!({"items": [{"n": 1, "job_id": ids[0], "outcome": "live"}], "next_after": null}));
    assert_eq!(
        place.run(&["operations", "items", "monday", "--limit", "2", "--json"]).ok().json()["next_after"],
        2
    );
    let list = place.run(&["operations", "list"]).ok().out;
    assert!(list.lines().nth(1).unwrap().starts_with("monday\treplay\tdone\t5\t4\t1\t10000\t"), "{list}");
    // Again changes nothing, and says so.
    assert_eq!(place.run(&["operations", "start", "monday", "--yes"]).ok().out, "operation monday is done\n");
    assert_eq!(place.run(&["operations", "stop", "monday", "--json"]).exits(4).problem()["code"], "done");
    assert_eq!(place.run(&["dead", "list"]).ok().out.lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_of_an_operation_has_its_exit_code() {
    let database = migrated().await;
    let place = Place::at(&database);
    dead(&database, &place, "hooks", 2).await;
    let code = |args: &[&str], code: i32| place.run(args).exits(code).problem()["code"].clone();
    for verb in ["show", "items", "stop", "resume"] {
        assert_eq!(code(&["operations", verb, "never", "--json"], 3), "not_found", "{verb}");
    }
    assert_eq!(code(&["operations", "start", "never", "--yes", "--json"], 3), "not_found");
    assert_eq!(code(&["operations", "replay", "o", "--json"], 2), "invalid_input");
    assert_eq!(code(&["operations", "replay", "o", "--queue", "empty", "--json"], 3), "not_found");
    assert_eq!(code(&["operations", "discard", "o", "--queue", "hooks", "--json"], 2), "usage");
    let made = place
        .run(&["operations", "discard", "o", "--all", "--reason", "void", "--per-second", "1", "--json"])
        .ok();
    assert_eq!((&made.json()["kind"], &made.json()["reason"]), (&json!("discard"), &json!("void")));
    assert_eq!(code(&["operations", "discard", "o", "--all", "--reason", "r", "--json"], 4), "conflict");
    assert_eq!(code(&["operations", "stop", "o", "--json"], 4), "ready");
    assert_eq!(code(&["operations", "resume", "o", "--json"], 4), "ready");
    let said = |args: &[&str]| place.run(args).ok().json();
    let answer = |state: &str, changed: bool| json!({"operation": "o", "state": state, "changed": changed});
    assert_eq!(said(&["operations", "start", "o", "--yes", "--json"]), answer("running", true));
    assert_eq!(said(&["operations", "start", "o", "--yes", "--json"]), answer("running", false));
    assert_eq!(said(&["operations", "stop", "o", "--json"]), answer("stopped", true));
    assert_eq!(said(&["operations", "stop", "o", "--json"]), answer("stopped", false));
    assert_eq!(code(&["operations", "start", "o", "--yes", "--json"], 4), "stopped");
    let ended = said(&["operations", "resume", "o", "--wait", "--json"]);
    assert_eq!((&ended["state"], &ended["outcomes"]), (&json!("done"), &json!({"discarded": 2})));
    assert_eq!(said(&["operations", "resume", "o", "--json"]), answer("done", false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_names_the_job_to_cancel() {
    let database = migrated().await;
    let place = Place::at(&database);
    let id = place.enqueue(&["mail.welcome", "{}", "--idempotency-key", "u7"]);
    let cancel = |key: &str| place.run(&["jobs", "cancel", "--key", key, "--type", "mail.welcome", "--json"]);
    assert_eq!(cancel("u7").ok().json(), json!({"results": [{"key": "u7", "result": "cancelled"}]}));
    assert_eq!(place.show(&id)["status"], "cancelled");
    assert_eq!(cancel("u7").exits(4).problem()["code"], "ended");
    assert_eq!(cancel("u8").exits(3).problem()["code"], "not_found");
    for args in [
        &["jobs", "cancel"][..],
        &["jobs", "cancel", "--key", "k"],
        &["jobs", "cancel", &id, "--key", "k", "--type", "t"],
    ] {
        place.run(args).exits(2);
    }
}

/// The commands of the guide, in order: those that begin with a prompt, each with what the guide shows below it.
fn commands() -> Vec<String> {
    let guide = include_str!("../../../../docs/guides/repair.md");
    let blocks = guide.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_guide_does_what_the_guide_says() {
    let database = migrated().await;
    let place = Place::at(&database);
    let key = ["--idempotency-key", "order-7", "--queue", "later", "--delay", "1h"];
    place.enqueue(&[&["invoice.send", "{}"][..], &key].concat());
    for n in 0..3 {
        place.enqueue(&["report.build", &n.to_string(), "--queue", "reports"]);
    }
    dead(&database, &place, "webhooks", 6).await;
    let list = place.run(&["dead", "list", "--json"]).ok().json();
    let ids: Vec<&str> =
        list["dead_letters"].as_array().unwrap().iter().map(|dead| dead["id"].as_str().unwrap()).collect();
    let waiting = place.enqueue(&["report.build", "9", "--queue", "other"]);
    let commands = commands();
    assert!(commands.len() >= 15, "{commands:?}");
    for command in &commands {
        let command =
            command.replace("$DEAD_ID", ids[0]).replace("$OTHER_ID", ids[1]).replace("$WAITING_ID", &waiting);
        let words: Vec<String> = words(&command);
        assert_eq!(words[0], "outhaul", "{command}");
        place.run(&words[1..].iter().map(String::as_str).collect::<Vec<_>>()).ok();
    }
    let mut left = Value::Null;
    until("nothing of it is left undone", || {
        left = place.run(&["operations", "list", "--json"]).ok().json();
        left["operations"].as_array().unwrap().iter().all(|o| o["state"] == "done")
    })
    .await;
    let outcomes: Vec<&Value> =
        left["operations"].as_array().unwrap().iter().map(|o| &o["outcomes"]).collect();
    assert_eq!(outcomes, [&json!({"cancelled": 3}), &json!({"replayed": 4})], "{left}");
    assert_eq!(place.show(ids[0])["status"], "retrying");
    assert_eq!(place.show(ids[1])["last_error_code"], "discarded");
    assert_eq!(place.show(&waiting)["status"], "cancelled");
}

/// Splits a command at blanks, but for what is in single quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in command.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
