//! `outhaul work`: runs the job types that `outhaul.toml` binds to commands, and its projections.

mod command;
mod group;
mod log;
mod serve;
mod tail;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use outhaul::{NewJob, Stopper, Worker, WorkerBuilder, WorkerOptions};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::{LogFormat, Work};
use crate::config::Config;
use crate::config::times::{DRAIN, LEASE, LIMIT, POLL};
use crate::exit::{Exit, Problem};
use crate::output::{self, Global};
use command::Runner;

pub(crate) async fn run(args: Work, global: &Global) -> anyhow::Result<Exit> {
    let format = log::start(args.log_format, global)?;
    // Installed before anything is claimed: a signal that comes early must not end the process in the middle.
    let mut signals = Signals::new()?;
    let listener = bind(&args, &global.config).await?;
    let recorder = listener.is_some().then(serve::install_recorder).transpose()?;

    let now = CancellationToken::new();
    let options = options(&args, &global.config)?;
    let concurrency = options.concurrency;
    let worker = tokio::select! {
        built = builder(&args, global, options, &now)?.build() => built?,
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    let works = queues(&args, &global.config, concurrency);
    output::unless_closed(announce(&worker, &works, global, format))?;
    for warning in global.config.warnings() {
        tracing::warn!("{warning}");
    }
    let server = match (listener, recorder) {
        (Some(listener), Some(recorder)) => {
            Some(serve::start(listener, recorder, global.config.require_database()?, global.config.schema()?))
        }
        _ => None,
    };
    let stopper = worker.stopper();
    let watch = tokio::spawn(signals.watch(stopper, now.clone()));
    worker.run_until(std::future::pending()).await?;
    watch.abort();
    if let Some(server) = server {
        server.abort();
    }
    tracing::info!("the worker has stopped");
    Ok(if now.is_cancelled() { Exit::Interrupted } else { Exit::Ok })
}

async fn bind(args: &Work, config: &Config) -> anyhow::Result<Option<TcpListener>> {
    let set = config.parsed("metrics_addr", "an address such as 127.0.0.1:9184")?;
    let Some(address) = args.metrics_addr.or(set) else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Problem::new(Exit::Failed, "metrics_addr", format!("cannot listen on {address}: {error}"))
            .hint("Choose another --metrics-addr; port 0 takes a free one.")
    })?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /livez and /readyz");
    Ok(Some(listener))
}

fn options(args: &Work, config: &Config) -> Result<WorkerOptions, Problem> {
    let time = |flag: Option<Duration>, key, times| {
        flag.map_or_else(|| config.duration(key, times), |time| Ok(Some(time)))
    };
    let or = |value: Option<Duration>, default| value.unwrap_or(default);
    let library = WorkerOptions::default();
    let number = "a whole number, 1 or more";
    Ok(WorkerOptions {
        lease: or(time(args.lease, "lease", &LEASE)?, library.lease),
        poll: or(time(args.poll, "poll", &POLL)?, library.poll),
        // The limit of a type is kept here, because the library has one for all types.
        timeout: command::NO_LIMIT,
        drain: or(time(args.drain, "drain", &DRAIN)?, library.drain),
        grace: or(time(None, "grace", &DRAIN)?, library.grace),
        concurrency: config.parsed("concurrency", number)?.unwrap_or(library.concurrency),
        listen: config.parsed("listen", "true or false")?.unwrap_or(library.listen),
        max_connections: config.parsed("max_connections", number)?.unwrap_or(library.max_connections),
        ..library
    })
}

fn builder(
    args: &Work,
    global: &Global,
    options: WorkerOptions,
    now: &CancellationToken,
) -> anyhow::Result<WorkerBuilder> {
    let config = &global.config;
    if config.jobs().is_empty() && config.projections().is_empty() {
        return Err(Problem::new(
            Exit::Usage,
            "no_jobs",
            "no job type is bound to a command, and there is no projection",
        )
        .hint("Write into outhaul.toml: [jobs.\"mail.welcome\"], then command = [\"./send-mail\"]")
        .into());
    }
    let dsn = config.require_database()?;
    let mut builder = Worker::builder(dsn).schema(config.schema()?).options(options.clone());
    if let Some(dsn) = config.dsn("listen_url")? {
        builder = builder.listen_dsn(dsn);
    }
    if let Some(dsn) = config.dsn("owner_url")? {
        builder = builder.owner_dsn(dsn);
    }
    let limit = config.duration("timeout", &LIMIT)?.unwrap_or(WorkerOptions::default().timeout);
    for (job_type, binding) in config.jobs() {
        // The library would refuse the names as well, and not say where they stand.
        let place = || format!("[jobs.{job_type:?}] in {}", binding.path.display());
        NewJob::raw(&binding.queue, job_type, "{}").check().with_context(place)?;
        let runner = Arc::new(Runner {
            command: binding.command.clone(),
            limit: binding.timeout.unwrap_or(limit),
            grace: options.grace,
            now: now.clone(),
        });
        builder = builder.handle_raw(&binding.queue, job_type, move |cx| {
            let runner = runner.clone();
            async move { runner.run(cx).await }
        });
    }
    let bound = config.jobs().iter().map(|(name, binding)| (name.clone(), binding.queue.clone())).collect();
    for (name, declared) in config.projections() {
        let projection = declared.projection(name, &bound).map_err(|what| {
            Problem::config(format!("{}: [projections.{name:?}]: {what}", declared.path.display()))
        })?;
        builder = builder.project(projection);
    }
    for (queue, concurrency) in queues(args, config, options.concurrency) {
        builder = builder.queue(queue, concurrency);
    }
    Ok(builder)
}

/// The queues to work with their handlers at once. Named on the command line they are all; else those of the
/// bound types, to which `[queues]` gives numbers.
fn queues(args: &Work, config: &Config, default: usize) -> BTreeMap<String, usize> {
    let configured = |name: &str| config.queues().find(|(queue, ..)| *queue == name).map(|(_, n, _)| n);
    let number = |name: &str| configured(name).unwrap_or(default);
    if !args.queues.is_empty() {
        let named = args.queues.iter();
        return named.map(|(name, n)| (name.clone(), n.unwrap_or_else(|| number(name)))).collect();
    }
    let bound = config.jobs().values().map(|binding| &binding.queue);
    bound.map(|name| (name.clone(), number(name))).collect()
}

/// Says what the worker is and which connections it will open, before it starts.
fn announce(
    worker: &Worker,
    queues: &BTreeMap<String, usize>,
    global: &Global,
    format: LogFormat,
) -> anyhow::Result<()> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    let connections = &worker.plan().connections;
    if global.json {
        let connections: Vec<_> =
            connections.iter().map(|(name, purpose)| json!({ "name": name, "purpose": purpose })).collect();
        return global.print_json(&json!({
            "worker": worker.id(),
            "target": dsn.target(),
            "schema": schema.as_str(),
            "job_types": global.config.jobs().keys().collect::<Vec<_>>(),
            "queues": queues,
            "projections": global.config.projections().keys().collect::<Vec<_>>(),
            "connections": connections,
        }));
    }
    if format == LogFormat::Json {
        let names: Vec<&str> = connections.iter().map(|(name, _)| *name).collect();
        let connections = names.join(",");
        let queues = queues.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let projections =
            global.config.projections().keys().map(String::as_str).collect::<Vec<_>>().join(",");
        tracing::info!(
            worker = %worker.id(), target = dsn.target(), %schema, queues, projections, connections, "starting"
        );
        return Ok(());
    }
    global.say_target(&dsn, &schema);
    global.say(format_args!("worker {}, {} connections:", worker.id(), connections.len()));
    for (name, purpose) in connections {
        global.say(format_args!("  {name:<8} {purpose}"));
    }
    for (queue, handlers) in queues {
        global.say(format_args!("queue {queue}, {handlers} at once"));
    }
    for (name, declared) in global.config.projections() {
        global.say(format_args!("projection {name}: {declared}"));
    }
    Ok(())
}

/// SIGTERM and SIGINT.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// The first signal drains, the second does not wait.
    async fn watch(mut self, stopper: Stopper, now: CancellationToken) {
        self.next().await;
        tracing::info!(
            "stopping: nothing more is claimed, what runs is finished; a second signal gives it back at once"
        );
        stopper.drain();
        self.next().await;
        tracing::warn!("stopping now: what runs is given back");
        // First, so that commands are killed before the library stops to wait for them.
        now.cancel();
        stopper.now();
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
