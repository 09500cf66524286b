//! A small business at work, for people who want to see it before they read.
//!
//! `place` makes a database, `shop` enqueues jobs in its transactions, `worker` is the process that runs them
//! and writes to the log of `effects`, `crew` starts and kills such processes, `watch` and `screen` draw, and
//! `reconcile` compares sets of operation ids from independent places. `report` prints.

mod crew;
mod effects;
mod place;
mod reconcile;
mod report;
mod screen;
mod shop;
mod task;
mod watch;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::config::{Config, Origin};
use crate::exit::{Exit, Problem};
use crate::output::Global;
use crew::{Crew, Kill};
use effects::EffectLog;
use place::Place;
use reconcile::{Books, Reconciliation};
use report::Circumstances;
use screen::Screen;
use shop::{JOBS_PER_ORDER, Sales, Till};
use watch::{Snapshot, Watcher};

/// Options of the demonstration.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// About how many jobs the shop enqueues
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
writes down the operations it promises and enqueues jobs for them; some are
rolled back, some enqueue a job twice. Three worker processes run the jobs. Some
fail for a moment, some for good, and half-way one worker is killed. In the end
every committed operation must be in the handlers' own log, a dead letter, or
cancelled.

Without --database-url it starts a private PostgreSQL server and removes it. With
it, it works in the schemas outhaul_demo, outhaul_demo_shop and
outhaul_demo_effects, and drops them. DATABASE_URL alone is not used.

Exit code 0 when nothing was lost, nothing ran that was rolled back and no effect
took place twice; else 1. 7 when it did not end within a minute.";

/// What is done to show that a loss would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sabotage {
    /// Delete one live job row by plain SQL before it is run; `lost` must be 1 and the exit code 1
    DeleteLiveRow,
}

/// How long the database, the workers and the rest of the work may take beside the time the shop is open.
const SLACK: Duration = Duration::from_secs(54);

/// How often the state is looked at.
const TICK: Duration = Duration::from_millis(200);

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
    let stage = Stage { args: &args, global, place: &place, started, progress: &progress };
    let ended = tokio::select! {
        ended = tokio::time::timeout(left, stage.play()) =>
            ended.unwrap_or_else(|_| Err(progress.too_late(limit).into())),
        () = interrupts.come() => {
            global.say("interrupted, cleaning up");
            Ok(Exit::Interrupted)
        }
    };
    let closed = place.close(&global.config).await;
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
    Place::private(&global.config, args.keep).await
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
struct Stage<'a> {
    args: &'a Args,
    global: &'a Global,
    place: &'a Place,
    started: Instant,
    progress: &'a Progress,
}

/// What was done to the system.
#[derive(Default)]
struct Deeds {
    kill: Option<Kill>,
    sabotaged: Option<Uuid>,
}

impl Stage<'_> {
    async fn play(&self) -> anyhow::Result<Exit> {
        let (place, config) = (self.place, &self.global.config);
        let seed = self.args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        shop::create(&place.shop_connection(config, "setup").await?, &place.shop).await?;
        let log = place.effect_log(config).await?;
        log.create().await?;
        let mut crew = Crew::start(place, config).await?;
        let mut screen = Screen::open(self.global, &place.what);
        screen.note(self.elapsed(), format!("{} workers are ready, the shop opens", crew.views().len()));

        let client = place.shop_connection(config, "stage").await?;
        let mut deeds = Deeds::default();
        let sales = self.trade(seed, &mut crew, &client, &log, &mut screen, &mut deeds).await?;
        crew.stop().await?;
        screen.close();

        let books = Books::read(&client, place, &log).await?;
        let found = books.reconcile(&sales, deeds.kill.as_ref());
        self.report(&found, seed, &deeds)
    }

    fn report(&self, found: &Reconciliation, seed: u64, deeds: &Deeds) -> anyhow::Result<Exit> {
        let about = Circumstances {
            what: self.place.what.clone(),
            seed,
            seconds: self.elapsed(),
            sabotaged: deeds.sabotaged,
            afterwards: self.place.afterwards(),
        };
        report::print(self.global, found, &about)?;
        Ok(if found.holds() { Exit::Ok } else { Exit::Failed })
    }

    /// From the first order to the end of the last job.
    async fn trade(
        &self,
        seed: u64,
        crew: &mut Crew,
        client: &Client,
        log: &EffectLog,
        screen: &mut Screen<'_>,
        deeds: &mut Deeds,
    ) -> anyhow::Result<Sales> {
        let config = &self.global.config;
        let orders = (self.args.jobs as usize).div_ceil(JOBS_PER_ORDER);
        let time = Duration::from_secs(self.args.seconds.into());
        let watcher = Watcher::open(self.place, config).await?;
        let till_client = self.place.shop_connection(config, "till").await?;
        let till =
            Till::new(till_client, &self.place.shop, &self.place.outhaul, seed, self.progress.placed.clone());
        // A set of its own, so that dropping this future ends the till as well.
        let mut tills = JoinSet::new();
        tills.spawn(till.trade(orders, time));
        let mut sales = None;
        loop {
            crew.check()?;
            if let Some(ended) = tills.try_join_next() {
                sales = Some(ended.context("the till broke down")??);
            }
            let placed = self.progress.placed.load(Ordering::Relaxed);
            self.sabotage(placed * 4 >= orders, client, screen, deeds).await?;
            self.kill(placed * 2 >= orders, sales.is_some(), crew, client, log, screen, deeds).await?;
            let live = watcher.live().await?;
            self.progress.live.store(usize::try_from(live).unwrap_or(0), Ordering::Relaxed);
            if screen.is_live() {
                let now = watcher.look(self.elapsed(), &crew.views()).await?;
                screen.draw(Snapshot { placed, orders, ..now });
            }
            // The till must have ended before the count: it enqueues.
            if live == 0
                && let Some(sales) = sales.take()
            {
                return Ok(sales);
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Kills a worker once, when it is time and one holds jobs whose handlers have begun.
    #[expect(
        clippy::too_many_arguments,
        reason = "the actors of one scene, which nothing else brings together"
    )]
    async fn kill(
        &self,
        due: bool,
        closing: bool,
        crew: &mut Crew,
        client: &Client,
        log: &EffectLog,
        screen: &mut Screen<'_>,
        deeds: &mut Deeds,
    ) -> anyhow::Result<()> {
        if !due || deeds.kill.is_some() {
            return Ok(());
        }
        // Three make a better picture; when the shop has closed, one is enough.
        let at_least = if closing { 1 } else { 3 };
        let schema = self.place.outhaul.as_str();
        if let Some(kill) = crew.kill_one(client, schema, log, at_least).await? {
            let text = format!(
                "worker {} (pid {}) killed with SIGKILL while it held {} jobs",
                kill.worker,
                kill.pid,
                kill.held.len()
            );
            screen.note(self.elapsed(), text);
            deeds.kill = Some(kill);
        }
        Ok(())
    }

    /// Deletes the live row of one job that was never claimed, when it was asked for.
    async fn sabotage(
        &self,
        due: bool,
        client: &Client,
        screen: &mut Screen<'_>,
        deeds: &mut Deeds,
    ) -> anyhow::Result<()> {
        if self.args.sabotage != Some(Sabotage::DeleteLiveRow) || !due || deeds.sabotaged.is_some() {
            return Ok(());
        }
        // The one that is due last: nobody claims it while we look.
        let delete = format!(
            "with victim as (
               select id from {schema}.jobs where status = 'pending' and claim_no = 0 and run_at > clock_timestamp()
                order by run_at desc limit 1 for update skip locked)
             delete from {schema}.jobs j using victim where j.id = victim.id
             returning (j.payload->>'operation')::uuid",
            schema = self.place.outhaul
        );
        if let Some(row) = client.query_opt(&delete, &[]).await? {
            let operation: Uuid = row.get(0);
            screen
                .note(self.elapsed(), format!("sabotage: the live row of operation {operation} was deleted"));
            deeds.sabotaged = Some(operation);
        }
        Ok(())
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
