//! Persistent private servers: one per data directory, for people.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::postmaster::Postmaster;
use super::{Installation, Url, cluster, sql};
use crate::error::{Context, Error, Result};
use crate::system::account::Account;
use crate::system::port::{self, ReservedPort};
use crate::system::{lock, place};

/// Starting may include crash recovery.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// With a socket only, the port is but a part of the socket's name.
const SOCKET_PORT: u16 = 5432;

/// How a [`Server`] is opened.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    dir: PathBuf,
    installation: Option<Installation>,
    tcp: bool,
    settings: Vec<(String, String)>,
}

impl ServerOptions {
    /// A server in `dir`, on a socket only, with the best installation found.
    ///
    /// `dir` is made when it is missing. Everything of the server lies in it, but for the socket when the
    /// path is too long for one.
    pub fn new(dir: impl Into<PathBuf>) -> ServerOptions {
        ServerOptions { dir: dir.into(), installation: None, tcp: false, settings: Vec::new() }
    }

    /// Uses this installation instead of [`Installation::find`].
    pub fn installation(mut self, installation: Installation) -> Self {
        self.installation = Some(installation);
        self
    }

    /// Listens on a free port of 127.0.0.1 too, trusting everyone on this machine. Default `false`.
    pub fn tcp(mut self, tcp: bool) -> Self {
        self.tcp = tcp;
        self
    }

    /// One more server setting; it acts when the server is started, not when a running one is adopted.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// Whether a [`Server`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It runs as this process.
    Running {
        /// Process id of the postmaster.
        pid: u32,
    },
    /// It does not run; its data is still there.
    Stopped,
}

/// A private server that outlives this process.
///
/// Dropping the value leaves the server running: [`Server::stop`] ends it, also from another process.
#[derive(Clone, Debug)]
pub struct Server {
    dir: PathBuf,
    socket_dir: PathBuf,
    port: u16,
    tcp: bool,
    adopted: bool,
}

impl Server {
    /// The directory for a person's server: `/var/lib/outhaul/pg<MAJOR>` for root (a home below `/root` is
    /// closed to the account the server runs as), else `outhaul/pg<MAJOR>` in the user's data directory.
    ///
    /// The major version is in the name, so that a newer installation never opens older data.
    pub fn default_dir(major: u32) -> Result<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = || {
            set("HOME").ok_or_else(|| Error::new("HOME is not set").with_hint("set it, or name a directory"))
        };
        let folder = match () {
            () if nix::unistd::geteuid().is_root() => PathBuf::from("/var/lib"),
            () if cfg!(target_os = "macos") => home()?.join("Library/Application Support"),
            () => set("XDG_DATA_HOME").map_or_else(|| Ok(home()?.join(".local/share")), Ok)?,
        };
        Ok(folder.join("outhaul").join(format!("pg{major}")))
    }

    /// Opens the server in a directory: makes the data once, adopts a server that runs, else starts it.
    ///
    /// Any number of processes may do this at once. Fails when a running server cannot give what is asked
    /// for (TCP), and when the data belongs to another major version.
    pub async fn open(options: ServerOptions) -> Result<Server> {
        let account = Account::for_servers()?;
        let dir =
            std::path::absolute(&options.dir).context(|| format!("bad path {}", options.dir.display()))?;
        make_home(&dir, &account)?;
        let _lock = lock::lock(&dir.join("lock"), cluster::SETUP_LIMIT).await?;
        if let Some(server) = Server::running(&dir) {
            sql::wait_ready(&server.url(), START_LIMIT, || server.still_runs()).await?;
            return server.with_tcp(options.tcp);
        }
        let installation = options.installation.clone().map_or_else(Installation::find, Ok)?;
        let data = dir.join("data");
        if !data.join("PG_VERSION").exists() {
            cluster::init(&installation, &account, &data, true).await?;
        }
        check_major(&data, &installation)?;
        start(&dir, &account, &installation, &options).await
    }

    /// The server that runs in a directory; `None` when none does. Starts nothing.
    pub fn find(dir: impl AsRef<Path>) -> Result<Option<Server>> {
        let dir = dir.as_ref();
        let dir = std::path::absolute(dir).context(|| format!("bad path {}", dir.display()))?;
        Ok(Server::running(&dir))
    }

    fn running(dir: &Path) -> Option<Server> {
        let found = Postmaster::on(&dir.join("data"))?;
        let (socket_dir, port, tcp) = (found.socket_dir, found.port, found.tcp);
        Some(Server { dir: dir.to_owned(), socket_dir, port, tcp, adopted: true })
    }

    async fn still_runs(&self) -> Result<()> {
        match self.status() {
            Status::Running { .. } => Ok(()),
            Status::Stopped => {
                let text = format!(
                    "the server in {} has ended; {}",
                    self.dir.display(),
                    cluster::tail(&self.log_path())
                );
                Err(Error::new(text))
            }
        }
    }

    fn with_tcp(self, wanted: bool) -> Result<Server> {
        if self.tcp || !wanted {
            return Ok(self);
        }
        let text = format!("the server that runs in {} does not listen on TCP", self.dir.display());
        Err(Error::new(text).with_hint("stop it first; the next start listens on TCP"))
    }

    /// URL of the database `postgres` through the socket.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// URL of a database through the socket.
    pub fn url_of(&self, database: &str) -> String {
        Url::socket(&self.socket_dir, self.port, database)
    }

    /// URL of the database `postgres` through loopback TCP; `None` when the server has a socket only.
    pub fn tcp_url(&self) -> Option<String> {
        self.tcp_url_of("postgres")
    }

    /// URL of a database through loopback TCP; `None` when the server has a socket only.
    pub fn tcp_url_of(&self, database: &str) -> Option<String> {
        self.tcp.then(|| Url::tcp(self.port, database))
    }

    /// Whether it runs now.
    pub fn status(&self) -> Status {
        match Postmaster::on(&self.dir.join("data")) {
            Some(found) => Status::Running { pid: found.process.pid as u32 },
            None => Status::Stopped,
        }
    }

    /// Whether it already ran when it was opened; then settings of the options had no effect.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// The directory of the server.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of the socket.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The port, which also names the socket file.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's log.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Makes a database when it does not exist; true when it was made.
    pub async fn ensure_database(&self, name: &str) -> Result<bool> {
        let client =
            sql::connect(&self.url()).await.context(|| "cannot connect to the private server".to_owned())?;
        let statement = format!("create database {}", sql::quote_ident(name));
        match client.batch_execute(&statement).await {
            Ok(()) => Ok(true),
            // Two callers at once: the loser sees the second code.
            Err(e) if matches!(e.code().map(|c| c.code()), Some("42P04" | "23505")) => Ok(false),
            Err(e) => Err(Error::new(format!("cannot create database {name}")).because(e)),
        }
    }

    /// Stops the server in the orderly way; nothing happens when it does not run.
    pub async fn stop(&self) -> Result<()> {
        if !self.dir.is_dir() {
            return Ok(());
        }
        let _lock = lock::lock(&self.dir.join("lock"), cluster::SETUP_LIMIT).await?;
        stop_on(&self.dir).await
    }

    /// Stops the server and removes its directory with all data.
    pub async fn remove(self) -> Result<()> {
        if !self.dir.is_dir() {
            return Ok(());
        }
        let _lock = lock::lock(&self.dir.join("lock"), cluster::SETUP_LIMIT).await?;
        stop_on(&self.dir).await?;
        cluster::remove_dir(&self.dir)?;
        let short = socket_dir(&self.dir, &Account::for_servers()?)?;
        cluster::remove_dir(&short)
    }
}

async fn stop_on(dir: &Path) -> Result<()> {
    match Postmaster::on(&dir.join("data")) {
        Some(found) => found.end(Signal::SIGINT, STOP_LIMIT).await,
        None => Ok(()),
    }
}

/// Makes the server's directory, and its parents open enough for the server's account.
fn make_home(dir: &Path, account: &Account) -> Result<()> {
    account.check_reach(dir)?;
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).context(|| format!("cannot create folder {}", parent.display()))?;
    }
    account.private_dir(dir)?;
    // The umask may have closed a parent that was just made.
    account.check_reach(&dir.join("data"))
}

fn check_major(data: &Path, installation: &Installation) -> Result<()> {
    let path = data.join("PG_VERSION");
    let version = std::fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
    if version.trim() == installation.major().to_string() {
        return Ok(());
    }
    let (have, want) = (installation.major(), version.trim());
    let text = format!(
        "{} holds data of PostgreSQL {want}, and the programs found are version {have}",
        data.display()
    );
    Err(Error::new(text).with_hint(format!(
        "set OUTHAUL_PG_BINDIR to the programs of PostgreSQL {want}, or choose another directory"
    )))
}

async fn start(
    dir: &Path,
    account: &Account,
    installation: &Installation,
    options: &ServerOptions,
) -> Result<Server> {
    let socket_dir = socket_dir(dir, account)?;
    let (port, _reserved) = choose_port(dir, account, options.tcp)?;
    let mut settings = cluster::reach(&socket_dir, port, options.tcp);
    settings.extend(options.settings.iter().cloned());
    let words =
        settings.iter().map(|(name, value)| format!("-c {}", quote_shell(&format!("{name}={value}"))));
    let words: Vec<String> = words.collect();

    let (log, own_log) = (dir.join("server.log"), dir.join("pg_ctl.log"));
    let output = std::fs::File::create(&own_log).context(|| format!("cannot write {}", own_log.display()))?;
    let errors = output.try_clone().context(|| "cannot share a log".to_owned())?;
    let mut command = installation.command("pg_ctl", account, dir)?;
    command.arg("-w").args(["-t", &START_LIMIT.as_secs().to_string()]).arg("-D").arg(dir.join("data"));
    command.arg("-l").arg(&log).args(["-o", &words.join(" "), "start"]);
    // Files, not pipes: the server inherits them and would keep a pipe open for ever.
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let status =
        tokio::process::Command::from(command).status().await.context(|| "cannot run pg_ctl".to_owned())?;
    if !status.success() {
        let text = format!(
            "the server in {} did not start; {}; {}",
            dir.display(),
            cluster::tail(&own_log),
            cluster::tail(&log)
        );
        return Err(Error::new(text));
    }
    let server = Server { dir: dir.to_owned(), socket_dir, port, tcp: options.tcp, adopted: false };
    sql::wait_ready(&server.url(), START_LIMIT, || server.still_runs()).await?;
    Ok(server)
}

/// The directory itself, or a short private folder when the socket's path would be too long.
fn socket_dir(dir: &Path, account: &Account) -> Result<PathBuf> {
    if dir.as_os_str().len() <= cluster::LONGEST_SOCKET_DIR {
        return Ok(dir.to_owned());
    }
    let short = place::within(account, "sockets")?.join(format!("{:016x}", cluster::hash(dir)));
    account.private_dir(&short)?;
    Ok(short)
}

/// The port of the last start when it is still free, so that URLs written down keep working.
fn choose_port(dir: &Path, account: &Account, tcp: bool) -> Result<(u16, Option<ReservedPort>)> {
    if !tcp {
        return Ok((SOCKET_PORT, None));
    }
    let file = dir.join("port");
    let last = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(last) = last.filter(|port| port::is_free(*port)) {
        return Ok((last, None));
    }
    let fresh = ReservedPort::any(account)?;
    std::fs::write(&file, fresh.number().to_string())
        .context(|| format!("cannot write {}", file.display()))?;
    Ok((fresh.number(), Some(fresh)))
}

/// pg_ctl hands its options to a shell.
fn quote_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
