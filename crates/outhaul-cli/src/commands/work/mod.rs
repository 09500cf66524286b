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
use crate::config::times::{DRAIN, LEASE, LIMIT, POLL};
use crate::config::{Config, Declared};
use crate::exit::{Exit, Problem};
use crate::output::{self, Global};
use command::Runner;

pub(crate) async fn run(args: Work, global: &Global) -> anyhow::Result<Exit> {
    let config = match &args.role {
        Some(role) => global.config.as_role(role)?,
        None => global.config.clone(),
    };
    let global = &global.with_config(config);
    let format = log::start(args.log_format, global)?;
    // Installed before anything is claimed: a signal that comes early must not end the process in the middle.
    let mut signals = Signals::new()?;
    let listener = bind(&args, &global.config).await?;
    let recorder = listener.is_some().then(serve::install_recorder).transpose()?;

    let now = CancellationToken::new();
    let options = options(&args, &global.config)?;
    let works = Works::of(&args, &global.config, options.concurrency);
    let worker = tokio::select! {
        built = builder(&works, global, options, &now)?.build() => built?,
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    output::unless_closed(announce(&worker, &works, global, format))?;
    let left_out = if works.role.is_some() { global.config.left_out() } else { Vec::new() };
    for warning in global.config.warnings().into_iter().chain(left_out) {
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
    works: &Works<'_>,
    global: &Global,
    options: WorkerOptions,
    now: &CancellationToken,
) -> anyhow::Result<WorkerBuilder> {
    let config = &global.config;
    if (config.jobs().is_empty() || works.queues.is_empty()) && works.projections.is_empty() {
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
    if let Some(role) = works.role {
        builder = builder.role(role);
    }
    if let Some(dsn) = config.dsn("listen_url")? {
        builder = builder.listen_dsn(dsn);
    }
    if let Some(dsn) = config.dsn("owner_url")? {
        builder = builder.owner_dsn(dsn);
    }
    let limit = config.duration("timeout", &LIMIT)?.unwrap_or(WorkerOptions::default().timeout);
    // Without queues nothing may be handled: the library would work those of all handled types.
    for (job_type, binding) in config.jobs().iter().filter(|_| !works.queues.is_empty()) {
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
    for (name, declared) in &works.projections {
        let projection = declared.projection(name, &bound).map_err(|what| {
            Problem::config(format!("{}: [projections.{name:?}]: {what}", declared.path.display()))
        })?;
        builder = builder.project(projection);
    }
    for (queue, concurrency) in &works.queues {
        builder = builder.queue(queue, *concurrency);
    }
    Ok(builder)
}

/// What this process works.
struct Works<'a> {
    role: Option<&'a str>,
    queues: BTreeMap<String, usize>,
    projections: Vec<(&'a str, &'a Declared)>,
}

impl<'a> Works<'a> {
    /// A role says all of it; without one it is everything, or the queues named on the command line.
    fn of(args: &'a Work, config: &'a Config, default: usize) -> Works<'a> {
        let projections = config.projections().iter().map(|(name, declared)| (name.as_str(), declared));
        match args.role.as_deref().and_then(|name| Some((name, config.roles().get(name)?))) {
            Some((name, role)) => Works {
                role: Some(name),
                queues: role.queues.clone(),
                projections: projections
                    .filter(|(name, _)| role.projections.iter().any(|own| own == name))
                    .collect(),
            },
            None => Works {
                role: None,
                queues: queues(args, config, default),
                projections: projections.collect(),
            },
        }
    }
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
fn announce(worker: &Worker, works: &Works<'_>, global: &Global, format: LogFormat) -> anyhow::Result<()> {
    let Works { role, queues, projections } = works;
    let names = || projections.iter().map(|(name, _)| *name);
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    let connections = &worker.plan().connections;
    if global.json {
        let connections: Vec<_> =
            connections.iter().map(|(name, purpose)| json!({ "name": name, "purpose": purpose })).collect();
        return global.print_json(&json!({
            "worker": worker.id(),
            "role": role,
            "target": dsn.target(),
            "schema": schema.as_str(),
            "job_types": global.config.jobs().keys().filter(|_| !queues.is_empty()).collect::<Vec<_>>(),
            "queues": queues,
            "projections": names().collect::<Vec<_>>(),
            "connections": connections,
        }));
    }
    if format == LogFormat::Json {
        let connections = connections.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
        let queues = queues.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let projections = names().collect::<Vec<_>>().join(",");
        tracing::info!(
            worker = %worker.id(), role, target = dsn.target(), %schema, queues, projections, connections, "starting"
        );
        return Ok(());
    }
    global.say_target(&dsn, &schema);
    let role = role.map(|role| format!(", role {role}")).unwrap_or_default();
    global.say(format_args!("worker {}{role}, {} connections:", worker.id(), connections.len()));
    for (name, purpose) in connections {
        global.say(format_args!("  {name:<8} {purpose}"));
    }
    for (queue, handlers) in queues {
        global.say(format_args!("queue {queue}, {handlers} at once"));
    }
    for (name, declared) in projections {
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
