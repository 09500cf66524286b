//! The command line.

mod events;
mod repair;

pub(crate) use events::{Outbox, OutboxList, OutboxTail, Publish, Subs, SubsAct, SubsRewind, SubsShow};
pub(crate) use repair::{Dead, DeadList, DeadWhich, OperationAct, OperationNew, Operations};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use outhaul::{JobId, JobStatus};
use uuid::Uuid;

use crate::config::times::{DELAY, DRAIN, LEASE, LIMIT, POLL, Times, WAIT};

/// Durable asynchronous work inside PostgreSQL.
#[derive(Parser)]
#[command(name = "outhaul", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Begin with:
  outhaul demo                               see it work, no database needed
  export DATABASE_URL=$(outhaul dev up)      a private server, or use your own
  outhaul migrate
  outhaul enqueue mail.welcome '{\"user\":7}' --idempotency-key u7

Settings come from flags, OUTHAUL_*, DATABASE_URL and PG*, ./outhaul.toml,
~/.config/outhaul/config.toml, /etc/outhaul/config.toml; see `outhaul config show --origin`.

Exit codes: 0 ok, 1 failed or found something, 2 usage, 3 not found, 4 refused, 5 no database,
6 schema too old or new, 7 timed out, 11 done or perhaps done, but what came of it
could not be told (look before you repeat it), 130 interrupted.";

/// Flags that every command takes.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Print one JSON object on standard output, and problems as JSON on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no messages but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Use no colours
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Where the database is; keep a password in a file: OUTHAUL_DATABASE_URL_FILE, or PGPASSFILE
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// The schema that holds Outhaul's tables
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// The configuration file to read instead of ./outhaul.toml
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show a small business at work: jobs in transactions, failures, a killed worker, nothing lost
    Demo(crate::demo::Args),
    /// A private PostgreSQL server for you, without root and without a port
    Dev(Dev),
    /// Bring the database's schema to this version
    Migrate(Migrate),
    /// Put one job into a queue
    Enqueue(Enqueue),
    /// Put one event into the outbox
    Publish(Publish),
    /// Run the job types that outhaul.toml binds to commands
    Work(Work),
    /// Look at jobs, and act on them
    #[command(subcommand)]
    Jobs(Jobs),
    /// Look at dead letters, and discard them
    #[command(subcommand)]
    Dead(Dead),
    /// Replay, discard or cancel many jobs at once: choose them, look at them, then start
    #[command(subcommand)]
    Operations(Operations),
    /// Look at queues, stop and start their claims
    #[command(subcommand)]
    Queues(Queues),
    /// Look at events, and act on them
    #[command(subcommand)]
    Outbox(Outbox),
    /// Look at subscriptions to the outbox, and act on them
    #[command(subcommand)]
    Subs(Subs),
    /// Look at the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

impl Command {
    /// The roles that a command takes in the database, where a role can be granted for it.
    pub(crate) fn role(&self) -> Option<&'static str> {
        Some(match self {
            Command::Enqueue(Enqueue { wait: false, .. }) => "outhaul_producer",
            Command::Enqueue(Enqueue { wait: true, .. }) => "outhaul_producer, outhaul_observer",
            Command::Jobs(Jobs::Show { payload: true, .. }) => "outhaul_observer, outhaul_operator",
            Command::Jobs(Jobs::Cancel(_) | Jobs::Retry(_)) => "outhaul_operator",
            Command::Queues(Queues::Pause(_) | Queues::Resume(_)) => "outhaul_operator",
            Command::Dead(Dead::Discard { .. }) => "outhaul_operator",
            Command::Operations(
                Operations::List { .. } | Operations::Show { .. } | Operations::Items { .. },
            ) => "outhaul_observer",
            Command::Operations(_) => "outhaul_operator",
            Command::Publish(_) => "outhaul_producer",
            Command::Outbox(Outbox::Show { payload: true, .. }) => "outhaul_observer, outhaul_operator",
            Command::Outbox(Outbox::Retry { .. } | Outbox::RotateHistory { .. }) => "outhaul_operator",
            // The question tells what is there.
            Command::Subs(Subs::Rewind(SubsRewind { consent, .. }) | Subs::Drop { consent, .. })
                if !consent.yes =>
            {
                "outhaul_observer, outhaul_operator"
            }
            Command::Subs(Subs::List { .. } | Subs::Show(_)) => "outhaul_observer",
            Command::Subs(_) => "outhaul_operator",
            Command::Jobs(_) | Command::Dead(_) | Command::Queues(_) | Command::Outbox(_) => {
                "outhaul_observer"
            }
            Command::Work(_) => "outhaul_worker",
            _ => return None,
        })
    }
}

#[derive(Args)]
pub(crate) struct Dev {
    /// Where its data is, instead of the usual place for this user
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) what: DevWhat,
}

#[derive(Subcommand)]
pub(crate) enum DevWhat {
    /// Start the server, or adopt the one that runs, and print its URL
    Up {
        /// Listen on a free port of 127.0.0.1 too
        #[arg(long)]
        tcp: bool,
    },
    /// Print the URL of the server that runs
    Url {
        /// The URL through 127.0.0.1
        #[arg(long)]
        tcp: bool,
    },
    /// Open psql on it
    Psql {
        /// Arguments for psql
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Stop the server; its data stays
    Down {
        /// Remove its data as well
        #[arg(long)]
        remove: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Migrate {
    #[command(subcommand)]
    pub(crate) what: Option<MigrateWhat>,
    #[command(flatten)]
    pub(crate) up: MigrateUp,
}

#[derive(Subcommand)]
pub(crate) enum MigrateWhat {
    /// Tell which steps are missing, and change nothing
    Status,
    /// Apply what is missing (the default)
    Up(MigrateUp),
    /// Print the SQL for an empty database, and send nothing
    Sql(MigrateUp),
    /// Exit with 6 unless the schema is exactly this version's
    Check,
}

#[derive(Args, Clone, Copy)]
pub(crate) struct MigrateUp {
    /// Create no roles: the migrating role owns everything, and you grant what you need
    #[arg(long)]
    pub(crate) no_roles: bool,
}

#[derive(Args)]
pub(crate) struct Enqueue {
    /// The job's type, such as mail.welcome
    #[arg(value_name = "TYPE")]
    pub(crate) job_type: String,
    /// The payload as JSON, or - to read it from standard input
    #[arg(value_name = "JSON|-", default_value = "{}", allow_hyphen_values = true)]
    pub(crate) payload: String,
    /// The queue; by default the one that outhaul.toml names for the type, else "default"
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Make one job of any number of calls with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// -10 to 10, larger runs sooner
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number("-10 to 10"), allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Run it not before this time, such as 2026-12-01T08:00:00Z; a time in the past means now
    #[arg(long, value_name = "TIME", value_parser = parse_run_at, allow_hyphen_values = true, conflicts_with = "delay")]
    pub(crate) run_at: Option<Timestamp>,
    /// Run it not before this much time has passed, such as 10m
    #[arg(long, value_name = "TIME", value_parser = time(&DELAY), allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,
    /// Try it this often, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number("1 to 1000"), allow_negative_numbers = true)]
    pub(crate) max_attempts: i32,
    /// How long one attempt may take, such as 30s
    #[arg(long, value_name = "TIME", value_parser = time(&LIMIT), allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// The organization it belongs to
    #[arg(long, value_name = "UUID")]
    pub(crate) organization: Option<Uuid>,
    /// The W3C trace context to hand on
    #[arg(long, value_name = "TEXT")]
    pub(crate) traceparent: Option<String>,
    /// Wait until it has ended, and exit with 1 unless it completed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait at most this long, and exit with 7 then
    #[arg(long, value_name = "TIME", value_parser = time(&WAIT), allow_hyphen_values = true, requires = "wait")]
    pub(crate) wait_timeout: Option<Duration>,
}

#[derive(Args)]
#[command(after_help = WORK_HELP)]
pub(crate) struct Work {
    /// Work this queue, N handlers at once; by default the queues of all bound job types
    #[arg(long = "queue", value_name = "NAME[=N]", value_parser = parse_queue)]
    pub(crate) queues: Vec<(String, Option<usize>)>,
    /// Serve /metrics, /livez and /readyz here, such as 127.0.0.1:9184
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) metrics_addr: Option<SocketAddr>,
    /// How long a claim holds a job before it must be renewed
    #[arg(long, value_name = "TIME", value_parser = time(&LEASE), allow_hyphen_values = true)]
    pub(crate) lease: Option<Duration>,
    /// How often an idle worker looks without being told to
    #[arg(long, value_name = "TIME", value_parser = time(&POLL), allow_hyphen_values = true)]
    pub(crate) poll: Option<Duration>,
    /// How long a stopping worker waits for what runs
    #[arg(long, value_name = "TIME", value_parser = time(&DRAIN), allow_hyphen_values = true)]
    pub(crate) drain: Option<Duration>,
    /// The form of the log on standard error
    #[arg(long, value_name = "FORM")]
    pub(crate) log_format: Option<LogFormat>,
}

const WORK_HELP: &str = "\
outhaul.toml binds job types to commands:
  [jobs.\"mail.welcome\"]
  command = [\"./send-mail\"]
  queue = \"mail\"
  timeout = \"30s\"

The payload is on standard input; OUTHAUL_JOB_ID, OUTHAUL_JOB_TYPE, OUTHAUL_QUEUE, OUTHAUL_ATTEMPT,
OUTHAUL_MAX_ATTEMPTS, OUTHAUL_CLAIM_NO, OUTHAUL_LEASE_TOKEN and TRACEPARENT are in the environment.
A path with a / counts from the file's folder. The command has a process group of its own, which ends
with it, at its time limit, and when its lease is lost: SIGTERM, then SIGKILL after the grace.
Exit code 0 completes the job, 65 makes it a dead letter, 75 asks for another try, 77 cancels it;
anything else is tried up to three times. The last lines of standard error become the summary.

SIGTERM or SIGINT finishes what runs; a second one gives it back at once.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
pub(crate) enum Jobs {
    /// List jobs, newest first
    List(JobsList),
    /// Show one job and its attempts
    Show {
        /// The job's id
        id: JobId,
        /// Show its payload too (a right of its own)
        #[arg(long)]
        payload: bool,
    },
    /// Cancel jobs, waiting or running, by their ids or by an idempotency key
    Cancel(JobsCancel),
    /// Make waiting jobs due now, and bring dead letters back
    Retry(JobsAct),
    /// Wait until a job has ended, and exit with 1 unless it completed
    Wait {
        /// The job's id
        id: JobId,
        /// Wait at most this long, and exit with 7 then
        #[arg(long, value_name = "TIME", value_parser = time(&WAIT), allow_hyphen_values = true)]
        timeout: Option<Duration>,
    },
}

#[derive(Args)]
pub(crate) struct JobsList {
    /// Only in this state; may be repeated
    #[arg(long = "status", alias = "state", value_name = "STATUS")]
    pub(crate) statuses: Vec<JobStatus>,
    /// Only in this queue
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) job_type: Option<String>,
    /// At most this many, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub(crate) limit: i32,
    /// Older than this one: the next page
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<JobId>,
    /// Print one JSON object for each job
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
}

#[derive(Args)]
pub(crate) struct JobsCancel {
    /// The jobs' ids
    #[arg(required_unless_present = "key", value_name = "ID")]
    pub(crate) ids: Vec<JobId>,
    /// The idempotency key of the job, instead of its id
    #[arg(long, value_name = "KEY", conflicts_with = "ids", requires = "job_type")]
    pub(crate) key: Option<String>,
    /// The type of the job that has the key
    #[arg(long = "type", value_name = "TYPE", requires = "key")]
    pub(crate) job_type: Option<String>,
    /// The organization of the job that has the key, if it has one
    #[arg(long, value_name = "UUID", requires = "key")]
    pub(crate) organization: Option<Uuid>,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Args)]
pub(crate) struct JobsAct {
    /// The jobs' ids
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<JobId>,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Queues {
    /// List queues, the one whose oldest job waits longest first
    List {
        /// Print one JSON object for each queue
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// Stop the claims of a queue; what runs goes on
    Pause(QueuesAct),
    /// Let the claims of a queue go on
    Resume(QueuesAct),
}

#[derive(Args)]
pub(crate) struct QueuesAct {
    /// The queue's name
    #[arg(value_name = "NAME")]
    pub(crate) queue: String,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every setting; passwords are left out
    Show {
        /// Show where each comes from
        #[arg(long)]
        origin: bool,
    },
}

/// A number whose range the library checks.
fn number(range: &'static str) -> impl Fn(&str) -> Result<i32, String> + Clone {
    move |text| text.parse().map_err(|_| format!("write a whole number from {range}"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:9184 or [::1]:9184".to_owned())
}

/// A parser of times in a range.
fn time(times: &'static Times) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| times.parse(text)
}

fn parse_run_at(text: &str) -> Result<Timestamp, String> {
    parse_time(text, "a job is due at a point in time; leave --run-at out for a job that is due now")
}

/// A time with its zone. PostgreSQL would take an infinite one as well, for which there is an `answer`.
fn parse_time(text: &str, answer: &str) -> Result<Timestamp, String> {
    let word = text.trim_start_matches(['-', '+']).to_lowercase();
    if matches!(word.as_str(), "infinity" | "inf") {
        return Err(answer.to_owned());
    }
    let form = "write date, time and zone, such as 2026-12-01T08:00:00Z or 2026-12-01T09:00+01:00";
    text.parse().map_err(|_| form.to_owned())
}

/// `mail=5`, or `mail` with the default number of handlers.
fn parse_queue(text: &str) -> Result<(String, Option<usize>), String> {
    let Some((name, number)) = text.rsplit_once('=') else { return Ok((text.to_owned(), None)) };
    let number = number.parse().ok().filter(|n| *n > 0);
    Ok((name.to_owned(), Some(number.ok_or("write NAME=N with N handlers at once, 1 or more")?)))
}
