//! `outhaul outbox tail`: events as they get their positions.

use std::time::Duration;

use outhaul::{EventView, Observer, Start, TailView};
use tokio::signal::unix::{SignalKind, signal};

use super::super::observer;
use crate::cli::OutboxTail;
use crate::exit::Exit;
use crate::output::{Global, or_dash, span, time};

/// The pause after a look that found nothing more.
const PAUSE: Duration = Duration::from_millis(250);

/// The positions that one look goes over.
const WINDOW: i32 = 500;

/// Looks in vain after which it is asked why nothing comes: about every five seconds.
const WONDER_EVERY: u32 = 20;

/// Events wait for a position this long, in milliseconds, only where nobody gives them one.
const WAITS_LONG_MS: i64 = 2_000;

const COLUMNS: [(&str, usize); 6] =
    [("POSITION", 10), ("AT", 20), ("TYPE", 24), ("AGGREGATE_TYPE", 16), ("AGGREGATE_ID", 36), ("ID", 36)];

pub(crate) async fn run(args: OutboxTail, global: &Global) -> anyhow::Result<Exit> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let follow = async {
        let observer = observer(global).await?;
        Tail { observer, args: &args, global, quiet_looks: 0, wondered: false }.follow().await
    };
    tokio::select! {
        done = follow => done,
        _ = int.recv() => Ok(Exit::Interrupted),
        _ = term.recv() => Ok(Exit::Interrupted),
    }
}

struct Tail<'a> {
    observer: Observer,
    args: &'a OutboxTail,
    global: &'a Global,
    /// Looks since something came last.
    quiet_looks: u32,
    /// Whether it was said why nothing comes.
    wondered: bool,
}

impl Tail<'_> {
    async fn follow(&mut self) -> anyhow::Result<Exit> {
        let mut left = self.args.lines.unwrap_or(u64::MAX);
        let mut position = self.look(self.args.from, 0).await?.through;
        self.global.say(format_args!("following events after position {position}"));
        if !self.global.json {
            self.global.print_row(COLUMNS.map(|(name, width)| (name.to_owned(), width)))?;
        }
        loop {
            let seen = self.look(Start::Position(position), WINDOW).await?;
            for event in &seen.events {
                print(event, self.global)?;
                left -= 1;
                if left == 0 {
                    return Ok(Exit::Ok);
                }
            }
            let moved = seen.through - position;
            position = seen.through;
            if moved == i64::from(WINDOW) {
                continue;
            }
            self.wonder(moved == 0).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Looks along the feed, once the database is there. Nothing is printed in between, so it goes on where it was.
    async fn look(&self, from: Start, n: i32) -> anyhow::Result<TailView> {
        let mut told = false;
        loop {
            match self.observer.tail(from, &self.args.event_types, n).await {
                Ok(seen) => return Ok(seen),
                Err(error)
                    if error.is_retryable() || error.is_unavailable() || error.is_outcome_unknown() =>
                {
                    if !std::mem::replace(&mut told, true) {
                        self.global.say(format_args!("waiting for the database: {error}"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Says so, once, when events wait that nobody gives a position.
    async fn wonder(&mut self, quiet: bool) {
        self.quiet_looks = if quiet { self.quiet_looks + 1 } else { 0 };
        if self.wondered || self.quiet_looks % WONDER_EVERY != 1 {
            return;
        }
        let Ok(outbox) = self.observer.outbox().await else { return };
        if let Some(ms) = outbox.oldest_unsequenced_ms.filter(|ms| *ms > WAITS_LONG_MS) {
            self.wondered = true;
            let (n, long) = (outbox.unsequenced, span(ms));
            self.global.say(format_args!(
                "events without a position: {n}, the oldest for {long}; they get one from a worker that reads the outbox"
            ));
        }
    }
}

fn print(event: &EventView, global: &Global) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(event);
    }
    let cells = [
        or_dash(event.position),
        time(event.at),
        event.event_type.clone(),
        event.aggregate_type.clone(),
        event.aggregate_id.to_string(),
        event.id.to_string(),
    ];
    Ok(global.print_row(cells.into_iter().zip(COLUMNS.map(|(_, width)| width)))?)
}
