//! The server that all tests of a machine user share, its template databases and their clones.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use tokio_postgres::Client;

use super::{Installation, Server, ServerOptions, cluster, sql};
use crate::error::{Context, Result};
use crate::system::account::Account;
use crate::system::place;
use crate::system::process::Process;

/// Names a directory for the shared server, so that one run of a test suite can have its own.
const VARIABLE: &str = "OUTHAUL_TEST_RUN";

/// Nothing here survives a power cut, and nothing needs to: tests of durability use a throw-away server.
const SETTINGS: [(&str, &str); 12] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "400"),
    ("autovacuum_naptime", "1s"),
    ("max_prepared_transactions", "50"),
    ("max_locks_per_transaction", "256"),
    ("track_commit_timestamp", "on"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "30min"),
    ("log_line_prefix", "%m [%p] %q%a@%d "),
    ("log_lock_waits", "on"),
    ("timezone", "UTC"),
];

/// Cloning waits for whoever is still connected to the template, such as an autovacuum worker.
const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// Older fingerprints of one template are kept up to this number: two branches may take turns.
const TEMPLATES_KEPT: i64 = 4;

/// The shared server of this user and PostgreSQL version.
///
/// Test processes (cargo-nextest) and test threads (cargo test) all get the same one: the first starts it,
/// the others adopt it, and it goes on running until [`TestServer::stop_shared`]. It keeps no promise of
/// durability. `$OUTHAUL_TEST_RUN` names a directory of its own for it.
#[derive(Clone, Debug)]
pub struct TestServer {
    server: Server,
}

/// A migrated database that clones are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    database: String,
}

/// A database of one test.
///
/// Dropping it only forgets it: dropping a database costs a checkpoint, so the databases of processes that
/// have ended are dropped in the background of later runs.
#[derive(Clone, Debug)]
pub struct TestDatabase {
    server: Server,
    name: String,
}

impl TestServer {
    /// Starts or adopts the shared server, with the best installation found.
    pub async fn shared() -> Result<TestServer> {
        static SHARED: OnceCell<TestServer> = OnceCell::const_new();
        let server = SHARED.get_or_try_init(open_shared).await?;
        Ok(server.clone())
    }

    /// Stops the shared servers of this user (of every major version); true when one ran.
    pub async fn stop_shared() -> Result<bool> {
        let folder = shared_folder(&Account::for_servers()?)?;
        let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(false) };
        let mut stopped = false;
        for dir in entries.flatten().map(|entry| entry.path()).filter(|path| path.join("data").is_dir()) {
            if let Some(server) = Server::find(&dir)? {
                server.stop().await?;
                stopped = true;
            }
        }
        Ok(stopped)
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// URL of the maintenance database.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// A database prepared once per `name` and `fingerprint` by `prepare`, which gets its URL.
    ///
    /// The fingerprint stands for everything that `prepare` writes (a hash of the migrations, say). Other
    /// processes that ask for the same one wait for the first. When `prepare` fails nothing is kept.
    /// Connections that `prepare` leaves open are terminated.
    pub async fn template<F, Fut, E>(&self, name: &str, fingerprint: &str, prepare: F) -> Result<Template>
    where
        F: FnOnce(String) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let database = template_name(name, fingerprint);
        let client = self.maintenance().await?;
        // A lock of the session: it ends with the connection, also when this future is dropped.
        let lock = cluster::hash(("template", &database)) as i64;
        client
            .execute("select pg_advisory_lock($1)", &[&lock])
            .await
            .context(|| format!("cannot lock {database}"))?;
        if exists(&client, &database).await? {
            return Ok(Template { database });
        }
        let unfinished = fresh_name();
        create(&client, &unfinished, "template1").await?;
        let prepared = prepare(self.server.url_of(&unfinished))
            .await
            .context(|| format!("cannot prepare template {name}"));
        if let Err(e) = prepared {
            let drop = format!("drop database if exists {} with (force)", sql::quote_ident(&unfinished));
            let _ = client.batch_execute(&drop).await;
            return Err(e);
        }
        finish_template(&client, &unfinished, &database).await?;
        drop_old_templates(&client, name).await?;
        Ok(Template { database })
    }

    /// A new database that is a copy of the template.
    pub async fn database(&self, template: &Template) -> Result<TestDatabase> {
        self.clone_of(&template.database).await
    }

    /// A new empty database.
    pub async fn empty_database(&self) -> Result<TestDatabase> {
        self.clone_of("template1").await
    }

    async fn clone_of(&self, template: &str) -> Result<TestDatabase> {
        let name = fresh_name();
        create(&self.maintenance().await?, &name, template).await?;
        Ok(TestDatabase { server: self.server.clone(), name })
    }

    async fn maintenance(&self) -> Result<Client> {
        sql::connect(&self.url()).await.context(|| "cannot connect to the shared test server".to_owned())
    }
}

impl TestDatabase {
    /// Its name, unique on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// URL through the socket.
    pub fn url(&self) -> String {
        self.server.url_of(&self.name)
    }

    /// URL through loopback TCP.
    pub fn tcp_url(&self) -> String {
        self.server.tcp_url_of(&self.name).expect("the shared server listens on TCP")
    }

    /// The server it is on.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Drops the database now, ending its sessions.
    pub async fn remove(self) -> Result<()> {
        let statement = format!("drop database if exists {} with (force)", sql::quote_ident(&self.name));
        sql::run(&self.server.url(), &[&statement]).await
    }
}

async fn open_shared() -> Result<TestServer> {
    let account = Account::for_servers()?;
    let installation = Installation::find()?;
    // Programs and settings are part of the name: a server started with others is not adopted.
    let key = cluster::hash((installation.bin_dir(), installation.version(), SETTINGS));
    let dir =
        shared_folder(&account)?.join(format!("pg{}-{key:08x}", installation.major(), key = key as u32));
    let options = ServerOptions::new(dir).installation(installation).tcp(true);
    let options = SETTINGS.iter().fold(options, |options, (name, value)| options.setting(*name, *value));
    let server = Server::open(options).await?;
    drop_stale_in_background(server.url());
    Ok(TestServer { server })
}

fn shared_folder(account: &Account) -> Result<PathBuf> {
    match std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) {
        Some(dir) => {
            let dir = PathBuf::from(dir);
            std::fs::create_dir_all(&dir)
                .context(|| format!("cannot create {VARIABLE}={}", dir.display()))?;
            std::path::absolute(&dir).context(|| format!("bad path {}", Path::new(&dir).display()))
        }
        None => place::within(account, "tests"),
    }
}

/// `t_<pid>_<start of the process>_<n>`: whoever reads it can tell whether its owner still lives.
fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let me = Process::me();
    format!("t_{}_{}_{}", me.pid, me.started(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn owner_of(database: &str) -> Option<Process> {
    let mut parts = database.strip_prefix("t_")?.split('_');
    let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Process::recorded(pid, started))
}

fn template_name(name: &str, fingerprint: &str) -> String {
    format!("{}{:016x}", template_prefix(name), cluster::hash(fingerprint))
}

/// At most 63 bytes fit into a name; the prefix is cut to leave room for the hash.
fn template_prefix(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    format!("template_{}_", name.chars().take(30).map(word).collect::<String>())
}

async fn exists(client: &Client, database: &str) -> Result<bool> {
    let row = client.query_opt("select 1 from pg_database where datname = $1", &[&database]).await;
    Ok(row.context(|| "cannot read pg_database".to_owned())?.is_some())
}

async fn create(client: &Client, database: &str, template: &str) -> Result<()> {
    let statement =
        format!("create database {} template {}", sql::quote_ident(database), sql::quote_ident(template));
    retry_while_busy(client, &statement).await.context(|| format!("cannot copy database {template}"))
}

/// Retries while the database is in use (object_in_use); the server itself has waited 5 s by then.
async fn retry_while_busy(client: &Client, statement: &str) -> Result<(), tokio_postgres::Error> {
    let started = Instant::now();
    loop {
        match client.batch_execute(statement).await {
            Err(e) if e.code().is_some_and(|c| c.code() == "55006") && started.elapsed() < BUSY_LIMIT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            result => return result,
        }
    }
}

async fn finish_template(client: &Client, unfinished: &str, database: &str) -> Result<()> {
    let (from, to) = (sql::quote_ident(unfinished), sql::quote_ident(database));
    let failed = || format!("cannot finish template {database}");
    client.batch_execute(&format!("alter database {from} allow_connections false")).await.context(failed)?;
    let terminate = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
    client.execute(terminate, &[&unfinished]).await.context(failed)?;
    retry_while_busy(client, &format!("alter database {from} rename to {to}")).await.context(failed)
}

async fn drop_old_templates(client: &Client, name: &str) -> Result<()> {
    let prefix = template_prefix(name);
    let old = "select datname from pg_database where starts_with(datname, $1) order by oid desc offset $2";
    let rows = client
        .query(old, &[&prefix, &TEMPLATES_KEPT])
        .await
        .context(|| "cannot list templates".to_owned())?;
    for row in rows {
        drop_database(client, row.get(0)).await?;
    }
    Ok(())
}

async fn drop_database(client: &Client, database: &str) -> Result<()> {
    let statement = format!("drop database if exists {} with (force)", sql::quote_ident(database));
    client.batch_execute(&statement).await.context(|| format!("cannot drop database {database}"))
}

/// Drops databases of processes that have ended, in a thread of its own so that no test waits for it.
///
/// When this process ends in the middle, the server finishes the statement and a later process goes on.
fn drop_stale_in_background(url: String) {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let dropped =
            runtime.context(|| "no runtime".to_owned()).and_then(|rt| rt.block_on(drop_stale(&url)));
        if let Err(e) = dropped {
            tracing::debug!(error = %e, "stale test databases were not all dropped");
        }
    };
    let _ = std::thread::Builder::new().name("outhaul-test-sweep".into()).spawn(work);
}

async fn drop_stale(url: &str) -> Result<()> {
    let client = sql::connect(url).await.context(|| "cannot connect to the shared test server".to_owned())?;
    // One at a time; what the one before had not yet seen is left to this one.
    while !try_sweep_lock(&client).await? {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let rows = client.query("select datname from pg_database where starts_with(datname, 't_')", &[]).await;
    for row in rows.context(|| "cannot list databases".to_owned())? {
        let database: &str = row.get(0);
        if owner_of(database).is_some_and(|owner| !owner.is_alive()) {
            drop_database(&client, database).await?;
        }
    }
    Ok(())
}

async fn try_sweep_lock(client: &Client) -> Result<bool> {
    let lock = cluster::hash("sweep") as i64;
    let row = client.query_one("select pg_try_advisory_lock($1)", &[&lock]).await;
    Ok(row.context(|| "cannot take the lock of the sweep".to_owned())?.get(0))
}
