//! The commands of the guides, taken from them and run in their order.

use std::path::Path;

use outhaul_local::{Child, ChildOptions};

use crate::projections::until_true;
use crate::support::{PATIENCE, Place, Ran, client, migrated, until};

/// A block of a guide: its language and its text.
type Block = (String, String);

fn blocks(name: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/guides/{name}.md"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let inside = text.split("```").skip(1).step_by(2);
    inside
        .map(|block| block.split_once('\n').expect("a language"))
        .map(|(a, b)| (a.into(), b.into()))
        .collect()
}

/// Runs a block of the shell as a person would, with the binary on the path.
fn shell(place: &Place, script: &str) -> Ran {
    let binary = Path::new(env!("CARGO_BIN_EXE_outhaul")).parent().unwrap().to_owned();
    let with = format!("PATH={}:$PATH\nset -e\n{script}", binary.display());
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(with);
    let ours = place.command(&[]);
    command.env_clear().current_dir(ours.get_current_dir().unwrap());
    command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ran::of(command.stdout(std::process::Stdio::piped()), b"").ok()
}

/// A worker as a line of the guide starts it.
async fn work(place: &Place, line: &str, log: &str) -> Child {
    let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--log-format", "json"]).collect();
    let path = place.path(log);
    let child = Child::spawn(place.command(&words), ChildOptions::new().output_to(&path)).expect("a worker");
    until("the worker announces itself", || place.read(log).contains("\"starting\"")).await;
    child
}

async fn end(mut worker: Child, place: &Place, log: &str) {
    // The second one ends what would run for ten minutes.
    worker.term().unwrap();
    until("it drains", || place.read(log).contains("stopping:")).await;
    worker.term().unwrap();
    worker.wait(PATIENCE).await.unwrap_or_else(|error| panic!("{error}: {}", place.read(log)));
}

/// Runs everything but workers in its order, and hands what each block of the shell printed to `seen`.
async fn follow(
    name: &str,
    place: &Place,
    url: &str,
    workers: &mut Vec<(Child, String)>,
    mut seen: impl FnMut(&str, Ran),
) {
    for (language, text) in blocks(name) {
        match &*language {
            "toml" => drop(place.write("outhaul.toml", &text)),
            "sql" => client(url).await.batch_execute(&text).await.unwrap_or_else(|e| panic!("{text}: {e:?}")),
            "sh" if text.starts_with("outhaul work") => {
                for (n, line) in text.lines().enumerate() {
                    let log = format!("worker-{n}.log");
                    workers.push((work(place, line, &log).await, log));
                }
            }
            "sh" => seen(&text, shell(place, &text)),
            "rust" => {}
            other => panic!("a block of {other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_reports_run_an_alert_is_sent_as_the_guide_says() {
    let database = migrated().await;
    let place = Place::at(&database);
    let mut workers = Vec::new();
    let mut shown = String::new();
    let seen = |text: &str, ran: Ran| {
        if text.contains("alert.send") && text.contains("report.build") {
            assert!(ran.out.contains("completed"), "{}", ran.out);
            shown = ran.out;
        }
    };
    follow("isolate-a-queue", &place, &database.url(), &mut workers, seen).await;
    assert!(shown.contains("1 (1 as reports)"), "{shown}");
    let client = client(&database.url()).await;
    let running = "select count(*) = 2 from outhaul.jobs where queue = 'reports' and status = 'leased'";
    until_true(&client, running).await;
    until("both alerts are sent", || place.read("alerts.txt").matches("text").count() == 2).await;
    let roles = "select count(distinct role) = 2 from outhaul.workers where role in ('alerts', 'reports')";
    until_true(&client, roles).await;
    // Three connections for the role that says so.
    let connections = "select count(*) <= 3 from pg_stat_activity where datname = current_database() \
        and application_name like 'outhaul/% reports'";
    until_true(&client, connections).await;
    let set = "select count(*) = 1 from outhaul.queues where name = 'reports' and max_running = 4 and age_objective = '30 min'";
    until_true(&client, set).await;
    for (worker, log) in workers {
        end(worker, &place, &log).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_rates_order_and_shares_are_set_and_seen_as_the_guide_says() {
    let database = migrated().await;
    let place = Place::at(&database);
    let mut workers = Vec::new();
    let mut printed = Vec::new();
    follow("limit-order-share", &place, &database.url(), &mut workers, |_, ran| printed.push(ran.out)).await;
    let all = printed.concat();
    for part in
        ["max running  20", "max per key  2", "rate         100/1m, burst 20", "key rate     10/1s, burst 10"]
    {
        assert!(all.contains(part), "{part}: {all}");
    }
    assert!(all.contains("waiting      2 for their turn") && all.contains("order-41"), "{all}");
    let worker = place.worker(&[]).await;
    let client = client(&database.url()).await;
    // Three without order, two of one lane, one with every key, and the one of the projection.
    until_true(&client, "select count(*) = 7 from outhaul.jobs_finished where status = 'completed'").await;
    let calls = place.read("calls.txt");
    assert!(calls.find("paid").unwrap() < calls.find("shipped").unwrap(), "{calls}");
    let mut worker = worker;
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
}
