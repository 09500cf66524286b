//! The `outhaul` binary: a thin layer of commands over the library.

mod cli;
mod config;
mod demo;
mod exit;
mod output;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, GlobalArgs};
use config::Config;
use exit::{Exit, Problem};
use output::Global;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, no_color) = (cli.global.json, cli.global.no_color);
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(error) if is_broken_pipe(&error) => Exit::Ok.into(),
        Err(error) => output::report(&Problem::of(error), json, no_color).into(),
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let global = global(&cli.global)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => demo::run(args, &global).await,
        }
    })
}

fn global(args: &GlobalArgs) -> anyhow::Result<Global> {
    Ok(Global {
        json: args.json,
        quiet: args.quiet,
        color: output::color(args.no_color, &io::stdout()),
        interactive: io::stdout().is_terminal(),
        config: Config::load(args.database_url.clone(), args.schema.clone())?,
    })
}

/// The reader of our output has seen enough, as in `outhaul jobs list | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
