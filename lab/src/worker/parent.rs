//! The parent's end.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::{Kind, Order, Report, Spec, Word};

/// Longest wait for an answer that needs no work.
const ANSWER: Duration = Duration::from_secs(20);

/// A running child; dropping it kills the process.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    settled: watch::Receiver<u64>,
    reports: mpsc::Receiver<Report>,
}

impl Worker {
    /// Starts the process and waits until it is connected.
    pub(crate) async fn start(spec: &Spec) -> Result<Self> {
        let program = std::env::current_exe()?;
        // As an operator would start it: whatever else wants a core goes before a report.
        let mut command = match spec.kind {
            Kind::Reports => {
                let mut nice = Command::new("nice");
                nice.args(["-n", "19"]).arg(program);
                nice
            }
            _ => Command::new(program),
        };
        let mut child = command
            .args(arguments(spec))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker process")?;
        let orders = child.stdin.take().context("no standard input")?;
        let words = child.stdout.take().context("no standard output")?;
        let (ready_in, mut ready) = mpsc::channel(1);
        let (settled_in, settled) = watch::channel(0);
        let (reports_in, reports) = mpsc::channel(1);
        tokio::spawn(hear(words, ready_in, settled_in, reports_in));
        match timeout(ANSWER, ready.recv()).await {
            Ok(Some(())) => Ok(Self { child, orders, settled, reports }),
            _ => bail!("the {:?} worker did not become ready; its error is above", spec.kind),
        }
    }

    /// Lets it work: until [`quit`](Self::quit) when `target` is 0, else it reports when so many jobs are settled.
    pub(crate) async fn go(&mut self, target: u64) -> Result<()> {
        self.order(Order::Go { target }).await
    }

    /// Ends an interval and returns its report.
    pub(crate) async fn mark(&mut self) -> Result<Report> {
        self.order(Order::Mark).await?;
        self.report(ANSWER).await
    }

    /// Waits for the report of a target; after `limit`, whatever was done until then.
    pub(crate) async fn finished(&mut self, limit: Duration) -> Result<Report> {
        match timeout(limit, self.reports.recv()).await {
            Ok(Some(report)) => Ok(report),
            Ok(None) => bail!("the worker ended before its target; its error is above"),
            Err(_) => self.mark().await,
        }
    }

    /// The count of settled jobs, at most 5 ms old while jobs are being settled.
    pub(crate) fn settled(&self) -> watch::Receiver<u64> {
        self.settled.clone()
    }

    /// Ends it in good order: after this its backends have ended and their statistics are written.
    pub(crate) async fn quit(mut self) -> Result<()> {
        drop(self.orders);
        let status = timeout(ANSWER, self.child.wait()).await.context("the worker does not end")??;
        if !status.success() {
            bail!("the worker ended with {status}; its error is above");
        }
        Ok(())
    }

    async fn order(&mut self, order: Order) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(&order)?);
        self.orders.write_all(line.as_bytes()).await.context("the worker has ended; its error is above")
    }

    async fn report(&mut self, limit: Duration) -> Result<Report> {
        timeout(limit, self.reports.recv())
            .await
            .context("the worker does not answer")?
            .context("the worker has ended")
    }
}

async fn hear(
    words: ChildStdout,
    ready: mpsc::Sender<()>,
    settled: watch::Sender<u64>,
    reports: mpsc::Sender<Report>,
) -> Result<()> {
    let mut lines = BufReader::new(words).lines();
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line)? {
            Word::Ready => ready.send(()).await?,
            Word::Settled(count) => drop(settled.send_replace(count)),
            Word::Report(report) => reports.send(report).await?,
        }
    }
    Ok(())
}

fn arguments(spec: &Spec) -> Vec<String> {
    let kind = match spec.kind {
        Kind::Plain => "plain",
        Kind::Seed => "seed",
        Kind::Functions => "functions",
        Kind::Outhaul => "outhaul",
        Kind::Reports => "reports",
    };
    let mut arguments: Vec<String> = [
        "worker",
        kind,
        "--url",
        &spec.url,
        "--batch",
        &spec.batch.to_string(),
        "--lanes",
        &spec.lanes.to_string(),
    ]
    .map(String::from)
    .to_vec();
    if let Some(concurrency) = spec.concurrency {
        arguments.extend(["--concurrency".into(), concurrency.to_string()]);
    }
    if spec.wake {
        arguments.push("--wake".into());
    }
    arguments
}
