//! Publishing inside the caller's transaction.

use std::borrow::Cow;

use jiff::Timestamp;

use super::{Arg, CallerTransaction, DEFAULT, Producer, no_answer};
use crate::error::Result;
use crate::model::{EventId, NewEvent, Published};

impl Producer {
    /// Publishes one event; it exists when, and only when, the transaction commits.
    ///
    /// # A fact follows its change
    /// Change the row first, with the condition that makes the change legal, and publish when a row was changed.
    /// Zero rows mean that nothing happened: somebody else was faster, or the change is not allowed in that state.
    /// There is no fact then, and nothing to publish.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct SessionCompleted {}
    /// # impl outhaul::Event for SessionCompleted {
    /// #     const TYPE: &'static str = "tracking_session.completed";
    /// #     const AGGREGATE_TYPE: &'static str = "tracking_session";
    /// # }
    /// use outhaul::{NewEvent, publish};
    ///
    /// async fn complete(client: &mut tokio_postgres::Client, session: uuid::Uuid) -> Result<bool, Box<dyn std::error::Error>> {
    ///     let mut tx = client.transaction().await?;
    ///     let guarded = "update tracking_sessions set status = 'completed' where id = $1 and status in ('active', 'paused')";
    ///     if tx.execute(guarded, &[&session]).await? == 0 {
    ///         return Ok(false);
    ///     }
    ///     publish(&mut tx, &NewEvent::new(&SessionCompleted {}, session)?).await?;
    ///     tx.commit().await?;
    ///     Ok(true)
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let database = outhaul_local::TestServer::shared().await?.empty_database().await?;
    /// # outhaul::migrate(&database.url().parse()?, &outhaul::MigrateOptions::default()).await?;
    /// # let (mut client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await?;
    /// # tokio::spawn(connection);
    /// # let session = uuid::Uuid::now_v7();
    /// # client.batch_execute("create table tracking_sessions (id uuid, status text)").await?;
    /// # client.execute("insert into tracking_sessions values ($1, 'active')", &[&session]).await?;
    /// assert!(complete(&mut client, session).await?);
    /// assert!(!complete(&mut client, session).await?, "it is completed once, and there is one event");
    /// # let row = client.query_one("select count(*) from outhaul.outbox_events", &[]).await?;
    /// # assert_eq!(row.get::<_, i64>(0), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Order
    /// Events of one aggregate are delivered in the order of its changes **if each is published after the aggregate's
    /// row is locked**: the UPDATE above has locked it, and whoever comes next waits there until this transaction has
    /// ended, so its event is both numbered and committed later. Published before the lock, the numbers of two
    /// transactions can be the other way round than their changes. Without a change to the row, lock it:
    ///
    /// ```no_run
    /// # use outhaul::{NewEvent, publish};
    /// # async fn example(mut tx: tokio_postgres::Transaction<'_>, order: uuid::Uuid) -> Result<(), Box<dyn std::error::Error>> {
    /// tx.execute("select from orders where id = $1 for no key update", &[&order]).await?;
    /// publish(&mut tx, &NewEvent::raw("order.inspected", "order", order, "{}")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`NewEvent::available_at`] delays the leased relay only; an ordered subscription ignores it.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`] before anything is sent, or [`Error::is_conflict`] when the idempotency key is
    /// in use with another payload. After an error of the database the transaction is aborted.
    ///
    /// [`Error::is_invalid_input`]: crate::Error::is_invalid_input
    /// [`Error::is_conflict`]: crate::Error::is_conflict
    pub async fn publish(&self, tx: &mut impl CallerTransaction, event: &NewEvent) -> Result<Published> {
        event.check()?;
        let args = [
            Arg::text(&event.event_type),
            Arg::text(&event.aggregate_type),
            Arg::text(event.aggregate_id.to_string()),
            Arg::text(&event.payload.0),
            Arg::text(event.id.to_string()),
            Arg::Int(event.schema_version),
            Arg::some(event.occurred_at.map(|at| at.to_string())),
            Arg::some(event.available_at.map(|at| at.to_string())),
            Arg::some(event.partition_key.as_deref()),
            Arg::some(event.organization.map(|id| id.to_string())),
            Arg::some(event.traceparent.as_deref()),
            Arg::some(event.idempotency_key.as_deref()),
            Arg::Bool(self.notify),
        ];
        let rows = tx.call(&self.publish, &args).await?;
        let id = rows.into_iter().next().flatten().ok_or_else(no_answer)?;
        published(event.id, &id)
    }

    /// Publishes any number of events in one statement, all or none; 100,000 in a call are fine.
    ///
    /// They are delivered in the order of the slice. What [`Producer::publish`] says about locks holds for each of
    /// them. Returns what became of each, in order.
    ///
    /// ```no_run
    /// # use outhaul::{NewEvent, Producer};
    /// # async fn example(mut tx: tokio_postgres::Transaction<'_>, parcels: Vec<uuid::Uuid>) -> Result<(), Box<dyn std::error::Error>> {
    /// tx.execute("update parcels set place = 'hub' where id = any($1)", &[&parcels]).await?;
    /// let moved = |parcel| NewEvent::raw("parcel.moved", "parcel", parcel, r#"{"to": "hub"}"#);
    /// let events: Vec<NewEvent> = parcels.into_iter().map(moved).collect();
    /// Producer::default().publish_many(&mut tx, &events).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Producer::publish`]; the message names the place of the event that was refused, counted from 0.
    pub async fn publish_many(
        &self,
        tx: &mut impl CallerTransaction,
        events: &[NewEvent],
    ) -> Result<Vec<Published>> {
        for (place, event) in events.iter().enumerate() {
            event.check().map_err(|error| error.context(format!("event {place} of {}", events.len())))?;
        }
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let ids = tx.call(&self.publish_many, &many_args(events, self.notify)).await?;
        if ids.len() != events.len() {
            return Err(no_answer());
        }
        events.iter().zip(ids).map(|(event, id)| published(event.id, &id.ok_or_else(no_answer)?)).collect()
    }
}

/// Publishes one event inside the caller's transaction: [`Producer::publish`] in the schema `outhaul`.
///
/// # Errors
/// See [`Producer::publish`].
pub async fn publish(tx: &mut impl CallerTransaction, event: &NewEvent) -> Result<Published> {
    DEFAULT.publish(tx, event).await
}

/// Publishes many events inside the caller's transaction: [`Producer::publish_many`] in the schema `outhaul`.
///
/// # Errors
/// See [`Producer::publish_many`].
pub async fn publish_many(tx: &mut impl CallerTransaction, events: &[NewEvent]) -> Result<Vec<Published>> {
    DEFAULT.publish_many(tx, events).await
}

fn many_args(events: &[NewEvent], notify: bool) -> [Arg<'_>; 13] {
    let time = |at: Option<Timestamp>| at.map(|at| Cow::from(at.to_string()));
    let version =
        |event: &NewEvent| (event.schema_version != 1).then(|| event.schema_version.to_string().into());
    [
        each(events, |event| Some(Cow::from(&event.event_type))),
        each(events, |event| Some(Cow::from(&event.aggregate_type))),
        each(events, |event| Some(Cow::from(event.aggregate_id.to_string()))),
        each(events, |event| Some(Cow::from(&event.payload.0))),
        each(events, |event| Some(Cow::from(event.id.to_string()))),
        each(events, version),
        each(events, |event| time(event.occurred_at)),
        each(events, |event| time(event.available_at)),
        each(events, |event| event.partition_key.as_deref().map(Cow::from)),
        each(events, |event| event.organization.map(|id| Cow::from(id.to_string()))),
        each(events, |event| event.traceparent.as_deref().map(Cow::from)),
        each(events, |event| event.idempotency_key.as_deref().map(Cow::from)),
        Arg::Bool(notify),
    ]
}

/// One array, which is sent only when some event has a value for it.
fn each<'a>(events: &'a [NewEvent], value: impl Fn(&'a NewEvent) -> Option<Cow<'a, str>>) -> Arg<'a> {
    let values: Vec<_> = events.iter().map(value).collect();
    Arg::Texts(values.iter().any(Option::is_some).then_some(values))
}

fn published(own: EventId, answer: &str) -> Result<Published> {
    let id: EventId = answer.parse()?;
    Ok(if id == own { Published::New(id) } else { Published::Duplicate(id) })
}
