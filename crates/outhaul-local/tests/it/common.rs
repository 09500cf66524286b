//! What the modules share.

use std::time::{Duration, Instant};

use outhaul_local::{TestDatabase, TestServer};
use tokio_postgres::{Client, NoTls};

/// Generous: it bounds a hang and measures nothing.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn database() -> TestDatabase {
    TestServer::shared().await.unwrap().empty_database().await.unwrap()
}

/// Polls until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A zombie does not run: not every init reaps at once.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
