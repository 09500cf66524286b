//! Every way into the queue and into the outbox, so that one promise is tested at all of them.

use outhaul::{Error, EventId, JobId, NewEvent, NewJob, enqueue, enqueue_many, publish, publish_many};
use tokio_postgres::Client;
use uuid::Uuid;

/// A way to enqueue a job or publish an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Library,
    LibraryMany,
    Function,
    FunctionMany,
    Insert,
}

impl Door {
    pub(crate) const ALL: [Door; 5] =
        [Door::Library, Door::LibraryMany, Door::Function, Door::FunctionMany, Door::Insert];
    /// Those behind which only the database checks.
    pub(crate) const SQL: [Door; 3] = [Door::Function, Door::FunctionMany, Door::Insert];
}

/// A job as text, good or bad, to be offered at any door.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) id: Uuid,
    pub(crate) queue: String,
    pub(crate) job_type: String,
    pub(crate) payload: String,
    pub(crate) key: Option<String>,
    pub(crate) organization: Option<Uuid>,
    pub(crate) priority: i32,
    pub(crate) max_attempts: i32,
    /// Milliseconds.
    pub(crate) timeout: Option<i64>,
    pub(crate) run_at: Option<String>,
    pub(crate) traceparent: Option<String>,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            id: Uuid::now_v7(),
            queue: "ticks".into(),
            job_type: "test.tick".into(),
            payload: r#"{"n": 1}"#.into(),
            key: None,
            organization: None,
            priority: 0,
            max_attempts: 10,
            timeout: None,
            run_at: None,
            traceparent: None,
        }
    }
}

impl Offer {
    pub(crate) fn of_payload(payload: impl Into<String>) -> Offer {
        Offer { payload: payload.into(), ..Offer::default() }
    }

    pub(crate) fn keyed(key: &str) -> Offer {
        Offer { key: Some(key.to_owned()), ..Offer::default() }
    }

    /// The same request under an id of its own.
    pub(crate) fn again(&self) -> Offer {
        Offer { id: Uuid::now_v7(), ..self.clone() }
    }

    pub(crate) fn job(&self) -> NewJob {
        let mut job = NewJob::raw(&*self.queue, &*self.job_type, &*self.payload)
            .id(JobId(self.id))
            .priority(self.priority)
            .max_attempts(self.max_attempts);
        if let Some(key) = &self.key {
            job = job.idempotency_key(key);
        }
        if let Some(organization) = self.organization {
            job = job.organization(organization);
        }
        if let Some(ms) = self.timeout {
            job = job.timeout(std::time::Duration::from_millis(ms.try_into().expect("not negative")));
        }
        if let Some(at) = &self.run_at {
            job = job.run_at(at.parse().expect("a time"));
        }
        if let Some(traceparent) = &self.traceparent {
            job = job.traceparent(traceparent);
        }
        job
    }

    /// Offers it at one door. Returns the id that the door told, or its refusal in the words of the library.
    pub(crate) async fn at(&self, door: Door, client: &mut Client) -> Result<Uuid, Error> {
        let by_function = "select outhaul.enqueue($2::text, $3::text, $4::text::jsonb, $1, $5::text, $6, $7, \
            $8::text::timestamptz, $9, $10::bigint * interval '1 ms', $11::text)";
        let by_function_many = "select (outhaul.enqueue_many($2::text, $3::text, array[$4::text], array[$1]::uuid[], \
            array[$5::text], array[$6]::uuid[], array[$8::text::timestamptz], $7, $9, \
            $10::bigint * interval '1 ms', $11::text))[1]";
        let by_insert = "insert into outhaul.jobs (id, queue, job_type, payload, idempotency_key, organization_id, priority, \
            run_at, max_attempts, timeout, traceparent) values ($1, $2::text, $3::text, $4::text::jsonb, $5::text, $6, \
            $7::int::smallint, $8::text::timestamptz, $9::int::smallint, $10::bigint * interval '1 ms', $11::text)";
        let sql = match door {
            Door::Library => return Ok(enqueue(client, &self.job()).await?.id().0),
            Door::LibraryMany => return Ok(enqueue_many(client, &[self.job()]).await?[0].id().0),
            Door::Function => by_function,
            Door::FunctionMany => by_function_many,
            Door::Insert => by_insert,
        };
        let rows = client
            .query(
                sql,
                &[
                    &self.id,
                    &self.queue,
                    &self.job_type,
                    &self.payload,
                    &self.key,
                    &self.organization,
                    &self.priority,
                    &self.run_at,
                    &self.max_attempts,
                    &self.timeout,
                    &self.traceparent,
                ],
            )
            .await?;
        // A plain INSERT tells nothing; with RETURNING it would need a right to read.
        Ok(rows.first().map_or(self.id, |row| row.get(0)))
    }
}

/// An event as text, good or bad, to be offered at any door.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) id: Uuid,
    pub(crate) event_type: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: Uuid,
    pub(crate) payload: String,
    pub(crate) schema_version: i32,
    pub(crate) occurred_at: Option<String>,
    pub(crate) available_at: Option<String>,
    pub(crate) partition_key: Option<String>,
    pub(crate) organization: Option<Uuid>,
    pub(crate) traceparent: Option<String>,
    /// A plain INSERT has no column for it.
    pub(crate) key: Option<String>,
}

impl Default for Fact {
    fn default() -> Fact {
        Fact {
            id: Uuid::now_v7(),
            event_type: "order.paid".into(),
            aggregate_type: "order".into(),
            aggregate_id: Uuid::now_v7(),
            payload: r#"{"cents": 995}"#.into(),
            schema_version: 1,
            occurred_at: None,
            available_at: None,
            partition_key: None,
            organization: None,
            traceparent: None,
            key: None,
        }
    }
}

impl Fact {
    /// The doors that take a key.
    pub(crate) const KEYED: [Door; 4] =
        [Door::Library, Door::LibraryMany, Door::Function, Door::FunctionMany];

    pub(crate) fn of_payload(payload: impl Into<String>) -> Fact {
        Fact { payload: payload.into(), ..Fact::default() }
    }

    pub(crate) fn keyed(key: &str) -> Fact {
        Fact { key: Some(key.to_owned()), ..Fact::default() }
    }

    /// The same fact under an id of its own.
    pub(crate) fn again(&self) -> Fact {
        Fact { id: Uuid::now_v7(), ..self.clone() }
    }

    pub(crate) fn event(&self) -> NewEvent {
        let mut event =
            NewEvent::raw(&*self.event_type, &*self.aggregate_type, self.aggregate_id, &*self.payload)
                .id(EventId(self.id))
                .schema_version(self.schema_version);
        if let Some(at) = &self.occurred_at {
            event = event.occurred_at(at.parse().expect("a time"));
        }
        if let Some(at) = &self.available_at {
            event = event.available_at(at.parse().expect("a time"));
        }
        if let Some(key) = &self.partition_key {
            event = event.partition_key(key);
        }
        if let Some(organization) = self.organization {
            event = event.organization(organization);
        }
        if let Some(traceparent) = &self.traceparent {
            event = event.traceparent(traceparent);
        }
        if let Some(key) = &self.key {
            event = event.idempotency_key(key);
        }
        event
    }

    /// Offers it at one door. Returns the id that the door told, or its refusal in the words of the library.
    pub(crate) async fn at(&self, door: Door, client: &mut Client) -> Result<Uuid, Error> {
        let by_function = "select outhaul.publish($2::text, $3::text, $4, $5::text::jsonb, $1, $6, $7::text::timestamptz, \
            $8::text::timestamptz, $9::text, $10, $11::text, $12::text)";
        let by_function_many = "select (outhaul.publish_many(array[$2::text], array[$3::text], array[$4]::uuid[], \
            array[$5::text], array[$1]::uuid[], array[$6]::int[], array[$7::text::timestamptz], \
            array[$8::text::timestamptz], array[$9::text], array[$10]::uuid[], array[$11::text], array[$12::text]))[1]";
        let by_insert = "insert into outhaul.outbox_events (id, event_type, aggregate_type, aggregate_id, payload, \
            schema_version, occurred_at, available_at, partition_key, organization_id, traceparent) \
            select $1, $2::text, $3::text, $4, $5::text::jsonb, $6, coalesce($7::text::timestamptz, now()), \
            coalesce($8::text::timestamptz, now()), $9::text, $10::uuid, $11::text where $12::text is null";
        let sql = match door {
            Door::Library => return Ok(publish(client, &self.event()).await?.id().0),
            Door::LibraryMany => return Ok(publish_many(client, &[self.event()]).await?[0].id().0),
            Door::Function => by_function,
            Door::FunctionMany => by_function_many,
            Door::Insert => by_insert,
        };
        let rows = client
            .query(
                sql,
                &[
                    &self.id,
                    &self.event_type,
                    &self.aggregate_type,
                    &self.aggregate_id,
                    &self.payload,
                    &self.schema_version,
                    &self.occurred_at,
                    &self.available_at,
                    &self.partition_key,
                    &self.organization,
                    &self.traceparent,
                    &self.key,
                ],
            )
            .await?;
        Ok(rows.first().map_or(self.id, |row| row.get(0)))
    }
}

/// Everything that an error tells anybody, with its causes.
pub(crate) fn all_words(error: &Error) -> String {
    let mut words = format!("{error} {error:?} {:?} {:?}", error.hint(), error.field());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words.push_str(&format!(" {error} {error:?}"));
        cause = error.source();
    }
    words
}
