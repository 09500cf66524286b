//! A password goes in and never comes out.

use outhaul_local::ChildOptions;

use crate::support::{Place, Ran, migrated, until};

const CANARY: &str = "c4nary-do-not-print";

fn clean(ran: &Ran) {
    assert!(!ran.out.contains(CANARY) && !ran.err.contains(CANARY), "{}{}", ran.out, ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_prints_the_password() {
    let database = migrated().await;
    let good = format!("{}&password={CANARY}", database.url());
    let url = |host: &str| format!("postgres://u:{CANARY}@{host}/d");
    let urls = [
        good.clone(),
        url("127.0.0.1:1"),
        format!("{}?sslmod=x", url("h")),
        url("h:99999"),
        format!("host=127.0.0.1 port=1 user=u password={CANARY}"),
        format!("host=h user=u password='{CANARY}"),
        format!("postgre://u:{CANARY}@h/d"),
        format!("postgres://u:a@{CANARY}@127.0.0.1:1/d"),
    ];
    let commands: [&[&str]; 9] = [
        &["config", "show", "--origin"],
        &["config", "show", "--origin", "--json"],
        &["migrate"],
        &["migrate", "status", "--json"],
        &["enqueue", "test.ok"],
        &["jobs", "list"],
        &["queues", "list", "--json"],
        &["queues", "pause", "mail"],
        &["work", "--queue", "bad name"],
    ];
    for url in &urls {
        let by_variable = Place::bare().with("DATABASE_URL", url).with("OUTHAUL_LOG", "trace");
        by_variable.bind("test.ok", "exit 0", "");
        let by_file = Place::bare();
        by_file.write("outhaul.toml", &format!("database_url = {url:?}\n"));
        by_file.bind("test.ok", "exit 0", "");
        for args in commands {
            clean(&by_variable.run(args));
            clean(&by_file.run(args));
            let args: Vec<&str> = args.iter().copied().chain(["--database-url", url]).collect();
            clean(&Place::bare().run(&args));
        }
        clean(&Place::bare().run(&["queues", "list", url]));
        clean(&Place::bare().run(&[&format!("--databse-url={url}"), "queues", "list"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_of_a_worker_shows_the_password() {
    let database = migrated().await;
    let url = format!("{}&password={CANARY}", database.url());
    let place = Place::bare().with("OUTHAUL_DATABASE_URL", &url).with("OUTHAUL_LOG", "trace");
    place.bind("test.fail", "echo broken >&2; exit 65", "");
    let log = place.path("worker.log");
    let mut worker =
        outhaul_local::Child::spawn(place.command(&["work"]), ChildOptions::new().output_to(log)).unwrap();
    place.run(&["enqueue", "test.fail", "--wait", "--wait-timeout", "30s"]).exits(1);
    worker.term().unwrap();
    until("the worker ends", || worker.try_wait().unwrap().is_some()).await;
    let log = place.log();
    assert!(log.contains("attempt failed") && !log.contains(CANARY), "{log}");
}
