//! What happens between the first order and the end of the last job.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outhaul::Session;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::crew::{Crew, Kill};
use super::effects::EffectLog;
use super::place::Place;
use super::screen::Screen;
use super::shop::{JOBS_PER_ORDER, Sales, Till};
use super::watch::{Snapshot, Watcher};
use super::{Args, Progress, Sabotage};
use crate::output::Global;

/// How often the state is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The workers at work, and who watches and disturbs them.
pub(super) struct Scene<'a> {
    args: &'a Args,
    place: &'a Place,
    started: Instant,
    progress: &'a Progress,
    client: Session,
    log: EffectLog,
    crew: Crew,
    watcher: Watcher,
    screen: Screen<'a>,
    deeds: Deeds,
}

/// What was done to the system.
#[derive(Default)]
pub(super) struct Deeds {
    pub(super) kill: Option<Kill>,
    /// The operation whose live row was deleted.
    pub(super) sabotaged: Option<Uuid>,
}

impl<'a> Scene<'a> {
    /// Starts the workers and waits until they are ready.
    pub(super) async fn open(
        args: &'a Args,
        global: &'a Global,
        place: &'a Place,
        started: Instant,
        progress: &'a Progress,
    ) -> anyhow::Result<Scene<'a>> {
        let client = place.shop_connection("scene").await?;
        let log = place.effect_log().await?;
        let watcher = Watcher::open(place).await?;
        let crew = Crew::start(place, &global.config).await?;
        let mut screen = Screen::open(global, &place.what);
        let ready = format!("{} workers are ready, the shop opens", crew.views().len());
        screen.note(started.elapsed().as_secs_f64(), ready);
        let deeds = Deeds::default();
        Ok(Scene { args, place, started, progress, client, log, crew, watcher, screen, deeds })
    }

    /// From the first order to the end of the last job.
    pub(super) async fn trade(&mut self, seed: u64) -> anyhow::Result<Sales> {
        let orders = (self.args.jobs as usize).div_ceil(JOBS_PER_ORDER);
        // A set of its own, so that dropping this future ends the till as well.
        let mut tills = JoinSet::new();
        tills.spawn(self.till(seed).await?.trade(orders, Duration::from_secs(self.args.seconds.into())));
        let mut sales = None;
        loop {
            self.crew.check()?;
            if let Some(ended) = tills.try_join_next() {
                sales = Some(ended.context("the till broke down")??);
            }
            let placed = self.progress.placed.load(Ordering::Relaxed);
            if placed * 4 >= orders {
                self.sabotage().await?;
            }
            if placed * 2 >= orders {
                // Three jobs make a better picture; when the shop has closed, one is enough.
                self.kill(if sales.is_some() { 1 } else { 3 }).await?;
            }
            let live = self.watcher.live().await?;
            self.progress.live.store(usize::try_from(live).unwrap_or(0), Ordering::Relaxed);
            if self.screen.is_live() {
                let now = self.watcher.look(self.elapsed(), &self.crew.views()).await?;
                self.screen.draw(Snapshot { placed, orders, ..now });
            }
            // The till was asked before the jobs were counted, so it has enqueued none since.
            if live == 0
                && let Some(sales) = sales.take()
            {
                return Ok(sales);
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Ends the workers in the orderly way, and says what was done to the system.
    pub(super) async fn close(self) -> anyhow::Result<Deeds> {
        self.crew.stop().await?;
        self.screen.close();
        Ok(self.deeds)
    }

    async fn till(&self, seed: u64) -> anyhow::Result<Till> {
        let client = self.place.shop_connection("till").await?;
        let placed = self.progress.placed.clone();
        Ok(Till::new(client, &self.place.shop, &self.place.outhaul, seed, placed))
    }

    /// Kills a worker, once, when one holds jobs of which at least `begun` have begun.
    async fn kill(&mut self, begun: usize) -> anyhow::Result<()> {
        if self.deeds.kill.is_some() {
            return Ok(());
        }
        let schema = self.place.outhaul.as_str();
        let Some(kill) = self.crew.kill_one(&self.client, schema, &self.log, begun).await? else {
            return Ok(());
        };
        let (worker, pid, held) = (kill.worker, kill.pid, kill.held.len());
        let text = format!("worker {worker} (pid {pid}) killed with SIGKILL while it held {held} jobs");
        self.screen.note(self.elapsed(), text);
        self.deeds.kill = Some(kill);
        Ok(())
    }

    /// Deletes the live row of one job that was never claimed, once, when it was asked for.
    async fn sabotage(&mut self) -> anyhow::Result<()> {
        if self.args.sabotage != Some(Sabotage::DeleteLiveRow) || self.deeds.sabotaged.is_some() {
            return Ok(());
        }
        // The one that is due last: nobody claims it while we look.
        let delete = format!(
            "with victim as (
               select id from {schema}.jobs
                where status = 'pending' and claim_no = 0 and run_at > clock_timestamp()
                order by run_at desc limit 1 for update skip locked)
             delete from {schema}.jobs j using victim where j.id = victim.id
             returning (j.payload->>'operation')::uuid",
            schema = self.place.outhaul
        );
        if let Some(row) = self.client.query_opt(&delete, &[]).await? {
            let operation: Uuid = row.get(0);
            let text = format!("sabotage: the live row of operation {operation} was deleted");
            self.screen.note(self.elapsed(), text);
            self.deeds.sabotaged = Some(operation);
        }
        Ok(())
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
