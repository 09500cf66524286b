//! Short-lived connections to our own servers.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use crate::error::{Context, Error, Result};

/// Connects and drives the connection in a task of the current runtime until the client is dropped.
pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        // The client reports the same failure to whoever uses it.
        let _ = connection.await;
    });
    Ok(client)
}

/// Runs statements one after the other, each in a transaction of its own.
pub(crate) async fn run(url: &str, statements: &[&str]) -> Result<()> {
    let client = connect(url).await.context(|| "cannot connect to the private server".to_owned())?;
    for statement in statements {
        client.batch_execute(statement).await.context(|| format!("cannot run `{statement}`"))?;
    }
    Ok(())
}

/// Waits until a connection succeeds; `check` ends the wait early with the reason why it never will.
pub(crate) async fn wait_ready<F>(url: &str, limit: Duration, check: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let started = Instant::now();
    loop {
        let failure = match connect(url).await {
            Ok(_) => return Ok(()),
            Err(failure) => failure,
        };
        check().await?;
        if started.elapsed() > limit {
            let text = format!("the server did not accept connections within {} s", limit.as_secs());
            return Err(Error::new(text).because(failure));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a query that answers with one boolean says true; each is asked in a new session, so that the
/// server's settings of that moment count.
pub(crate) async fn wait_true(url: &str, query: &str, what: &str, limit: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        let client = connect(url).await.context(|| "cannot connect to the private server".to_owned())?;
        let row = client.query_one(query, &[]).await.context(|| format!("cannot run `{query}`"))?;
        if row.get(0) {
            return Ok(());
        }
        if started.elapsed() > limit {
            return Err(Error::new(format!("not within {} s: {what}", limit.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
