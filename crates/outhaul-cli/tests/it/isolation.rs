//! Limits, keys and roles, as a person sets and sees them.

use serde_json::{Value, json};

use crate::projections::until_true;
use crate::support::{PATIENCE, Place, client, keys, migrated, until};

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_of_a_queue_can_be_set_seen_and_taken_back() {
    let database = migrated().await;
    let place = Place::at(&database);
    let set = |args: &[&str]| {
        let args: Vec<&str> = ["queues", "set", "q", "--json"].iter().chain(args).copied().collect();
        place.run(&args).ok().json()
    };
    let all = [
        "--max-running",
        "20",
        "--max-per-key",
        "2",
        "--rate",
        "100/m",
        "--burst",
        "5",
        "--key-rate",
        "10/1s",
        "--key-burst",
        "3",
        "--fair",
        "on",
        "--objective",
        "90s",
        "--history",
        "none",
        "--reason",
        "a test",
    ];
    let answer = set(&all);
    assert_eq!(keys(&answer), ["queue", "settings"]);
    assert_eq!(
        answer["settings"],
        json!({
            "history": "none", "objective_seconds": 90.0, "max_running": 20, "max_running_per_key": 2, "rate": 100,
            "rate_per_seconds": 60.0, "rate_burst": 5, "key_rate": 10, "key_rate_per_seconds": 1.0, "key_rate_burst": 3,
            "fair": true, "cool_until": null,
        })
    );
    // What is not named stays.
    assert_eq!(set(&["--max-running", "7"])["settings"]["rate"], 100);
    let shown = place.run(&["queues", "show", "q"]).ok().out;
    for line in [
        "units        0 of 7",
        "max running  7",
        "max per key  2",
        "rate         100/1m, burst 5",
        "key rate     10/1s, burst 3",
        "fair         on",
        "objective    90s",
        "history      none",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let none = [
        "--max-running",
        "none",
        "--max-per-key",
        "none",
        "--rate",
        "none",
        "--burst",
        "none",
        "--key-rate",
        "none",
        "--key-burst",
        "none",
        "--fair",
        "off",
        "--objective",
        "none",
        "--history",
        "row",
    ];
    let answer = set(&none);
    let left: Vec<&Value> =
        answer["settings"].as_object().unwrap().values().filter(|v| !v.is_null()).collect();
    assert_eq!(left, [&json!(false), &json!("row")], "{answer}");
    let client = client(&database.url()).await;
    until_true(
        &client,
        "select count(*) = 1 from outhaul.show_audit() where action = 'queues.set' and reason = 'a test'",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_cannot_be_is_refused_with_what_can() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    for (args, part) in [
        (&["--max-running", "0"][..], "write a whole number from 1 to 10000, or none"),
        (&["--max-per-key", "many"], "write a whole number from 1 to 10000, or none"),
        (&["--rate", "100"], "write N/TIME, such as 100/1m, or none"),
        (&["--rate", "0/1m"], "before the / stands a whole number from 1 to 1000000"),
        (&["--rate", "5/10ms"], "after the /: it is out of range; use 1s to 24h"),
        (&["--key-rate", "5/1500ms"], "after the /: write whole seconds"),
        (&["--fair", "yes"], "write on or off"),
        (&["--objective", "30"], "its unit is missing"),
        (&["--history", "all"], "none"),
        (&[], "nothing is named that is to change on queue q"),
    ] {
        let args: Vec<&str> = ["queues", "set", "q"].iter().chain(args).copied().collect();
        let ran = place.run(&args).exits(2);
        assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
    }
    let ran = place.run(&["queues", "limit-key", "q", "k", "-1"]).exits(2);
    assert!(!ran.err.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_listed_and_a_job_says_for_what() {
    let database = migrated().await;
    let place = Place::at(&database);
    let first = place.enqueue(&["test.none", "--queue", "q", "--ordering-key", "o"]);
    let second = place.enqueue(&["test.none", "--queue", "q", "--ordering-key", "o"]);
    let client = client(&database.url()).await;
    let claim = "select from outhaul.claim('q', 10, gen_random_uuid(), '60 s')";
    assert_eq!(client.query(claim, &[]).await.unwrap().len(), 1);
    let listed = place.run(&["queues", "list", "--json"]).ok().json();
    let queue = listed["queues"].as_array().unwrap().iter().find(|queue| queue["queue"] == "q").unwrap();
    assert_eq!((&queue["leased"], &queue["waiting"]["lane"]), (&json!(1), &json!(1)));
    let table = place.run(&["queues", "list"]).ok().out;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    let at = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    let row = rows.iter().find(|row| row[0] == "q").unwrap();
    assert_eq!(
        (row[at("WAITING")], row[at("LIMIT")], row[at("RATE")], row[at("COOLING")]),
        ("1", "-", "-", "-")
    );
    let shown = place.run(&["jobs", "show", &second]).ok().out;
    assert!(
        shown.contains(&format!("waits for    its turn behind job {first}, leased (ordering key o)")),
        "{shown}"
    );
    let shown = place.show(&second);
    assert_eq!(
        (&shown["waits_for"][0]["reason"], &shown["waits_for"][0]["job_id"]),
        (&json!("lane"), &json!(first))
    );
    assert_eq!(place.show(&first)["waits_for"], json!([]));
    // Units of a key.
    place.run(&["queues", "limit-key", "q", "k", "0", "--reason", "stopped"]).ok();
    let held = place.enqueue(&["test.none", "--queue", "q", "--limit-key", "k", "--rate-key", "h"]);
    client.query(claim, &[]).await.unwrap();
    let shown = place.run(&["jobs", "show", &held]).ok().out;
    assert!(shown.contains("waits for    a unit of its limit key k: 0 of 0 in use"), "{shown}");
    let shown = place.run(&["queues", "show", "q", "--json"]).ok().json();
    let waiting = shown["waiting_keys"].as_array().unwrap();
    let told: Vec<_> = waiting.iter().map(|key| (&key["reason"], &key["key"], &key["jobs"])).collect();
    let (lane, permit, one) = (json!("lane"), json!("permit"), json!(1));
    assert_eq!(told, [(&lane, &json!("o"), &one), (&permit, &json!("k"), &one)]);
    let shown = place.run(&["queues", "show", "q"]).ok().out;
    assert!(shown.contains(&format!("turn\to\t1\tbehind job {first}, leased")), "{shown}");
    let free = place.run(&["queues", "limit-key", "q", "k", "none"]).ok();
    assert!(free.out.contains("has no limit of its own"));
    assert_eq!(place.show(&held)["waits_for"], json!([]), "it was let in");
    let problem = place.run(&["queues", "show", "no-such", "--json"]).exits(3).problem();
    assert_eq!(problem["code"], "not_found");
}

const ROLES: &str = "
[roles.alerts]
queues = { critical = 3 }
lease = \"10s\"
max_connections = 3
[roles.reports]
queues = { reports = 1 }
projections = [\"p\"]
[[projections.p.rules]]
event = \"a.b\"
job = \"test.report\"
";

fn with_roles(place: Place) -> Place {
    place.bind("test.alert", "echo alert >> ran", "queue = \"critical\"");
    place.bind("test.report", "echo report >> ran", "queue = \"reports\"");
    place.bind("test.other", "echo other >> ran", "queue = \"others\"");
    place.write("outhaul.toml", &(place.read("outhaul.toml") + ROLES));
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_role_does_what_its_role_says_and_nothing_else() {
    let database = migrated().await;
    let place = with_roles(Place::at(&database));
    let (alert, report) = (place.enqueue(&["test.alert"]), place.enqueue(&["test.report"]));
    let mut worker = place.worker(&["--role", "alerts"]).await;
    place.until_status(&alert, "completed").await;
    let log = place.log();
    let line = log.lines().find(|line| line.contains("\"connections\"")).unwrap();
    let said: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&said["role"], &said["queues"]), (&json!("alerts"), &json!({ "critical": 3 })));
    assert_eq!(said["projections"], json!([]));
    assert_eq!(said["connections"].as_array().unwrap().len(), 3, "{said}");
    assert!(log.contains("no role works queue others"), "{log}");
    let client = client(&database.url()).await;
    let registered =
        "select count(*) = 1 from outhaul.workers where role = 'alerts' and queues = '{\"critical\": 3}'";
    until_true(&client, registered).await;
    let named = "select count(*) > 0 from pg_stat_activity where datname = current_database() \
        and application_name = 'outhaul/pulse alerts'";
    until_true(&client, named).await;
    let shown = place.run(&["queues", "show", "critical"]).ok().out;
    assert!(shown.contains("workers      1 (1 as alerts)"), "{shown}");
    assert_eq!(place.show(&report)["status"], "pending");
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_role_a_worker_does_everything_and_a_flag_goes_before_a_role() {
    let database = migrated().await;
    let place = with_roles(Place::at(&database));
    let ids = ["test.alert", "test.report", "test.other"].map(|job_type| place.enqueue(&[job_type]));
    let mut worker = place.worker(&[]).await;
    for id in &ids {
        place.until_status(id, "completed").await;
    }
    let said = place.log();
    assert!(said.contains("\"role\":null") && !said.contains("no role works"), "{said}");
    worker.term().unwrap();
    worker.wait(PATIENCE).await.unwrap();
    // A login of the role's own that does not exist, and a flag that does.
    let toml = place.read("outhaul.toml")
        + "[roles.lost]\nqueues = { reports = 1 }\ndatabase_url = \"postgres://u@127.0.0.1:1/d\"\n";
    place.write("outhaul.toml", &toml);
    place.run(&["work", "--role", "lost", "--json"]).exits(5);
    let mut worker = place.worker(&["--role", "lost", "--database-url", &database.url()]).await;
    let report = place.enqueue(&["test.report"]);
    place.until_status(&report, "completed").await;
    worker.term().unwrap();
    worker.wait(PATIENCE).await.unwrap();
}

#[test]
fn a_role_that_cannot_be_is_refused_with_those_that_can() {
    let place = with_roles(Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d"));
    let problem = place.run(&["work", "--role", "alrets", "--json"]).exits(2).problem();
    assert_eq!(problem["code"], "unknown_role", "{problem}");
    assert_eq!(problem["hint"], "Did you mean \"alerts\"? Roles are: alerts, reports.");
    let both = place.run(&["work", "--role", "alerts", "--queue", "mail"]).exits(2);
    assert!(both.err.contains("--role") && both.err.contains("--queue"), "{}", both.err);
    let shown = place.run(&["config", "show", "--json"]).ok().json();
    let of = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["key"] == key).map(|setting| setting["value"].clone())
    };
    assert_eq!(of("roles.alerts"), Some(json!("critical=3")));
    assert_eq!(of("roles.alerts.lease"), Some(json!("10s")));
    assert_eq!(of("roles.reports"), Some(json!("reports=1, projection p")));
    assert!(shown["warnings"][0].as_str().unwrap().contains("no role works queue others"), "{shown}");
    let bad = place.read("outhaul.toml").replace("projections = [\"p\"]", "projections = [\"pp\"]");
    place.write("outhaul.toml", &bad);
    let problem = place.run(&["config", "show", "--json"]).exits(2).problem();
    assert!(problem["message"].as_str().unwrap().contains("runs projection \"pp\""), "{problem}");
    let secret = "[roles.a]\nqueues = { q = 1 }\ndatabase_url = \"postgres://u:canary@h/d\"\n";
    place.write("outhaul.toml", secret);
    let shown = place.run(&["config", "show", "--origin"]).ok().out;
    assert!(shown.contains("roles.a.database_url") && !shown.contains("canary"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_takes_the_keys_of_its_jobs_from_the_event_or_from_the_file() {
    let database = migrated().await;
    let place = Place::at(&database);
    let rules = r#"
[projections.p]
start = "beginning"
park_after = 1
[[projections.p.rules]]
event = "order.paid"
job = "test.keyed"
queue = "made"
ordering_key = { from = "/aggregate_id" }
limit_key = { from = "/payload/partner", default = "nobody" }
rate_key = "api"
[[projections.p.rules]]
event = "order.numbered"
job = "test.numbered"
queue = "made"
ordering_key = { from = "/payload/n" }
"#;
    place.write("outhaul.toml", rules);
    let client = client(&database.url()).await;
    let order = "01a22d96-f667-741b-9170-ea2010b260f0";
    for (event, payload) in [
        ("order.paid", "{\"partner\": \"p-7\"}"),
        ("order.paid", "{}"),
        ("order.numbered", "{\"n\": 12345678901234567890}"),
        ("order.numbered", "{\"n\": {}}"),
    ] {
        let publish = format!("select outhaul.publish('{event}', 'order', '{order}', '{payload}')");
        client.batch_execute(&publish).await.unwrap();
    }
    let mut worker = place.worker(&[]).await;
    until_true(&client, "select position = 4 from outhaul.subscriptions where name = 'p'").await;
    let keyed = format!(
        "select array_agg(limit_key order by limit_key) = '{{nobody,p-7}}' from outhaul.jobs \
         where job_type = 'test.keyed' and ordering_key = '{order}' and rate_key = 'api'"
    );
    until_true(&client, &keyed).await;
    until_true(&client, "select count(*) = 1 from outhaul.jobs where ordering_key = '12345678901234567890'")
        .await;
    let parked = place.run(&["subs", "show", "p", "--json"]).ok().out;
    assert!(parked.contains("key_no_text"), "{parked}");
    worker.term().unwrap();
    worker.wait(PATIENCE).await.unwrap();
    until("it has ended", || place.log().contains("stopped")).await;
}
