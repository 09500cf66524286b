//! Folders of throw-away things, and what removes them when their owner cannot.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::cluster;
use super::postmaster::{self, Postmaster};
use crate::error::{Context, Error, Result};
use crate::pooler;
use crate::system::account::Account;
use crate::system::{lock, place};

/// Where a pooler writes its process id, inside its folder.
pub(crate) const POOLER_PID: &str = "pooler.pid";

const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The folder of one throw-away server or pooler; its lock is held as long as its owner lives.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    _owner: File,
}

impl Home {
    pub(crate) async fn create(account: &Account) -> Result<Home> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = place::within(account, "throwaway")?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}-{:04x}", std::process::id(), fastrand::u16(..)));
        // Between mkdir and lock a sweep must not take it for a dead one.
        let _sweep = lock::lock(&folder.join("sweep.lock"), cluster::SETUP_LIMIT).await?;
        account.private_dir(&path)?;
        let owner = lock::try_lock(&path.join("owner.lock"))?;
        let owner =
            owner.ok_or_else(|| Error::new(format!("{} belongs to another process", path.display())))?;
        Ok(Home { path, _owner: owner })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(e) = cluster::remove_dir(&self.path) {
            tracing::warn!(error = %e, "something throw-away left its folder behind");
        }
    }
}

/// Removes what owners that are dead have left: their lock can be taken.
pub(crate) async fn sweep(account: &Account) -> Result<()> {
    let folder = place::within(account, "throwaway")?;
    let Some(_sweep) = lock::try_lock(&folder.join("sweep.lock"))? else { return Ok(()) };
    let entries = std::fs::read_dir(&folder).context(|| format!("cannot list {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let Ok(Some(_owner)) = lock::try_lock(&path.join("owner.lock")) else { continue };
        // The dead owner's watchdog may be at the same work: whoever comes second finds less to do.
        if let Err(e) = remove_remains(&path).await {
            tracing::warn!(error = %e, "cannot remove what a dead process has left");
        }
    }
    Ok(())
}

async fn remove_remains(home: &Path) -> Result<()> {
    if let Some(postmaster) = Postmaster::on(&home.join("data")) {
        postmaster.end(Signal::SIGQUIT, STOP_LIMIT).await?;
    }
    pooler::end_orphan(home)?;
    postmaster::release_shared_memory(&home.join("data"));
    cluster::remove_dir(home)
}

/// Waits for the end of the pipe from its parent, which comes however the parent ends, then stops the
/// server below the folder `$1` and removes the folder. A folder that has gone is nothing to do.
const SCRIPT: &str = r#"
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && kill -QUIT "$pid" 2>/dev/null; then
  n=0
  while kill -0 "$pid" 2>/dev/null && [ $n -lt 60 ]; do sleep 0.1; n=$((n+1)); done
  kill -KILL "$pid" 2>/dev/null
fi
pid=$(head -n 1 "$1/pooler.pid" 2>/dev/null)
[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
rm -rf "$1"
"#;

/// A small shell in a process group of its own, so that Ctrl-C in a terminal does not end it too.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(crate) fn over(home: &Path) -> Result<Watchdog> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "outhaul-watchdog"]).arg(home);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = command.spawn().context(|| "cannot start /bin/sh".to_owned())?;
        Ok(Watchdog { shell })
    }
}

/// To be dropped after the folder has been removed.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
