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

use crate::config::times::{DELAY, DRAIN, LEASE, LIMIT, OBJECTIVE, PERIOD, POLL, Times, WAIT};

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
            Command::Queues(
                Queues::Pause(_) | Queues::Resume(_) | Queues::Set(_) | Queues::LimitKey { .. },
            ) => "outhaul_operator",
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
    /// Run jobs of this key one after another, in the order in which they were enqueued
    #[arg(long, value_name = "KEY")]
    pub(crate) ordering_key: Option<String>,
    /// Count it against the limit of this key in its queue (queues set --max-per-key)
    #[arg(long, value_name = "KEY")]
    pub(crate) limit_key: Option<String>,
    /// Count it against the rate of this key in its queue, and wait with it when it is told to (queues set --key-rate)
    #[arg(long, value_name = "KEY")]
    pub(crate) rate_key: Option<String>,
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
    /// Work as this role of outhaul.toml: its queues, its projections, its settings
    #[arg(long, value_name = "NAME", conflicts_with = "queues")]
    pub(crate) role: Option<String>,
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

A role is what one process does, so that others keep it from nothing:
  [roles.alerts]
  queues = { critical_alerts = 8, notifications = 4 }
and then `outhaul work --role alerts`, in a process, with connections, of its own. A role may have
projections = [\"NAME\"] (it runs no others), max_connections, lease, poll, drain, metrics_addr,
database_url, listen_url and owner_url: they go before the settings of the same name, wherever
those come from, and only a flag goes before them.

The payload is on standard input; OUTHAUL_JOB_ID, OUTHAUL_JOB_TYPE, OUTHAUL_QUEUE, OUTHAUL_ATTEMPT,
OUTHAUL_MAX_ATTEMPTS, OUTHAUL_CLAIM_NO, OUTHAUL_LEASE_TOKEN and TRACEPARENT are in the environment.
A path with a / counts from the file's folder. The command has a process group of its own, which ends
with it, at its time limit, and when its lease is lost: SIGTERM, then SIGKILL after the grace.
Exit code 0 completes the job, 65 makes it a dead letter, 75 asks for another try, 77 cancels it;
anything else is tried up to three times. The last lines of standard error become the summary. With 75
one of them may say when, as HTTP does: Retry-After: 30

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
    ///
    /// OLDEST is the age of the oldest job that could run, or would if it were its turn; WAITING counts those that wait for
    /// their turn or for a unit of their key; LIMIT is units in use of --max-running; COOLING is the time left of a cooldown,
    /// or how many rate keys have one.
    List {
        /// Print one JSON object for each queue
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// Show one queue: counts, settings, and which keys its jobs wait for
    Show {
        /// The queue
        #[arg(value_name = "NAME")]
        queue: String,
        /// At most this many keys of each kind, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(i32).range(1..=1000))]
        keys: i32,
    },
    /// Change the settings of a queue for the whole cluster, from its next claim on
    Set(Box<QueuesSet>),
    /// Give one limit key of a queue a limit of its own, or take it back
    LimitKey {
        /// The queue
        #[arg(value_name = "NAME")]
        queue: String,
        /// The limit key
        key: String,
        /// Most of its jobs at the same time, 0 (nothing of it runs) to 10000; none takes it back
        #[arg(value_name = "N|none", value_parser = whole_or_none(0, 10_000))]
        most: Set<i32>,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Stop the claims of a queue; what runs goes on
    Pause(QueuesAct),
    /// Let the claims of a queue go on
    Resume(QueuesAct),
}

const SET_HELP: &str = "\
  outhaul queues set reports --max-running 4 --max-per-key 1 --objective 1h
  outhaul queues set webhooks --rate 100/1m --burst 20 --reason 'what the partner allows'
  outhaul queues set webhooks --rate none

What is not named stays. A limit counts leases that begin from now on: what runs already is not counted,
and where a limit is lowered, what runs goes on.";

#[derive(Args)]
#[command(after_help = SET_HELP)]
pub(crate) struct QueuesSet {
    /// The queue; one that has no jobs yet can be set, too
    #[arg(value_name = "NAME")]
    pub(crate) queue: String,
    /// Most jobs at the same time in the whole cluster, 1 to 10000
    #[arg(long, value_name = "N|none", value_parser = whole_or_none(1, 10_000))]
    pub(crate) max_running: Option<Set<i32>>,
    /// The same for each limit key
    #[arg(long, value_name = "N|none", value_parser = whole_or_none(1, 10_000))]
    pub(crate) max_per_key: Option<Set<i32>>,
    /// Most jobs that begin within a time, such as 100/1m: 1 to 1000000 in 1s to 24h
    #[arg(long, value_name = "N/TIME|none", value_parser = parse_rate)]
    pub(crate) rate: Option<Set<Rate>>,
    /// How many of them may begin at once; without it as many as the rate lets begin in a second, and one at least
    #[arg(long, value_name = "N|none", value_parser = whole_or_none(1, 1_000_000))]
    pub(crate) burst: Option<Set<i32>>,
    /// A rate for each rate key
    #[arg(long, value_name = "N/TIME|none", value_parser = parse_rate)]
    pub(crate) key_rate: Option<Set<Rate>>,
    /// How many jobs of a rate key may begin at once
    #[arg(long, value_name = "N|none", value_parser = whole_or_none(1, 1_000_000))]
    pub(crate) key_burst: Option<Set<i32>>,
    /// Whether organizations take turns; it holds for what is enqueued from now on
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    pub(crate) fair: Option<bool>,
    /// How long a job should wait at most, which alerts compare with
    #[arg(long, value_name = "TIME|none", value_parser = parse_objective)]
    pub(crate) objective: Option<Set<Duration>>,
    /// What stays of a completed job: nothing, its row, or its row with the payload
    #[arg(long, value_name = "none|row|payload", value_parser = ["none", "row", "payload"], hide_possible_values = true)]
    pub(crate) history: Option<String>,
    /// End a cooldown of the whole queue; rate keys that were told to wait go on waiting
    #[arg(long)]
    pub(crate) end_cooldown: bool,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// A new value, or `none`, which takes the old one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set<T> {
    To(T),
    None,
}

impl<T> Set<T> {
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Set::To(value) => Some(value),
            Set::None => None,
        }
    }
}

/// So many within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) jobs: i32,
    pub(crate) per: Duration,
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

/// `none`, or whatever else is written.
fn or_none<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Set<T>, String> {
    if text == "none" { Ok(Set::None) } else { read(text).map(Set::To) }
}

/// A whole number within a range, or `none`.
fn whole_or_none(
    least: i32,
    most: i32,
) -> impl Fn(&str) -> Result<Set<i32>, String> + Clone + Send + Sync + 'static {
    move |text| or_none(text, |text| whole(text, least, most))
}

fn whole(text: &str, least: i32, most: i32) -> Result<i32, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("write a whole number from {least} to {most}, or none"))
}

/// `100/1m`, and `100/m` for the same.
fn parse_rate(text: &str) -> Result<Set<Rate>, String> {
    or_none(text, |text| {
        let form = || "write N/TIME, such as 100/1m, or none".to_owned();
        let (jobs, per) = text.split_once('/').ok_or_else(form)?;
        let jobs = jobs.parse().ok().filter(|n| (1..=1_000_000).contains(n));
        let jobs = jobs.ok_or("before the / stands a whole number from 1 to 1000000")?;
        let per = if per.starts_with(|c: char| c.is_ascii_alphabetic()) {
            format!("1{per}")
        } else {
            per.to_owned()
        };
        let per = whole_seconds(&per, &PERIOD).map_err(|wrong| format!("after the /: {wrong}"))?;
        Ok(Rate { jobs, per })
    })
}

fn parse_objective(text: &str) -> Result<Set<Duration>, String> {
    or_none(text, |text| whole_seconds(text, &OBJECTIVE))
}

fn whole_seconds(text: &str, times: &Times) -> Result<Duration, String> {
    let time = times.parse(text)?;
    if time.subsec_nanos() == 0 { Ok(time) } else { Err("write whole seconds".to_owned()) }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

/// `mail=5`, or `mail` with the default number of handlers.
fn parse_queue(text: &str) -> Result<(String, Option<usize>), String> {
    let Some((name, number)) = text.rsplit_once('=') else { return Ok((text.to_owned(), None)) };
    let number = number.parse().ok().filter(|n| *n > 0);
    Ok((name.to_owned(), Some(number.ok_or("write NAME=N with N handlers at once, 1 or more")?)))
}
