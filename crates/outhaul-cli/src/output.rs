//! What goes to the terminal: data to standard output, messages to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::config::Config;
use crate::exit::{Exit, Problem};

/// What every command is told: how to speak, and the configuration.
pub(crate) struct Global {
    /// One stable JSON object (or array) on standard output, problems as JSON on standard error.
    pub(crate) json: bool,
    /// No messages but errors.
    pub(crate) quiet: bool,
    /// Whether standard output takes colours: a terminal that is not dumb, and nobody objects.
    pub(crate) color: bool,
    /// Whether a person looks at standard output.
    pub(crate) interactive: bool,
    /// The settings, each with its origin.
    pub(crate) config: Config,
}

impl Global {
    /// Prints a line of data.
    pub(crate) fn print(&self, line: impl std::fmt::Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    /// Prints one JSON value on a line of its own.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.print(serde_json::to_string(value)?)?;
        Ok(())
    }

    /// A message for the person: to standard error, and not with `--quiet` or `--json`.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        if !self.quiet && !self.json {
            // Nobody listens any more: no reason to fail.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Whether a stream takes colours.
pub(crate) fn color(no_color: bool, stream: &impl IsTerminal) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    !no_color
        && set("NO_COLOR").is_none()
        && set("TERM").is_none_or(|term| term != "dumb")
        && stream.is_terminal()
}

/// Tells a problem on standard error and gives its exit code.
pub(crate) fn report(problem: &Problem, json: bool, no_color: bool) -> Exit {
    let mut err = io::stderr().lock();
    let written = if json {
        let problem = serde_json::json!({ "error": problem });
        writeln!(err, "{problem}")
    } else {
        let (red, plain) = if color(no_color, &io::stderr()) { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        writeln!(err, "{red}error[{}]{plain}: {}", problem.code, problem.message).and_then(
            |()| match &problem.hint {
                Some(hint) => writeln!(err, "hint: {hint}"),
                None => Ok(()),
            },
        )
    };
    // Standard error may be closed; the exit code still tells.
    drop(written);
    problem.exit
}
