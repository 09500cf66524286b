//! The outbox as people and programs look at it: events, their order, and who reads them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::types::Timestamp as Unbounded;
use uuid::Uuid;

use super::Observer;
use crate::decide::lag::{Lag, Stand, lag};
use crate::error::{Error, Kind, Result};
use crate::model::EventId;
use crate::store::statement::{
    RECONCILE_OUTBOX, SHOW_DISPOSITIONS, SHOW_EVENT, SHOW_EVENT_PAYLOAD, SHOW_EVENTS, SHOW_OUTBOX,
    SHOW_PARKED, SHOW_SET_ASIDE, SHOW_SUBSCRIPTIONS, TAIL_EVENTS,
};
use crate::subscription::Start;

/// Rows of a kind that are counted at the most.
const CAP: i32 = 10_000;

/// How long a reconciliation may take, which reads all events that are kept.
const RECONCILE_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// A subscription as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct SubscriptionView {
    /// The name.
    pub name: String,
    /// The id, which is another one after a drop.
    pub id: Uuid,
    /// Everything up to here was handled, parked or skipped.
    pub position: i64,
    /// The last position that was given.
    pub head: i64,
    /// Positions after its own, of whatever type: also of events that its filter leaves out, which it goes past without
    /// handling them. Events without a position yet come on top: [`OutboxView::unsequenced`].
    pub behind: i64,
    /// Age of the event after its position, of whatever type, in milliseconds.
    pub oldest_ms: Option<i64>,
    /// What it does with an event that fails: block or park.
    pub policy: String,
    /// The event types it wants; all when `None`.
    pub event_types: Option<Vec<String>>,
    /// The aggregate types it wants; all when `None`.
    pub aggregate_types: Option<Vec<String>>,
    /// Raised by every rewind: only within an epoch does the position never move back.
    pub epoch: i32,
    /// Failures in a row at `blocked_position`.
    pub attempts: i32,
    /// The position of the event that failed last: one after its position, or one that was given back.
    pub blocked_position: Option<i64>,
    /// When it is tried again after a failure.
    pub due_at: Option<Timestamp>,
    /// The worker that holds its cursor.
    pub leased_by: Option<Uuid>,
    /// When that lease ends.
    pub lease_until: Option<Timestamp>,
    /// When its position changed last.
    pub moved_at: Timestamp,
    /// When it was at the head last.
    pub caught_up_at: Option<Timestamp>,
    /// When a consumer asked for it last.
    pub seen_at: Timestamp,
    /// Why it is paused, as the operator said.
    pub paused_reason: Option<String>,
    /// The class of the failure that it waits behind.
    pub stuck_class: Option<String>,
    /// Its code.
    pub stuck_code: Option<String>,
    /// Its summary.
    pub stuck_summary: Option<String>,
    /// Events that it has parked; those that were skipped or given back are not counted here: [`Observer::set_aside`].
    pub parked: i64,
    /// What holds it back, if anything does.
    pub holds: Option<Hold>,
    /// Milliseconds since its position changed.
    pub moved_ms: i64,
    /// Milliseconds since it was at the head.
    pub caught_up_ms: Option<i64>,
}

impl SubscriptionView {
    /// How far it is behind, with what has no position yet.
    pub fn lag(&self, outbox: &OutboxView) -> Lag {
        lag(Stand {
            position: self.position,
            head: self.head,
            next_ms: self.oldest_ms,
            unsequenced: outbox.unsequenced,
            unsequenced_ms: outbox.oldest_unsequenced_ms,
            moved_ms: self.moved_ms,
        })
    }
}

/// What holds a subscription back. Of several the most serious one is told, in the order of [`Hold::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Its position belongs to another history, such as that before a restore.
    Diverged,
    /// The events after its position are not kept any more.
    Truncated,
    /// An operator has paused it.
    Paused,
    /// No consumer has asked for it for longer than its limit ([`Subscription::gone_after`](crate::Subscription::gone_after)).
    Gone,
    /// An event fails and it waits there.
    Blocked,
    /// No consumer has asked for it for 30 s.
    IdleConsumer,
}

impl Hold {
    /// Every hold, the most serious first.
    pub const ALL: [Hold; 6] =
        [Hold::Diverged, Hold::Truncated, Hold::Paused, Hold::Gone, Hold::Blocked, Hold::IdleConsumer];

    /// The word used in SQL, metrics and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Hold::Diverged => "diverged",
            Hold::Truncated => "truncated",
            Hold::Paused => "paused",
            Hold::Gone => "gone",
            Hold::Blocked => "blocked",
            Hold::IdleConsumer => "idle_consumer",
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Hold {
    type Err = Error;

    fn from_str(text: &str) -> Result<Hold> {
        Hold::ALL.into_iter().find(|hold| hold.as_str() == text).ok_or_else(|| {
            Error::invalid(
                "hold",
                format!("nothing that holds a subscription back is called {text:?}"),
                "Use diverged, truncated, paused, gone, blocked or idle_consumer.",
            )
        })
    }
}

/// An event that a subscription went past without having handled it.
#[derive(Clone, Debug, Serialize)]
pub struct ParkedView {
    /// Its position.
    pub position: i64,
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    pub event_type: String,
    /// The type of the thing it is about.
    pub aggregate_type: String,
    /// The id of that thing.
    pub aggregate_id: Uuid,
    /// When it was set aside.
    pub parked_at: Timestamp,
    /// Why it is here: parked (it failed) or skipped (an operator said so).
    pub how: String,
    /// Attempts that were made.
    pub attempts: i32,
    /// The class of the last failure.
    pub error_class: Option<String>,
    /// Its code.
    pub error_code: Option<String>,
    /// Its summary; of a skipped event the operator's reason.
    pub error_summary: Option<String>,
    /// When an operator gave it back; it stays here until it is handled.
    pub unparked_at: Option<Timestamp>,
}

/// How many events a subscription has set aside; each is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetAside {
    /// Failed after their last attempt.
    pub parked: i64,
    /// Left out by an operator, or by a handler that cancelled them.
    pub skipped: i64,
    /// Given back by an operator: they come first, each by itself, and are not counted in the distance to the head.
    pub given_back: i64,
}

/// An event that a subscription went past, with the subscription's name.
#[derive(Clone, Debug, Serialize)]
pub struct Disposition {
    /// The subscription.
    pub subscription: String,
    /// What it has done with the event.
    #[serde(flatten)]
    pub parked: ParkedView,
}

/// The outbox in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct OutboxView {
    /// The last position that was given.
    pub head: i64,
    /// The history that positions belong to.
    pub history_id: Uuid,
    /// Committed events that have no position yet, up to 10,001.
    pub unsequenced: i64,
    /// Age of the oldest of them, in milliseconds.
    pub oldest_unsequenced_ms: Option<i64>,
    /// What waits for the relay; `None` while no relay is registered, for which nothing waits then.
    pub relay: Option<RelayView>,
    /// Whether there are more events of a kind than were counted.
    pub capped: bool,
}

/// What waits for the relay. Counts go up to 10,001.
#[derive(Clone, Debug, Serialize)]
pub struct RelayView {
    /// Events that were inserted since then wait for it; all that are kept when `None`.
    pub since: Option<Timestamp>,
    /// Events that it could take now.
    pub pending: i64,
    /// Events that it holds.
    pub leased: i64,
    /// Events that it has given up.
    pub parked: i64,
    /// Age of the oldest event that it could take now, in milliseconds.
    pub oldest_ms: Option<i64>,
}

/// An event as lists show it.
#[derive(Clone, Debug, Serialize)]
pub struct EventView {
    /// Its number in the order of insertion, which is not the order of delivery.
    pub seq: i64,
    /// The id.
    pub id: EventId,
    /// The type.
    pub event_type: String,
    /// The type of the thing it is about.
    pub aggregate_type: String,
    /// The id of that thing.
    pub aggregate_id: Uuid,
    /// The version of the payload's form.
    pub schema_version: i32,
    /// When the fact became true, as its publisher said.
    pub occurred_at: Timestamp,
    /// When it was inserted, by the database's clock.
    pub at: Timestamp,
    /// Its place in the order of delivery; none until a reader has given it one.
    pub position: Option<i64>,
    /// What the relay has done with it: pending, leased, processed or parked; none where it does not wait for one.
    pub relay: Option<String>,
}

/// An event with what only one page shows.
#[derive(Clone, Debug, Serialize)]
pub struct EventDetail {
    /// As in lists.
    #[serde(flatten)]
    pub event: EventView,
    /// The organization, if any.
    pub organization_id: Option<Uuid>,
    /// What it is handled in the order of, where that is not its aggregate.
    pub partition_key: Option<String>,
    /// The trace context of its publication.
    pub traceparent: Option<String>,
    /// When the relay may take it; none when it has given it up.
    pub available_at: Option<Timestamp>,
    /// Attempts of the relay.
    pub attempts: i32,
    /// When the relay was done with it.
    pub processed_at: Option<Timestamp>,
    /// Class, code and summary of the relay's last failure.
    pub last_error: Option<String>,
}

/// Which events to list.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Of this type.
    pub event_type: Option<String>,
    /// About things of this type.
    pub aggregate_type: Option<String>,
    /// About this thing.
    pub aggregate_id: Option<Uuid>,
    /// Only those that the relay has given up.
    pub only_parked: bool,
    /// Inserted before this one: the last `seq` of the page before.
    pub before: Option<i64>,
    /// At most this many: 1 to 1000; 50 when 0.
    pub limit: i32,
}

/// What a look along the feed has found.
#[derive(Clone, Debug, Serialize)]
pub struct TailView {
    /// The last position that was looked at; go on from it.
    pub through: i64,
    /// The events up to there, in the order of their positions.
    pub events: Vec<EventView>,
}

/// Something that does not fit in the outbox.
#[derive(Clone, Debug, Serialize)]
pub struct OutboxFinding {
    /// What it is, such as `event_without_position`; `sql/read/reconcile_outbox.sql` lists the words.
    pub finding: String,
    /// The number of the event.
    pub seq: Option<i64>,
    /// The position.
    pub position: Option<i64>,
    /// The subscription.
    pub subscription: Option<String>,
    /// What it means.
    pub details: String,
}

impl Observer {
    /// Every subscription, by name.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionView>> {
        self.ask(&SHOW_SUBSCRIPTIONS, &[&None::<&str>]).await?.iter().map(subscription_view).collect()
    }

    /// One subscription, or `None`.
    pub async fn subscription(&self, name: &str) -> Result<Option<SubscriptionView>> {
        self.ask(&SHOW_SUBSCRIPTIONS, &[&Some(name)]).await?.first().map(subscription_view).transpose()
    }

    /// Events that a subscription has parked or skipped before a position, the latest first; at most 1 to 1000, 50
    /// when `limit` is 0. Nothing for a name that is not known.
    pub async fn parked(&self, name: &str, before: Option<i64>, limit: i32) -> Result<Vec<ParkedView>> {
        let rows = self.ask(&SHOW_PARKED, &[&name, &before, &page(limit)]).await?;
        Ok(rows.iter().map(|row| parked_view(row, 0)).collect())
    }

    /// How many events a subscription has set aside; zeros for a name that is not known.
    pub async fn set_aside(&self, name: &str) -> Result<SetAside> {
        let rows = self.ask(&SHOW_SET_ASIDE, &[&name]).await?;
        let view = |row: &Row| SetAside { parked: row.get(0), skipped: row.get(1), given_back: row.get(2) };
        Ok(rows.first().map(view).unwrap_or_default())
    }

    /// The subscriptions that went past an event without having handled it, and what they have done with it: parked,
    /// skipped, or given back. Those that have handled it, or will, are not among them.
    pub async fn dispositions(&self, id: EventId) -> Result<Vec<Disposition>> {
        let rows = self.ask(&SHOW_DISPOSITIONS, &[&id.0]).await?;
        let view = |row: &Row| Disposition { subscription: row.get(0), parked: parked_view(row, 1) };
        Ok(rows.iter().map(view).collect())
    }

    /// The outbox in numbers: the head, what has no position yet, what waits for the relay.
    pub async fn outbox(&self) -> Result<OutboxView> {
        let rows = self.ask(&SHOW_OUTBOX, &[&CAP]).await?;
        rows.first().map(outbox_view).ok_or_else(|| {
            Error::new(Kind::Database, "the outbox has no head: its row of outbox_feed_head is gone")
                .with_hint("Restore it from a backup; without it no event gets a position.")
        })
    }

    /// A page of events, the one inserted last first.
    pub async fn events(&self, filter: &EventFilter) -> Result<Vec<EventView>> {
        let EventFilter { event_type, aggregate_type, aggregate_id, only_parked, before, limit } = filter;
        let page = page(*limit);
        let rows = self
            .ask(&SHOW_EVENTS, &[before, &page, event_type, aggregate_type, aggregate_id, only_parked])
            .await?;
        Ok(rows.iter().map(|row| event_view(row, 0)).collect())
    }

    /// One event; empty when there is none, and more than one when its id was published more than once.
    pub async fn event(&self, id: EventId) -> Result<Vec<EventDetail>> {
        Ok(self.ask(&SHOW_EVENT, &[&id.0]).await?.iter().map(event_detail).collect())
    }

    /// The payload of an event as JSON text, of the first one when its id was published more than once. Needs the
    /// operator's role.
    pub async fn event_payload(&self, id: EventId) -> Result<Option<String>> {
        Ok(self.ask(&SHOW_EVENT_PAYLOAD, &[&id.0]).await?.first().and_then(|row| row.get(0)))
    }

    /// Looks at up to `n` positions after `start`, 0 to 1000, for events of some types, or of any when there are none.
    ///
    /// It follows the feed without a subscription: go on from [`TailView::through`]. With 0 positions it only tells
    /// where `start` is. Events get their positions from workers that read them; while none runs there is nothing new.
    ///
    /// # Errors
    /// [`Error::is_history_truncated`] where events are missing, [`Error::is_history_diverged`] for a position beyond
    /// the head.
    pub async fn tail(&self, start: Start, event_types: &[String], n: i32) -> Result<TailView> {
        let types = (!event_types.is_empty()).then_some(event_types);
        let rows = self.ask(&TAIL_EVENTS, &[&start.text(), &n, &types]).await?;
        let through = rows.first().map(|row| row.get(0)).ok_or_else(|| {
            Error::new(Kind::Database, "the database gave no answer to a call")
                .with_hint("Check that the schema was migrated by this version.")
        })?;
        let found = |row: &&Row| row.get::<_, Option<i64>>(1).is_some();
        let events = rows.iter().filter(found).map(|row| event_view(row, 1)).collect();
        Ok(TailView { through, events })
    }

    /// Compares events, positions, cursors and what became of events, and names everything that does not fit, up to
    /// `limit` findings of a kind. Empty when all fits.
    ///
    /// It reads all events that are kept, which may take minutes: for a person, not for a loop.
    pub async fn reconcile_outbox(&self, limit: i32) -> Result<Vec<OutboxFinding>> {
        let limit = limit.max(1);
        let rows = self.db.rows_once(&RECONCILE_OUTBOX, &[&limit], RECONCILE_PATIENCE).await?;
        let view = |row: &Row| OutboxFinding {
            finding: row.get(0),
            seq: row.get(1),
            position: row.get(2),
            subscription: row.get(3),
            details: row.get(4),
        };
        Ok(rows.iter().map(view).collect())
    }
}

/// The length of a page: 50 when nobody says.
fn page(limit: i32) -> i32 {
    if limit == 0 { 50 } else { limit.clamp(1, 1_000) }
}

fn subscription_view(row: &Row) -> Result<SubscriptionView> {
    Ok(SubscriptionView {
        name: row.get(0),
        id: row.get(1),
        position: row.get(2),
        head: row.get(3),
        behind: row.get(4),
        oldest_ms: row.get(5),
        policy: row.get(6),
        event_types: row.get(7),
        aggregate_types: row.get(8),
        epoch: row.get(9),
        attempts: row.get(10),
        blocked_position: row.get(11),
        due_at: row.get(12),
        leased_by: row.get(13),
        lease_until: row.get(14),
        moved_at: row.get(15),
        caught_up_at: row.get(16),
        seen_at: row.get(17),
        paused_reason: row.get(18),
        stuck_class: row.get(19),
        stuck_code: row.get(20),
        stuck_summary: row.get(21),
        parked: row.get(22),
        holds: row.get::<_, Option<&str>>(23).map(str::parse).transpose()?,
        moved_ms: row.get(24),
        caught_up_ms: row.get(25),
    })
}

/// A parked event whose columns begin at a place of the row.
fn parked_view(row: &Row, at: usize) -> ParkedView {
    ParkedView {
        position: row.get(at),
        event_id: EventId(row.get(at + 1)),
        event_type: row.get(at + 2),
        aggregate_type: row.get(at + 3),
        aggregate_id: row.get(at + 4),
        parked_at: row.get(at + 5),
        how: row.get(at + 6),
        attempts: row.get(at + 7),
        error_class: row.get(at + 8),
        error_code: row.get(at + 9),
        error_summary: row.get(at + 10),
        unparked_at: row.get(at + 11),
    }
}

fn outbox_view(row: &Row) -> OutboxView {
    let relay = row.get::<_, Option<Unbounded<Timestamp>>>(4).map(|since| RelayView {
        since: match since {
            Unbounded::Value(at) => Some(at),
            Unbounded::NegInfinity | Unbounded::PosInfinity => None,
        },
        pending: row.get(5),
        leased: row.get(6),
        parked: row.get(7),
        oldest_ms: row.get(8),
    });
    OutboxView {
        head: row.get(0),
        history_id: row.get(1),
        unsequenced: row.get(2),
        oldest_unsequenced_ms: row.get(3),
        relay,
        capped: row.get(9),
    }
}

/// An event whose columns begin at a place of the row.
fn event_view(row: &Row, at: usize) -> EventView {
    EventView {
        seq: row.get(at),
        id: EventId(row.get(at + 1)),
        event_type: row.get(at + 2),
        aggregate_type: row.get(at + 3),
        aggregate_id: row.get(at + 4),
        schema_version: row.get(at + 5),
        occurred_at: row.get(at + 6),
        at: row.get(at + 7),
        position: row.get(at + 8),
        relay: row.get(at + 9),
    }
}

fn event_detail(row: &Row) -> EventDetail {
    EventDetail {
        event: event_view(row, 0),
        organization_id: row.get(10),
        partition_key: row.get(11),
        traceparent: row.get(12),
        available_at: row.get(13),
        attempts: row.get(14),
        processed_at: row.get(15),
        last_error: row.get(16),
    }
}
