//! `outhaul publish EVENT_TYPE AGGREGATE_TYPE AGGREGATE_ID [JSON|-]`.

use std::fmt;

use outhaul::{NewEvent, Observer, Producer, Published};
use serde_json::json;

use super::send;
use crate::cli::Publish;
use crate::exit::{self, Exit};
use crate::output::{self, Global};

pub(crate) async fn run(args: Publish, global: &Global) -> anyhow::Result<Exit> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    let event = new_event(&args, send::payload(&args.payload, global).await?);
    event.check()?;
    global.say_target(&dsn, &schema);
    // Its check tells a missing schema apart from everything else that could be wrong.
    Observer::connect(&dsn, &schema).await?;
    let mut session = outhaul::connect(&dsn).await?;
    let published = Producer::in_schema(&schema).publish(&mut *session, &event).await;
    let stored = Stored(published.map_err(|error| exit::of_change(error, look_first(&event, &args)))?);
    let look = format!("Look at it: outhaul outbox show {}", stored.0.id());
    output::told(stored.print(&args, global), &stored, look)?;
    Ok(Exit::Ok)
}

fn look_first(event: &NewEvent, args: &Publish) -> String {
    send::look_first("event", event.event_id(), args.idempotency_key.is_some(), "outhaul outbox show")
}

/// What the database has answered.
struct Stored(Published);

/// What is true from now on, whatever becomes of the output.
impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Published::New(id) => write!(f, "event {id} is committed"),
            Published::Duplicate(id) => {
                write!(f, "the key belongs to event {id} and nothing more was stored")
            }
        }
    }
}

impl Stored {
    fn print(&self, args: &Publish, global: &Global) -> anyhow::Result<()> {
        let (id, new) = (self.0.id(), self.0.is_new());
        if global.json {
            return global.print_json(&json!({ "id": id, "result": if new { "new" } else { "duplicate" } }));
        }
        let words = if new { "" } else { "  duplicate: the key is in use, nothing was stored" };
        let Publish { event_type, aggregate_type, aggregate_id, .. } = args;
        Ok(global.print(format_args!("{id}  {event_type}  {aggregate_type} {aggregate_id}{words}"))?)
    }
}

fn new_event(args: &Publish, payload: String) -> NewEvent {
    let mut event = NewEvent::raw(&args.event_type, &args.aggregate_type, args.aggregate_id, payload)
        .schema_version(args.schema_version);
    if let Some(id) = args.id {
        event = event.id(id);
    }
    if let Some(key) = &args.idempotency_key {
        event = event.idempotency_key(key);
    }
    if let Some(key) = &args.partition_key {
        event = event.partition_key(key);
    }
    if let Some(at) = args.occurred_at {
        event = event.occurred_at(at);
    }
    if let Some(at) = args.available_at {
        event = event.available_at(at);
    }
    if let Some(organization) = args.organization {
        event = event.organization(organization);
    }
    if let Some(traceparent) = &args.traceparent {
        event = event.traceparent(traceparent);
    }
    event
}
