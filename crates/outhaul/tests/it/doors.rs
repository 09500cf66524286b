//! Every way into the queue, so that one promise is tested at all of them.

use outhaul::{Error, JobId, NewJob, enqueue, enqueue_many};
use tokio_postgres::Client;
use uuid::Uuid;

/// A way to enqueue a job.
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
