//! The handler of a job type that is bound to a command.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use outhaul::{Context, Failure, FailureClass, Outcome, Stop};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio_util::sync::CancellationToken;

use super::group::{Group, Pipes};
use super::tail::{Tail, drain};

/// What the library is told as its limit for all types: the longest it takes. A deadline that is nearly that
/// far away is this one, so that the type's limit counts; a nearer one is the job's own.
pub(super) const NO_LIMIT: Duration = Duration::from_secs(24 * 3600);
const LONGEST_OWN: Duration = Duration::from_secs(24 * 3600 - 60);

/// How long the pipes are read after the command has ended. A process that left the group may hold them open
/// for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What one job type runs, and how long it may take.
pub(super) struct Runner {
    pub(super) command: Vec<String>,
    pub(super) limit: Duration,
    pub(super) grace: Duration,
    /// Cancelled when nothing is waited for any more.
    pub(super) now: CancellationToken,
}

/// Why the command was ended from outside.
#[derive(Clone, Copy, Debug)]
enum Ended {
    TimedOut,
    Stopped,
}

impl Runner {
    /// Runs the command for one claim.
    pub(super) async fn run(&self, cx: Context) -> Outcome {
        let (mut group, pipes) =
            Group::spawn(self.command_for(&cx)).map_err(|error| self.cannot_start(&error))?;
        let Pipes { stdin, stdout, stderr } = pipes;
        let tail = Tail::default();
        let streams = async {
            tokio::join!(
                feed(stdin, cx.payload()),
                drain(stdout, "stdout", None),
                drain(stderr, "stderr", Some(&tail))
            );
        };
        tokio::pin!(streams);
        let result = {
            let ended = self.until_end(&mut group, &cx);
            tokio::pin!(ended);
            tokio::select! {
                result = &mut ended => result,
                // All pipes are closed already, and the command goes on.
                () = &mut streams => {
                    let result = ended.await;
                    return self.outcome(result, &tail);
                }
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, streams).await;
        self.outcome(result, &tail)
    }

    fn command_for(&self, cx: &Context) -> Command {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("OUTHAUL_JOB_ID", cx.id().to_string())
            .env("OUTHAUL_JOB_TYPE", cx.job_type())
            .env("OUTHAUL_QUEUE", cx.queue())
            .env("OUTHAUL_ATTEMPT", cx.attempt().to_string())
            .env("OUTHAUL_MAX_ATTEMPTS", cx.max_attempts().to_string())
            .env("OUTHAUL_CLAIM_NO", cx.claim_no().to_string())
            .env("OUTHAUL_LEASE_TOKEN", cx.lease_token().to_string());
        match cx.traceparent() {
            Some(traceparent) => command.env("TRACEPARENT", traceparent),
            // The worker's own would say that its start caused the job.
            None => command.env_remove("TRACEPARENT"),
        };
        command
    }

    fn cannot_start(&self, error: &std::io::Error) -> Failure {
        let program = &self.command[0];
        tracing::error!(program, %error, "the command of a job cannot be started; the job is tried again");
        Failure::transient(format!("cannot start {program}: {error}")).code("spawn")
    }

    /// Waits for the command; ends it at its limit, and when the library asks for it.
    async fn until_end(
        &self,
        group: &mut Group,
        cx: &Context,
    ) -> (std::io::Result<ExitStatus>, Option<Ended>) {
        let (limit, grace) = self.limits(cx.deadline());
        let why = tokio::select! {
            status = group.wait() => return (status, None),
            () = tokio::time::sleep(limit) => Ended::TimedOut,
            // Also at a second signal: ending the command before the library has said why would look like a
            // failure of its own.
            stop = cx.cancelled() => match stop {
                Stop::TimedOut => Ended::TimedOut,
                _ => Ended::Stopped,
            },
        };
        tracing::info!(job_id = %cx.id(), ?why, "ending the command of a job");
        let status = group.end(grace, self.now.cancelled()).await;
        (status, Some(why))
    }

    /// When SIGTERM is sent, and how much later SIGKILL.
    ///
    /// A job's own limit is kept by the library, which drops this future in that instant and settles the job:
    /// SIGTERM goes out a little earlier, so that the group has ended before the job can be claimed again.
    fn limits(&self, deadline: Instant) -> (Duration, Duration) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left > LONGEST_OWN {
            return (self.limit, self.grace);
        }
        let ahead = self.grace.min(left / 5);
        (left - ahead, ahead.mul_f64(0.8))
    }

    fn outcome(&self, (status, why): (std::io::Result<ExitStatus>, Option<Ended>), tail: &Tail) -> Outcome {
        let status =
            status.map_err(|error| Failure::unknown(format!("cannot wait for the command: {error}")))?;
        let said = tail.summary();
        let summary = |otherwise: String| if said.is_empty() { otherwise } else { said.clone() };
        match (status.code(), why) {
            // What it says itself counts, also when it was asked to end.
            (Some(0), _) => Ok(()),
            (Some(code @ (65 | 75 | 77)), _) => {
                Err(of_code(code, summary(format!("exit code {code}")), tail))
            }
            (_, Some(Ended::TimedOut)) => {
                Err(Failure::transient(summary("the command ran into its time limit".into())).code("timeout"))
            }
            // Of unknown class: the library takes it for the answer to its request, and gives the job back.
            (_, Some(Ended::Stopped)) => Err(Failure::unknown("the command was stopped").code("stopped")),
            (Some(code), None) => Err(of_code(code, summary(format!("exit code {code}")), tail)),
            (None, None) => {
                let signal = status.signal().unwrap_or_default();
                // The process that did the work went away, as it does when a worker dies.
                Err(Failure::crash(summary(format!("killed by signal {signal}")))
                    .code(format!("signal_{signal}")))
            }
        }
    }
}

/// The verdict that a command chooses by its exit code. Source: sysexits(3), EX_DATAERR, EX_TEMPFAIL and EX_NOPERM.
fn of_code(code: i32, summary: String, tail: &Tail) -> Failure {
    let failure = match code {
        65 => Failure::permanent(summary),
        75 => asked_to_wait(summary, tail),
        77 => Failure::revoked(summary),
        _ => Failure::unknown(summary),
    };
    failure.code(format!("exit_{code}"))
}

/// A command that met a limit passes on how long to wait, in the words of HTTP. One that says nothing about it, or nothing that
/// can be read, asks for another try.
fn asked_to_wait(summary: String, tail: &Tail) -> Failure {
    let failure = Failure::transient(summary).headers(|name| tail.header(name));
    match failure.hint() {
        Some(_) => failure.with_class(FailureClass::RateLimited),
        None => failure,
    }
}

/// Writes the payload and closes the pipe. A command that does not read it all is in its right.
async fn feed(mut stdin: ChildStdin, payload: &str) {
    let _ = stdin.write_all(payload.as_bytes()).await;
    let _ = stdin.shutdown().await;
}
