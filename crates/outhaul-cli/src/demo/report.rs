//! The end of the demonstration, for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::reconcile::{EventTally, Missing, NamedTally, QueueTally, Reconciliation, Recovery, rounded};
use crate::output::Global;

/// What is told beside the reconciliation.
pub(super) struct Circumstances {
    pub(super) what: String,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    /// The operation whose live row was deleted on purpose.
    pub(super) sabotaged: Option<Uuid>,
    pub(super) afterwards: Option<String>,
}

/// Prints the report, in the form that was asked for.
pub(super) fn print(global: &Global, found: &Reconciliation, about: &Circumstances) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(&Answer::new(found, about));
    }
    let colors = Colors { on: global.color };
    for line in text(found, about, colors) {
        global.print(line)?;
    }
    Ok(())
}

/// The one object of `--json`. Every name in it is stable.
#[derive(Serialize)]
struct Answer<'a> {
    ok: bool,
    committed: usize,
    completed: usize,
    dead: usize,
    cancelled: usize,
    lost: usize,
    duplicates_effect: usize,
    phantom: usize,
    worker_killed: bool,
    recovered: usize,
    rolled_back: usize,
    rolled_back_transactions: usize,
    repeats_explained: usize,
    enqueued_twice: usize,
    answered_duplicate: usize,
    cancelled_by_shop: usize,
    points_booked: usize,
    events: &'a EventTally,
    retries: i64,
    snoozes: i64,
    classes: &'a BTreeMap<String, i64>,
    unfinished: usize,
    killed: Option<&'a Recovery>,
    lost_operations: &'a [Missing],
    phantom_operations: &'a [Uuid],
    duplicate_keys: &'a [String],
    sabotaged_operation: Option<Uuid>,
    queues: &'a [NamedTally],
    seconds: f64,
    seed: u64,
    server: &'a str,
}

impl<'a> Answer<'a> {
    fn new(found: &'a Reconciliation, about: &'a Circumstances) -> Answer<'a> {
        let QueueTally { committed, completed, dead, cancelled, lost } = found.total;
        Answer {
            ok: found.holds(),
            committed,
            completed,
            dead,
            cancelled,
            lost,
            duplicates_effect: found.duplicates_effect,
            phantom: found.phantom_operations.len(),
            worker_killed: found.kill.is_some(),
            recovered: found.kill.as_ref().map_or(0, |kill| kill.recovered),
            rolled_back: found.rolled_back,
            rolled_back_transactions: found.rolled_back_transactions,
            repeats_explained: found.repeats_explained,
            enqueued_twice: found.enqueued_twice,
            answered_duplicate: found.answered_duplicate,
            cancelled_by_shop: found.cancelled_by_shop,
            points_booked: found.points_booked,
            events: &found.events,
            retries: found.retries,
            snoozes: found.snoozes,
            classes: &found.classes,
            unfinished: found.unfinished_jobs,
            killed: found.kill.as_ref(),
            lost_operations: &found.lost_operations,
            phantom_operations: &found.phantom_operations,
            duplicate_keys: &found.duplicate_keys,
            sabotaged_operation: about.sabotaged,
            queues: &found.queues,
            seconds: rounded(about.seconds),
            seed: about.seed,
            server: &about.what,
        }
    }
}

fn classes(classes: &BTreeMap<String, i64>) -> String {
    let words: Vec<String> =
        classes.iter().map(|(class, n)| format!("{n} {}", class.replace('_', " "))).collect();
    words.join(", ")
}

#[derive(Clone, Copy)]
struct Colors {
    on: bool,
}

impl Colors {
    fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn text(found: &Reconciliation, about: &Circumstances, colors: Colors) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{}  {:.1} s on {}, seed {}",
            colors.paint("1", "outhaul demo"),
            about.seconds,
            about.what,
            about.seed
        ),
        String::new(),
        "What the shop has committed, against what the handlers logged in another place:".to_owned(),
        String::new(),
    ];
    lines.extend(table(found, colors));
    lines.push(String::new());
    lines.extend(story(found));
    lines.push(String::new());
    lines.extend(missing(found, about));
    lines.push(verdict(found, colors));
    lines.extend(about.afterwards.clone());
    lines
}

fn table(found: &Reconciliation, colors: Colors) -> Vec<String> {
    let row = |name: &str, tally: QueueTally| {
        format!(
            "  {name:<16}{:>10}{:>11}{:>7}{:>11}{:>7}",
            tally.committed, tally.completed, tally.dead, tally.cancelled, tally.lost
        )
    };
    let head = format!(
        "  {:<16}{:>10}{:>11}{:>7}{:>11}{:>7}",
        "QUEUE", "COMMITTED", "COMPLETED", "DEAD", "CANCELLED", "LOST"
    );
    let mut lines = vec![colors.paint("2", &head)];
    lines.extend(found.queues.iter().map(|queue| row(queue.queue, queue.tally)));
    lines.push(colors.paint("1", &row("all", found.total)));
    lines
}

/// What was done to the system, and what came of it.
fn story(found: &Reconciliation) -> Vec<String> {
    let line = |name: &str, text: String| format!("  {name:<15} {text}");
    let mut lines = vec![
        line(
            "rolled back",
            format!(
                "{} transactions with {} jobs: {} of them ran",
                found.rolled_back_transactions,
                found.rolled_back,
                none_or(found.phantom_operations.len())
            ),
        ),
        line(
            "enqueued twice",
            format!(
                "{} under one key; {} answered with the job that was there",
                found.enqueued_twice, found.answered_duplicate
            ),
        ),
        line(
            "failures",
            format!(
                "{} retries, {} snoozed, {} dead, {} cancelled ({} by the shop)",
                found.retries,
                found.snoozes,
                found.total.dead,
                found.total.cancelled,
                found.cancelled_by_shop
            ),
        ),
        line("their classes", classes(&found.classes)),
        line("killed", found.kill.as_ref().map_or_else(|| "no worker held enough jobs".to_owned(), killed)),
        line(
            "second effects",
            format!(
                "{}; {} repeats after failures were absorbed by keys",
                none_or(found.duplicates_effect),
                found.repeats_explained
            ),
        ),
        line(
            "loyalty points",
            format!("{} bookings, each in the transaction that completed its job", found.points_booked),
        ),
    ];
    let events = &found.events;
    lines.push(line(
        "facts",
        format!(
            "{} committed; a projection turned them into {} jobs, a ledger read {} in order",
            events.committed, events.jobs, events.handled
        ),
    ));
    lines.push(line(
        "",
        format!(
            "lost {}, twice {}, out of order {}; {} rolled back, {} of them read",
            none_or(events.lost_events.len()),
            none_or(events.twice),
            none_or(events.out_of_order),
            events.rolled_back,
            none_or(events.phantom)
        ),
    ));
    if found.unfinished_jobs > 0 {
        lines.push(line("unfinished", format!("{} jobs", found.unfinished_jobs)));
    }
    lines
}

fn killed(kill: &Recovery) -> String {
    let again = match (kill.first_seconds, kill.last_seconds) {
        (Some(first), Some(last)) => format!(", {first:.1}-{last:.1} s later"),
        _ => String::new(),
    };
    format!("worker {} held {} jobs; {} ran again and ended{again}", kill.worker, kill.held, kill.recovered)
}

fn none_or(n: usize) -> String {
    if n == 0 { "none".to_owned() } else { n.to_string() }
}

/// The ids behind every number that should be zero. The first twenty tell the story; `--json` has all.
fn missing(found: &Reconciliation, about: &Circumstances) -> Vec<String> {
    let mut lines = Vec::new();
    for lost in found.lost_operations.iter().take(20) {
        let deleted = about.sabotaged == Some(lost.operation);
        let why = if deleted { "  (its live row was deleted by --sabotage)" } else { "" };
        lines.push(format!("  lost       operation {}  {}{why}", lost.operation, lost.job_type));
    }
    let phantoms = found.phantom_operations.iter().take(20);
    lines.extend(phantoms.map(|id| format!("  phantom    operation {id} ran and was never committed")));
    let events = found.events.lost_events.iter().take(20);
    lines.extend(events.map(|id| format!("  lost       event {id} was committed and is not in the ledger")));
    let keys = found.duplicate_keys.iter().take(20);
    lines.extend(keys.map(|key| format!("  duplicate  a second effect under key {key}")));
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

fn verdict(found: &Reconciliation, colors: Colors) -> String {
    let numbers = format!(
        "lost {}   phantom {}   second effects {}",
        found.total.lost,
        found.phantom_operations.len(),
        found.duplicates_effect
    );
    if found.holds() {
        format!("  {}   nothing committed is missing", colors.paint("1;32", &numbers))
    } else {
        format!("  {}   the promise was broken", colors.paint("1;31", &numbers))
    }
}
