//! `outhaul completions SHELL`.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::Exit;
use crate::output;

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outhaul", &mut script);
    output::write(&String::from_utf8(script)?)?;
    Ok(Exit::Ok)
}
