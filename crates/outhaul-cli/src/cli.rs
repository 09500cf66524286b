//! The command line.

use clap::{Args, Parser, Subcommand};

/// Durable asynchronous work inside PostgreSQL.
#[derive(Parser)]
#[command(name = "outhaul", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Print one JSON object on standard output, and problems as JSON on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no messages but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Use no colours
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Where the database is; keep its password in a file named by OUTHAUL_DATABASE_URL_FILE or PGPASSFILE
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// The schema that holds Outhaul's tables
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show a small business at work: jobs in transactions, failures, a killed worker, nothing lost
    Demo(crate::demo::Args),
}
