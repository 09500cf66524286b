//! Child processes to be stopped, continued and killed by pid.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdout};

use crate::error::{Context, Error, Result};
use crate::system::process::{self, Process};

/// A signal is asynchronous; this is how long its effect may take on a loaded machine.
const SIGNAL_LIMIT: Duration = Duration::from_secs(30);

/// Where the output of a [`Child`] goes.
#[derive(Clone, Debug, Default)]
enum Output {
    #[default]
    Piped,
    Inherit,
    Null,
    File(PathBuf),
}

/// How a [`Child`] is started.
#[derive(Clone, Debug, Default)]
pub struct ChildOptions {
    output: Output,
    group: bool,
}

impl ChildOptions {
    /// Piped output, in the process group of its parent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes standard output and error to a file, appending. A child that writes much must not be piped
    /// unless somebody reads, or it blocks.
    pub fn output_to(mut self, file: impl Into<PathBuf>) -> Self {
        self.output = Output::File(file.into());
        self
    }

    /// Shares standard output and error with this process.
    pub fn output_inherited(mut self) -> Self {
        self.output = Output::Inherit;
        self
    }

    /// Throws standard output and error away.
    pub fn output_discarded(mut self) -> Self {
        self.output = Output::Null;
        self
    }

    /// Gives it a process group of its own, to which every signal is sent. Default `false`.
    pub fn group(mut self, group: bool) -> Self {
        self.group = group;
        self
    }
}

/// A child process; killed and reaped when dropped.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    process: Process,
    name: String,
    group: bool,
    stdout: Option<BufReader<ChildStdout>>,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts the command; its standard input is empty unless the command says otherwise before.
    ///
    /// With piped output, which is the default, this must be called within a Tokio runtime.
    pub fn spawn(mut command: Command, options: ChildOptions) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        let (out, err) = streams(&options.output)?;
        command.stdout(out).stderr(err);
        if options.group {
            command.process_group(0);
        }
        let mut child = command.spawn().context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().map(ChildStdout::from_std).transpose();
        let stdout = stdout.context(|| format!("cannot read the output of {name}"))?.map(BufReader::new);
        let process = Process::of(child.id() as i32);
        Ok(Child { child, process, name, group: options.group, stdout, status: None })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid as u32
    }

    /// Sends a signal to the process, or to its group; no error when it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Until it is reaped, which only `try_wait` does, its number cannot be another's.
        if self.status.is_some() {
            return Ok(());
        }
        let pid = Pid::from_raw(self.process.pid);
        let sent = if self.group { killpg(pid, signal) } else { kill(pid, signal) };
        match sent {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(Error::new(format!("cannot send {signal} to {} ({pid})", self.name)).because(e)),
        }
    }

    /// SIGKILL, and waits until it has ended.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        self.wait(SIGNAL_LIMIT).await
    }

    /// SIGTERM; does not wait.
    pub fn term(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// SIGSTOP, and waits until the process has stopped: after this it does nothing until
    /// [`cont`](Child::cont).
    pub async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        if process::wait_stopped(&self.process, SIGNAL_LIMIT).await {
            return Ok(());
        }
        Err(Error::new(format!("{} ({}) did not stop", self.name, self.pid())))
    }

    /// SIGCONT.
    pub fn cont(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Whether it is stopped now, as `/proc/PID/stat` says; false where there is no `/proc`.
    pub fn is_stopped(&self) -> bool {
        process::stat(self.process.pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// How it ended; `None` while it runs.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().context(|| format!("cannot wait for {}", self.name))?;
        }
        Ok(self.status)
    }

    /// Waits until it has ended; an error when it has not within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > limit {
                return Err(Error::new(format!(
                    "{} ({}) did not end within {limit:?}",
                    self.name,
                    self.pid()
                )));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Reads piped standard output up to the first line that contains `mark`, and returns that line.
    pub async fn line_with(&mut self, mark: &str, limit: Duration) -> Result<String> {
        let missing = || Error::new(format!("{} has no piped output", self.name));
        let stdout = self.stdout.as_mut().ok_or_else(missing)?;
        let mut read = String::new();
        let search = async {
            loop {
                let from = read.len();
                match stdout.read_line(&mut read).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) if read[from..].contains(mark) => return Some(read[from..].trim_end().to_owned()),
                    Ok(_) => {}
                }
            }
        };
        let found = tokio::time::timeout(limit, search).await;
        let line =
            found.map_err(|_| Error::new(format!("{} said no {mark:?} within {limit:?}", self.name)))?;
        line.ok_or_else(|| {
            Error::new(format!("{} ended without saying {mark:?}; it said: {}", self.name, read.trim()))
        })
    }

    /// Piped standard output, to be read by the caller from here on.
    pub fn take_stdout(&mut self) -> Option<BufReader<ChildStdout>> {
        self.stdout.take()
    }

    /// Piped standard error.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take().and_then(|stderr| ChildStderr::from_std(stderr).ok())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Also ends a stopped process: SIGKILL needs no SIGCONT.
        if self.signal(Signal::SIGKILL).is_ok() && self.status.is_none() {
            let _ = self.child.wait();
        }
    }
}

fn streams(output: &Output) -> Result<(Stdio, Stdio)> {
    Ok(match output {
        Output::Piped => (Stdio::piped(), Stdio::piped()),
        Output::Inherit => (Stdio::inherit(), Stdio::inherit()),
        Output::Null => (Stdio::null(), Stdio::null()),
        Output::File(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let file = file.context(|| format!("cannot open {}", path.display()))?;
            let other = file.try_clone().context(|| format!("cannot share {}", path.display()))?;
            (file.into(), other.into())
        }
    })
}
