//! Processes by pid: identity, children, the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// One process; the start time tells it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks since boot; 0 where /proc is missing.
    started: u64,
}

/// The fields of /proc/PID/stat that are used here.
#[derive(Debug)]
pub(crate) struct Stat {
    pub(crate) state: char,
    parent: i32,
    started: u64,
}

impl Process {
    pub(crate) fn of(pid: i32) -> Process {
        Process { pid, started: stat(pid).map_or(0, |stat| stat.started) }
    }

    pub(crate) fn me() -> Process {
        Process::of(std::process::id() as i32)
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// As told by another process that has written the numbers down.
    pub(crate) fn recorded(pid: i32, started: u64) -> Process {
        Process { pid, started }
    }

    /// Exists, is not a zombie and is the same process as when this value was made.
    pub(crate) fn is_alive(&self) -> bool {
        if !has_proc() {
            return exists(self.pid);
        }
        stat(self.pid)
            .is_some_and(|stat| stat.started == self.started && stat.state != 'Z' && stat.state != 'X')
    }

    /// Sends a signal unless the process has gone, which is no error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(Error::new(format!("cannot send {signal} to process {}", self.pid)).because(e)),
        }
    }

    /// Working directory, where the system tells it.
    pub(crate) fn cwd(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()
    }

    pub(crate) fn children(&self) -> Vec<Process> {
        let pairs = if has_proc() { pairs_from_proc() } else { pairs_from_ps() };
        pairs.into_iter().filter(|(_, parent)| *parent == self.pid).map(|(pid, _)| Process::of(pid)).collect()
    }
}

/// Waits until none of the processes is left; false when the limit has passed.
pub(crate) async fn wait_gone(processes: &[Process], limit: Duration) -> bool {
    let started = Instant::now();
    while processes.iter().any(Process::is_alive) {
        if started.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Waits until a process that got SIGSTOP has really stopped: the signal only asks.
///
/// Where /proc is missing there is nothing to look at, and it returns at once.
pub(crate) async fn wait_stopped(process: &Process, limit: Duration) -> bool {
    let started = Instant::now();
    while let Some(stat) = stat(process.pid) {
        if matches!(stat.state, 'T' | 't') {
            return true;
        }
        if stat.state == 'Z' || started.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// The same as [`wait_gone`] for code that cannot await, such as `Drop`.
pub(crate) fn wait_gone_blocking(processes: &[Process], limit: Duration) -> bool {
    let started = Instant::now();
    while processes.iter().any(Process::is_alive) {
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may contain blanks and brackets.
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

fn has_proc() -> bool {
    Path::new("/proc/self/stat").exists()
}

fn exists(pid: i32) -> bool {
    !matches!(kill(Pid::from_raw(pid), None), Err(Errno::ESRCH))
}

fn pairs_from_proc() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| Some((pid, stat(pid)?.parent))).collect()
}

fn pairs_from_ps() -> Vec<(i32, i32)> {
    let Ok(output) = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pair = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<i32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    text.lines().filter_map(pair).collect()
}
