//! Throw-away servers: direct children, to be killed, restarted and forgotten.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::Mutex;

use super::home::{self, Home, Watchdog};
use super::postmaster;
use super::{Installation, Url, cluster, sql, standby};
use crate::error::{Context, Error, Result};
use crate::system::account::Account;
use crate::system::port::ReservedPort;
use crate::system::process::{self, Process};

/// Crash recovery after heavy load may take a while on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Backends notice the death of their postmaster whenever they wait; one that computes does not.
const ORPHAN_LIMIT: Duration = Duration::from_secs(2);

/// How a [`Throwaway`] is made.
#[derive(Clone, Debug)]
pub struct ThrowawayOptions {
    installation: Option<Installation>,
    durable: bool,
    tcp: bool,
    settings: Vec<(String, String)>,
}

impl Default for ThrowawayOptions {
    fn default() -> Self {
        ThrowawayOptions { installation: None, durable: true, tcp: true, settings: Vec::new() }
    }
}

impl ThrowawayOptions {
    /// Durable, on a socket and on loopback TCP, with the best installation found.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this installation instead of [`Installation::find`].
    pub fn installation(mut self, installation: Installation) -> Self {
        self.installation = Some(installation);
        self
    }

    /// `false` sets `fsync` and `full_page_writes` off: faster, and still safe against [`Throwaway::kill`]
    /// because the operating system keeps what was written. Default `true`.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Listens on 127.0.0.1 beside the socket, trusting everyone on this machine. Default `true`.
    pub fn tcp(mut self, tcp: bool) -> Self {
        self.tcp = tcp;
        self
    }

    /// One more server setting, such as `("wal_level", "logical")`; the last value of a name wins.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A server of its own for one test or demo; a direct child of this process.
///
/// Dropping it kills the server and removes its files. When this process is ended by a signal instead, a
/// watchdog does the same, and what even the watchdog missed is removed when the next one is started.
#[derive(Debug)]
pub struct Throwaway {
    installation: Installation,
    account: Account,
    port: ReservedPort,
    tcp: bool,
    settings: Vec<(String, String)>,
    child: Mutex<Option<Child>>,
    // Dropped in this order: the watchdog must find the folder gone.
    home: Home,
    _watchdog: Watchdog,
}

impl Throwaway {
    /// Makes and starts a server; well under a second from the second time on, because the result of
    /// initdb is kept as a template.
    pub async fn start_new(options: ThrowawayOptions) -> Result<Throwaway> {
        let account = Account::for_servers()?;
        let installation = options.installation.map_or_else(Installation::find, Ok)?;
        home::sweep(&account).await?;
        let mut server = Throwaway::without_data(installation, account, options.tcp).await?;
        cluster::copy_of_template(&server.installation, &server.account, &server.home.data()).await?;
        if !options.durable {
            server.settings.push(("fsync".into(), "off".into()));
            server.settings.push(("full_page_writes".into(), "off".into()));
        }
        server.settings.extend(options.settings);
        server.start().await?;
        Ok(server)
    }

    async fn without_data(installation: Installation, account: Account, tcp: bool) -> Result<Throwaway> {
        let home = Home::create(&account).await?;
        let _watchdog = Watchdog::over(home.path())?;
        let port = ReservedPort::any(&account)?;
        let settings = cluster::reach(home.path(), port.number(), tcp);
        let child = Mutex::new(None);
        Ok(Throwaway { installation, account, port, tcp, settings, child, home, _watchdog })
    }

    /// Makes a hot standby of this running server, with its settings, and makes every commit here wait from
    /// then on until that standby has it on disk (`synchronous_standby_names`): what was committed is not
    /// lost by a promotion. Commits that find the standby gone wait until it is back.
    ///
    /// The standby is a throw-away server like any other: stopped or killed it can be started again, and goes
    /// on as the standby that it was, or as the primary when it was promoted.
    ///
    /// Fails when this server has a standby already, or is one.
    pub async fn start_standby(&self) -> Result<Throwaway> {
        let (installation, account) = (self.installation.clone(), self.account.clone());
        let mut server = Throwaway::without_data(installation, account, self.tcp).await?;
        let (url, name) = (self.url(), format!("standby_{}", server.port()));
        standby::reserve(&url, &name).await?;
        standby::copy(&url, self.installation.major(), &self.account, &self.data_dir(), &server.data_dir())
            .await?;
        // The last value of a name wins.
        let places = std::mem::take(&mut server.settings);
        server.settings = [self.settings.clone(), places].concat();
        server.settings.extend(standby::follow(self.socket_dir(), self.port(), &name));
        server.start().await?;
        standby::synchronize(&url, &name).await?;
        Ok(server)
    }

    /// Makes a standby a server of its own, on a new timeline; returns when it accepts writes.
    ///
    /// What it has received is replayed first. Its primary may live or not, and is not told: commits there
    /// wait for ever unless it is killed or its `synchronous_standby_names` are reset.
    ///
    /// Fails when it is no standby.
    pub async fn promote(&self) -> Result<()> {
        standby::promote(&self.url()).await
    }

    /// Starts the stopped or killed server again on the same data and the same port, and waits until it
    /// accepts connections. Nothing happens when it runs.
    pub async fn start(&self) -> Result<()> {
        let mut child = self.child.lock().await;
        if child.as_mut().is_some_and(is_running) {
            return Ok(());
        }
        *child = Some(self.spawn()?);
        let child = Mutex::new(child);
        let url = self.url();
        let ready = sql::wait_ready(&url, START_LIMIT, || async {
            let mut child = child.lock().await;
            let ended = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            ended.map_or(Ok(()), |status| Err(Error::new(format!("the server ended at start ({status})"))))
        });
        ready.await.map_err(|e| Error::new(format!("{}; {}", e.message(), cluster::tail(&self.log_path()))))
    }

    /// Kills the postmaster with SIGKILL and returns when no process of the server is left, so that
    /// [`start`](Throwaway::start) can follow at once.
    ///
    /// Backends that do not notice by themselves within two seconds are killed too. This is a crash of
    /// the server, not a power cut: the operating system keeps what was written.
    pub async fn kill(&self) -> Result<()> {
        let mut slot = self.child.lock().await;
        let Some(child) = slot.as_mut() else { return Ok(()) };
        let postmaster = Process::of(child.id() as i32);
        // Stopped first so that no backend is forked between the listing and the kill.
        postmaster.signal(Signal::SIGSTOP)?;
        process::wait_stopped(&postmaster, Duration::from_secs(5)).await;
        let backends = postmaster.children();
        child.kill().context(|| "cannot kill the server".to_owned())?;
        child.wait().context(|| "cannot wait for the killed server".to_owned())?;
        *slot = None;
        if process::wait_gone(&backends, ORPHAN_LIMIT).await {
            return Ok(());
        }
        backends.iter().try_for_each(|backend| backend.signal(Signal::SIGKILL))?;
        if process::wait_gone(&backends, STOP_LIMIT).await {
            return Ok(());
        }
        Err(Error::new("backends of the killed server do not end"))
    }

    /// Stops the server in the orderly way: clients are disconnected, a checkpoint is written.
    pub async fn stop_fast(&self) -> Result<()> {
        self.stop(Signal::SIGINT).await
    }

    /// Stops the server without a checkpoint; the next start runs crash recovery.
    pub async fn stop_immediate(&self) -> Result<()> {
        self.stop(Signal::SIGQUIT).await
    }

    async fn stop(&self, signal: Signal) -> Result<()> {
        let mut slot = self.child.lock().await;
        let Some(child) = slot.as_mut() else { return Ok(()) };
        Process::of(child.id() as i32).signal(signal)?;
        let started = Instant::now();
        while child.try_wait().context(|| "cannot wait for the server".to_owned())?.is_none() {
            if started.elapsed() > STOP_LIMIT {
                let text = format!("the server did not stop within {} s; ", STOP_LIMIT.as_secs());
                return Err(Error::new(text + &cluster::tail(&self.log_path())));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *slot = None;
        Ok(())
    }

    /// URL of the database `postgres` through the socket.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// URL of a database through the socket.
    pub fn url_of(&self, database: &str) -> String {
        Url::socket(self.home.path(), self.port.number(), database)
    }

    /// URL of the database `postgres` through loopback TCP.
    ///
    /// # Panics
    /// When the server was made without TCP.
    pub fn tcp_url(&self) -> String {
        self.tcp_url_of("postgres")
    }

    /// URL of a database through loopback TCP.
    ///
    /// # Panics
    /// When the server was made without TCP.
    pub fn tcp_url_of(&self, database: &str) -> String {
        assert!(self.tcp, "this throw-away server was made without TCP");
        Url::tcp(self.port.number(), database)
    }

    /// The port, which also names the socket file.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the socket.
    pub fn socket_dir(&self) -> &Path {
        self.home.path()
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.home.data()
    }

    /// The server's log.
    pub fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    /// The programs it runs with.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Process id of the postmaster; `None` when it does not run.
    pub async fn pid(&self) -> Option<u32> {
        let mut slot = self.child.lock().await;
        slot.as_mut().and_then(|child| is_running(child).then(|| child.id()))
    }

    /// Makes a database when it does not exist.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        sql::run(&self.url(), &[&format!("create database {}", sql::quote_ident(name))]).await
    }

    fn spawn(&self) -> Result<Child> {
        let mut command = self.installation.command("postgres", &self.account, self.home.path())?;
        command.arg("-D").arg(self.home.data());
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let log = OpenOptions::new().create(true).append(true).open(self.log_path());
        let log = log.context(|| format!("cannot open {}", self.log_path().display()))?;
        let errors = log.try_clone().context(|| "cannot share the log".to_owned())?;
        // A group of its own: Ctrl-C goes to the demo, which decides when its server ends.
        command.stdout(log).stderr(errors).process_group(0);
        command.spawn().context(|| "cannot start postgres".to_owned())
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        let Some(mut child) = self.child.get_mut().take() else {
            postmaster::release_shared_memory(&self.home.data());
            return;
        };
        // An immediate shutdown frees the shared memory, which SIGKILL would leave behind.
        let postmaster = Process::of(child.id() as i32);
        let asked = postmaster.signal(Signal::SIGQUIT).is_ok();
        let started = Instant::now();
        while asked && started.elapsed() < Duration::from_secs(10) && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        process::wait_gone_blocking(&postmaster.children(), Duration::from_secs(1));
    }
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}
