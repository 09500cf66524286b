//! `outhaul enqueue TYPE [JSON|-]`.

use std::io::Read;
use std::time::Instant;

use outhaul::{NewJob, Observer, Producer};
use serde_json::json;

use super::jobs::Detail;
use super::wait::{self, Waited};
use crate::cli::Enqueue;
use crate::config::Config;
use crate::exit::{Exit, Problem};
use crate::output::Global;

/// Standard input is read up to here. White space does not count towards the limit of a payload, so this is
/// more than that limit.
const STDIN_LIMIT: u64 = 16 * 1024 * 1024;

pub(crate) async fn run(args: Enqueue, global: &Global) -> anyhow::Result<Exit> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    let queue = queue(&args, &global.config);
    let job = new_job(&args, &queue).await?;
    job.check()?;
    global.say_target(&dsn, &schema);
    // Its check tells a missing schema apart from everything else that could be wrong.
    let observer = Observer::connect(&dsn, &schema).await?;
    let mut session = outhaul::connect(&dsn).await?;
    let started = Instant::now();
    let enqueued = Producer::in_schema(&schema).enqueue(&mut *session, &job).await?;
    let (id, new) = (enqueued.id(), enqueued.is_new());
    let mut answer = json!({ "id": id, "new": new, "job_type": args.job_type, "queue": queue });
    if !args.wait {
        if global.json {
            global.print_json(&answer)?;
        } else {
            let word = if new { "" } else { "  duplicate: the key is in use, nothing was stored" };
            global.print(format_args!("{id}  {}  queue {queue}{word}", args.job_type))?;
        }
        return Ok(Exit::Ok);
    }
    let waited = wait::until_end(&observer, id, args.wait_timeout, true).await?;
    if global.json {
        answer["job"] = match &waited {
            Waited::Ended(job) | Waited::TimedOut(Some(job)) => serde_json::to_value(Detail::of(job))?,
            Waited::Gone | Waited::TimedOut(None) => serde_json::Value::Null,
        };
        global.print_json(&answer)?;
    } else {
        let state = match &waited {
            Waited::Ended(job) | Waited::TimedOut(Some(job)) => {
                let job = &job.job;
                format!("{}  attempt {}/{}", job.status, job.attempts, job.max_attempts)
            }
            Waited::Gone => "completed".to_owned(),
            Waited::TimedOut(None) => "unknown".to_owned(),
        };
        let ms = started.elapsed().as_millis();
        global.print(format_args!("{id}  {}  queue {queue}  {state}  {ms} ms", args.job_type))?;
    }
    Ok(wait::exit(&waited, id)?)
}

/// The queue named on the command line, else the one that the configuration names for the type.
fn queue(args: &Enqueue, config: &Config) -> String {
    let bound = || config.jobs().get(&args.job_type).map(|binding| binding.queue.clone());
    args.queue.clone().or_else(bound).unwrap_or_else(|| "default".to_owned())
}

async fn new_job(args: &Enqueue, queue: &str) -> anyhow::Result<NewJob> {
    let payload = if args.payload == "-" { stdin().await? } else { args.payload.clone() };
    let mut job =
        NewJob::raw(queue, &args.job_type, payload).priority(args.priority).max_attempts(args.max_attempts);
    if let Some(key) = &args.idempotency_key {
        job = job.idempotency_key(key);
    }
    if let Some(at) = args.run_at {
        job = job.run_at(at);
    }
    if let Some(delay) = args.delay {
        job = job.delay(delay);
    }
    if let Some(timeout) = args.timeout {
        job = job.timeout(timeout);
    }
    if let Some(organization) = args.organization {
        job = job.organization(organization);
    }
    if let Some(traceparent) = &args.traceparent {
        job = job.traceparent(traceparent);
    }
    Ok(job)
}

async fn stdin() -> anyhow::Result<String> {
    let read = || {
        let mut payload = Vec::new();
        std::io::stdin().lock().take(STDIN_LIMIT + 1).read_to_end(&mut payload).map(|_| payload)
    };
    let payload = tokio::task::spawn_blocking(read).await??;
    if payload.len() as u64 > STDIN_LIMIT {
        return Err(Problem::new(
            Exit::Usage,
            "invalid_input",
            "standard input is larger than any payload may be",
        )
        .hint("Store it elsewhere, and enqueue its place.")
        .into());
    }
    String::from_utf8(payload).map_err(|_| {
        Problem::new(Exit::Usage, "invalid_input", "standard input is not valid UTF-8")
            .hint("Send JSON.")
            .into()
    })
}
