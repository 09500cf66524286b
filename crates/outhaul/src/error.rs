//! One error type for the whole crate.
//!
//! An [`Error`] is opaque: callers ask it questions (`is_…`) instead of matching on variants, so that
//! a cause can be told apart more finely later without breaking anybody. Every message says what
//! failed and on which object; [`Error::hint`] says what to do. Neither carries payloads or secrets.

use std::fmt;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, on which object, and what to do about it.
///
/// ```
/// # use outhaul::{Job, NewJob};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
/// # impl Job for Mail { const TYPE: &'static str = "mail.welcome"; }
/// let error = NewJob::new(&Mail).unwrap().priority(11).check().unwrap_err();
/// assert!(error.is_invalid_input());
/// assert_eq!(error.to_string(), "priority 11 is out of range");
/// assert_eq!(error.hint(), Some("Use -10 to 10; larger runs sooner."));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    hint: Option<String>,
    field: Option<String>,
    sqlstate: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Internal: the causes that callers can tell apart through the predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidInput,
    Conflict,
    LeaseLost,
    Isolation,
    NotFound,
    HistoryTruncated,
    HistoryDiverged,
    Config,
    Unavailable,
    Timeout,
    OutcomeUnknown,
    SchemaTooOld,
    SchemaTooNew,
    SchemaMissing,
    Refused,
    Retryable,
    ReadOnly,
    StorageFull,
    Database,
    Internal,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            hint: None,
            field: None,
            sqlstate: None,
            source: None,
        }))
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>, hint: impl Into<String>) -> Error {
        let mut error = Error::new(Kind::InvalidInput, message).with_hint(hint);
        error.0.field = Some(field.to_owned());
        error
    }

    pub(crate) fn config(message: impl Into<String>) -> Error {
        Error::new(Kind::Config, message)
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Says what was being done, in front of the message.
    pub(crate) fn context(mut self, doing: impl fmt::Display) -> Error {
        self.0.message = format!("{doing}: {}", self.0.message);
        self
    }

    /// A database error as this crate tells it.
    ///
    /// The server's message is kept only where it is known to be free of row contents: our own SQLSTATEs
    /// (class `OH`) and errors about connections, rights and limits. Everything else may quote a value
    /// (`invalid input syntax for type json: "…"`), and a payload must not reach a log through an error.
    pub(crate) fn from_server(
        sqlstate: &str,
        message: &str,
        hint: Option<&str>,
        field: Option<&str>,
    ) -> Error {
        let kind = kind_of(sqlstate);
        let own =
            sqlstate.starts_with("OH") || sqlstate == SqlState::UNIQUE_VIOLATION.code() && hint.is_some();
        let message = match kind {
            _ if own => message.to_owned(),
            Kind::InvalidInput => invalid_text(sqlstate).to_owned(),
            Kind::Database => format!("the database refused a statement (SQLSTATE {sqlstate})"),
            _ => format!("{message} (SQLSTATE {sqlstate})"),
        };
        let mut error = Error::new(kind, message);
        error.0.hint = if own { hint.map(str::to_owned) } else { hint_of(kind).map(str::to_owned) };
        error.0.field = match (own, kind) {
            (true, _) => field.map(str::to_owned),
            (false, Kind::InvalidInput) => Some("payload".to_owned()),
            _ => None,
        };
        error.0.sqlstate = Some(sqlstate.to_owned());
        error
    }

    /// The input was refused before anything was stored: a size, name, number or encoding.
    pub fn is_invalid_input(&self) -> bool {
        self.0.kind == Kind::InvalidInput
    }

    /// The idempotency key is in use with another payload.
    pub fn is_conflict(&self) -> bool {
        self.0.kind == Kind::Conflict
    }

    /// The lease on the job is gone: it was leased anew, cancelled, or had ended. Nothing was changed.
    pub fn is_lease_lost(&self) -> bool {
        self.0.kind == Kind::LeaseLost
    }

    /// There is no such job, queue or object.
    pub fn is_not_found(&self) -> bool {
        self.0.kind == Kind::NotFound
    }

    /// The transaction's isolation level cannot carry the call; READ COMMITTED is needed.
    pub fn is_wrong_isolation(&self) -> bool {
        self.0.kind == Kind::Isolation
    }

    /// The configuration is wrong: a setting, a URL, a file.
    pub fn is_config(&self) -> bool {
        self.0.kind == Kind::Config
    }

    /// The database cannot be reached, or not for writing, at the moment.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0.kind, Kind::Unavailable | Kind::Timeout | Kind::ReadOnly)
    }

    /// No answer came within the deadline. Whether the statement took effect is then unknown.
    pub fn is_timeout(&self) -> bool {
        self.0.kind == Kind::Timeout
    }

    /// The connection was lost, or the deadline passed, after a statement or COMMIT had been sent:
    /// it may or may not have taken effect. Repeat it with the same idempotency key.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self.0.kind, Kind::OutcomeUnknown | Kind::Timeout)
    }

    /// The schema is missing, too old or too new for this version of the library.
    pub fn is_schema_mismatch(&self) -> bool {
        matches!(self.0.kind, Kind::SchemaTooOld | Kind::SchemaTooNew | Kind::SchemaMissing)
    }

    /// The database role lacks a right.
    pub fn is_refused(&self) -> bool {
        self.0.kind == Kind::Refused
    }

    /// The database is out of space; nothing was stored.
    pub fn is_storage_full(&self) -> bool {
        self.0.kind == Kind::StorageFull
    }

    /// The same call may succeed if its transaction is run again: deadlock, serialization, lock timeout,
    /// or a database that is away for the moment.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, Kind::Retryable | Kind::Unavailable | Kind::ReadOnly | Kind::StorageFull)
    }

    /// The server answered from a standby or in a read-only session: this connection is of no use.
    pub(crate) fn is_read_only(&self) -> bool {
        self.0.kind == Kind::ReadOnly
    }

    /// The statement waited for a lock, or ran, longer than the server lets it. It changed nothing.
    pub(crate) fn is_lock_wait(&self) -> bool {
        matches!(self.sqlstate(), Some("55P03" | "57014"))
    }

    /// Events that a reader wants are not kept any more: it must not go on as if nothing had been there.
    pub fn is_history_truncated(&self) -> bool {
        self.0.kind == Kind::HistoryTruncated
    }

    /// A position belongs to another history of the outbox, such as that before a restore.
    pub fn is_history_diverged(&self) -> bool {
        self.0.kind == Kind::HistoryDiverged
    }

    /// A part of the worker itself panicked: a fault of Outhaul, or of a log or metrics recorder that panics.
    pub fn is_internal(&self) -> bool {
        self.0.kind == Kind::Internal
    }

    /// What to do about it, when that is known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The input that was refused, such as `payload` or `queue`.
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The SQLSTATE, when the database said it.
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// A short stable name of the cause, for programs: `invalid_input`, `conflict`, `lease_lost` and so on.
    pub fn code(&self) -> &'static str {
        match self.0.kind {
            Kind::InvalidInput => "invalid_input",
            Kind::Conflict => "conflict",
            Kind::LeaseLost => "lease_lost",
            Kind::Isolation => "wrong_isolation",
            Kind::NotFound => "not_found",
            Kind::HistoryTruncated => "history_truncated",
            Kind::HistoryDiverged => "history_diverged",
            Kind::Config => "config",
            Kind::Unavailable => "unavailable",
            Kind::Timeout => "timeout",
            Kind::OutcomeUnknown => "outcome_unknown",
            Kind::SchemaTooOld => "schema_too_old",
            Kind::SchemaTooNew => "schema_too_new",
            Kind::SchemaMissing => "schema_missing",
            Kind::Refused => "refused",
            Kind::Retryable => "retryable",
            Kind::ReadOnly => "read_only",
            Kind::StorageFull => "storage_full",
            Kind::Database => "database",
            Kind::Internal => "internal",
        }
    }
}

/// The kind of a SQLSTATE. Source: PostgreSQL, appendix "PostgreSQL Error Codes".
fn kind_of(sqlstate: &str) -> Kind {
    match sqlstate {
        "OH001" => Kind::InvalidInput,
        "OH002" => Kind::Conflict,
        "OH003" => Kind::LeaseLost,
        "OH004" => Kind::Isolation,
        "OH005" => Kind::NotFound,
        "OH006" => Kind::HistoryTruncated,
        "OH007" => Kind::HistoryDiverged,
        "23505" => Kind::Conflict,
        // Text that no jsonb can hold: broken JSON, a NUL, a lone surrogate, a number out of range.
        "22P02" | "22P05" | "22003" | "22021" | "22032" | "54000" | "54001" => Kind::InvalidInput,
        "42P01" | "42883" | "3F000" => Kind::SchemaMissing,
        "42501" | "28000" | "28P01" => Kind::Refused,
        "25006" => Kind::ReadOnly,
        "53100" => Kind::StorageFull,
        "40001" | "40P01" | "55P03" | "57014" | "25P02" | "25P03" | "25P04" | "26000" | "42P05" => {
            Kind::Retryable
        }
        s if s.starts_with("08") || s.starts_with("57P") || s.starts_with("53") => Kind::Unavailable,
        _ => Kind::Database,
    }
}

fn invalid_text(sqlstate: &str) -> &'static str {
    match sqlstate {
        "22P05" => "payload contains the character U+0000, which jsonb cannot hold",
        "22021" => "text is not valid UTF-8",
        "22003" => "payload contains a number out of range",
        "54000" | "54001" => "payload is nested too deeply or too large for the server",
        _ => "payload is not JSON that PostgreSQL accepts: broken syntax, or a lone surrogate",
    }
}

fn hint_of(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::InvalidInput => "Send valid JSON without U+0000 and lone surrogates.",
        Kind::SchemaMissing => "Run `outhaul migrate`, and check the schema name.",
        Kind::Refused => {
            "Check the user and password, and grant the role it needs (outhaul_producer, _worker, _observer or _operator)."
        }
        Kind::ReadOnly => "Connect to the primary; with several hosts use target_session_attrs=read-write.",
        Kind::StorageFull => "Free space on the database server.",
        Kind::Retryable => "Run the transaction again.",
        Kind::Unavailable => "Check that the server runs and accepts connections.",
        _ => return None,
    })
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        // A backend that is told to end says so in place of its answer, also after the commit.
        let fatal = |db: &&DbError| matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        if let Some(db) = error.as_db_error().filter(|db| !fatal(db)) {
            return Error::from_server(db.code().code(), db.message(), db.hint(), db.column());
        }
        // Anything else happened on the way to the server or back. A statement that was on its way may
        // have taken effect, so this is never reported as "not done"; the driver also calls a connection
        // closed when it was lost with the statement under way.
        Error::new(Kind::OutcomeUnknown, "the connection to the database was lost")
            .with_hint(
                "If a COMMIT was under way it may have taken effect: repeat with the same idempotency key.",
            )
            .with_source(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.0.message)?;
        if let Some(hint) = &self.0.hint {
            write!(f, " ({hint})")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, " [{source}]")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}
