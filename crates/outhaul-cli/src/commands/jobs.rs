//! `outhaul jobs list|show|cancel|retry|wait`.

use jiff::Timestamp;
use outhaul::{AttemptView, Cancelled, JobDetail, JobFilter, JobId, JobView, Retried};
use serde::Serialize;
use serde_json::{Value, json};

use super::each::{Acted, Things, each};
use super::wait::{self, Waited};
use super::waits;
use super::{observer, operator};
use crate::cli::{Jobs, JobsAct, JobsCancel, JobsList};
use crate::exit::{Exit, Problem};
use crate::output::{self, Global, facts, or_dash, span, time};

pub(crate) async fn run(what: Jobs, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Jobs::List(args) => list(args, global).await,
        Jobs::Show { id, payload } => show(id, payload, global).await,
        Jobs::Cancel(args) => cancel(&args, global).await,
        Jobs::Retry(args) => retry(&args, global).await,
        Jobs::Wait { id, timeout } => {
            let waited = wait::until_end(&observer(global).await?, id, timeout, false).await?;
            if let Waited::Ended(job) | Waited::TimedOut(Some(job)) = &waited {
                output::unless_closed(print_one(job, global))?;
            } else if global.json {
                output::unless_closed(global.print_json(&Value::Null))?;
            }
            Ok(wait::exit(&waited, id)?)
        }
    }
}

async fn list(args: JobsList, global: &Global) -> anyhow::Result<Exit> {
    let filter = JobFilter {
        statuses: args.statuses,
        queue: args.queue,
        job_type: args.job_type,
        before: args.before,
        limit: args.limit,
    };
    let jobs = observer(global).await?.jobs(&filter).await?;
    // A full page may be the last one; then the next is empty.
    let next = jobs.last().filter(|_| jobs.len() == args.limit as usize).map(|job| job.id);
    if global.json {
        global.print_json(&json!({ "jobs": jobs, "next_before": next }))?;
    } else if args.jsonl {
        jobs.iter().try_for_each(|job| global.print_json(job))?;
    } else {
        let header = ["ID", "QUEUE", "TYPE", "STATUS", "ATTEMPT", "RUN_AT", "CODE", "CREATED_AT"];
        global.print_table(&header, jobs.iter().map(row).collect())?;
        if let Some(next) = next {
            global.say(format_args!("more: --before {next}"));
        }
    }
    Ok(Exit::Ok)
}

fn row(job: &JobView) -> Vec<String> {
    vec![
        job.id.to_string(),
        job.queue.clone(),
        job.job_type.clone(),
        job.status.to_string(),
        format!("{}/{}", job.attempts, job.max_attempts),
        or_dash(job.run_at.map(time)),
        or_dash(job.last_error_code.as_ref()),
        time(job.created_at),
    ]
}

async fn show(id: JobId, payload: bool, global: &Global) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    let job = observer.job(id).await?.ok_or_else(|| wait::not_found(id))?;
    let payload = if payload { observer.payload(id).await? } else { None };
    let waits = observer.waits(id).await?;
    if global.json {
        let mut shown = serde_json::to_value(Detail::of(&job))?;
        shown["waits_for"] = serde_json::to_value(&waits)?;
        if let Some(payload) = &payload {
            shown["payload"] = serde_json::from_str(payload)?;
        }
        global.print_json(&shown)?;
        return Ok(Exit::Ok);
    }
    print_one(&job, global)?;
    let waits = waits.iter().map(|wait| ("waits for", Some(waits::of_job(wait))));
    for line in of_job(&job).into_iter().chain(facts(waits)) {
        global.print(line)?;
    }
    if let Some(payload) = payload {
        global.print(format_args!("payload      {payload}"))?;
    }
    global.print(global.bold("timeline"))?;
    for line in timeline(&job) {
        global.print(line)?;
    }
    Ok(Exit::Ok)
}

/// The job in one line, or as one JSON object.
fn print_one(job: &JobDetail, global: &Global) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(&Detail::of(job));
    }
    let j = &job.job;
    let head = format!(
        "{}  {}  queue {}  {}  attempt {}/{}",
        j.id, j.job_type, j.queue, j.status, j.attempts, j.max_attempts
    );
    Ok(global.print(head)?)
}

fn of_job(job: &JobDetail) -> Vec<String> {
    let j = &job.job;
    facts([
        ("organization", j.organization_id.map(|id| id.to_string())),
        ("key", job.idempotency_key.clone()),
        ("priority", (j.priority != 0).then(|| j.priority.to_string())),
        ("due", j.run_at.filter(|_| !j.status.is_end()).map(time)),
        ("timeout", job.timeout_ms.map(span)),
        ("leased by", job.lease_until.and(j.locked_by.clone())),
        ("lease until", job.lease_until.map(time)),
        ("trace", job.traceparent.clone()),
    ])
}

/// What happened, in order: enqueued, each claim that did not complete, and the end.
fn timeline(job: &JobDetail) -> Vec<String> {
    let j = &job.job;
    let mut lines = vec![format!("  {}  enqueued", time(j.created_at))];
    lines.extend(job.attempt_history.iter().map(attempt));
    match (j.ended_at, job.lease_until) {
        (Some(at), _) => lines.push(format!("  {}  {}", time(at), j.status)),
        (None, Some(_)) => {
            let claim = or_dash(job.claim_no);
            let at = or_dash(j.locked_at.map(time));
            lines.push(format!("  {at}  claim {claim}  attempt {}  running now", j.attempts));
        }
        (None, None) => lines.push(format!("  {}  due", or_dash(j.run_at.map(time)))),
    }
    lines
}

fn attempt(attempt: &AttemptView) -> String {
    let took = span(millis(attempt.started_at, attempt.ended_at));
    let summary = attempt.error_summary.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    let code = attempt.error_code.as_deref().map(|code| format!(" {code}")).unwrap_or_default();
    format!(
        "  {}  claim {}  attempt {}  {} after {took}  {}{code}{summary}",
        time(attempt.started_at),
        attempt.claim_no,
        attempt.attempt,
        attempt.outcome,
        attempt.error_class
    )
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond() - from.as_millisecond()
}

/// A job as JSON: the fields of lists, and what only one page shows.
#[derive(Serialize)]
pub(crate) struct Detail<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    claim_no: Option<i32>,
    lease_until: Option<Timestamp>,
    idempotency_key: Option<&'a str>,
    traceparent: Option<&'a str>,
    timeout_ms: Option<i64>,
    /// Not `attempts`, which is the number of them.
    attempt_history: &'a [AttemptView],
}

impl Detail<'_> {
    pub(crate) fn of(detail: &JobDetail) -> Detail<'_> {
        Detail {
            job: &detail.job,
            claim_no: detail.claim_no,
            lease_until: detail.lease_until,
            idempotency_key: detail.idempotency_key.as_deref(),
            traceparent: detail.traceparent.as_deref(),
            timeout_ms: detail.timeout_ms,
            attempt_history: &detail.attempt_history,
        }
    }
}

async fn cancel(args: &JobsCancel, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let reason = args.reason.as_deref();
    if let (Some(key), Some(job_type)) = (args.key.as_deref(), args.job_type.as_deref()) {
        let act = async |key: &str| {
            Ok(match operator.cancel_by_key(job_type, key, args.organization, reason).await? {
                Cancelled::Cancelled => Acted::good("cancelled"),
                Cancelled::Ended => Acted::refused("ended", "has ended"),
                Cancelled::NotFound => Acted::missing(no_key(job_type, key)),
            })
        };
        let show = format!("outhaul jobs list --type {job_type}");
        let keyed = Things { noun: "the job with key".to_owned(), key: "key", show, by_name: false };
        return each(&[key], &keyed, act, global).await;
    }
    let act = async |id| {
        Ok(match operator.cancel(id, reason).await? {
            Cancelled::Cancelled => Acted::good("cancelled"),
            Cancelled::Ended => Acted::refused("ended", "has ended"),
            Cancelled::NotFound => Acted::missing(wait::not_found(id)),
        })
    };
    each(&args.ids, &jobs(), act, global).await
}

async fn retry(args: &JobsAct, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let act = async |id| {
        Ok(match operator.retry(id, args.reason.as_deref()).await? {
            Retried::Due => Acted::good("due"),
            Retried::Replayed => Acted::good("replayed"),
            Retried::Leased => Acted::refused("leased", "is held by a worker"),
            Retried::Ended => Acted::refused("ended", "has ended otherwise"),
            Retried::NotFound => Acted::missing(wait::not_found(id)),
        })
    };
    each(&args.ids, &jobs(), act, global).await
}

fn no_key(job_type: &str, key: &str) -> Problem {
    Problem::new(Exit::NotFound, "not_found", format!("no {job_type} has the key {key}")).hint(
        "A key belongs to a type and an organization: name --organization if the job has one. Keys are kept for 7 days after \
         the end.",
    )
}

pub(super) fn jobs() -> Things {
    Things { noun: "job".to_owned(), key: "id", show: "outhaul jobs show".to_owned(), by_name: true }
}
