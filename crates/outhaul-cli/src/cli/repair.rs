//! The arguments of `outhaul dead` and `outhaul operations`.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use outhaul::{JobId, Selection};
use uuid::Uuid;

use super::events::Consent;
use super::parse_time;

#[derive(Subcommand)]
pub(crate) enum Dead {
    /// List dead letters, the last one that died first
    List(DeadList),
    /// Count dead letters by queue, type and code, the largest group first
    Groups {
        #[command(flatten)]
        which: DeadWhich,
        /// At most this many groups, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=1000))]
        limit: i32,
        /// Print one JSON object for each group
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// End dead letters for good; their idempotency keys are kept for 7 days
    Discard {
        /// The jobs' ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<JobId>,
        /// Why nobody needs them, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Args)]
pub(crate) struct DeadList {
    #[command(flatten)]
    pub(crate) which: DeadWhich,
    /// At most this many, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub(crate) limit: i32,
    /// The next page: what the page before has named
    #[arg(long, value_name = "TIME/ID", value_parser = parse_cursor)]
    pub(crate) cursor: Option<(Timestamp, JobId)>,
    /// Print one JSON object for each dead letter
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
}

/// Which dead letters.
#[derive(Args)]
pub(crate) struct DeadWhich {
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only with this code of the last failure; '' for those without one
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Only with this class of the last failure, such as permanent
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Only of this organization
    #[arg(long, value_name = "UUID")]
    organization: Option<Uuid>,
    /// Only those that died at this time or later, such as 2026-12-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    since: Option<Timestamp>,
    /// Only those that died before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    before: Option<Timestamp>,
}

impl DeadWhich {
    pub(crate) fn selection(self, all: bool) -> Selection {
        Selection {
            queue: self.queue,
            job_type: self.job_type,
            code: self.code,
            class: self.class,
            organization: self.organization,
            died_after: self.since,
            died_before: self.before,
            all,
            ..Selection::default()
        }
    }
}

/// Which jobs that have not ended.
#[derive(Args)]
pub(crate) struct LiveWhich {
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only with this code of the last failure; '' for those without one
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Only of this organization
    #[arg(long, value_name = "UUID")]
    organization: Option<Uuid>,
    /// Only with this ordering key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Only with this limit key
    #[arg(long, value_name = "KEY")]
    limit_key: Option<String>,
    /// Only those enqueued at this time or later, such as 2026-12-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    since: Option<Timestamp>,
    /// Only those enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    before: Option<Timestamp>,
}

impl LiveWhich {
    pub(crate) fn selection(self, all: bool) -> Selection {
        Selection {
            queue: self.queue,
            job_type: self.job_type,
            code: self.code,
            organization: self.organization,
            ordering_key: self.ordering_key,
            limit_key: self.limit_key,
            created_after: self.since,
            created_before: self.before,
            all,
            ..Selection::default()
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Operations {
    /// Choose dead letters to bring back, and do nothing to them yet
    Replay {
        #[command(flatten)]
        new: OperationNew,
        #[command(flatten)]
        which: DeadWhich,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Choose dead letters to end for good, and do nothing to them yet
    Discard {
        #[command(flatten)]
        new: OperationNew,
        #[command(flatten)]
        which: DeadWhich,
        /// Why nobody needs them, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Choose waiting and running jobs to cancel, and do nothing to them yet
    Cancel {
        #[command(flatten)]
        new: OperationNew,
        #[command(flatten)]
        which: LiveWhich,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List operations, the last one made first
    List {
        /// Print one JSON object for each operation
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// Show an operation: its set as it was chosen, and how far it is
    Show {
        /// Its name
        name: String,
    },
    /// List the jobs of an operation, and what became of each
    Items {
        /// Its name
        name: String,
        /// Only with this outcome: replayed, discarded, cancelled, live, died_again, dead_letter, ended or gone
        #[arg(long, value_name = "OUTCOME")]
        outcome: Option<String>,
        /// After this one: the next page
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        after: i64,
        /// At most this many, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=1000))]
        limit: i32,
        /// Print one JSON object for each job
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// Begin with an operation that is ready
    Start {
        #[command(flatten)]
        which: OperationAct,
        #[command(flatten)]
        consent: Consent,
        /// Go on with it until it is done, also where no worker runs
        #[arg(long)]
        wait: bool,
    },
    /// Do nothing more to the jobs of an operation; it can be resumed
    Stop(OperationAct),
    /// Go on with an operation that was stopped
    Resume {
        #[command(flatten)]
        which: OperationAct,
        /// Go on with it until it is done, also where no worker runs
        #[arg(long)]
        wait: bool,
    },
}

#[derive(Args)]
pub(crate) struct OperationNew {
    /// A name of your choice: letters, digits, dots, dashes and underscores
    pub(crate) name: String,
    /// Choose all of them, instead of naming a queue, a type or anything else
    #[arg(long)]
    pub(crate) all: bool,
    /// Act on at most this many in a second, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub(crate) per_second: i32,
}

#[derive(Args)]
pub(crate) struct OperationAct {
    /// Its name
    pub(crate) name: String,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

fn parse_cursor(text: &str) -> Result<(Timestamp, JobId), String> {
    let parsed = text.split_once('/').and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
    parsed.ok_or_else(|| "write what the page before has named: a time, / and an id".to_owned())
}

fn parse_moment(text: &str) -> Result<Timestamp, String> {
    parse_time(text, "name a point in time, or leave the flag out")
}
