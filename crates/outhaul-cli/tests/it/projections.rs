//! `[projections]` of `outhaul.toml`: facts become jobs, and jobs run as commands, without a line of Rust.

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{PATIENCE, Place, client, migrated, until, until_answer};

/// Waits until a query that answers with one boolean says true.
pub(crate) async fn until_true(client: &Client, sql: &str) {
    until_answer(sql, async || {
        let row = client.query_opt(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        row.is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_becomes_a_job_with_the_payload_that_the_rule_makes_and_runs() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("mail.receipt", "cat > receipt.json", "queue = \"mail\"\n");
    let rules = r#"
[projections.order-jobs]
start = "beginning"

[[projections.order-jobs.rules]]
event = "order.paid"
job = "mail.receipt"
max_attempts = 3
payload.order = { from = "/aggregate_id" }
payload.user = { from = "/payload/users/0/id" }
payload.cents = { from = "/payload/cents" }
payload.note = { from = "/payload/note", default = "none" }
payload.template = "receipt"

[[projections.order-jobs.rules]]
event = "order.paid"
job = "audit.copy"
name = "copy"
queue = "audit"
priority = -2
delay = "1h"
"#;
    place.write("outhaul.toml", &(place.read("outhaul.toml") + rules));
    let client = client(&database.url()).await;
    let order = "01a22d96-f667-741b-9170-ea2010b260f0";
    let publish = format!(
        "select outhaul.publish('order.paid', 'order', '{order}', '{{\"users\": [{{\"id\": 7}}], \"cents\": 12345678901234567890.25}}')"
    );
    client.batch_execute(&publish).await.unwrap();
    let mut worker = place.worker(&[]).await;
    until("the receipt is written", || place.read("receipt.json").ends_with('}')).await;
    // As text: a number keeps all its digits.
    let receipt = place.read("receipt.json");
    assert!(receipt.contains("12345678901234567890.25"), "{receipt}");
    let receipt: Value = serde_json::from_str(&receipt).unwrap();
    assert_eq!(receipt["order"], order);
    assert_eq!(receipt["user"], 7);
    assert_eq!((&receipt["note"], &receipt["template"]), (&json!("none"), &json!("receipt")));
    let copy = "select count(*) = 1 from outhaul.jobs where job_type = 'audit.copy' and queue = 'audit' and priority = -2 \
        and run_at > now() + interval '50 min' and payload ? 'users' and idempotency_key like 'order-jobs/copy/%'";
    until_true(&client, copy).await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
    let shown = place.run(&["config", "show", "--origin", "--json"]).ok().out;
    assert!(
        shown.contains("projections.order-jobs") && shown.contains("order.paid -> mail.receipt"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_what_a_rule_needs_is_parked_and_the_rest_goes_on() {
    let database = migrated().await;
    let place = Place::at(&database);
    let rules = r#"
[projections.p]
start = "beginning"
park_after = 1
[[projections.p.rules]]
event = "order.paid"
job = "mail.receipt"
payload.user = { from = "/payload/user" }
"#;
    place.write("outhaul.toml", rules);
    let client = client(&database.url()).await;
    for payload in ["{\"user\": 1}", "{}", "{\"user\": 3}"] {
        let sql = "select outhaul.publish('order.paid', 'order', gen_random_uuid(), $1::text::jsonb)";
        client.query(sql, &[&payload]).await.unwrap();
    }
    let mut worker = place.worker(&[]).await;
    until_true(&client, "select position = 3 from outhaul.subscriptions").await;
    until_true(&client, "select array_agg((payload->>'user')::int order by 1) = '{1,3}' from outhaul.jobs")
        .await;
    until_true(
        &client,
        "select error_code = 'payload_missing' and position = 2 from outhaul.show_parked('p')",
    )
    .await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
    let event = "select event_id::text from outhaul.show_parked('p')";
    let event: String = client.query_one(event, &[]).await.unwrap().get(0);
    let log = place.log();
    let line = log.lines().find(|line| line.contains("attempt failed")).expect("a line about the failure");
    let line: Value = serde_json::from_str(line).unwrap();
    for (key, value) in [
        ("subscription", json!("p")),
        ("rule", json!("mail.receipt")),
        ("position", json!(2)),
        ("event_id", json!(event)),
        ("event_type", json!("order.paid")),
        ("attempt", json!(1)),
        ("max_attempts", json!(1)),
        ("code", json!("payload_missing")),
        ("job_id", Value::Null),
        ("job_type", Value::Null),
        ("queue", Value::Null),
    ] {
        assert_eq!(line[key], value, "{key}: {line}");
    }
    assert!(line["error"].as_str().unwrap().starts_with("rule mail.receipt: "), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_the_guide_makes_the_job_that_its_rust_makes() {
    let guide = include_str!("../../../../docs/guides/outbox-or-job.md");
    let file = guide.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let database = migrated().await;
    let place = Place::at(&database);
    place.script("send-receipt", "cat > receipt.json");
    place.write("outhaul.toml", file);
    let client = client(&database.url()).await;
    let order = "01a22d96-f667-741b-9170-ea2010b260f0";
    let publish = format!("select outhaul.publish('order.paid', 'order', '{order}', '{{\"cents\": 995}}')");
    client.batch_execute(&publish).await.unwrap();
    let mut worker = place.worker(&[]).await;
    until("the receipt is sent", || place.read("receipt.json").ends_with('}')).await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
    let receipt: Value = serde_json::from_str(&place.read("receipt.json")).unwrap();
    assert_eq!(receipt, json!({"order": order, "cents": 995}));
    let key = "select kind || ' ' || regexp_replace(key, '[^/]*$', '') from outhaul.job_keys";
    let key: String = client.query_one(key, &[]).await.unwrap().get(0);
    // What the guide's `Rule::typed("receipt", ...)` of the projection order-jobs has as well.
    assert_eq!(key, "mail.receipt order-jobs/receipt/");
    assert!(!place.log().contains("WARN"), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_what_it_reads_and_which_jobs_nobody_is_bound_to() {
    let database = migrated().await;
    let place = Place::at(&database);
    place.bind("mail.receipt", "cat", "queue = \"mail\"\n");
    let rules = r#"
[[projections.order-jobs.rules]]
event = "order.paid"
job = "mail.receipt"
[[projections.order-jobs.rules]]
event = "order.paid"
job = "audit.copy"
queue = "audit"
[[projections.order-jobs.rules]]
event = "order.paid"
job = "stock.book"
"#;
    place.write("outhaul.toml", &(place.read("outhaul.toml") + rules));
    let mut worker = place.worker(&[]).await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
    let log = place.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for part in ["projection order-jobs", "stock.book", "queue \\\"default\\\"", "[jobs.\\\"stock.book\\\"]"]
    {
        assert!(warnings[0].contains(part), "{part}: {}", warnings[0]);
    }
    let shown = place.run(&["config", "show"]).ok();
    assert!(shown.err.contains("stock.book") && !shown.err.contains("audit.copy"), "{}", shown.err);
    let shown = place.run(&["config", "show", "--json"]).ok().json();
    assert_eq!(shown["warnings"].as_array().unwrap().len(), 1, "{shown}");

    let options = outhaul_local::ChildOptions::new().output_to(place.path("text.log"));
    let mut worker = outhaul_local::Child::spawn(place.command(&["work"]), options).unwrap();
    until("it says what it works and reads", || {
        let text = place.read("text.log");
        text.contains("queue mail, ") && text.contains("projection order-jobs: order.paid -> mail.receipt")
    })
    .await;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.read("text.log"));
}
