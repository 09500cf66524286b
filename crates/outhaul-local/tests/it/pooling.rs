//! PgBouncer in front of a private server.

use outhaul_local::{PoolMode, Pooler, until};

use crate::common::{connect, database, runs};

async fn backend(client: &tokio_postgres::Client) -> i32 {
    let row = client.query_typed("select pg_backend_pid()", &[]).await.unwrap();
    row[0].get(0)
}

#[tokio::test]
async fn transaction_mode_shares_one_backend_and_session_mode_does_not() {
    if Pooler::find().is_none() {
        outhaul_local::skip(&format!("PgBouncer is not installed (`{}`)", Pooler::install_command()));
        return;
    }
    let database = database().await;
    let shared = Pooler::start(&database.url(), PoolMode::Transaction, 1).await.unwrap();
    let (one, other) = (connect(&shared.url()).await, connect(&shared.url()).await);
    assert_eq!(backend(&one).await, backend(&other).await);

    let own = Pooler::start(&database.tcp_url(), PoolMode::Session, 2).await.unwrap();
    let (one, other) = (connect(&own.url()).await, connect(&own.url()).await);
    assert_ne!(backend(&one).await, backend(&other).await);

    let pid = shared.pid();
    drop(shared);
    until("PgBouncer has gone", async || !runs(pid)).await;
}

#[tokio::test]
async fn a_pooler_that_cannot_start_says_why() {
    if Pooler::find().is_none() {
        outhaul_local::skip(&format!("PgBouncer is not installed (`{}`)", Pooler::install_command()));
        return;
    }
    let url = database().await.url();
    let settings = [("pool_mode", "nonsense")];
    let refused = Pooler::start_with(&url, PoolMode::Session, 1, &settings).await.unwrap_err();
    assert!(refused.message().contains("nonsense"), "{refused}");
}
