//! A small business at work, for people who want to see it before they read.

use crate::exit::Exit;
use crate::output::Global;

/// Options of the demonstration.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the demonstration.
pub(crate) async fn run(_args: Args, global: &Global) -> anyhow::Result<Exit> {
    global.say("demo");
    Ok(Exit::Ok)
}
