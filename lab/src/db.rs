//! Connections to the server under measurement.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::stream::poll_fn;
use futures_util::{Stream, StreamExt};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// Without these a claim against a table whose statistics are older than its rows becomes a sequential scan and a hash
/// join: 4.0 s instead of 1.8 ms at 300,000 rows. References get them too, so that no ratio measures the planner.
const PLANNER: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off; \
    set enable_mergejoin = off; set enable_bitmapscan = off; set enable_material = off; set jit = off";

/// One session; it ends when the client is dropped.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("cannot connect")?;
    tokio::spawn(connection);
    Ok(client)
}

/// A session whose plans stay index scans whatever the statistics say.
pub(crate) async fn connect_for_work(url: &str) -> Result<Client> {
    let client = connect(url).await?;
    client.batch_execute(PLANNER).await?;
    Ok(client)
}

/// A session for work that also wakes on `channel`: notifications that arrive together wake once.
pub(crate) async fn connect_listening(url: &str, channel: &str) -> Result<(Client, Arc<Notify>)> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.context("cannot connect")?;
    let wake = Arc::new(Notify::new());
    let woken = wake.clone();
    tokio::spawn(async move {
        let mut messages = std::pin::pin!(messages(&mut connection));
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                woken.notify_one();
            }
        }
    });
    client.batch_execute(&format!("{PLANNER}; listen {channel}")).await?;
    Ok((client, wake))
}

fn messages<S, T>(
    connection: &mut tokio_postgres::Connection<S, T>,
) -> impl Stream<Item = Result<AsyncMessage, tokio_postgres::Error>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    poll_fn(|context| connection.poll_message(context))
}
