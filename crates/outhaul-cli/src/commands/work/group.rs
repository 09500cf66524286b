//! A command in a process group of its own, which ends as a whole.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// A running command. Dropping it kills the whole group, so that nothing of an attempt outlives its lease.
pub(super) struct Group {
    child: Child,
    /// The leader's process id, which is also the group's.
    id: Pid,
    ended: bool,
}

/// The ends of its pipes that are ours.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Group {
    pub(super) fn spawn(mut command: Command) -> io::Result<(Group, Pipes)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("the command has no process id or pipes");
        let id = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw).ok_or_else(missing)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let group = Group { child, id, ended: false };
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(missing()) };
        Ok((group, Pipes { stdin, stdout, stderr }))
    }

    /// Waits until the leader has ended, and ends what it left behind in its group.
    ///
    /// The leader is reaped before the rest is killed. That is safe: while a process of the group is left,
    /// the kernel gives its number to nobody else, and without one there is nothing to be killed.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        if !self.ended {
            self.signal(Signal::SIGKILL);
            self.ended = true;
        }
        Ok(status)
    }

    /// SIGTERM to the group, SIGKILL after the grace; returns how the leader ended.
    pub(super) async fn end(
        &mut self,
        grace: Duration,
        now: impl Future<Output = ()>,
    ) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        tokio::select! {
            status = self.wait() => return status,
            () = tokio::time::sleep(grace) => {}
            () = now => {}
        }
        self.signal(Signal::SIGKILL);
        self.wait().await
    }

    fn signal(&self, signal: Signal) {
        // The only error is that nobody is left.
        let _ = killpg(self.id, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::SIGKILL);
        }
    }
}
