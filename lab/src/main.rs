//! Benchmarks: what a job costs, next to the plainest programs that do the same.

mod db;
mod feed;
mod proc;
mod reference;
mod worker;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A reference worker: orders in lines of JSON on standard input.
    Worker(worker::Spec),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Command::Worker(spec) = Cli::parse().command;
    reference::work(&spec).await
}
