//! What the modules share.

use outhaul_local::{TestDatabase, TestServer};
use tokio_postgres::{Client, NoTls};

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn database() -> TestDatabase {
    TestServer::shared().await.unwrap().empty_database().await.unwrap()
}

/// A zombie does not run: not every init reaps at once.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
