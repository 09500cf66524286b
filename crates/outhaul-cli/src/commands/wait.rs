//! Waiting for the end of a job, by looking now and then.

use std::time::Duration;

use outhaul::{JobDetail, JobId, JobStatus, Observer};
use tokio::time::Instant;

use crate::exit::{Exit, Problem};

/// What waiting ended with.
pub(crate) enum Waited {
    /// It has ended.
    Ended(Box<JobDetail>),
    /// It was there and is not any more: it completed in a queue that keeps no history.
    Gone,
    /// The time is over; the job as it was seen last.
    TimedOut(Option<Box<JobDetail>>),
}

/// Waits until a job that exists has ended. Looks often at first, then once a second; an outage of the
/// database is waited out.
///
/// # Errors
/// There is no such job, unless it is `known` to have existed; or the database refuses to tell.
pub(crate) async fn until_end(
    observer: &Observer,
    id: JobId,
    limit: Option<Duration>,
    mut known: bool,
) -> anyhow::Result<Waited> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut last = None;
    let mut pause = Duration::from_millis(20);
    loop {
        // The library's connection comes back by itself, however long it takes: the deadline covers it.
        match before(deadline, observer.job(id)).await {
            None => return Ok(Waited::TimedOut(last)),
            Some(Ok(Some(job))) if job.job.status.is_end() => return Ok(Waited::Ended(Box::new(job))),
            Some(Ok(Some(job))) => (known, last) = (true, Some(Box::new(job))),
            Some(Ok(None)) if known => return Ok(Waited::Gone),
            Some(Ok(None)) => return Err(not_found(id).into()),
            Some(Err(error))
                if error.is_retryable() || error.is_unavailable() || error.is_outcome_unknown() => {}
            Some(Err(error)) => return Err(error.into()),
        }
        if before(deadline, tokio::time::sleep(pause)).await.is_none() {
            return Ok(Waited::TimedOut(last));
        }
        pause = (pause * 3 / 2).min(Duration::from_secs(1));
    }
}

/// The exit of a command that waited: an error unless the job completed.
pub(crate) fn exit(waited: &Waited, id: JobId) -> Result<Exit, Problem> {
    match waited {
        Waited::Gone => Ok(Exit::Ok),
        Waited::Ended(job) if job.job.status == JobStatus::Completed => Ok(Exit::Ok),
        Waited::Ended(job) => {
            let status = job.job.status;
            let why = match (&job.job.last_error_code, &job.job.last_error_summary) {
                (Some(code), Some(summary)) => format!(": {code}: {summary}"),
                (Some(text), None) | (None, Some(text)) => format!(": {text}"),
                (None, None) => String::new(),
            };
            Err(Problem::new(Exit::Failed, status.as_str(), format!("job {id} ended as {status}{why}"))
                .hint(format!("Look at its attempts: outhaul jobs show {id}")))
        }
        Waited::TimedOut(last) => {
            let state = last.as_ref().map_or("not known to have ended", |job| job.job.status.as_str());
            Err(Problem::new(
                Exit::TimedOut,
                "timed_out",
                format!("the time is over and job {id} is {state}"),
            )
            .hint(format!("It goes on by itself; wait again: outhaul jobs wait {id}")))
        }
    }
}

pub(crate) fn not_found(id: JobId) -> Problem {
    Problem::new(Exit::NotFound, "not_found", format!("there is no job {id}"))
        .hint("It may have been removed: completed jobs are kept as long as their queue says.")
}

async fn before<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}
