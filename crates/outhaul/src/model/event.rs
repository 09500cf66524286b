//! Events: facts that the outbox keeps and delivers.

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{Payload, check};
use crate::error::{Error, Result};

/// Later than the first moment of this year, and earlier than the first of 2200: the times that an event can have.
const YEAR_1900: Timestamp = Timestamp::constant(-2_208_988_800, 0);

id! {
    /// The id of an event: a UUID, version 7 when the library makes it.
    ///
    /// It is the same in every delivery, so consumers key their effects on it. It shows when the event was made and
    /// is no order of delivery.
    EventId, "an event", "outhaul outbox list"
}

/// A type of event: its payload, the name it is stored under, and the type of thing it is about.
///
/// An event is a fact, named in the past tense: `order.paid`, not `order.pay` and not `mail.send`. A fact is true
/// once its transaction has committed, nobody can refuse it, and any number of readers may draw their own
/// conclusions, today's and those that subscribe next year. A command has one reader that must do it once, can fail
/// and be given up, and says who does what: that is a [`Job`](crate::Job). A producer that publishes commands has to
/// know its consumers; one that publishes facts does not change when a consumer comes.
///
/// ```
/// use outhaul::{Event, NewEvent};
/// use uuid::Uuid;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPaid { cents: i64 }
///
/// impl Event for OrderPaid {
///     const TYPE: &'static str = "order.paid";
///     const AGGREGATE_TYPE: &'static str = "order";
/// }
///
/// let order = Uuid::now_v7();
/// let event = NewEvent::new(&OrderPaid { cents: 995 }, order)?.organization(Uuid::now_v7());
/// assert!(event.check().is_ok());
/// # Ok::<(), outhaul::Error>(())
/// ```
pub trait Event: Serialize + DeserializeOwned + Send + 'static {
    /// The name the type is stored under: 1 to 63 characters, a letter, then letters, digits and `_ . : -`.
    const TYPE: &'static str;
    /// The type of the thing that the fact is about, under the same rule.
    const AGGREGATE_TYPE: &'static str;
    /// The version of the payload's form: 1 or more. Raise it when readers of the old form would misread the new one.
    const SCHEMA_VERSION: i32 = 1;
}

/// An event about to be published.
///
/// Built from an [`Event`], or from type names and JSON text where the type is only known at run time.
/// Limits are checked by [`NewEvent::check`], which publishing calls before anything is sent.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub(crate) id: EventId,
    pub(crate) event_type: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: Uuid,
    pub(crate) payload: Payload,
    pub(crate) schema_version: i32,
    pub(crate) partition_key: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
    pub(crate) available_at: Option<Timestamp>,
    pub(crate) organization: Option<Uuid>,
    pub(crate) traceparent: Option<String>,
    pub(crate) idempotency_key: Option<String>,
}

impl NewEvent {
    /// An event with the payload, types and schema version of `event`, about the thing with an id: a UUID, the key of its
    /// row or a column beside it.
    ///
    /// # Errors
    /// When the payload cannot be written as JSON.
    pub fn new<E: Event>(event: &E, aggregate_id: Uuid) -> Result<NewEvent> {
        let payload = Payload::of(E::TYPE, event)?;
        Ok(NewEvent::raw(E::TYPE, E::AGGREGATE_TYPE, aggregate_id, payload).schema_version(E::SCHEMA_VERSION))
    }

    /// An event of a type known only at run time, with its payload as JSON text.
    pub fn raw(
        event_type: impl Into<String>,
        aggregate_type: impl Into<String>,
        aggregate_id: Uuid,
        payload: impl Into<String>,
    ) -> NewEvent {
        NewEvent {
            id: EventId::new(),
            event_type: event_type.into(),
            aggregate_type: aggregate_type.into(),
            aggregate_id,
            payload: Payload(payload.into()),
            schema_version: 1,
            partition_key: None,
            occurred_at: None,
            available_at: None,
            organization: None,
            traceparent: None,
            idempotency_key: None,
        }
    }

    /// Chooses the id. By default a new UUIDv7.
    ///
    /// It stays the same when this value is published again, as after a COMMIT without an answer. Without an
    /// [idempotency key](NewEvent::idempotency_key) the event may then be stored twice under it.
    pub fn id(mut self, id: EventId) -> NewEvent {
        self.id = id;
        self
    }

    /// The version of the payload's form: 1 or more, 1 by default.
    pub fn schema_version(mut self, version: i32) -> NewEvent {
        self.schema_version = version;
        self
    }

    /// What is to be handled in order, where that is something else than the aggregate: 1 to 255 bytes. By default
    /// the aggregate's id stands for it.
    pub fn partition_key(mut self, key: impl Into<String>) -> NewEvent {
        self.partition_key = Some(key.into());
        self
    }

    /// When the fact became true, between the years 1900 and 2200. By default when it is published, by the
    /// database's clock. It is kept and shown, and decides no order.
    pub fn occurred_at(mut self, at: Timestamp) -> NewEvent {
        self.occurred_at = Some(at);
        self
    }

    /// Hides the event from the leased relay until a time, between the years 1900 and 2200. By default it is
    /// available at once.
    ///
    /// **An ordered subscription ignores it** and delivers the event in its place: order is what it is for, and
    /// waiting for one event would hold up all behind it. To have something done later, enqueue a
    /// [`Job`](crate::Job) with a [`run_at`](crate::NewJob::run_at).
    ///
    /// ```
    /// # use outhaul::NewEvent;
    /// # let order = uuid::Uuid::now_v7();
    /// let embargo = "2031-05-01T09:00:00Z".parse()?;
    /// let event = NewEvent::raw("price.set", "price", order, r#"{"cents": 995}"#).available_at(embargo);
    /// // The relay hands it out from that time on; a subscription sees it as soon as it is committed.
    /// event.check()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn available_at(mut self, at: Timestamp) -> NewEvent {
        self.available_at = Some(at);
        self
    }

    /// The organization (tenant) the event belongs to. By default none, which is one scope of its own; the nil UUID
    /// is refused.
    pub fn organization(mut self, organization: Uuid) -> NewEvent {
        self.organization = Some(organization);
        self
    }

    /// The W3C trace context under which the fact became true, passed on to its handlers.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> NewEvent {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Makes publishing idempotent: within one organization and event type there is one event per key, from the
    /// first commit on for seven days. 1 to 255 bytes. Keys of jobs and keys of events never meet.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewEvent {
        self.idempotency_key = Some(key.into());
        self
    }

    /// The id that the event will have if its key is not in use.
    pub fn event_id(&self) -> EventId {
        self.id
    }

    /// Checks every limit without asking the database.
    ///
    /// What passes here can still be refused by the database, which measures the payload in its own text
    /// form; it never is the other way round.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`], with the field named.
    pub fn check(&self) -> Result<()> {
        check::check_name("event_type", &self.event_type)?;
        check::check_name("aggregate_type", &self.aggregate_type)?;
        crate::json::check(&self.payload.0)?;
        if self.schema_version < 1 {
            return Err(Error::invalid(
                "schema_version",
                "schema version is out of range",
                "Use 1 to 2147483647.",
            ));
        }
        check_time("occurred_at", self.occurred_at)?;
        check_time("available_at", self.available_at)?;
        check::partition_key(self.partition_key.as_deref())?;
        check::idempotency_key(self.idempotency_key.as_deref())?;
        check::organization(self.organization)?;
        check::traceparent(self.traceparent.as_deref())
    }
}

fn check_time(field: &str, at: Option<Timestamp>) -> Result<()> {
    if at.is_none_or(|at| at > YEAR_1900 && at < check::YEAR_2200) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("{field} is out of range"),
        "Use a time between the years 1900 and 2200.",
    ))
}

/// What a publish did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// A new event was stored. Also the answer to the very same [`NewEvent`] with its key a second time, as after a
    /// COMMIT without an answer: the event under its id is there once.
    New(EventId),
    /// The idempotency key was in use: this is the event that has it, and nothing was stored.
    Duplicate(EventId),
}

impl Published {
    /// The id of the event, whoever published it.
    pub fn id(self) -> EventId {
        match self {
            Published::New(id) | Published::Duplicate(id) => id,
        }
    }

    /// Whether this call stored the event.
    pub fn is_new(self) -> bool {
        matches!(self, Published::New(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, serde::Deserialize)]
    struct Moved {
        to: String,
    }

    impl Event for Moved {
        const TYPE: &'static str = "parcel.moved";
        const AGGREGATE_TYPE: &'static str = "parcel";
        const SCHEMA_VERSION: i32 = 3;
    }

    #[test]
    fn a_typed_event_brings_its_types_and_version() {
        let parcel = Uuid::now_v7();
        let event = NewEvent::new(&Moved { to: "hub".into() }, parcel).unwrap();
        assert_eq!((&*event.event_type, &*event.aggregate_type), ("parcel.moved", "parcel"));
        assert_eq!((event.schema_version, event.aggregate_id), (3, parcel));
        assert_eq!(event.payload.0, r#"{"to":"hub"}"#);
        assert!(event.check().is_ok());
    }

    #[test]
    fn debug_of_an_event_shows_no_payload() {
        let event = NewEvent::raw("a.b", "a", Uuid::now_v7(), r#"{"secret":"swordfish"}"#);
        assert!(!format!("{event:?}").contains("swordfish"));
    }

    #[test]
    fn an_id_is_told_from_anything_else() {
        let id = EventId::new();
        assert_eq!(id.to_string().parse::<EventId>().unwrap(), id);
        let error = "7".parse::<EventId>().unwrap_err();
        assert_eq!((error.field(), error.to_string()), (Some("id"), "an event id is a UUID".into()));
    }
}
