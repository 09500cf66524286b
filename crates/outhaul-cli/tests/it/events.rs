//! The outbox for people: publishing, looking, following, and acting on subscriptions.

use std::process::Stdio;

use outhaul_local::{
    Action, Child, ChildOptions, Match, Phase, Proxy, Rule, TestDatabase, Throwaway, ThrowawayOptions,
};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, client, empty, keys, migrated, until};

const THING: &str = "01890000-0000-7000-8000-000000000001";
const NOBODY: &str = "00000000-0000-7000-8000-000000000000";

/// Publishes an event and returns its id.
fn publish(place: &Place, event_type: &str, more: &[&str]) -> String {
    let args: Vec<&str> =
        ["publish", event_type, "order", THING, "--json"].iter().chain(more).copied().collect();
    let answer = place.run(&args).ok().json();
    assert_eq!(answer["result"], "new");
    answer["id"].as_str().expect("an id").to_owned()
}

/// Runs SQL as the owner, as a worker's doings or somebody's damage.
async fn sql(url: &str, text: &str) {
    client(url).await.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
}

/// An outbox of six events with positions, and a subscription at the third.
async fn outbox() -> (TestDatabase, Place, Vec<String>) {
    let database = migrated().await;
    let place = Place::at(&database);
    let ids = (0..6).map(|n| publish(&place, ["a.done", "b.done"][n % 2], &[])).collect();
    sql(&database.url(), "select outhaul.sequence(100); select outhaul.subscribe('mails', '3')").await;
    (database, place, ids)
}

/// The rows of a table, its header first.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split('\t').collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_of_publish_reaches_the_row() {
    let database = migrated().await;
    let place = Place::at(&database);
    let (id, organization) = (NOBODY, "01890000-0000-7000-8000-000000000002");
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let args = [
        "publish",
        "order.paid",
        "order",
        THING,
        "-",
        "--id",
        id,
        "--idempotency-key",
        "k7",
        "--schema-version",
        "3",
        "--partition-key",
        "shelf 4",
        "--occurred-at",
        "2020-01-01T00:00:00Z",
        "--available-at",
        "2100-01-01T00:00:00Z",
        "--organization",
        organization,
        "--traceparent",
        trace,
    ];
    let json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let answer = place.run_with(&json, "{\"cents\": 995}").ok().json();
    assert_eq!(answer, json!({"id": id, "result": "new"}));

    let shown = place.run(&["outbox", "show", id, "--payload", "--json"]).ok().json();
    assert_eq!(keys(&shown), ["events", "payload", "set_aside_by"]);
    assert_eq!(shown["payload"], json!({"cents": 995}));
    let stored = shown["events"].as_array().unwrap();
    assert_eq!(stored.len(), 1);
    for (key, value) in [
        ("id", json!(id)),
        ("event_type", json!("order.paid")),
        ("aggregate_type", json!("order")),
        ("aggregate_id", json!(THING)),
        ("schema_version", json!(3)),
        ("occurred_at", json!("2020-01-01T00:00:00Z")),
        ("available_at", json!("2100-01-01T00:00:00Z")),
        ("partition_key", json!("shelf 4")),
        ("organization_id", json!(organization)),
        ("traceparent", json!(trace)),
        ("position", Value::Null),
        ("relay", Value::Null),
    ] {
        assert_eq!(stored[0][key], value, "{key}");
    }
    let facts = place.run(&["outbox", "show", id, "--payload"]).ok().out;
    for part in ["without a position", "version 3", "shelf 4", trace, "{\"cents\": 995}"] {
        assert!(facts.contains(part), "{part}: {facts}");
    }

    // Another id under the same key: the fact is there once.
    let again = [&args[..5], &args[7..]].concat();
    let told = place.run_with(&again, "{\"cents\":995}").ok();
    assert!(told.out.contains(id) && told.out.contains("duplicate"), "{}", told.out);
    let answer = place.run_with(&[&again[..], &["--json"]].concat(), "{\"cents\":995}").ok().json();
    assert_eq!(answer, json!({"id": id, "result": "duplicate"}));
    let conflict = place.run_with(&[&again[..], &["--json"]].concat(), "{\"cents\":1}").exits(4).problem();
    assert_eq!(conflict["code"], "conflict");
    let list = place.run(&["outbox", "list", "--json"]).ok().json();
    assert_eq!(list["events"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_a_payload_is_an_empty_object() {
    let database = migrated().await;
    let place = Place::at(&database);
    let told = place.run(&["publish", "order.seen", "order", THING]).ok();
    let id = told.out.split(' ').next().unwrap();
    assert_eq!(told.out.trim_end(), format!("{id}  order.seen  order {THING}"));
    assert!(told.err.contains("target: "), "{}", told.err);
    let shown = place.run(&["outbox", "show", id, "--payload", "--json"]).ok().json();
    assert_eq!(shown["payload"], json!({}));
}

#[test]
fn what_cannot_be_published_is_refused_before_anything_is_sent() {
    // Whoever connects gets no answer there, and another exit code.
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    let long = "x".repeat(300);
    for (more, code, part) in [
        (&["bad type", "order", THING][..], "invalid_input", "event type is not valid"),
        (&["order.paid", "bad type", THING], "invalid_input", "aggregate type is not valid"),
        (&["order.paid", "order", "7"], "usage", "an aggregate id is a UUID"),
        (&["order.paid", "order", THING, "{"], "invalid_input", "JSON"),
        (&["order.paid", "order", THING, ""], "invalid_input", "the payload is empty"),
        (&["order.paid", "order", THING, "-"], "invalid_input", "the payload is empty"),
        (&["order.paid", "order", THING, "--id", "7"], "usage", "an event id is a UUID"),
        (&["order.paid", "order", THING, "--schema-version", "0"], "invalid_input", "schema version"),
        (&["order.paid", "order", THING, "--schema-version", "x"], "usage", "a whole number from 1 to"),
        (&["order.paid", "order", THING, "--partition-key", ""], "invalid_input", "partition key"),
        (&["order.paid", "order", THING, "--idempotency-key", &long], "invalid_input", "300 bytes"),
        (
            &["order.paid", "order", THING, "--occurred-at", "1850-01-01T00:00:00Z"],
            "invalid_input",
            "occurred_at",
        ),
        (
            &["order.paid", "order", THING, "--available-at", "2200-01-01T00:00:00Z"],
            "invalid_input",
            "available_at",
        ),
        (&["order.paid", "order", THING, "--occurred-at", "-infinity"], "usage", "at a point in time"),
        (
            &["order.paid", "order", THING, "--organization", NOBODY, "--traceparent", "x"],
            "invalid_input",
            "traceparent",
        ),
    ] {
        let args: Vec<&str> = ["--json", "publish"].iter().chain(more).copied().collect();
        let problem = place.run(&args).exits(2).problem();
        assert_eq!(problem["code"], code, "{more:?}: {problem}");
        assert!(problem["message"].as_str().unwrap().contains(part), "{more:?}: {problem}");
        assert!(problem["hint"].is_string(), "{more:?}: {problem}");
    }
    place.run(&["publish", "order.paid", "order", THING]).exits(5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_whose_answer_is_lost_names_the_event_that_may_be_committed() {
    let database = migrated().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let (cut_off, place) = (Place::bare().with("DATABASE_URL", &proxy.url()), Place::at(&database));
    for (key, phase, committed) in [
        (None, Phase::AfterCommitted, 1),
        (None, Phase::BeforeForward, 1),
        (Some("k"), Phase::AfterCommitted, 2),
    ] {
        proxy.add(Rule::on(Match::at(phase).tag("publish")).then(Action::Cut));
        let mut args = vec!["publish", "order.paid", "order", THING, "--json"];
        args.extend(key.iter().flat_map(|key| ["--idempotency-key", key]));
        let problem = cut_off.run(&args).exits(11).problem();
        assert_eq!(problem["code"], "outcome_unknown", "{problem}");
        let hint = problem["hint"].as_str().unwrap();
        let events = place.run(&["outbox", "list", "--json"]).ok().json()["events"].clone();
        assert_eq!(events.as_array().unwrap().len(), committed, "{phase:?}: {events}");
        match key {
            None => {
                let id = hint.split("as event ").nth(1).expect("the hint names the event");
                let there = place.run(&["outbox", "show", id.split('.').next().unwrap()]).code == Some(0);
                assert_eq!(there, matches!(phase, Phase::AfterCommitted), "{hint}");
            }
            Some(_) => assert!(hint.contains("the same key"), "{hint}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_listed_by_filters_and_in_pages() {
    let (database, place, ids) = outbox().await;
    let listed = |more: &[&str]| {
        let args: Vec<&str> = ["outbox", "list", "--json"].iter().chain(more).copied().collect();
        place.run(&args).ok().json()
    };
    let ids_of = |page: &Value| -> Vec<String> {
        page["events"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect()
    };
    let first = listed(&["--limit", "4"]);
    assert_eq!(keys(&first), ["events", "next_before"]);
    assert_eq!(
        keys(&first["events"][0]),
        [
            "aggregate_id",
            "aggregate_type",
            "at",
            "event_type",
            "id",
            "occurred_at",
            "position",
            "relay",
            "schema_version",
            "seq"
        ]
    );
    let next = first["next_before"].to_string();
    let rest = listed(&["--limit", "4", "--before", &next]);
    assert_eq!(rest["next_before"], Value::Null);
    let latest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!([ids_of(&first), ids_of(&rest)].concat(), latest_first);

    let id = publish(&place, "c.done", &["--available-at", "2100-01-01T00:00:00Z"]);
    sql(&database.url(), &format!("update outhaul.outbox_events set parked_at = now() where id = '{id}'"))
        .await;
    for (more, n) in [
        (&["--type", "a.done"][..], 3),
        (&["--aggregate-type", "order"], 7),
        (&["--aggregate-type", "cart"], 0),
        (&["--aggregate-id", THING], 7),
        (&["--aggregate-id", NOBODY], 0),
        (&["--parked"], 1),
    ] {
        assert_eq!(listed(more)["events"].as_array().unwrap().len(), n, "{more:?}");
    }
    let lines = place.run(&["outbox", "list", "--jsonl"]).ok().out;
    let parsed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((parsed.len(), &parsed[0]["relay"]), (7, &json!("parked")));
    let table = place.run(&["outbox", "list", "--limit", "2"]).ok();
    let rows = rows(&table.out);
    assert_eq!(rows[0], ["SEQ", "POSITION", "ID", "TYPE", "AGGREGATE_TYPE", "AGGREGATE_ID", "RELAY", "AT"]);
    assert_eq!((rows[1][1], rows[1][2], rows[2][1]), ("-", id.as_str(), "6"));
    assert!(rows.len() == 3 && rows[2][7].ends_with('Z'), "{rows:?}");
    assert!(table.err.contains(&format!("more: --before {}", rows[2][0])), "{}", table.err);
}

/// A tail in the background, whose lines go to a file.
fn tail(place: &Place, args: &[&str]) -> Child {
    let args: Vec<&str> = ["outbox", "tail"].iter().chain(args).copied().collect();
    Child::spawn(place.command(&args), ChildOptions::new().output_to(place.path("tail"))).expect("a tail")
}

async fn until_following(place: &Place) {
    until("it follows", || place.read("tail").contains("following events after position")).await;
}

/// The positions that a tail has printed so far, in its order.
fn printed(place: &Place) -> Vec<i64> {
    place.read("tail").lines().filter_map(|line| line.split('\t').next()?.parse().ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_prints_what_gets_a_position_once_in_order_and_until_interrupted() {
    let (database, place, _) = outbox().await;
    let mut running = tail(&place, &[]);
    until_following(&place).await;
    for _ in 0..3 {
        publish(&place, "a.done", &[]);
        sql(&database.url(), "select outhaul.sequence(100)").await;
    }
    until("it has printed three", || printed(&place).len() == 3).await;
    running.signal(nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(running.wait(PATIENCE).await.unwrap().code(), Some(130), "{}", place.read("tail"));
    assert_eq!(printed(&place), [7, 8, 9], "from now on, each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_begins_where_it_is_told_and_ends_after_its_lines() {
    let (_database, place, ids) = outbox().await;
    let all = place.run(&["outbox", "tail", "--from", "beginning", "--lines", "6", "--json"]).ok().out;
    let all: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pairs: Vec<(i64, &str)> =
        all.iter().map(|e| (e["position"].as_i64().unwrap(), e["id"].as_str().unwrap())).collect();
    let expected: Vec<(i64, &str)> = (1..).zip(ids.iter().map(String::as_str)).collect();
    assert_eq!(pairs, expected);
    assert!(all[0].get("payload").is_none());

    let some = place.run(&["outbox", "tail", "--from", "2", "--type", "b.done", "--lines", "2"]).ok();
    let rows = rows(&some.out);
    assert_eq!(rows[0], ["POSITION", "AT", "TYPE", "AGGREGATE_TYPE", "AGGREGATE_ID", "ID"]);
    let expected = [["4", "b.done", THING, &ids[3]], ["6", "b.done", THING, &ids[5]]];
    assert_eq!([1, 2].map(|n: usize| [rows[n][0], rows[n][2], rows[n][4], rows[n][5]]), expected);
    assert!(some.err.contains("following events after position 2"), "{}", some.err);
    let third = all[2]["at"].as_str().unwrap();
    let one = place.run(&["outbox", "tail", "--from", third, "--lines", "1"]).ok();
    assert!(one.err.contains("after position 2"), "{}", one.err);

    let beyond = place.run(&["outbox", "tail", "--from", "7", "--json"]).exits(4).problem();
    assert_eq!(beyond["code"], "history_diverged", "{beyond}");
    for from in ["then", "-1", ""] {
        let problem = place.run(&["outbox", "tail", "--from", from, "--json"]).exits(2).problem();
        assert!(
            problem["message"].as_str().unwrap().contains("write beginning, now, a position"),
            "{problem}"
        );
    }
    place.run(&["outbox", "tail", "--lines", "0"]).exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_goes_on_behind_what_it_has_printed_when_the_server_was_restarted() {
    let server = Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
    let place = Place::bare().with("DATABASE_URL", &server.url());
    place.run(&["migrate"]).ok();
    let more = async |n: usize| {
        for _ in 0..n {
            publish(&place, "a.done", &[]);
        }
        sql(&server.url(), "select outhaul.sequence(100)").await;
    };
    more(2).await;
    let mut running = tail(&place, &["--from", "beginning", "--lines", "5"]);
    until("it has printed two", || printed(&place).len() == 2).await;
    server.kill().await.unwrap();
    server.start().await.unwrap();
    more(3).await;
    assert_eq!(running.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.read("tail"));
    assert_eq!(printed(&place), [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_goes_on_when_looks_are_cut_off_and_says_so_once() {
    let (database, place, _) = outbox().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let look = Rule::on(Match::at(Phase::BeforeForward).tag("tail_events"));
    let cut = proxy.add(look.skip(2).times(2).then(Action::Cut));
    let behind = Place::bare().with("DATABASE_URL", &proxy.url());
    let mut running = tail(&behind, &["--from", "4", "--lines", "3"]);
    cut.fired_times(2, PATIENCE).await.unwrap();
    publish(&place, "a.done", &[]);
    sql(&database.url(), "select outhaul.sequence(100)").await;
    assert_eq!(running.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", behind.read("tail"));
    assert_eq!(printed(&behind), [5, 6, 7]);
    assert_eq!(behind.read("tail").matches("waiting for the database: ").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_says_why_nothing_comes() {
    let database = migrated().await;
    let place = Place::at(&database);
    publish(&place, "a.done", &[]);
    sql(&database.url(), "update outhaul.outbox_unsequenced set at = at - interval '1 hour'").await;
    let mut running = tail(&place, &[]);
    until("it says why", || {
        place.read("tail").contains("events without a position: 1, the oldest for 1h00m")
    })
    .await;
    running.term().unwrap();
    assert_eq!(running.wait(PATIENCE).await.unwrap().code(), Some(130));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_the_outbox_is_told() {
    let (database, place, _) = outbox().await;
    publish(&place, "a.done", &[]);
    let none = place.run(&["outbox", "status"]).ok().out;
    assert!(none.contains("position 6") && none.contains("none is registered"), "{none}");
    sql(&database.url(), "select outhaul.register_relay('beginning')").await;
    let status = place.run(&["outbox", "status", "--json"]).ok().json();
    assert_eq!(
        keys(&status),
        ["capped", "head", "history_id", "oldest_unsequenced_ms", "relay", "unsequenced"]
    );
    assert_eq!(keys(&status["relay"]), ["leased", "oldest_ms", "parked", "pending", "since"]);
    assert_eq!(
        (&status["head"], &status["unsequenced"], &status["relay"]["pending"]),
        (&json!(6), &json!(1), &json!(7))
    );
    let told = place.run(&["outbox", "status"]).ok().out;
    for part in ["since the beginning", "pending      7, the oldest for", "no position  1, the oldest for"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_damage_and_exits_with_1() {
    let (database, place, _) = outbox().await;
    let sound = place.run(&["outbox", "check"]).ok();
    assert!(sound.out.starts_with("everything fits"), "{}", sound.out);
    assert_eq!(place.run(&["outbox", "check", "--json"]).ok().json(), json!({"findings": []}));
    sql(&database.url(), "delete from outhaul.outbox_feed where position = 2").await;
    let ran = place.run(&["outbox", "check", "--json"]).exits(1);
    assert_eq!(ran.problem()["code"], "findings");
    let found = ran.json();
    let words: Vec<&str> =
        found["findings"].as_array().unwrap().iter().map(|one| one["finding"].as_str().unwrap()).collect();
    assert_eq!(words, ["event_without_position", "hole_in_feed"]);
    assert_eq!(keys(&found["findings"][0]), ["details", "finding", "position", "seq", "subscription"]);
    let told = place.run(&["outbox", "check"]).exits(1);
    let rows = rows(&told.out);
    assert_eq!(rows[0], ["FINDING", "SEQ", "POSITION", "SUBSCRIPTION", "DETAILS"]);
    assert_eq!((rows[2][0], rows[2][2], rows[2][4]), ("hole_in_feed", "2", "1 positions are missing"));
    assert!(told.err.contains("error[findings]: 2 things in the outbox do not fit\nhint: "), "{}", told.err);
    // Its exit code is what it is run for.
    place.run_closed(&["outbox", "check"]).exits(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_event_of_the_relay_is_given_back() {
    let (database, place, ids) = outbox().await;
    let park = format!(
        "select outhaul.register_relay('beginning'); update outhaul.outbox_events \
         set parked_at = now(), available_at = 'infinity', attempts = 10, last_error = 'transient: away' where id in ('{}', '{}')",
        ids[0], ids[1]
    );
    sql(&database.url(), &park).await;
    let shown = place.run(&["outbox", "show", &ids[0]]).ok().out;
    assert!(shown.contains("relay        parked") && shown.contains("transient: away"), "{shown}");
    let done = place.run(&["outbox", "retry", &ids[0], "--reason", "it is back", "--json"]).ok().json();
    assert_eq!(done, json!({"results": [{"id": ids[0], "result": "due"}]}));
    let ran = place.run(&["outbox", "retry", &ids[1], &ids[0], NOBODY, "--json"]).exits(3);
    let results: Vec<Value> =
        ran.json()["results"].as_array().unwrap().iter().map(|one| one["result"].clone()).collect();
    assert_eq!(results, ["due", "not_found", "not_found"]);
    let problem = ran.problem();
    assert!(problem["message"].as_str().unwrap().contains(&ids[0]), "{problem}");
    assert_eq!(place.run(&["outbox", "list", "--parked", "--json"]).ok().json()["events"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_history_needs_a_yes() {
    let (_database, place, _) = outbox().await;
    let history = || place.run(&["outbox", "status", "--json"]).ok().json()["history_id"].clone();
    let before = history();
    let problem = place.run(&["outbox", "rotate-history", "--json"]).exits(2).problem();
    assert_eq!(problem["code"], "not_confirmed", "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("--yes"), "{problem}");
    assert_eq!(history(), before);
    let done =
        place.run(&["outbox", "rotate-history", "--yes", "--reason", "restored", "--json"]).ok().json();
    assert_eq!(done, json!({"history_id": history()}));
    assert_ne!(history(), before);
}

/// What `subs show` says.
fn subscription(place: &Place) -> Value {
    place.run(&["subs", "show", "mails", "--json"]).ok().json()
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_are_listed_the_one_furthest_behind_first() {
    let (database, place, _) = outbox().await;
    sql(
        &database.url(),
        "select outhaul.subscribe('ahead', '6'), outhaul.subscribe('zeta', '1'); \
         update outhaul.outbox_feed set at = at - interval '1 hour' where position <= 2; \
         update outhaul.outbox_events e set at = f.at from outhaul.outbox_feed f where f.seq = e.seq",
    )
    .await;
    let list = place.run(&["subs", "list", "--json"]).ok().json();
    assert_eq!(keys(&list), ["subscriptions"]);
    let names: Vec<&Value> = list["subscriptions"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["zeta", "mails", "ahead"]);
    let lines = place.run(&["subs", "list", "--jsonl"]).ok().out;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["name"]), (3, &json!("zeta")));
    let table = place.run(&["subs", "list"]).ok().out;
    let rows = rows(&table);
    assert_eq!(rows[0], ["NAME", "OLDEST", "BEHIND", "POSITION", "HEAD", "PARKED", "HOLDS", "SEEN_AT"]);
    assert!(rows[1][1].starts_with("1h00m"), "{table}");
    assert_eq!(
        (&rows[1][2..7], &rows[3][..6]),
        (&["5", "1", "6", "0", "-"][..], &["ahead", "-", "0", "6", "6", "0"][..])
    );
    assert!(rows[1][7].ends_with('Z'), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_a_subscription_is_shown_with_what_to_do() {
    let (database, place, _) = outbox().await;
    let set = async |what: &str| {
        sql(&database.url(), &format!("update outhaul.subscriptions set {what}")).await;
        let (shown, told) = (subscription(&place), place.run(&["subs", "show", "mails"]).ok());
        let hint = shown["hint"].as_str().unwrap_or("none").to_owned();
        assert!(
            told.out.contains(shown["holds"].as_str().unwrap_or("nothing holds it back")),
            "{}",
            told.out
        );
        assert!(hint == "none" || told.err.contains(&format!("hint: {hint}")), "{}", told.err);
        (shown["holds"].clone(), hint, told.out)
    };
    assert_eq!(set("attempts = 0").await.0, Value::Null);
    let (holds, hint, _) = set("seen_at = now() - interval '1 min'").await;
    assert!(holds == "idle_consumer" && hint.contains("Start its worker"), "{hint}");
    let failing = "stuck_class = 'transient', stuck_code = 'http_503', stuck_summary = 'away', blocked_position = 4, attempts = 7, \
        due_at = '2100-01-01 00:00:00+00'";
    let (holds, hint, told) = set(failing).await;
    assert!(holds == "blocked" && hint.contains("outhaul subs skip mails 4 --reason"), "{hint}");
    for part in [
        "position 4, attempt 7, transient http_503: away",
        "2100-01-01T00:00:00Z",
        "position 3 of 6  behind 3",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let (holds, hint, _) = set("seen_at = now() - interval '2 days'").await;
    assert!(holds == "gone" && hint.contains("outhaul subs drop mails"), "{hint}");
    let (holds, hint, told) = set("paused_at = now(), paused_reason = 'inventory'").await;
    assert!(holds == "paused" && hint.contains("outhaul subs resume mails"), "{hint}");
    assert!(told.contains("inventory"), "{told}");
    sql(&database.url(), "delete from outhaul.outbox_feed where position <= 4").await;
    let (holds, hint, _) = set("attempts = 0").await;
    assert!(holds == "truncated" && hint.contains("outhaul subs rewind mails --to beginning"), "{hint}");
    let (holds, hint, _) = set("history_id = gen_random_uuid()").await;
    assert!(holds == "diverged" && hint.contains("outhaul subs rewind mails --to POSITION"), "{hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_paused_and_goes_on() {
    let (_database, place, _) = outbox().await;
    let pause = place.run(&["subs", "pause", "mails", "--reason", "inventory", "--json"]).ok().json();
    assert_eq!(pause, json!({"subscription": "mails", "paused": true, "changed": true}));
    let again = place.run(&["subs", "pause", "mails"]).ok();
    assert!(
        again.out.contains("was paused before") && again.err.contains("target: "),
        "{}{}",
        again.out,
        again.err
    );
    assert_eq!(subscription(&place)["paused_reason"], "inventory");
    let resume = place.run(&["subs", "resume", "mails", "--json"]).ok().json();
    assert_eq!(resume, json!({"subscription": "mails", "paused": false, "changed": true}));
    assert_eq!(subscription(&place)["holds"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_skipped_shown_and_given_back() {
    let (_database, place, ids) = outbox().await;
    let other = place.run(&["subs", "skip", "mails", "5", "--reason", "why", "--json"]).exits(4).problem();
    assert_eq!(other["code"], "conflict", "{other}");
    place.run(&["subs", "skip", "mails", "4"]).exits(2);
    place.run(&["subs", "skip", "mails", "4", "--reason", " "]).exits(2);
    assert_eq!(subscription(&place)["position"], 3);
    let done =
        place.run(&["subs", "skip", "mails", "4", "--reason", "nobody needs it", "--json"]).ok().json();
    assert_eq!(done, json!({"subscription": "mails", "skipped": 4, "position": 4}));
    place.run(&["subs", "skip", "mails", "5", "--reason", "nor this"]).ok();

    let shown = subscription(&place);
    let parked: Vec<(&Value, &Value, &Value)> = shown["parked_events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (&event["position"], &event["event_id"], &event["error_summary"]))
        .collect();
    assert_eq!(
        parked,
        [
            (&json!(5), &json!(ids[4]), &json!("nor this")),
            (&json!(4), &json!(ids[3]), &json!("nobody needs it"))
        ]
    );
    let page = place.run(&["subs", "show", "mails", "--limit", "1", "--json"]).ok().json();
    assert_eq!((page["parked_events"].as_array().unwrap().len(), &page["next_before"]), (1, &json!(5)));
    let page = place.run(&["subs", "show", "mails", "--before", "5", "--json"]).ok().json();
    assert_eq!((&page["parked_events"][0]["position"], &page["next_before"]), (&json!(4), &Value::Null));
    let table = place.run(&["subs", "show", "mails"]).ok().out;
    assert!(table.contains("POSITION\tID\tTYPE\tHOW\tAT\tATTEMPTS\tCODE\tSUMMARY\tGIVEN_BACK"), "{table}");
    let told = place.run(&["outbox", "show", &ids[3]]).ok().out;
    assert!(told.contains("mails        skipped at position 4: nobody needs it"), "{told}");
    let told = place.run(&["outbox", "show", &ids[3], "--json"]).ok().json();
    assert_eq!(
        keys(&told["set_aside_by"][0]),
        [
            "aggregate_id",
            "aggregate_type",
            "attempts",
            "error_class",
            "error_code",
            "error_summary",
            "event_id",
            "event_type",
            "how",
            "parked_at",
            "position",
            "subscription",
            "unparked_at"
        ]
    );

    let ran = place.run(&["subs", "unpark", "mails", "4", "6", "5", "--json"]).exits(3);
    let expected = json!([
        {"position": 4, "result": "unparked"}, {"position": 6, "result": "not_found"}, {"position": 5, "result": "unparked"}
    ]);
    assert_eq!(ran.json()["results"], expected);
    assert!(ran.problem()["message"].as_str().unwrap().contains("no event at position 6"), "{}", ran.err);
    place.run(&["subs", "unpark", "mails", "4"]).exits(3);
    let told = place.run(&["subs", "show", "mails"]).ok().out;
    assert!(told.contains("set aside    parked 0, skipped 0, given back 2\n"), "{told}");
    let shown = subscription(&place);
    assert_eq!(
        (&shown["parked"], &shown["skipped"], &shown["given_back"]),
        (&json!(0), &json!(0), &json!(2))
    );
    let told = place.run(&["outbox", "show", &ids[3]]).ok().out;
    assert!(told.contains("mails        skipped at position 4, given back"), "{told}");
    place.run(&["subs", "skip", "mails", "6", "--reason", "another stands before it"]).exits(4);
    let done = place.run(&["subs", "skip", "mails", "4", "--reason", "after all", "--json"]).ok().json();
    assert_eq!(done, json!({"subscription": "mails", "skipped": 4, "position": 5}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_rewound_with_a_yes() {
    let (_database, place, _) = outbox().await;
    let problem = place.run(&["subs", "rewind", "mails", "--to", "1", "--json"]).exits(2).problem();
    assert_eq!(problem["code"], "not_confirmed", "{problem}");
    assert_eq!(subscription(&place)["position"], 3);
    for (to, position) in [("2", 2), ("beginning", 0)] {
        let done = place.run(&["subs", "rewind", "mails", "--to", to, "--yes", "--json"]).ok().json();
        assert_eq!(done, json!({"subscription": "mails", "position": position}));
    }
    assert_eq!(subscription(&place)["epoch"], 2);
    let told = place.run(&["subs", "rewind", "mails", "--to", "2020-01-01T00:00:00Z", "-y"]).ok();
    assert_eq!(told.out, "subscription mails is at position 0: what follows is delivered again\n");
    for (to, part) in [
        ("now", "outhaul subs skip"),
        ("soon", "write beginning"),
        ("4", "ahead of the cursor"),
        ("99", "beyond the head"),
    ] {
        let problem =
            place.run(&["subs", "rewind", "mails", "--to", to, "--yes", "--json"]).exits(2).problem();
        assert!(problem["message"].as_str().unwrap().contains(part), "{to}: {problem}");
        // What it refuses it does not propose.
        let proposed = to != "now"
            && problem.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "now");
        assert!(!proposed, "{to}: {problem}");
    }
    place.run(&["subs", "rewind", "mails", "--yes"]).exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_dropped_with_a_yes() {
    let (_database, place, _) = outbox().await;
    place.run(&["subs", "skip", "mails", "4", "--reason", "why"]).ok();
    let problem = place.run(&["subs", "drop", "mails", "--json"]).exits(2).problem();
    assert_eq!(problem["code"], "not_confirmed", "{problem}");
    let done = place.run(&["subs", "drop", "mails", "--yes", "--reason", "moved", "--json"]).ok().json();
    assert_eq!(done, json!({"subscription": "mails", "parked_events": 1}));
    place.run(&["subs", "show", "mails"]).exits(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_there_is_asked_and_told_what_it_means() {
    let (_database, place, _) = outbox().await;
    if std::process::Command::new("script").arg("--version").output().is_err() {
        return outhaul_local::skip("there is no program `script`, which gives a command a terminal");
    }
    let asked = |args: &str, answer: &str| {
        let line = format!("{} {args}", env!("CARGO_BIN_EXE_outhaul"));
        let mut script = place.command(&[]);
        let variables: Vec<_> = script
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        script = std::process::Command::new("script");
        script.env_clear().envs(variables).args(["-qec", &line, "/dev/null"]).current_dir(place.path("."));
        crate::support::Ran::of(script.stdout(Stdio::piped()), answer.as_bytes())
    };
    let no = asked("subs rewind mails --to 1", "n\n").exits(4);
    assert!(
        no.out.contains("2 events will be delivered again: rewind mails from position 3 to 1? [y/N]"),
        "{}",
        no.out
    );
    assert!(no.out.contains("error[not_confirmed]"), "{}", no.out);
    assert_eq!(subscription(&place)["position"], 3);
    asked("subs rewind mails --to 1", "y\n").ok();
    assert_eq!(subscription(&place)["position"], 1);
    let no = asked("subs drop mails", "\n").exits(4);
    assert!(no.out.contains("forget subscription mails (at position 1, 5 behind, 0 parked)?"), "{}", no.out);
    asked("subs rewind nobody --to 1", "y\n").exits(3);
    asked("subs drop mails", "y\n").ok();
    place.run(&["subs", "show", "mails"]).exits(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_is_not_found_by_any_command() {
    let (_database, place, _) = outbox().await;
    for args in [
        &["outbox", "show", NOBODY][..],
        &["outbox", "retry", NOBODY],
        &["subs", "show", "nobody"],
        &["subs", "pause", "nobody"],
        &["subs", "resume", "nobody"],
        &["subs", "rewind", "nobody", "--to", "1", "--yes"],
        &["subs", "skip", "nobody", "1", "--reason", "why"],
        &["subs", "unpark", "nobody", "1"],
        &["subs", "drop", "nobody", "--yes"],
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let problem = place.run(&args).exits(3).problem();
        assert_eq!(problem["code"], "not_found", "{args:?}: {problem}");
        assert!(problem["hint"].is_string(), "{args:?}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_that_are_missing_are_named() {
    let (database, _, ids) = outbox().await;
    let admin = client(&database.url()).await;
    let role = format!("role_{}", database.name().replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    admin
        .batch_execute(&format!("create role {role} login; grant outhaul_observer to {role}"))
        .await
        .unwrap();
    let place =
        Place::bare().with("DATABASE_URL", &database.url().replace("user=outhaul", &format!("user={role}")));
    for args in [
        &["outbox", "list"][..],
        &["outbox", "show", &ids[0]],
        &["outbox", "tail", "--from", "beginning", "--lines", "1"],
        &["outbox", "status"],
        &["outbox", "check"],
        &["subs", "list"],
        &["subs", "show", "mails"],
    ] {
        place.run(args).ok();
    }
    for (args, needed) in [
        (&["publish", "a.done", "a", THING][..], "outhaul_producer"),
        (&["outbox", "show", &ids[0], "--payload"], "outhaul_observer, outhaul_operator"),
        (&["outbox", "retry", &ids[0]], "outhaul_operator"),
        (&["outbox", "rotate-history", "--yes"], "outhaul_operator"),
        (&["subs", "pause", "mails"], "outhaul_operator"),
        (&["subs", "rewind", "mails", "--to", "1", "--yes"], "outhaul_operator"),
        (&["subs", "skip", "mails", "4", "--reason", "why"], "outhaul_operator"),
        (&["subs", "unpark", "mails", "4"], "outhaul_operator"),
        (&["subs", "drop", "mails", "--yes"], "outhaul_operator"),
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let problem = place.run(&args).exits(4).problem();
        assert_eq!(problem["code"], "refused", "{args:?}: {problem}");
        let grant = format!("`grant {needed} to \"{role}\"`");
        assert!(problem["hint"].as_str().unwrap().contains(&grant), "{args:?}: {problem}");
    }
    // With the operator's role alone every action works that does not have to ask.
    let swap = format!("revoke outhaul_observer from {role}; grant outhaul_operator to {role}");
    admin.batch_execute(&swap).await.unwrap();
    place.run(&["subs", "rewind", "mails", "--to", "1", "--yes"]).ok();
    place.run(&["subs", "drop", "mails", "--yes"]).ok();
    admin.batch_execute(&format!("drop role {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_or_schema_that_is_missing_is_told() {
    let away = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    let bare = empty().await;
    let bare = Place::at(&bare);
    for args in [
        &["publish", "a.done", "a", THING][..],
        &["outbox", "list"],
        &["outbox", "tail"],
        &["outbox", "status"],
        &["outbox", "check"],
        &["outbox", "retry", NOBODY],
        &["subs", "list"],
        &["subs", "pause", "mails"],
        &["subs", "drop", "mails", "--yes"],
    ] {
        let ran = away.run(args).exits(5);
        assert!(ran.err.contains("error[unavailable]: ") && ran.out.is_empty(), "{args:?}: {}", ran.err);
        let ran = bare.run(args).exits(6);
        assert!(ran.err.contains("outhaul migrate") && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_and_could_not_be_told_exits_with_11() {
    let (database, place, ids) = outbox().await;
    let park = format!("update outhaul.outbox_events set parked_at = now() where id = '{}'", ids[0]);
    sql(&database.url(), &park).await;
    for (args, done) in [
        (&["publish", "a.done", "order", THING][..], "is committed"),
        (&["outbox", "retry", &ids[0]], "due"),
        (&["outbox", "rotate-history", "--yes"], "positions belong to history"),
        (&["subs", "pause", "mails"], "subscription mails is paused"),
        (&["subs", "resume", "mails"], "subscription mails goes on"),
        (&["subs", "skip", "mails", "4", "--reason", "why"], "has skipped the event at position 4"),
        (&["subs", "unpark", "mails", "4"], "4 unparked"),
        (&["subs", "rewind", "mails", "--to", "1", "--yes"], "is at position 1"),
        (&["subs", "drop", "mails", "--yes"], "subscription mails is dropped"),
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let problem = place.run_full(&args).exits(11).problem();
        assert_eq!(problem["code"], "untold", "{args:?}: {problem}");
        assert!(problem["message"].as_str().unwrap().contains(done), "{args:?}: {problem}");
        assert!(problem["hint"].as_str().unwrap().contains("outhaul "), "{args:?}: {problem}");
    }
    for args in [
        &["outbox", "list"][..],
        &["outbox", "show", &ids[0]],
        &["outbox", "tail", "--from", "beginning", "--lines", "1"],
        &["outbox", "status"],
        &["outbox", "check"],
        &["subs", "list"],
    ] {
        place.run_closed(args).ok();
        let full = place.run_full(&[args, &["--json"]].concat()).exits(1).problem();
        assert_eq!(full["code"], "output", "{args:?}: {full}");
    }
}
