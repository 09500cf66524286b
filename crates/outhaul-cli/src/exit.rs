//! Exit codes, and the errors that people and programs see.

use std::fmt;

use serde::Serialize;

use crate::output::Unwritten;

/// How the process ends; few and documented, so that scripts can rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It worked.
    Ok = 0,
    /// It failed, what was waited for ended badly, or what was checked is not sound.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// There is no such job or object.
    NotFound = 3,
    /// Rights are missing, or it was refused in this state.
    Refused = 4,
    /// The database cannot be reached, or not for writing.
    NoDatabase = 5,
    /// The schema is missing, too old or too new.
    Schema = 6,
    /// The time limit passed.
    TimedOut = 7,
    /// It was done, or perhaps done, and what came of it could not be told: to be looked up before it is repeated.
    Untold = 11,
    /// Interrupted from outside.
    Interrupted = 130,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> std::process::ExitCode {
        std::process::ExitCode::from(exit as u8)
    }
}

/// An error with its exit code, a stable code for programs, and what to do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// A short stable name, such as `not_found`.
    pub(crate) code: String,
    /// What failed, on which object.
    pub(crate) message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    #[serde(serialize_with = "as_number", rename = "exit_code")]
    pub(crate) exit: Exit,
}

impl Problem {
    pub(crate) fn new(exit: Exit, code: &str, message: impl Into<String>) -> Problem {
        Problem { code: code.to_owned(), message: message.into(), hint: None, exit }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn usage(message: impl Into<String>) -> Problem {
        Problem::new(Exit::Usage, "usage", message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Problem {
        Problem::new(Exit::Usage, "config", message)
    }

    /// Something was changed, and what came of it cannot be told.
    pub(crate) fn untold(
        done: impl fmt::Display,
        why: impl fmt::Display,
        look: impl Into<String>,
    ) -> Problem {
        Problem::new(Exit::Untold, "untold", format!("{done}, but {why}")).hint(look)
    }

    /// What an error of any layer means to the person at the terminal.
    pub(crate) fn of(error: anyhow::Error) -> Problem {
        let error = match error.downcast::<Problem>() {
            Ok(problem) => return problem,
            Err(error) => error,
        };
        if let Some(library) = error.downcast_ref::<outhaul::Error>() {
            let problem = Problem::new(exit_of(library), library.code(), down_to_library(&error));
            return Problem { hint: hint_of(library), ..problem };
        }
        if error.is::<Unwritten>() {
            return Problem::new(Exit::Failed, "output", error.to_string())
                .hint("Write it to another place, or free space there.");
        }
        if let Some(local) = error.downcast_ref::<outhaul_local::Error>() {
            let problem = Problem::new(Exit::Failed, "local_server", local.message());
            return Problem { hint: local.hint().map(str::to_owned), ..problem };
        }
        Problem::new(Exit::Failed, "failed", format!("{error:#}"))
    }
}

/// What was being done, down to the library's message, which has taken up what its causes have to say.
fn down_to_library(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(cause.to_string());
        if cause.is::<outhaul::Error>() {
            break;
        }
    }
    parts.join(": ")
}

/// The library's hint names the cases of all commands; a refused login is one of them.
fn hint_of(error: &outhaul::Error) -> Option<String> {
    let login = error.sqlstate().is_some_and(|state| state.starts_with("28"));
    let own = login.then_some("Check the user, the password, and the server's rules in pg_hba.conf.");
    own.or(error.hint()).map(str::to_owned)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// An error of a command that changes something. When it is not known whether the change was made, the hint says
/// where to look, and the exit code does not read as "nothing happened".
pub(crate) fn of_change(error: impl Into<anyhow::Error>, look: impl Into<String>) -> anyhow::Error {
    let error = error.into();
    match error.downcast_ref::<outhaul::Error>() {
        Some(library) if library.is_outcome_unknown() => {
            Problem { exit: Exit::Untold, ..Problem::of(error).hint(look) }.into()
        }
        _ => error,
    }
}

fn exit_of(error: &outhaul::Error) -> Exit {
    match error {
        e if e.is_config() || e.is_invalid_input() => Exit::Usage,
        e if e.is_not_found() => Exit::NotFound,
        e if e.is_refused() || e.is_conflict() => Exit::Refused,
        e if e.is_history_truncated() || e.is_history_diverged() => Exit::Refused,
        e if e.is_schema_mismatch() => Exit::Schema,
        e if e.is_timeout() => Exit::TimedOut,
        // The connection broke in the middle: the message says what is known about the statement.
        e if e.is_unavailable() || e.is_outcome_unknown() => Exit::NoDatabase,
        _ => Exit::Failed,
    }
}

fn as_number<S: serde::Serializer>(exit: &Exit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*exit as u8)
}
