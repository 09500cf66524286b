//! A small business at work, for people who want to see it before they read.
//!
//! `place` makes a database, `shop` publishes facts and enqueues jobs in its transactions, `facts` says which jobs follow
//! from a fact, `worker` is the process that runs them and writes to the log of `effects`, `crew` starts and kills such
//! processes, `scene` tells when, `watch` and `screen` draw, and `reconcile` compares sets of ids from independent
//! places. `report` prints.

mod crew;
mod effects;
mod facts;
mod place;
mod reconcile;
mod report;
mod scene;
mod screen;
mod shop;
mod task;
mod watch;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Config, Origin};
use crate::exit::{Exit, Problem};
use crate::output::{self, Global};
use place::Place;
use reconcile::Books;
use report::Circumstances;
use scene::Scene;

/// Options of the demonstration.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// About how many jobs follow from the shop's transactions
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(80..=5_000))]
    jobs: u32,
    /// How long the shop takes orders, in seconds; what is left is worked off after that
    #[arg(long, value_name = "S", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Choose what goes wrong; by default another story each time
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Keep the server, or with --database-url the schemas, to look around
    #[arg(long)]
    keep: bool,
    /// End what an earlier run has kept
    #[arg(long, conflicts_with_all = ["jobs", "seconds", "seed", "keep", "sabotage"])]
    stop: bool,
    /// Show that the reconciliation can fail
    #[arg(long, value_name = "WHAT", value_enum)]
    sabotage: Option<Sabotage>,
    /// Do not ask before a database on another machine is used
    #[arg(short, long)]
    yes: bool,
    /// Be one of the demonstration's worker processes
    #[arg(long, hide = true)]
    as_worker: bool,
}

const AFTER_HELP: &str = "\
A courier shop takes orders. Each of its transactions changes its own rows,
publishes the fact, and writes down the operations it promises; some enqueue a
job themselves, some are rolled back, some enqueue a job twice. A projection turns
facts into jobs, and a ledger reads the same facts in order. Three worker
processes do all of it. Some jobs fail for a moment, some for good, and half-way
one worker is killed. In the end every committed operation must be in the
handlers' own log, a dead letter, or cancelled, and every committed fact once in
the ledger, in the order of its order's changes.

Without --database-url it starts a private PostgreSQL server and removes it. With
it, it works in the schemas outhaul_demo, outhaul_demo_shop and
outhaul_demo_effects, and drops them. DATABASE_URL alone is not used.

Exit code 0 when nothing was lost, nothing ran that was rolled back, and nothing
took place twice or out of order; else 1. 7 when it did not end within a minute.";

/// What is done to show that a loss would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sabotage {
    /// Delete one live job row by plain SQL before it is run; `lost` must be 1 and the exit code 1
    DeleteLiveRow,
}

/// How long the database, the workers and the rest of the work may take beside the time the shop is open.
const SLACK: Duration = Duration::from_secs(54);

/// Runs the demonstration.
pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    if args.as_worker {
        return worker::run(&global.config).await;
    }
    if by_flag(&global.config, "schema") {
        return Err(Problem::usage("the demonstration works in schemas of its own")
            .hint("Leave --schema out.")
            .into());
    }
    let given = by_flag(&global.config, "database_url");
    if args.stop {
        return stop(given, global).await;
    }
    let mut interrupts = Interrupts::new()?;
    let limit = SLACK + Duration::from_secs(args.seconds.into());
    let progress = Progress::default();
    let started = Instant::now();
    let place = tokio::select! {
        place = open(given, &args, global) => place?,
        () = interrupts.come() => return Ok(Exit::Interrupted),
    };
    let left = limit.saturating_sub(started.elapsed());
    let play = play(&args, global, &place, started, &progress);
    let ended = tokio::select! {
        ended = tokio::time::timeout(left, play) =>
            ended.unwrap_or_else(|_| Err(progress.too_late(limit).into())),
        () = interrupts.come() => Ok(Exit::Interrupted),
    };
    if matches!(ended, Ok(Exit::Interrupted)) {
        global.say("interrupted, cleaning up");
    }
    let closed = place.close().await;
    let exit = ended?;
    closed?;
    Ok(exit)
}

/// Whether a setting stands on the command line. A database that is only named in the environment or in a file is
/// where somebody's real work is, and nothing for a demonstration.
fn by_flag(config: &Config, setting: &str) -> bool {
    let is_flag = |origin: Option<&Origin>| matches!(origin, Some(Origin::Flag(_)));
    config.shown().iter().any(|(key, _, origin)| *key == setting && is_flag(*origin))
}

async fn open(given: bool, args: &Args, global: &Global) -> anyhow::Result<Place> {
    if given {
        return Place::given(&global.config, args.keep, args.yes).await;
    }
    global.say("starting a private PostgreSQL server");
    Place::private(args.keep).await
}

async fn stop(given: bool, global: &Global) -> anyhow::Result<Exit> {
    let ended = place::end_kept(&global.config, given).await?;
    let word =
        if ended { "what an earlier run had kept is gone" } else { "no earlier run has kept anything" };
    global.say(word);
    if global.json {
        global.print_json(&serde_json::json!({ "stopped": ended }))?;
    }
    Ok(Exit::Ok)
}

/// SIGINT and SIGTERM.
struct Interrupts {
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
}

impl Interrupts {
    fn new() -> anyhow::Result<Interrupts> {
        Ok(Interrupts { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    async fn come(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

/// How far it has come, for the message when it comes no further.
#[derive(Default)]
struct Progress {
    placed: Arc<AtomicUsize>,
    live: AtomicUsize,
}

impl Progress {
    fn too_late(&self, limit: Duration) -> Problem {
        let (placed, live) = (self.placed.load(Ordering::Relaxed), self.live.load(Ordering::Relaxed));
        let text = format!(
            "the demonstration did not end within {} s: {placed} orders were placed, {live} jobs had not ended",
            limit.as_secs()
        );
        Problem::new(Exit::TimedOut, "timed_out", text)
            .hint("The machine or the database is busy: try fewer --jobs, or more --seconds.")
    }
}

/// One run on a place that is ready. Dropping it half-way ends the workers and the till.
async fn play(
    args: &Args,
    global: &Global,
    place: &Place,
    started: Instant,
    progress: &Progress,
) -> anyhow::Result<Exit> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let client = place.shop_connection("stage").await?;
    shop::create(&client, &place.shop).await?;
    let log = place.effect_log().await?;
    log.create().await?;

    let mut scene = Scene::open(args, global, place, started, progress).await?;
    let sales = scene.trade(seed).await?;
    let deeds = scene.close().await?;
    let found = Books::read(&client, place, &log).await?.reconcile(&sales, deeds.kill.as_ref());
    let about = Circumstances {
        what: place.what.clone(),
        seed,
        seconds: started.elapsed().as_secs_f64(),
        sabotaged: deeds.sabotaged,
        afterwards: place.afterwards(),
    };
    output::unless_closed(report::print(global, &found, &about))?;
    Ok(if found.holds() { Exit::Ok } else { Exit::Failed })
}
