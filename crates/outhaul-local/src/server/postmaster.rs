//! What a running server writes down about itself, and how it is told to end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::{Error, Result};
use crate::system::process::{self, Process};

/// A running server, read from `postmaster.pid` in its data directory.
#[derive(Clone, Debug)]
pub(super) struct Postmaster {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) socket_dir: PathBuf,
    pub(super) tcp: bool,
}

impl Postmaster {
    /// The server that runs on `data`, if one does.
    ///
    /// Stricter than `pg_ctl status`, which believes any living process with the recorded number.
    pub(super) fn on(data: &Path) -> Option<Postmaster> {
        let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let process = Process::of(lines.first()?.parse().ok()?);
        let elsewhere = match (process.cwd(), data.canonicalize()) {
            (Some(cwd), Ok(data)) => cwd != data,
            _ => false,
        };
        if elsewhere || !process.is_alive() {
            return None;
        }
        let port = lines.get(3)?.parse().ok()?;
        let socket_dir = PathBuf::from(lines.get(4)?);
        let tcp = lines.get(5).is_some_and(|address| !address.is_empty());
        Some(Postmaster { process, port, socket_dir, tcp })
    }

    /// Ends the server: SIGINT is a fast shutdown, SIGQUIT an immediate one.
    pub(super) async fn end(&self, signal: Signal, limit: Duration) -> Result<()> {
        self.process.signal(signal)?;
        if process::wait_gone(std::slice::from_ref(&self.process), limit).await {
            return Ok(());
        }
        let text = format!("server process {} did not stop within {} s", self.process.pid, limit.as_secs());
        Err(Error::new(text).with_hint("look at its log for what it waits for, or stop it with SIGQUIT"))
    }
}

/// A killed postmaster leaves a System V segment of some bytes; there are only 4,096 on a machine.
pub(super) fn release_shared_memory(data: &Path) {
    let Ok(text) = std::fs::read_to_string(data.join("postmaster.pid")) else { return };
    let Some(line) = text.lines().nth(6) else { return };
    let Some((key, id)) = line.trim().split_once(char::is_whitespace) else { return };
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_ours = |fields: Vec<&str>| fields.first() == Some(&key) && fields.get(1) == Some(&id.trim());
    // `ipcrm` only marks it, and the kernel keeps a segment that somebody is still attached to.
    if segments.lines().any(|line| is_ours(line.split_whitespace().collect())) {
        let _ = Command::new("ipcrm")
            .args(["-m", id.trim()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}
