//! The arguments of `outhaul publish`, `outhaul outbox` and `outhaul subs`.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use outhaul::{EventId, Start};
use uuid::Uuid;

use super::{number, parse_time};

#[derive(Args)]
#[command(after_help = PUBLISH_HELP)]
pub(crate) struct Publish {
    /// The event's type, such as order.paid
    pub(crate) event_type: String,
    /// The type of the thing that the fact is about, such as order
    pub(crate) aggregate_type: String,
    /// The id of that thing, a UUID
    #[arg(value_parser = parse_thing)]
    pub(crate) aggregate_id: Uuid,
    /// The payload as JSON, or - to read it from standard input
    #[arg(value_name = "JSON|-", default_value = "{}", allow_hyphen_values = true)]
    pub(crate) payload: String,
    /// The event's id; by default a new one
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<EventId>,
    /// Make one event of any number of calls with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// The version of the payload's form, 1 or more
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number("1 to 2147483647"), allow_negative_numbers = true)]
    pub(crate) schema_version: i32,
    /// What it is to be handled in the order of, where that is not the thing's id
    #[arg(long, value_name = "TEXT")]
    pub(crate) partition_key: Option<String>,
    /// When the fact became true, such as 2026-12-01T08:00:00Z; by default now
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    pub(crate) occurred_at: Option<Timestamp>,
    /// Hide it from the relay until this time; subscriptions get it at once
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    pub(crate) available_at: Option<Timestamp>,
    /// The organization it belongs to
    #[arg(long, value_name = "UUID")]
    pub(crate) organization: Option<Uuid>,
    /// The W3C trace context to hand on
    #[arg(long, value_name = "TEXT")]
    pub(crate) traceparent: Option<String>,
}

const PUBLISH_HELP: &str = "\
An event is a fact, in the past tense, and belongs in the transaction that makes it one:
  update orders set paid = true where id = $1 and not paid;
  select outhaul.publish('order.paid', 'order', $1, '{\"cents\": 995}');
This command is for trying things out and for repairs.

A thing whose key is no UUID needs one that is always the same: a column of its row, or
uuid_generate_v5 of its key.";

#[derive(Subcommand)]
pub(crate) enum Outbox {
    /// List events, the last one inserted first
    List(OutboxList),
    /// Show one event, what became of it, and which subscriptions have set it aside
    Show {
        /// The event's id
        id: EventId,
        /// Show its payload too (a right of its own)
        #[arg(long)]
        payload: bool,
    },
    /// Print events as they get their positions, in that order, until interrupted
    Tail(OutboxTail),
    /// Show the last position, what has none yet, and what waits for the relay
    Status,
    /// Compare events, positions, cursors and what became of events; exit with 1 if anything does not fit
    Check {
        /// Name at most this many findings of a kind
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=10_000))]
        limit: i32,
    },
    /// Give events that the relay has parked another round of attempts
    Retry {
        /// The events' ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<EventId>,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Begin a new history of positions: once, after a restore that goes its own way
    RotateHistory {
        #[command(flatten)]
        consent: Consent,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

/// The answer to a question that is asked on a terminal.
#[derive(Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args)]
pub(crate) struct OutboxList {
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only about things of this type
    #[arg(long, value_name = "TYPE")]
    pub(crate) aggregate_type: Option<String>,
    /// Only about the thing with this id
    #[arg(long, value_name = "UUID", value_parser = parse_thing)]
    pub(crate) aggregate_id: Option<Uuid>,
    /// Only those that the relay has parked
    #[arg(long)]
    pub(crate) parked: bool,
    /// At most this many, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub(crate) limit: i32,
    /// Inserted before the one with this number: the next page
    #[arg(long, value_name = "SEQ")]
    pub(crate) before: Option<i64>,
    /// Print one JSON object for each event
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
}

#[derive(Args)]
#[command(after_help = TAIL_HELP)]
pub(crate) struct OutboxTail {
    /// Only of this type; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_types: Vec<String>,
    /// Begin at the oldest event that is kept, now, after a position, or at a time
    #[arg(long, value_name = "beginning|now|POSITION|TIME", default_value = "now", value_parser = parse_start, allow_hyphen_values = true)]
    pub(crate) from: Start,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lines: Option<u64>,
}

const TAIL_HELP: &str = "\
With --json each event is one object on a line of its own. Events get their positions from
workers that read them: while none runs nothing new is printed. When the database is away it
is waited for, and the tail goes on behind the event that was printed last.";

const SUBS_HELP: &str = "\
BEHIND counts positions up to the head, of whatever type: also those of events that the subscription's
filter leaves out, which it passes without handling them. OLDEST is the age of the first of them.
PARKED counts events that failed after their last attempt; subs show tells what was skipped or given back.";

#[derive(Subcommand)]
pub(crate) enum Subs {
    /// List subscriptions, the one whose oldest event waits longest first
    #[command(after_help = SUBS_HELP)]
    List {
        /// Print one JSON object for each subscription
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
    },
    /// Show one subscription, what holds it back, and what it has set aside
    Show(SubsShow),
    /// Stop a subscription; what runs goes on
    Pause(SubsAct),
    /// Let a subscription go on
    Resume(SubsAct),
    /// Deliver again: set the position of a subscription back
    Rewind(SubsRewind),
    /// Leave out the event that is next, or that it waits at, which is kept as skipped
    Skip {
        /// The subscription's name
        name: String,
        /// The position of the event, as `subs show` tells it
        position: i64,
        /// Why nobody needs it, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Give parked or skipped events back, each to be handled by itself
    Unpark {
        /// The subscription's name
        name: String,
        /// The positions of the events
        #[arg(required = true, value_name = "POSITION")]
        positions: Vec<i64>,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Forget a subscription and what it has parked
    Drop {
        /// The subscription's name
        name: String,
        #[command(flatten)]
        consent: Consent,
        /// Why, for the audit record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Args)]
#[command(after_help = SUBS_HELP)]
pub(crate) struct SubsShow {
    /// The subscription's name
    pub(crate) name: String,
    /// At most this many parked events, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub(crate) limit: i32,
    /// Parked events before this position: the next page
    #[arg(long, value_name = "POSITION")]
    pub(crate) before: Option<i64>,
}

#[derive(Args)]
pub(crate) struct SubsAct {
    /// The subscription's name
    pub(crate) name: String,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

const REWIND_HELP: &str = "\
A position is the last one that counts as handled: --to 7 delivers 8 and what follows, --to 6 also 7.
What was parked, skipped or given back after it comes again in its place, once, and is aside no more.
What was given back up to it still comes first. What the filter leaves out stays aside.";

#[derive(Args)]
#[command(after_help = REWIND_HELP)]
pub(crate) struct SubsRewind {
    /// The subscription's name
    pub(crate) name: String,
    /// Deliver what follows: from the oldest event that is kept on, after a position (--to 7 begins with 8), or from a time on
    #[arg(long, value_name = "beginning|POSITION|TIME", value_parser = parse_earlier, allow_hyphen_values = true)]
    pub(crate) to: Start,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Why, for the audit record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

fn parse_thing(text: &str) -> Result<Uuid, String> {
    let form = "an aggregate id is a UUID, such as 01a22d96-f667-741b-9170-ea2010b260f0: the key of the thing's row, or a column \
        beside it where the key is something else";
    text.parse().map_err(|_| form.to_owned())
}

fn parse_moment(text: &str) -> Result<Timestamp, String> {
    parse_time(text, "a fact has its time at a point in time; leave the flag out for now")
}

fn parse_start(text: &str) -> Result<Start, String> {
    let form =
        "write beginning, now, a position such as 4711, or date, time and zone, such as 2026-12-01T08:00:00Z";
    match text {
        "beginning" => Ok(Start::Beginning),
        "now" => Ok(Start::Now),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map(Start::Position).map_err(|_| form.to_owned())
        }
        _ => text.parse().map(Start::Time).map_err(|_| form.to_owned()),
    }
}

fn parse_earlier(text: &str) -> Result<Start, String> {
    let form =
        "write beginning, a position such as 4711, or date, time and zone, such as 2026-12-01T08:00:00Z";
    match parse_start(text).map_err(|_| form.to_owned())? {
        Start::Now => Err("a rewind to now would leave out what was not handled; to leave one event out: outhaul subs skip NAME POSITION --reason TEXT".to_owned()),
        start => Ok(start),
    }
}
