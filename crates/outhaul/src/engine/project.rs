//! Projections: jobs that rules make of events, stored with the checkpoint in one transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::events::{Batch, EventContext, KIND, RecordedEvent};
use super::handle::{Context, Outcome, Registered, panicked};
use super::held::Work;
use super::link::Db;
use crate::caller::{due_text, millis};
use crate::error::Error;
use crate::failure::Failure;
use crate::model::NewJob;
use crate::store::statement::PROJECT;

/// All jobs of one event, each with its key.
pub(crate) type Rules = dyn Fn(&RecordedEvent) -> Result<Vec<NewJob>, Failure> + Send + Sync;

/// A statement goes out when it has this many jobs or bytes of payload.
const JOBS: usize = 1_000;
const BYTES: usize = 4 << 20;

/// Handles the batches of a subscription by applying `rules` to each event.
pub(crate) fn projection(queue: &str, db: Db, rules: Arc<Rules>) -> Registered {
    Registered::raw(queue, KIND, move |context: Context| {
        let (db, rules) = (db.clone(), rules.clone());
        async move {
            let cx = EventContext::of(&context);
            match &cx.held.work {
                Work::Batch(batch) => project(&db, &cx, batch, &*rules).await,
                _ => Err(Failure::permanent("a projection was given something else than events")),
            }
        }
    })
}

async fn project(db: &Db, cx: &EventContext, batch: &Batch, rules: &Rules) -> Outcome {
    let mut part = Part::default();
    for (n, event) in batch.events.iter().enumerate() {
        if n > 0 && (cx.is_cancelled() || cx.draining.is_cancelled()) {
            break;
        }
        // Caught here, because the events before it are not stored yet.
        let jobs = catch_unwind(AssertUnwindSafe(|| rules(event)));
        match jobs.unwrap_or_else(|panic| Err(panicked(&*panic))) {
            Ok(jobs) => part.add(event, jobs),
            Err(failure) => {
                part.store(db, cx, batch).await?;
                batch.begin(event.position);
                return Err(failure);
            }
        }
        if part.is_full() {
            part.store(db, cx, batch).await?;
        }
    }
    part.store(db, cx, batch).await
}

/// Events in a row whose jobs are stored by one statement.
#[derive(Default)]
struct Part {
    /// Positions of the first and the last.
    events: Option<(i64, i64)>,
    jobs: Vec<(Uuid, NewJob)>,
    bytes: usize,
    /// The last position of the part before, which must be committed when this one is.
    after: i64,
}

impl Part {
    fn add(&mut self, event: &RecordedEvent, jobs: Vec<NewJob>) {
        let first = self.events.map_or(event.position, |(first, _)| first);
        self.events = Some((first, event.position));
        self.bytes += jobs.iter().map(|job| job.payload.len()).sum::<usize>();
        self.jobs.extend(jobs.into_iter().map(|job| (event.id, job)));
    }

    fn is_full(&self) -> bool {
        self.jobs.len() >= JOBS || self.bytes >= BYTES
    }

    async fn store(&mut self, db: &Db, cx: &EventContext, batch: &Batch) -> Outcome {
        let Some((first, last)) = self.events else { return Ok(()) };
        if let Err(error) = self.send(db, cx, batch, last).await {
            batch.fail_as_one(first, last);
            return Err(refused(error));
        }
        if batch.unparked {
            batch.begin(last);
            batch.handle(last);
        } else {
            batch.checkpoint(last);
        }
        *self = Part { after: if batch.unparked { 0 } else { last }, ..Part::default() };
        Ok(())
    }

    async fn send(&self, db: &Db, cx: &EventContext, batch: &Batch, last: i64) -> crate::Result<()> {
        fn each<'a, T>(jobs: &'a [(Uuid, NewJob)], field: impl Fn(&'a NewJob) -> T) -> Vec<T> {
            jobs.iter().map(|(_, job)| field(job)).collect()
        }
        let (jobs, (id, token, claim_no)) = (&self.jobs, cx.held.fence());
        let ids = each(jobs, |job| job.id.0);
        let (queues, types) = (each(jobs, |job| &*job.queue), each(jobs, |job| &*job.job_type));
        let payloads = each(jobs, |job| &*job.payload);
        let keys = each(jobs, |job| job.idempotency_key.as_deref());
        let organizations = each(jobs, |job| job.organization);
        let (priorities, attempts) = (each(jobs, |job| job.priority), each(jobs, |job| job.max_attempts));
        let (dues, timeouts) = (each(jobs, |job| due_text(job.due)), each(jobs, |job| millis(job.timeout)));
        let traces = each(jobs, |job| job.traceparent.as_deref());
        let events: Vec<Uuid> = jobs.iter().map(|(event, _)| *event).collect();
        let ordering_keys = each(jobs, |job| job.ordering_key.as_deref());
        let limit_keys = each(jobs, |job| job.limit_key.as_deref());
        let rate_keys = each(jobs, |job| job.rate_key.as_deref());
        let params: [&(dyn ToSql + Sync); 21] = [
            &id,
            &token,
            &claim_no,
            &last,
            &batch.unparked,
            &self.after,
            &ids,
            &queues,
            &types,
            &payloads,
            &keys,
            &organizations,
            &priorities,
            &dues,
            &attempts,
            &timeouts,
            &traces,
            &events,
            &ordering_keys,
            &limit_keys,
            &rate_keys,
        ];
        db.rows(&PROJECT, &params).await.map(drop)
    }
}

/// How long to wait for a database that could not take the jobs just now.
const AGAIN: Duration = Duration::from_secs(1);

/// What the database says about a statement: about the jobs, for good; about itself, which costs no attempt; or else.
fn refused(error: Error) -> Failure {
    if error.is_invalid_input() {
        let code = error.code();
        return Failure::permanent(error).code(code);
    }
    if error.is_unavailable() || error.is_outcome_unknown() || error.is_retryable() || error.is_lease_lost() {
        tracing::warn!(%error, "the jobs of a projection were not stored, their events come again");
        return Failure::snooze(AGAIN);
    }
    let code = error.code();
    Failure::transient(error).code(code)
}
