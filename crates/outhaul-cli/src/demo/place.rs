//! Where the demonstration takes place: a private server that vanishes, one that is kept, or a database that
//! was given; and how nothing is left behind there.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use outhaul::Session;
use outhaul::{Dsn, MigrateOptions, SchemaName};
use outhaul_local::{Installation, Server, ServerOptions, Throwaway, ThrowawayOptions};
use tokio_postgres::Client;

use super::effects::EffectLog;
use crate::config::Config;
use crate::exit::{Exit, Problem};

/// A database that does not answer is no reason to hang at the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(15);

/// What marks a schema as one that the demonstration may drop.
const MARK: &str = "outhaul demo: dropped when it ends";

/// A database for the shop and for Outhaul, another for the effect log.
pub(super) struct Place {
    /// The database of the shop and of Outhaul.
    pub(super) dsn: Dsn,
    log_dsn: Dsn,
    pub(super) outhaul: SchemaName,
    pub(super) shop: String,
    pub(super) log: String,
    /// What people are told about it.
    pub(super) what: String,
    keeper: Keeper,
}

/// Who ends it.
enum Keeper {
    Throwaway(Throwaway),
    Kept(Server),
    Given { keep: bool, _lock: Session },
}

impl Place {
    /// Makes a private server of this run alone, or with `keep` one that stays.
    pub(super) async fn private(keep: bool) -> anyhow::Result<Place> {
        let keeper = if keep {
            Keeper::Kept(Server::open(ServerOptions::new(kept_dir()?)).await?)
        } else {
            Keeper::Throwaway(Throwaway::start_new(ThrowawayOptions::new().tcp(false)).await?)
        };
        let (server, dsn) = match &keeper {
            Keeper::Throwaway(server) => (server.url(), server.url_of("shop")),
            Keeper::Kept(server) => (server.url(), server.url_of("shop")),
            Keeper::Given { .. } => unreachable!("a private place has a server"),
        };
        let server = connect(&private_dsn(&server)?, "setup").await?;
        for database in ["shop", "effects"] {
            fresh_database(&server, database).await?;
        }
        let dsn = private_dsn(&dsn)?;
        let place = Place {
            log_dsn: dsn.clone().with_database("effects"),
            dsn,
            outhaul: SchemaName::default(),
            shop: "demo".to_owned(),
            log: "demo".to_owned(),
            what: format!("private {}", version(&server).await?),
            keeper,
        };
        make_schema(&*connect(&place.dsn, "setup").await?, &place.shop).await?;
        make_schema(&*connect(&place.log_dsn, "setup").await?, &place.log).await?;
        place.migrate(true).await?;
        Ok(place)
    }

    /// Uses the database that the configuration names, inside schemas of its own.
    pub(super) async fn given(config: &Config, keep: bool, yes: bool) -> anyhow::Result<Place> {
        let dsn = config.require_database()?;
        ask_unless_local(&dsn, yes)?;
        let client = connect(&dsn, "setup").await?;
        lock(&client).await?;
        for name in Names::OURS.all() {
            refuse_existing(&client, name).await?;
        }
        let place = Place {
            outhaul: SchemaName::new(Names::OURS.outhaul)?,
            shop: Names::OURS.shop.to_owned(),
            log: Names::OURS.log.to_owned(),
            what: format!("{}, {}", version(&client).await?, dsn.target()),
            log_dsn: dsn.clone(),
            dsn,
            keeper: Keeper::Given { keep, _lock: client },
        };
        match place.prepare().await {
            Ok(()) => Ok(place),
            Err(error) => {
                place.close().await?;
                Err(error)
            }
        }
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let client = connect(&self.dsn, "setup").await?;
        for name in Names::OURS.all() {
            make_schema(&client, name).await?;
        }
        // Roles belong to the whole cluster and would be left behind.
        self.migrate(false).await
    }

    async fn migrate(&self, roles: bool) -> anyhow::Result<()> {
        let options = MigrateOptions { schema: self.outhaul.clone(), roles, ..MigrateOptions::default() };
        outhaul::migrate(&self.dsn, &options).await?;
        Ok(())
    }

    /// The URLs of a private server, for the workers; a given database they find as this process does.
    pub(super) fn private_urls(&self) -> Option<(String, String)> {
        match &self.keeper {
            Keeper::Throwaway(server) => Some((server.url_of("shop"), server.url_of("effects"))),
            Keeper::Kept(server) => Some((server.url_of("shop"), server.url_of("effects"))),
            Keeper::Given { .. } => None,
        }
    }

    /// A plain connection to the shop's database.
    pub(super) async fn shop_connection(&self, purpose: &str) -> anyhow::Result<Session> {
        connect(&self.dsn, purpose).await
    }

    /// The effect log, over a connection of its own.
    pub(super) async fn effect_log(&self) -> anyhow::Result<EffectLog> {
        Ok(EffectLog::new(connect(&self.log_dsn, "effects").await?, &self.log))
    }

    /// What a person who kept it can do next.
    pub(super) fn afterwards(&self) -> Option<String> {
        match &self.keeper {
            Keeper::Kept(server) => Some(format!(
                "kept: look around with `psql '{}'`, end it with `outhaul demo --stop`",
                server.url_of("shop")
            )),
            Keeper::Given { keep: true, .. } => Some(format!(
                "kept: schemas {}; `outhaul demo --stop` with the same URL drops them",
                Names::OURS.all().join(", ")
            )),
            _ => None,
        }
    }

    /// Leaves nothing behind, unless it was to be kept.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if !matches!(self.keeper, Keeper::Given { keep: false, .. }) {
            return Ok(());
        }
        let names = Names::OURS.all().join(", ");
        let drop_all = async { drop_marked(&*connect(&self.dsn, "cleanup").await?).await };
        match tokio::time::timeout(CLOSE_LIMIT, drop_all).await {
            Ok(dropped) => dropped.map(drop).with_context(|| format!("dropping the schemas {names}")),
            Err(_) => Err(Problem::new(
                Exit::TimedOut,
                "not_dropped",
                format!("schemas {names} were not dropped in time"),
            )
            .hint("`outhaul demo --stop` with the same URL drops them.")
            .into()),
        }
    }
}

/// Ends what an earlier run has kept: with `given` its schemas in the database that the configuration names, else
/// its private server. True when there was something.
pub(super) async fn end_kept(config: &Config, given: bool) -> anyhow::Result<bool> {
    if given {
        let client = connect(&config.require_database()?, "cleanup").await?;
        lock(&client).await?;
        return drop_marked(&client).await;
    }
    let dir = kept_dir()?;
    if !dir.is_dir() {
        return Ok(false);
    }
    match Server::find(&dir)? {
        Some(server) => server.remove().await?,
        None => Server::open(ServerOptions::new(dir)).await?.remove().await?,
    }
    Ok(true)
}

/// A URL of a private server, which is complete: nothing from the environment belongs to it.
pub(super) fn private_dsn(url: &str) -> anyhow::Result<Dsn> {
    Ok(url.parse::<Dsn>()?)
}

/// A plain connection, shown in `pg_stat_activity` with what it is for.
pub(super) async fn connect(dsn: &Dsn, purpose: &str) -> anyhow::Result<Session> {
    let dsn = dsn.clone().with_application_name(format!("outhaul demo/{purpose}"));
    let client = outhaul::connect(&dsn).await?;
    client.batch_execute("set client_min_messages = warning").await?;
    Ok(client)
}

/// The schemas in a given database.
#[derive(Clone, Copy)]
struct Names {
    outhaul: &'static str,
    shop: &'static str,
    log: &'static str,
}

impl Names {
    const OURS: Names =
        Names { outhaul: "outhaul_demo", shop: "outhaul_demo_shop", log: "outhaul_demo_effects" };

    fn all(self) -> [&'static str; 3] {
        [self.outhaul, self.shop, self.log]
    }
}

fn kept_dir() -> anyhow::Result<PathBuf> {
    let usual = Server::default_dir(Installation::find()?.major())?;
    let name = usual.file_name().map_or_else(|| "pg".into(), |name| name.to_string_lossy().into_owned());
    Ok(usual.with_file_name(format!("demo-{name}")))
}

/// One demonstration at a time: the lock is the session's and goes with it.
async fn lock(client: &Client) -> anyhow::Result<()> {
    let row =
        client.query_one("select pg_try_advisory_lock(hashtextextended('outhaul demo', 0))", &[]).await?;
    if row.get::<_, bool>(0) {
        return Ok(());
    }
    Err(Problem::new(Exit::Refused, "demo_runs", "another demonstration runs in this database")
        .hint("Wait for its end, or leave --database-url out and use a private server.")
        .into())
}

async fn refuse_existing(client: &Client, schema: &str) -> anyhow::Result<()> {
    if client.query_opt("select from pg_namespace where nspname = $1", &[&schema]).await?.is_none() {
        return Ok(());
    }
    Err(Problem::new(Exit::Refused, "schema_exists", format!("schema {schema} is there already"))
        .hint("An earlier run has kept it or was killed: `outhaul demo --stop` with the same URL drops it.")
        .into())
}

async fn make_schema(client: &Client, schema: &str) -> anyhow::Result<()> {
    let statement = format!("create schema {schema}; comment on schema {schema} is '{MARK}'");
    client.batch_execute(&statement).await.with_context(|| format!("creating schema {schema}"))
}

/// Drops those of our schemas that carry the mark. True when there was one.
async fn drop_marked(client: &Client) -> anyhow::Result<bool> {
    let find = "select nspname::text from pg_namespace \
                where nspname = any($1) and obj_description(oid, 'pg_namespace') = $2";
    let names: Vec<&str> = Names::OURS.all().to_vec();
    let found = client.query(find, &[&names, &MARK]).await?;
    for row in &found {
        client.batch_execute(&format!("drop schema {} cascade", row.get::<_, &str>(0))).await?;
    }
    Ok(!found.is_empty())
}

async fn fresh_database(client: &Client, name: &str) -> anyhow::Result<()> {
    client.batch_execute(&format!("drop database if exists {name} with (force)")).await?;
    client.batch_execute(&format!("create database {name}")).await?;
    Ok(())
}

async fn version(client: &Client) -> anyhow::Result<String> {
    let row = client.query_one("show server_version", &[]).await?;
    let version: String = row.get(0);
    // Distributions add their own words behind the number.
    Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
}

fn ask_unless_local(dsn: &Dsn, yes: bool) -> anyhow::Result<()> {
    if yes || is_local(dsn) {
        return Ok(());
    }
    let refused = || {
        Problem::new(Exit::Refused, "not_local", format!("{} is not on this machine", dsn.target())).hint(
            "The demonstration makes the schemas outhaul_demo* there and drops them; --yes says that this is fine.",
        )
    };
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(refused().into());
    }
    eprint!(
        "{} is not on this machine. Make the schemas outhaul_demo* there for a minute? [y/N] ",
        dsn.target()
    );
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(refused().into()) }
}

/// Whether every host is this machine by its name; one with an address beside its name is asked about.
fn is_local(dsn: &Dsn) -> bool {
    let target = dsn.target();
    let hosts = target
        .strip_prefix(&format!("{}@", dsn.user()))
        .and_then(|rest| rest.strip_suffix(&format!("/{}", dsn.database())));
    let is_local = |host: &str| {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
        let address = name.parse::<std::net::IpAddr>();
        name.starts_with('/') || name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    hosts.is_some_and(|hosts| hosts.split(',').all(is_local)) && !dsn.to_string().contains("hostaddr=")
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_this_machine_needs_no_question() {
        let local = |url: &str| is_local(&url.parse().unwrap());
        for url in [
            "postgres://me@localhost/x",
            "postgres://me@127.0.0.1:5433,[::1]/x",
            "postgresql:///x?host=/run/postgresql&user=me",
        ] {
            assert!(local(url), "{url}");
        }
        for url in [
            "postgres://me@db.example.com/x",
            "postgres://me@localhost,10.0.0.1/x",
            "postgres://me@localhost/x?hostaddr=10.0.0.1",
            "postgres://me@localhost.example.com/localhost",
        ] {
            assert!(!local(url), "{url}");
        }
    }
}
