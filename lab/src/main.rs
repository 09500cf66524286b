//! Benchmarks: what a job costs, next to the plainest programs that do the same.
//!
//! `cargo run --profile measure -p lab` measures everything in about half an hour on a throw-away PostgreSQL server of
//! its own; `--smoke` shows in a minute or two that every cell runs.

mod arena;
mod cells;
mod db;
mod feed;
mod harness;
mod library;
mod proc;
mod reference;
mod report;
mod worker;

use std::fs;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::arena::Ground;
use crate::harness::{Bench, Cell, Scale};
use crate::report::{Conditions, Report};

/// Recoveries are bounds made of configured intervals, so tests assert them; a rate or latency is only ever measured.
const ELSEWHERE: &str = "\
not here: a killed worker's jobs begin again, and work goes on after a restart of PostgreSQL, within bounds that the tests assert";

/// Measures jobs against plain SQL on a throw-away PostgreSQL server with durability on.
#[derive(Parser)]
struct Cli {
    /// Measure only this cell; may be given more than once.
    #[arg(long, value_name = "CELL")]
    only: Vec<String>,
    /// Rounds of each cell [default: 5; 1 with --smoke].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: Option<u16>,
    /// Short cells that only show that everything runs.
    #[arg(long)]
    smoke: bool,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// List the cells and end.
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    hidden: Option<Hidden>,
}

#[derive(Subcommand)]
enum Hidden {
    /// A worker under measurement: started by the benchmark itself.
    #[command(hide = true)]
    Worker(worker::Spec),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match &cli.hidden {
        Some(Hidden::Worker(spec)) if spec.kind == worker::Kind::Outhaul => {
            run_on(tokio::runtime::Builder::new_multi_thread(), worker::work_outhaul(spec))
        }
        Some(Hidden::Worker(spec)) if spec.kind == worker::Kind::Reports => {
            run_on(tokio::runtime::Builder::new_multi_thread(), worker::work_reports(spec))
        }
        // One thread: a reference worker is two connections and no work of its own.
        Some(Hidden::Worker(spec)) => {
            run_on(tokio::runtime::Builder::new_current_thread(), reference::work(spec))
        }
        None => run_on(tokio::runtime::Builder::new_multi_thread(), until_interrupted(bench(&cli))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_on(mut builder: tokio::runtime::Builder, work: impl Future<Output = Result<()>>) -> Result<()> {
    builder.enable_all().build()?.block_on(work)
}

/// Ends early, and so stops the server and removes its files, when the user asks.
async fn until_interrupted(work: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ended = work => ended,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminated.recv() => bail!("terminated"),
    }
}

async fn bench(cli: &Cli) -> Result<()> {
    let cells = chosen(&cli.only)?;
    if cli.list {
        cells.iter().for_each(|cell| println!("{:<16} {}", cell.name, cell.about));
        println!("{ELSEWHERE}");
        return Ok(());
    }
    let mut scale = if cli.smoke { Scale::SMOKE } else { Scale::FULL };
    if let Some(rounds) = cli.rounds {
        scale.rounds = rounds.into();
    }
    let load_before = load()?;
    let began = Instant::now();
    let bench = Bench { ground: Ground::prepare().await?, scale };
    let cells = harness::run(&bench, &cells).await?;
    let (server, settings) = bench.ground.describe().await?;
    let conditions = Conditions {
        server,
        settings,
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: memory_gib()?,
        load_before,
        optimised: !cfg!(debug_assertions),
        smoke: cli.smoke,
        finished_at_unix: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        seconds: began.elapsed().as_secs_f64(),
    };
    let report = Report { conditions, cells };
    match cli.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.show()),
    }
    Ok(())
}

fn chosen(only: &[String]) -> Result<Vec<Cell>> {
    let all = cells::all();
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|cell| cell.name != name.as_str())) {
        let names: Vec<&str> = all.iter().map(|cell| cell.name).collect();
        bail!("there is no cell {unknown}; there are {}", names.join(", "));
    }
    Ok(all.into_iter().filter(|cell| only.is_empty() || only.iter().any(|name| name == cell.name)).collect())
}

fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().context("empty loadavg")?.parse()?)
}

fn memory_gib() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("no MemTotal")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0 / 1024.0)
}
