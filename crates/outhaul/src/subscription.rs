//! What a worker is told about the outbox: ordered subscriptions and the relay.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::model::check_name;

/// Where a new subscription begins to read. One that exists keeps its position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Start {
    /// At the oldest event that is kept.
    Beginning,
    /// After what has a position now.
    #[default]
    Now,
    /// After this position.
    Position(i64),
    /// At the first event that was inserted at this time or later, by the database's clock.
    Time(Timestamp),
}

impl Start {
    pub(crate) fn text(self) -> String {
        match self {
            Start::Beginning => "beginning".to_owned(),
            Start::Now => "now".to_owned(),
            Start::Position(position) => position.to_string(),
            Start::Time(at) => at.to_string(),
        }
    }
}

/// `beginning`, `now`, a position such as `4711`, or a time such as `2026-12-01T08:00:00Z`.
impl std::str::FromStr for Start {
    type Err = Error;

    fn from_str(text: &str) -> Result<Start> {
        Ok(match text {
            "beginning" => Start::Beginning,
            "now" => Start::Now,
            _ => match (text.parse().ok().filter(|position| *position >= 0), text.parse()) {
                (Some(position), _) => Start::Position(position),
                (None, Ok(at)) => Start::Time(at),
                (None, Err(_)) => {
                    return Err(Error::invalid(
                        "start",
                        "the start is not valid",
                        "Use beginning, now, a position from 0 on, or a time such as 2026-12-01T08:00:00Z.",
                    ));
                }
            },
        })
    }
}

/// An ordered, checkpointed subscription to the outbox.
///
/// Events come in the order of their positions, one batch at a time over all processes that name the same
/// subscription, and again after a failure or a crash until they are handled: a handler must be idempotent, or commit its
/// effects with the checkpoint ([`EventContext::advance_in`](crate::EventContext::advance_in)).
///
/// ```
/// use outhaul::{Start, Subscription};
///
/// let mails = Subscription::new("mails").events(["order.placed", "order.cancelled"]).start(Start::Beginning);
/// # let _ = mails;
/// ```
#[derive(Clone, Debug)]
pub struct Subscription {
    pub(crate) name: String,
    pub(crate) start: Start,
    pub(crate) event_types: Option<Vec<String>>,
    pub(crate) aggregate_types: Option<Vec<String>>,
    pub(crate) parks_after: Option<i32>,
    pub(crate) batch: i32,
    pub(crate) gone_after: Duration,
}

impl Subscription {
    /// A subscription to everything from now on, which waits at an event that fails.
    pub fn new(name: impl Into<String>) -> Subscription {
        Subscription {
            name: name.into(),
            start: Start::Now,
            event_types: None,
            aggregate_types: None,
            parks_after: None,
            batch: 100,
            gone_after: Duration::from_secs(86_400),
        }
    }

    /// Where it begins to read when it is new.
    pub fn start(mut self, start: Start) -> Subscription {
        self.start = start;
        self
    }

    /// Only events of these types.
    pub fn events(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Subscription {
        self.event_types = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// Only events of aggregates of these types.
    pub fn aggregates(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Subscription {
        self.aggregate_types = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// Sets an event aside that has failed this often in a row, 1 to 1000, or for good, and goes on behind it. Without
    /// this the cursor waits at the event, however long, and says why: it tries again after the delays of the worker's
    /// [`RetryPolicy`](crate::RetryPolicy), and after a permanent failure once in its longest, which is an hour by default.
    pub fn park_after(mut self, attempts: i32) -> Subscription {
        self.parks_after = Some(attempts);
        self
    }

    /// The most events of one batch: 1 to 10000, 100 by default.
    pub fn batch(mut self, events: i32) -> Subscription {
        self.batch = events;
        self
    }

    /// After how long without any consumer it is reported as gone: 1 second to 3650 days, 1 day by default. Its events are
    /// kept all the same.
    pub fn gone_after(mut self, time: Duration) -> Subscription {
        self.gone_after = time;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("subscription", &self.name)?;
        if self.name == "relay" || self.name == "subscriptions" {
            return Err(Error::config(format!("a subscription cannot have the name {}", self.name))
                .with_hint("Metrics use it for something else; choose another name."));
        }
        for name in self.event_types.iter().flatten() {
            check_name("event_type", name)?;
        }
        for name in self.aggregate_types.iter().flatten() {
            check_name("aggregate_type", name)?;
        }
        let bad = |what: &str, hint: &str| {
            Err(Error::config(format!("{what} of subscription {} is out of range", self.name))
                .with_hint(hint))
        };
        if !(1..=10_000).contains(&self.batch) {
            return bad("the batch", "Use 1 to 10000 events.");
        }
        if self.parks_after.is_some_and(|attempts| !(1..=1000).contains(&attempts)) {
            return bad("park_after", "Use 1 to 1000 attempts.");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(3650 * 86_400)).contains(&self.gone_after) {
            return bad("gone_after", "Use 1 second to 3650 days.");
        }
        Ok(())
    }
}

/// Hands events on one by one, without order, by competing workers: the classic relay of an outbox.
///
/// Events wait for it, and are kept until it has processed them, from the moment when it is registered, which a worker
/// does at its start.
#[derive(Clone, Debug)]
pub struct Relay {
    pub(crate) start: Start,
    pub(crate) concurrency: usize,
    pub(crate) max_attempts: i32,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay { start: Start::Now, concurrency: 10, max_attempts: 10 }
    }
}

impl Relay {
    /// Where it begins when it is registered for the first time: [`Start::Beginning`], [`Start::Now`] or [`Start::Time`].
    pub fn start(mut self, start: Start) -> Relay {
        self.start = start;
        self
    }

    /// Handlers that run at once in this process: 1 to 10000, 10 by default.
    pub fn concurrency(mut self, handlers: usize) -> Relay {
        self.concurrency = handlers;
        self
    }

    /// After how many attempts an event is parked: 1 to 1000, 10 by default.
    pub fn max_attempts(mut self, attempts: i32) -> Relay {
        self.max_attempts = attempts;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str, hint: &str| {
            Err(Error::config(format!("{what} of the relay is out of range")).with_hint(hint))
        };
        if matches!(self.start, Start::Position(_)) {
            return bad("the start", "A relay has no positions: use Beginning, Now or Time.");
        }
        if !(1..=10_000).contains(&self.concurrency) {
            return bad("the concurrency", "Use 1 to 10000.");
        }
        if !(1..=1000).contains(&self.max_attempts) {
            return bad("max_attempts", "Use 1 to 1000.");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_read_as_it_is_written() {
        let time: Timestamp = "2026-12-01T08:00:00Z".parse().unwrap();
        for start in
            [Start::Beginning, Start::Now, Start::Position(0), Start::Position(4711), Start::Time(time)]
        {
            assert_eq!(start.text().parse::<Start>().unwrap(), start);
        }
        for wrong in ["", "soon", "-1", "Beginning", "2026-12-01"] {
            assert_eq!(wrong.parse::<Start>().unwrap_err().field(), Some("start"), "{wrong}");
        }
    }
}
