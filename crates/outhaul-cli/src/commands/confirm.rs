//! Asking a person before something that is not easily undone.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};

use crate::exit::{Exit, Problem};

/// Whether somebody is there who could answer.
pub(crate) fn somebody() -> bool {
    io::stdin().is_terminal()
}

/// Refuses a command that needs an answer, or `--yes`, where nobody is there to give one.
pub(crate) fn possible(yes: bool, doing: impl Display) -> Result<(), Problem> {
    match yes || somebody() {
        true => Ok(()),
        false => Err(Problem::new(Exit::Usage, "not_confirmed", format!("{doing} needs a confirmation"))
            .hint("Nobody can be asked here. Say --yes.")),
    }
}

/// Asks on standard error. Everything but a yes is a no.
///
/// # Errors
/// The answer was no, or could not be had.
pub(crate) fn ask(question: impl Display, doing: impl Display) -> anyhow::Result<()> {
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("y") { Ok(()) } else { Err(refused(doing).into()) }
}

/// What is said when it was not confirmed.
pub(crate) fn refused(doing: impl Display) -> Problem {
    Problem::new(Exit::Refused, "not_confirmed", format!("{doing} was not confirmed")).hint("Say --yes.")
}
