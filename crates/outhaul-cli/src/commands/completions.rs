//! `outhaul completions SHELL`.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::Exit;

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outhaul", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(Exit::Ok)
}
