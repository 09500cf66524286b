//! The worker processes, seen from the demonstration that starts and ends them.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use outhaul_local::{Child, ChildOptions};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_postgres::Client;
use uuid::Uuid;

use super::effects::EffectLog;
use super::place::Place;
use super::worker::{POST, Post};
use crate::config::Config;
use crate::exit::{Exit, Problem};

/// How many worker processes there are.
const WORKERS: i32 = 3;

/// Bounds a hang; a worker is ready in well under a second.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Longer than a worker takes to drain.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The worker processes. Dropping them kills them.
pub(super) struct Crew {
    hands: Vec<Hand>,
}

/// One worker process.
struct Hand {
    number: i32,
    id: Uuid,
    child: Child,
    killed: bool,
    said: Said,
}

/// What was killed, when, and what it held.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    pub(super) worker: i32,
    pub(super) pid: u32,
    /// Seconds, by the effect log's clock.
    pub(super) at: f64,
    /// Job and number of the claim.
    pub(super) held: Vec<(Uuid, i32)>,
}

/// A worker process, for people.
#[derive(Clone, Debug)]
pub(super) struct HandView {
    pub(super) number: i32,
    pub(super) pid: u32,
    pub(super) id: Uuid,
    pub(super) killed: bool,
}

impl Crew {
    /// Starts the workers and waits until all are ready.
    pub(super) async fn start(place: &Place, config: &Config) -> anyhow::Result<Crew> {
        // All are started before the first is waited for.
        let hands: anyhow::Result<Vec<Hand>> =
            (1..=WORKERS).map(|number| Hand::start(number, place, config)).collect();
        let mut hands = hands?;
        for hand in &mut hands {
            hand.ready().await?;
        }
        Ok(Crew { hands })
    }

    pub(super) fn views(&self) -> Vec<HandView> {
        let view = |hand: &Hand| HandView {
            number: hand.number,
            pid: hand.child.pid(),
            id: hand.id,
            killed: hand.killed,
        };
        self.hands.iter().map(view).collect()
    }

    /// An error when a worker has ended that nobody ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for hand in self.hands.iter_mut().filter(|hand| !hand.killed) {
            if let Some(status) = hand.child.try_wait()? {
                let text = format!("worker {} ended by itself ({status}): {}", hand.number, hand.said.tail());
                return Err(Problem::new(Exit::Failed, "worker_ended", text).into());
            }
        }
        Ok(())
    }

    /// Kills the busiest worker, if handlers of at least `at_least` of its leased jobs have begun.
    ///
    /// It is stopped before its leases are counted: while somebody counts, a running worker would settle them.
    pub(super) async fn kill_one(
        &mut self,
        client: &Client,
        schema: &str,
        log: &EffectLog,
        at_least: usize,
    ) -> anyhow::Result<Option<Kill>> {
        let busiest = format!(
            "select locked_by from {schema}.jobs where status = 'leased' group by locked_by \
             order by count(*) desc limit 1"
        );
        let Some(row) = client.query_opt(&busiest, &[]).await? else { return Ok(None) };
        let id: Uuid = row.get(0);
        let Some(hand) = self.hands.iter_mut().find(|hand| hand.id == id && !hand.killed) else {
            return Ok(None);
        };
        hand.child.stop().await?;
        let held = leases_of(client, schema, id).await?;
        let jobs: Vec<Uuid> = held.iter().map(|(job, _)| *job).collect();
        let begun = log.begun(&jobs).await?;
        if held.iter().filter(|claim| begun.contains(claim)).count() < at_least {
            hand.child.cont()?;
            return Ok(None);
        }
        let at = log.now().await?;
        hand.child.kill().await?;
        hand.killed = true;
        // Again: a statement that was on its way when the worker stopped has ended by now.
        let held = leases_of(client, schema, id).await?;
        Ok(Some(Kill { worker: hand.number, pid: hand.child.pid(), at, held }))
    }

    /// Ends the workers in the orderly way.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        for hand in &mut self.hands {
            hand.child.term()?;
        }
        for hand in self.hands.iter_mut().filter(|hand| !hand.killed) {
            hand.child.wait(STOP_LIMIT).await?;
        }
        Ok(())
    }
}

async fn leases_of(client: &Client, schema: &str, worker: Uuid) -> anyhow::Result<Vec<(Uuid, i32)>> {
    let query = format!("select id, claim_no from {schema}.jobs where status = 'leased' and locked_by = $1");
    let rows = client.query(&query, &[&worker]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

impl Hand {
    fn start(number: i32, place: &Place, config: &Config) -> anyhow::Result<Hand> {
        let post = Post {
            number,
            urls: place.private_urls(),
            outhaul_schema: place.outhaul.to_string(),
            shop_schema: place.shop.clone(),
            log_schema: place.log.clone(),
        };
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["demo", "--as-worker"]).env(POST, serde_json::to_string(&post)?);
        if let (None, Some(url)) = (place.private_urls(), config.database_text()) {
            command.env("OUTHAUL_DATABASE_URL", url).env_remove("OUTHAUL_DATABASE_URL_FILE");
        }
        // Held by this process as long as it lives: its end tells the worker to stop.
        command.stdin(Stdio::piped());
        // A group of its own: Ctrl-C is for the demonstration, which ends its workers itself.
        let mut child = Child::spawn(command, ChildOptions::new().group(true))?;
        let said = Said::default();
        if let Some(stderr) = child.take_stderr() {
            said.clone().listen(BufReader::new(stderr));
        }
        Ok(Hand { number, id: Uuid::nil(), child, killed: false, said })
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let line = self.child.line_with("ready", START_LIMIT).await.map_err(|error| {
            let text = format!("worker {} did not start: {error}; {}", self.number, self.said.tail());
            Problem::new(Exit::Failed, "worker_start", text)
        })?;
        let id = line.split_whitespace().nth(1).unwrap_or_default();
        self.id = id.parse().context("reading the id of a worker")?;
        Ok(())
    }
}

/// The last lines that a worker wrote to its standard error, which must be read so that it never blocks.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<VecDeque<String>>>);

impl Said {
    const LINES: usize = 10;

    fn listen(self, stderr: BufReader<tokio::process::ChildStderr>) {
        tokio::spawn(async move {
            let mut lines = stderr.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut said = self.lock();
                said.push_back(line);
                if said.len() > Self::LINES {
                    said.pop_front();
                }
            }
        });
    }

    fn tail(&self) -> String {
        let said = self.lock();
        if said.is_empty() {
            return "it said nothing".to_owned();
        }
        format!("it said: {}", said.iter().map(String::as_str).collect::<Vec<_>>().join(" | "))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
