//! A database of one measurement, and readings of what the server spends on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outhaul::{Dsn, MigrateOptions, Operator, migrate};
use outhaul_local::{Throwaway, ThrowawayOptions};
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::reference::{Design, Schema};
use crate::report::{Metric, Sample};
use crate::{db, proc};

/// What differs from the server's defaults, durability being on. Checkpoints are asked for between measurements, never
/// left to the timer: after a checkpoint inside a measurement the next change of each page writes the whole page, and WAL
/// per job measures that.
const SETTINGS: [(&str, &str); 6] = [
    ("synchronous_commit", "on"),
    ("shared_buffers", "256MB"),
    ("max_connections", "100"),
    ("max_wal_size", "32GB"),
    ("min_wal_size", "2GB"),
    ("checkpoint_timeout", "60min"),
];

/// A throw-away server and its databases, reached through loopback TCP as a worker on the same machine does.
pub(crate) struct Ground {
    server: Throwaway,
    postmaster: u32,
    admin: Client,
    /// Designs that have a template database.
    templates: Mutex<Vec<&'static str>>,
    kept: Mutex<HashMap<String, Arc<Arena>>>,
    serial: AtomicU32,
}

impl Ground {
    /// Starts the server.
    pub(crate) async fn prepare() -> Result<Self> {
        let options = ThrowawayOptions::new().durable(true).tcp(true);
        let options = SETTINGS.iter().fold(options, |options, (name, value)| options.setting(*name, *value));
        let server = Throwaway::start_new(options).await?;
        let postmaster = server.pid().await.context("the server has ended")?;
        let admin = db::connect(&server.tcp_url()).await?;
        Ok(Self {
            server,
            postmaster,
            admin,
            templates: Mutex::default(),
            kept: Mutex::default(),
            serial: AtomicU32::new(0),
        })
    }

    /// An empty database with the tables of `design`, right after a checkpoint.
    pub(crate) async fn arena(&self, design: &'static Design) -> Result<Arena> {
        let arena = self.copy(design).await?;
        self.admin.batch_execute("checkpoint").await?;
        Ok(arena)
    }

    async fn copy(&self, design: &'static Design) -> Result<Arena> {
        let template = self.template(design).await?;
        let name = format!("{}_{}", design.name, self.serial.fetch_add(1, Ordering::Relaxed));
        self.admin.batch_execute(&format!("create database {name} template {template}")).await?;
        let url = self.server.tcp_url_of(&name);
        let session = db::connect(&url).await?;
        Ok(Arena { name, url, session, postmaster: self.postmaster })
    }

    /// A database that is filled once by `build` and then serves every round. There is no checkpoint between its
    /// building and its use, and none later in the cell: claims on a deep table would pay for whole pages in the WAL.
    pub(crate) async fn kept_arena(
        &self,
        key: &str,
        design: &'static Design,
        build: impl AsyncFnOnce(&Arena) -> Result<()>,
    ) -> Result<Arc<Arena>> {
        let mut kept = self.kept.lock().await;
        if let Some(arena) = kept.get(key) {
            return Ok(arena.clone());
        }
        let arena = Arc::new(self.copy(design).await?);
        build(&arena).await?;
        kept.insert(key.to_owned(), arena.clone());
        Ok(arena)
    }

    /// Drops the databases kept for a cell.
    pub(crate) async fn clear_kept(&self) -> Result<()> {
        for (_, arena) in self.kept.lock().await.drain() {
            self.clear(Arc::into_inner(arena).context("a kept database is in use")?).await?;
        }
        Ok(())
    }

    /// Drops a database, which ends in a checkpoint: the next measurement does not write this one's pages.
    pub(crate) async fn clear(&self, arena: Arena) -> Result<()> {
        drop(arena.session);
        self.admin.batch_execute(&format!("drop database {} with (force)", arena.name)).await?;
        Ok(())
    }

    /// The server's own words about its version, and the settings that are not its defaults.
    pub(crate) async fn describe(&self) -> Result<(String, Vec<String>)> {
        let version: String =
            self.admin.query_one("select split_part(version(), ' on ', 1)", &[]).await?.get(0);
        let settings = "
            select name || '=' || current_setting(name) from pg_settings
            where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'autovacuum')
            order by name";
        let rows = self.admin.query(settings, &[]).await?;
        Ok((version, rows.iter().map(|row| row.get(0)).collect()))
    }

    async fn template(&self, design: &Design) -> Result<String> {
        let name = format!("template_{}", design.name);
        let mut templates = self.templates.lock().await;
        if !templates.contains(&design.name) {
            self.admin.batch_execute(&format!("create database {name}")).await?;
            let url = self.server.tcp_url_of(&name);
            install(&url, &design.schema).await.with_context(|| format!("schema of {}", design.name))?;
            wait_until_unused(&self.admin, &name).await?;
            templates.push(design.name);
        }
        Ok(name)
    }
}

/// Makes a design's tables in an empty database.
async fn install(url: &str, schema: &Schema) -> Result<()> {
    match schema {
        Schema::Statements(statements) => db::connect(url).await?.batch_execute(statements).await?,
        Schema::Outhaul { history } => {
            let dsn = Dsn::parse(url, |_| None)?;
            let options = MigrateOptions::default();
            migrate(&dsn, &options).await?;
            Operator::connect(&dsn, &options.schema).await?.history("bench", history).await?;
        }
    }
    Ok(())
}

/// A database under measurement.
pub(crate) struct Arena {
    name: String,
    pub(crate) url: String,
    session: Client,
    postmaster: u32,
}

impl Arena {
    /// What the server has spent so far. Take it while the backends that did the work are idle or between two moments
    /// of steady load.
    pub(crate) async fn reading(&self) -> Result<Reading> {
        let row = self.session.query_one("select (pg_current_wal_insert_lsn() - '0/0')::float8", &[]).await?;
        Ok(Reading { at: Instant::now(), cpu: proc::server_cpu(self.postmaster)?, wal_bytes: row.get(0) })
    }

    /// Counts of the tables' changes. Waits until all other sessions have ended, because a backend writes its counts
    /// down when it ends.
    pub(crate) async fn changes(&self) -> Result<Changes> {
        wait_for(
            &self.session,
            "select count(*) = 1 from pg_stat_activity where datname = current_database() \
            and backend_type = 'client backend'",
        )
        .await?;
        let row = self
            .session
            .query_one(
                "select coalesce(sum(n_tup_upd), 0)::float8, coalesce(sum(n_tup_hot_upd), 0)::float8,
                    coalesce(sum(n_tup_upd + n_tup_del), 0)::float8
                 from pg_stat_user_tables",
                &[],
            )
            .await?;
        Ok(Changes { updates: row.get(0), hot: row.get(1), dead: row.get(2) })
    }

    /// A session in the middle of a transaction that has both an xid and a snapshot: vacuum and index scans must keep
    /// every row version since now, until it is dropped.
    pub(crate) async fn hold(&self) -> Result<Client> {
        let holder = db::connect(&self.url).await?;
        holder.batch_execute("begin isolation level repeatable read; select pg_current_xact_id()").await?;
        Ok(holder)
    }

    /// Fills the table with `count` jobs inside the server.
    pub(crate) async fn build(&self, design: &Design, count: u64) -> Result<()> {
        self.session.execute(design.build, &[&(count as i64)]).await?;
        self.session.batch_execute("vacuum analyze").await?;
        Ok(())
    }
}

/// The server's counters at one moment.
pub(crate) struct Reading {
    at: Instant,
    cpu: Duration,
    wal_bytes: f64,
}

impl Reading {
    /// Seconds since `earlier`.
    pub(crate) fn seconds_since(&self, earlier: &Self) -> f64 {
        self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// Adds what the server spent on each of `jobs` since `earlier`.
    pub(crate) fn per_job(&self, earlier: &Self, jobs: f64, into: &mut Sample) {
        let cpu = self.cpu.saturating_sub(earlier.cpu);
        into.insert(Metric::ServerCpuUsPerJob, cpu.as_secs_f64() * 1e6 / jobs);
        into.insert(Metric::WalBytesPerJob, (self.wal_bytes - earlier.wal_bytes) / jobs);
    }
}

/// Changes counted by the statistics of all tables of a database.
pub(crate) struct Changes {
    updates: f64,
    hot: f64,
    dead: f64,
}

impl Changes {
    /// Adds what was left behind for each of `jobs`: an update and a delete leave one dead tuple each.
    pub(crate) fn per_job(&self, jobs: f64, into: &mut Sample) {
        into.insert(Metric::DeadTuplesPerJob, self.dead / jobs);
        if self.updates > 0.0 {
            into.insert(Metric::HotShare, self.hot / self.updates);
        }
    }
}

async fn wait_until_unused(admin: &Client, database: &str) -> Result<()> {
    wait_for(admin, &format!("select count(*) = 0 from pg_stat_activity where datname = '{database}'")).await
}

async fn wait_for(client: &Client, condition: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !client.query_one(condition, &[]).await?.get::<_, bool>(0) {
        if Instant::now() > deadline {
            bail!("still false after 20 s: {condition}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
