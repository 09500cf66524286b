//! The one error of the crate.

use std::error::Error as StdError;
use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// Says what failed, on which object, and, where something can be done about it, what to do.
///
/// `Display` prints the message and then the hint; [`Error::hint`] gives the hint alone. No message
/// contains a password.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    message: String,
    hint: Option<String>,
    source: Option<Source>,
}

impl Error {
    /// What failed and on which object, without the hint.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// What to do about it, when there is something to do.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { inner: Box::new(Inner { message: message.into(), hint: None, source: None }) }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Attaches the cause; its text becomes part of the message so that one line tells the story.
    pub(crate) fn because(mut self, source: impl Into<Source>) -> Error {
        let source = source.into();
        self.inner.message = format!("{}: {}", self.inner.message, chain(source.as_ref()));
        self.inner.source = Some(source);
        self
    }
}

/// `tokio_postgres::Error` prints only its outermost layer ("db error"), so the causes are spelled out.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let line = cause.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        next = cause.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        match &self.inner.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// The same text as `Display`: `unwrap` in a test should show the log tail readably.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

/// Turns a foreign result into ours with one sentence of context.
pub(crate) trait Context<T> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Source>> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::new(message()).because(source))
    }
}
