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
}
