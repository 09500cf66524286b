//! PgBouncer in front of a private server.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::{Context, Error, Result};
use crate::proxy::upstream::{Place, Target};
use crate::server::home::{self, Home, POOLER_PID, Watchdog};
use crate::server::{SUPERUSER, Url, installation, sql};
use crate::system::account::Account;
use crate::system::port::ReservedPort;
use crate::system::process::Process;

const START_LIMIT: Duration = Duration::from_secs(60);

/// When a backend goes back to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After every transaction.
    Transaction,
    /// After every statement.
    Statement,
}

/// A PgBouncer that runs as our direct child, on a loopback port.
///
/// Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Pooler {
    child: Child,
    port: ReservedPort,
    database: String,
    // Dropped in this order: the watchdog must find the folder gone.
    home: Home,
    _watchdog: Watchdog,
}

impl Pooler {
    /// The PgBouncer program of this machine; `None` when there is none, so that a test can say *skipped*
    /// and why ([`Pooler::install_command`]).
    pub fn find() -> Option<PathBuf> {
        let usual = Path::new("/usr/sbin/pgbouncer");
        if usual.is_file() { Some(usual.to_owned()) } else { installation::on_path("pgbouncer") }
    }

    /// The one command that installs PgBouncer on Debian and its kin.
    pub fn install_command() -> &'static str {
        "apt-get install -y --no-install-recommends pgbouncer"
    }

    /// Starts PgBouncer in front of the server of this URL, which must let its user in without a password,
    /// with at most `size` backends per database.
    pub async fn start(server_url: &str, mode: PoolMode, size: u32) -> Result<Pooler> {
        Pooler::start_with(server_url, mode, size, &[]).await
    }

    /// The same with more settings of its section `[pgbouncer]`, such as `("max_prepared_statements", "50")`.
    pub async fn start_with(
        server_url: &str,
        mode: PoolMode,
        size: u32,
        settings: &[(&str, &str)],
    ) -> Result<Pooler> {
        let program = Pooler::find().ok_or_else(|| {
            Error::new("PgBouncer is not installed here")
                .with_hint(format!("run `{}`", Pooler::install_command()))
        })?;
        let account = Account::for_servers()?;
        account.check_reach(&program)?;
        let target = Target::parse(server_url)?;
        home::sweep(&account).await?;
        let home = Home::create(&account).await?;
        let watchdog = Watchdog::over(home.path())?;
        let port = ReservedPort::any(&account)?;
        let ini = home.path().join("pgbouncer.ini");
        let text = configuration(home.path(), &target, port.number(), mode, size, settings);
        std::fs::write(&ini, text).context(|| format!("cannot write {}", ini.display()))?;
        account.own(&ini)?;
        let child = spawn(&program, &account, home.path(), &ini)?;
        let database = target.database().to_owned();
        let mut pooler = Pooler { child, port, database, home, _watchdog: watchdog };
        pooler.until_ready().await?;
        Ok(pooler)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// URL through the pooler to the database of the server's URL.
    pub fn url(&self) -> String {
        self.url_of(&self.database)
    }

    /// URL through the pooler to another database.
    pub fn url_of(&self, database: &str) -> String {
        Url::tcp(self.port(), database)
    }

    /// URL of PgBouncer's own console, which speaks only the simple protocol.
    pub fn admin_url(&self) -> String {
        self.url_of("pgbouncer")
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log.
    pub fn log_path(&self) -> PathBuf {
        self.home.path().join("pgbouncer.log")
    }

    async fn until_ready(&mut self) -> Result<()> {
        let (url, log) = (self.admin_url(), self.log_path());
        let child = Process::of(self.child.id() as i32);
        let ended =
            || async { if child.is_alive() { Ok(()) } else { Err(Error::new("PgBouncer ended at start")) } };
        let ready = sql::wait_ready(&url, START_LIMIT, ended).await;
        ready.map_err(|e| Error::new(format!("{}; {}", e.message(), crate::server::tail(&log))))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // Its clients see a crash, as they should when a test drops it under them.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(
    home: &Path,
    target: &Target,
    port: u16,
    mode: PoolMode,
    size: u32,
    settings: &[(&str, &str)],
) -> String {
    let (host, server_port) = match target.place() {
        Place::Tcp(host, port) => (host.clone(), *port),
        Place::Unix(folder, port) => (folder.to_string_lossy().into_owned(), *port),
    };
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    };
    let (user, home) = (target.user(), home.display());
    // sqlx sends extra_float_digits at startup, which PgBouncer refuses unless told to ignore it.
    let mut text = format!(
        "[databases]\n* = host={host} port={server_port} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\nadmin_users = {SUPERUSER}\npool_mode = {mode}\n\
         default_pool_size = {size}\nmax_client_conn = 1000\nignore_startup_parameters = extra_float_digits\n\
         logfile = {home}/pgbouncer.log\npidfile = {home}/{POOLER_PID}\n"
    );
    settings.iter().for_each(|(name, value)| text.push_str(&format!("{name} = {value}\n")));
    text
}

fn spawn(program: &Path, account: &Account, home: &Path, ini: &Path) -> Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(home.join("pgbouncer.out"));
    let log = log.context(|| format!("cannot open a log in {}", home.display()))?;
    let errors = log.try_clone().context(|| "cannot share the log".to_owned())?;
    let mut command = account.command(program, home);
    // The working directory is how a sweep recognises it.
    command.arg(ini).current_dir(home).stdout(log).stderr(errors).process_group(0);
    command.spawn().context(|| format!("cannot start {}", program.display()))
}

/// Ends the pooler that a dead process has left in a folder.
pub(crate) fn end_orphan(home: &Path) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(home.join(POOLER_PID)) else { return Ok(()) };
    let Ok(pid) = text.trim().parse() else { return Ok(()) };
    let process = Process::of(pid);
    if process.cwd().as_deref() == Some(home) { process.signal(Signal::SIGKILL) } else { Ok(()) }
}
