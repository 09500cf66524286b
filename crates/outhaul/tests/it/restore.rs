//! A dump into a new cluster: its transaction ids begin anew, and the readers of the outbox go on where they were.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use outhaul::{
    Dsn, EventContext, MigrateOptions, Outcome, RecordedEvent, Relay, Start, Subscription, Worker,
};
use outhaul_local::{Throwaway, ThrowawayOptions};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{Running, connect, quick, until};

fn run(tool: &Path, args: &[&str]) {
    let output = Command::new(tool).args(args).output().unwrap();
    assert!(output.status.success(), "{tool:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The major version of a tool, from a line such as `pg_dump (PostgreSQL) 15.18`.
fn major(tool: &Path) -> u32 {
    let output = Command::new(tool).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    version
        .and_then(|version| version.split('.').next())
        .and_then(|major| major.parse().ok())
        .expect("a version")
}

/// What a reader was given: position and id.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Seen {
    fn handler(&self) -> impl Fn(RecordedEvent, EventContext) -> std::future::Ready<Outcome> + use<> {
        let seen = self.0.clone();
        move |event, _| {
            seen.lock().unwrap().push((event.position, event.id));
            std::future::ready(Ok(()))
        }
    }

    async fn until(&self, n: usize) {
        until(&format!("{n} events"), || async { self.0.lock().unwrap().len() >= n }).await;
    }
}

async fn publish(client: &Client, n: i64) -> Vec<Uuid> {
    let sql = "select outhaul.publish('a.b', 'a', gen_random_uuid()) from generate_series(1, $1::bigint)";
    client.query(sql, &[&n]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn work(url: &str, ordered: &Seen, relayed: &Seen) -> Running {
    let dsn: Dsn = url.parse().unwrap();
    let subscription = Subscription::new("s").start(Start::Beginning);
    let builder = Worker::builder(dsn).options(quick()).subscribe(subscription, ordered.handler());
    Running::start(builder.relay(Relay::default().start(Start::Beginning), relayed.handler())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_dump_into_a_new_cluster_readers_go_on_where_they_were() {
    let options = || ThrowawayOptions::new().durable(false);
    let old = Throwaway::start_new(options()).await.unwrap();
    let (Some(dump), Some(psql)) = (old.installation().tool("pg_dump"), old.installation().tool("psql"))
    else {
        return outhaul_local::skip("this server's package has no pg_dump or no psql");
    };
    if major(&dump) < old.installation().major() {
        return outhaul_local::skip("pg_dump is older than the server, which it refuses to dump");
    }
    let dsn: Dsn = old.url().parse().unwrap();
    outhaul::migrate(&dsn, &MigrateOptions::default()).await.unwrap();
    let client = connect(&old.url()).await;
    // Transaction ids far ahead of those of a new cluster.
    for _ in 0..200 {
        client.batch_execute("select pg_current_xact_id()").await.unwrap();
    }
    let mut events = publish(&client, 5).await;
    let (ordered, relayed) = (Seen::default(), Seen::default());
    let running = work(&old.url(), &ordered, &relayed).await;
    ordered.until(5).await;
    relayed.until(5).await;
    running.stop().await;
    // Some have a position and nobody read them, some have none, and one was rolled back.
    events.extend(publish(&client, 3).await);
    client.batch_execute("select outhaul.sequence(100)").await.unwrap();
    events.extend(publish(&client, 4).await);
    client
        .batch_execute("begin; select outhaul.publish('a.b', 'a', gen_random_uuid()); rollback")
        .await
        .unwrap();

    let folder = std::env::temp_dir().join(format!("outhaul-dump-{}", Uuid::now_v7()));
    let file = folder.to_str().unwrap();
    run(&dump, &["--file", file, "--dbname", &old.url()]);
    let new = Throwaway::start_new(options()).await.unwrap();
    // Roles belong to the cluster: a migration of any database there makes them.
    new.create_database("restored").await.unwrap();
    new.create_database("elsewhere").await.unwrap();
    let elsewhere: Dsn = new.url_of("elsewhere").parse().unwrap();
    outhaul::migrate(&elsewhere, &MigrateOptions::default()).await.unwrap();
    let url = new.url_of("restored");
    run(
        &psql,
        &["--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null", "--file", file, "--dbname", &url],
    );
    std::fs::remove_file(&folder).unwrap();
    outhaul::migrate(&url.parse().unwrap(), &MigrateOptions::default()).await.unwrap();

    let client = connect(&url).await;
    let running = work(&url, &ordered, &relayed).await;
    events.extend(publish(&client, 3).await);
    ordered.until(15).await;
    relayed.until(15).await;
    let rotated = "select outhaul.operator_rotate_history('restored into another cluster')";
    client.query(rotated, &[]).await.unwrap();
    events.extend(publish(&client, 2).await);
    ordered.until(17).await;
    relayed.until(17).await;
    running.stop().await;
    let read = ordered.0.lock().unwrap().clone();
    assert_eq!(
        read,
        (1..).zip(events.iter().copied()).collect::<Vec<_>>(),
        "each once, in order, without a gap"
    );
    let mut relayed: Vec<Uuid> = relayed.0.lock().unwrap().iter().map(|(_, id)| *id).collect();
    relayed.sort();
    events.sort();
    assert_eq!(relayed, events);
    let findings: i64 =
        client.query_one("select count(*) from outhaul.reconcile_outbox()", &[]).await.unwrap().get(0);
    assert_eq!(findings, 0);
}
