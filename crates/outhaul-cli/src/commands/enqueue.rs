//! `outhaul enqueue TYPE [JSON|-]`.

use std::fmt;
use std::time::{Duration, Instant};

use outhaul::{JobId, NewJob, Observer, Producer};
use serde_json::{Value, json};

use super::jobs::Detail;
use super::send;
use super::wait::{self, Waited};
use crate::cli::Enqueue;
use crate::config::Config;
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global};

pub(crate) async fn run(args: Enqueue, global: &Global) -> anyhow::Result<Exit> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    let queue = queue(&args, &global.config);
    let job = new_job(&args, &queue, send::payload(&args.payload, global).await?);
    job.check()?;
    global.say_target(&dsn, &schema);
    // Its check tells a missing schema apart from everything else that could be wrong.
    let observer = Observer::connect(&dsn, &schema).await?;
    if args.wait {
        // Who may not look has to know it before the commit.
        observer.job(job.job_id()).await?;
    }
    let mut session = outhaul::connect(&dsn).await?;
    let started = Instant::now();
    let enqueued = Producer::in_schema(&schema).enqueue(&mut *session, &job).await;
    let enqueued = enqueued.map_err(|error| exit::of_change(error, look_first(&job, &args)))?;
    let stored =
        Stored { id: enqueued.id(), new: enqueued.is_new(), job_type: &args.job_type, queue: &queue };
    if args.wait {
        return stored.wait(&observer, args.wait_timeout, started, global).await;
    }
    let word = if stored.new { "" } else { "  duplicate: the key is in use, nothing was stored" };
    output::told(stored.print(stored.json(), word, global), &stored, stored.look())?;
    Ok(Exit::Ok)
}

fn look_first(job: &NewJob, args: &Enqueue) -> String {
    send::look_first("job", job.job_id(), args.idempotency_key.is_some(), "outhaul jobs show")
}

/// What the database has answered.
struct Stored<'a> {
    id: JobId,
    new: bool,
    job_type: &'a str,
    queue: &'a str,
}

/// What is true from now on, whatever becomes of the output.
impl fmt::Display for Stored<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.new {
            true => write!(f, "job {id} is committed"),
            false => write!(f, "the key belongs to job {id} and nothing more was stored"),
        }
    }
}

impl Stored<'_> {
    fn look(&self) -> String {
        format!("Look at it: outhaul jobs show {}", self.id)
    }

    fn json(&self) -> Value {
        json!({ "id": self.id, "new": self.new, "job_type": self.job_type, "queue": self.queue })
    }

    fn print(&self, answer: Value, words: &str, global: &Global) -> anyhow::Result<()> {
        if global.json {
            return global.print_json(&answer);
        }
        let Stored { id, job_type, queue, .. } = self;
        Ok(global.print(format_args!("{id}  {job_type}  queue {queue}{words}"))?)
    }

    async fn wait(
        &self,
        observer: &Observer,
        limit: Option<Duration>,
        started: Instant,
        global: &Global,
    ) -> anyhow::Result<Exit> {
        // Whoever interrupts the waiting needs to know it.
        global.say(format_args!("{self}, waiting for its end"));
        let waited = wait::until_end(observer, self.id, limit, true).await.map_err(|error| {
            let why = format!("waiting for its end failed: {}", Problem::of(error));
            Problem::untold(self, why, self.look())
        })?;
        let mut answer = self.json();
        let state = match &waited {
            Waited::Ended(job) | Waited::TimedOut(Some(job)) => {
                answer["job"] = serde_json::to_value(Detail::of(job))?;
                let job = &job.job;
                format!("{}  attempt {}/{}", job.status, job.attempts, job.max_attempts)
            }
            Waited::Gone | Waited::TimedOut(None) => {
                answer["job"] = Value::Null;
                let gone = matches!(waited, Waited::Gone);
                if gone { "completed" } else { "unknown" }.to_owned()
            }
        };
        let words = format!("  {state}  {} ms", started.elapsed().as_millis());
        output::told(self.print(answer, &words, global), self, self.look())?;
        Ok(wait::exit(&waited, self.id)?)
    }
}

/// The queue named on the command line, else the one that the configuration names for the type.
fn queue(args: &Enqueue, config: &Config) -> String {
    let bound = || config.jobs().get(&args.job_type).map(|binding| binding.queue.clone());
    args.queue.clone().or_else(bound).unwrap_or_else(|| "default".to_owned())
}

fn new_job(args: &Enqueue, queue: &str, payload: String) -> NewJob {
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
    job = args.ordering_key.iter().fold(job, NewJob::ordering_key);
    job = args.limit_key.iter().fold(job, NewJob::limit_key);
    job = args.rate_key.iter().fold(job, NewJob::rate_key);
    if let Some(traceparent) = &args.traceparent {
        job = job.traceparent(traceparent);
    }
    job
}
