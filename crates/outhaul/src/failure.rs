//! What a handler says when it did not do its work, and what the errors of common libraries say for it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use jiff::Timestamp;

use crate::decide::{classify, words};
use crate::error::Error;
use crate::model::{FailureClass, FailureKind};

/// How an attempt ended when it did not complete. What a handler returns as its error.
///
/// Any error converts with `?`. Its class is found in its chain of causes: I/O errors, time limits of tokio, errors of
/// tokio-postgres, of sqlx (behind its feature) and of this crate, JSON that cannot be read. What is not recognised is
/// [`FailureClass::Unknown`]. A handler that knows better says so by a constructor or by [`Failure::with_class`], and that
/// always counts.
///
/// The code and the summary are kept on the job's row: at most 64 and 1,000 bytes, in one line, without control characters.
/// The whole error with its causes goes to the log only, under the job's id.
///
/// ```
/// use outhaul::{Failure, FailureClass};
///
/// fn deliver() -> Result<(), Failure> {
///     std::net::TcpStream::connect("127.0.0.1:1")?;
///     Ok(())
/// }
/// let failure = deliver().unwrap_err();
/// assert_eq!(failure.class(), Some(FailureClass::Transient));
/// assert_eq!(failure.error_code(), Some("io_connection_refused"));
/// ```
pub struct Failure {
    pub(crate) kind: FailureKind,
    /// Whether the handler has chosen the class itself.
    pub(crate) chosen: bool,
    /// The status of the HTTP answer that it stands for, until the answer's headers have been heard.
    status: Option<u16>,
    pub(crate) code: Option<String>,
    /// The code was not one when it was given. Then it may be made of anything, and is no label of a metric.
    pub(crate) code_is_made: bool,
    pub(crate) summary: String,
    pub(crate) detail: Option<Box<dyn StdError + Send + Sync>>,
    /// The rule of a projection that failed.
    pub(crate) rule: Option<String>,
}

impl Failure {
    /// A network or a service was away for a moment: retried with exponential backoff until the attempts are spent.
    ///
    /// ```
    /// let failure = outhaul::Failure::transient("the mail server is busy").code("smtp_421");
    /// assert_eq!(failure.class(), Some(outhaul::FailureClass::Transient));
    /// ```
    pub fn transient(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::Transient, error)
    }

    /// A service asked for patience: retried until the attempts are spent, after the time that
    /// [`retry_after`](Failure::retry_after) gives, or else with backoff.
    ///
    /// ```
    /// use std::time::Duration;
    /// let failure = outhaul::Failure::rate_limited("slow down").retry_after(Duration::from_secs(30));
    /// assert_eq!(failure.hint(), Some(Duration::from_secs(30)));
    /// ```
    pub fn rate_limited(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::RateLimited, error)
    }

    /// It will never work: becomes a dead letter at once.
    ///
    /// ```
    /// let failure = outhaul::Failure::permanent("there is no such address").code("bad_address");
    /// assert_eq!(failure.class(), Some(outhaul::FailureClass::Permanent));
    /// ```
    pub fn permanent(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::Permanent, error)
    }

    /// It must not be done any more: cancels the job. It is not run again, and what it has done stays.
    ///
    /// ```
    /// let failure = outhaul::Failure::revoked("the order was withdrawn");
    /// assert_eq!(failure.class(), Some(outhaul::FailureClass::Revoked));
    /// ```
    pub fn revoked(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::Revoked, error)
    }

    /// The process that did the work for this handler went away: a child that was killed by a signal, a sandbox that was torn
    /// down. Counts like a lease that has run out: the first time tried again at once, then with backoff, until
    /// the attempts are spent.
    ///
    /// A worker's own death needs no report; whoever sweeps its lease says it.
    ///
    /// ```
    /// let failure = outhaul::Failure::crash("the converter was killed").code("signal_9");
    /// assert_eq!(failure.class(), Some(outhaul::FailureClass::Crash));
    /// ```
    pub fn crash(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::Crash, error)
    }

    /// Tried a few times (3 by default), then a dead letter.
    ///
    /// ```
    /// let failure = outhaul::Failure::unknown("an answer that makes no sense");
    /// assert_eq!(failure.class(), Some(outhaul::FailureClass::Unknown));
    /// ```
    pub fn unknown(error: impl fmt::Display) -> Failure {
        Failure::of_class(FailureClass::Unknown, error)
    }

    /// Not yet: runs again after a delay without spending the attempt, up to 100 times a job
    /// ([`RetryPolicy::free_snoozes`](crate::RetryPolicy::free_snoozes)). From 1 ms to a day, or to the longest backoff if that
    /// is more; a longer delay is shortened to it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let failure = outhaul::Failure::snooze(Duration::from_secs(60));
    /// assert_eq!(failure.class(), None);
    /// ```
    pub fn snooze(delay: Duration) -> Failure {
        Failure { kind: FailureKind::Snooze(delay), ..Failure::of_class(FailureClass::Unknown, "not yet") }
    }

    /// What an HTTP answer says by its status, 100 to 999, with the code `http_` and the status. Works with any client.
    ///
    /// | status | class |
    /// | --- | --- |
    /// | 429; 503 when it says when to come back | rate limited |
    /// | 408, 421, 423, 425, 5xx; 413 when it says when to come back | transient |
    /// | 501, 505, 4xx (also 401, 403, 404, 410) | permanent |
    /// | 409, 424, and whatever is no error status | unknown |
    ///
    /// ```
    /// use outhaul::{Failure, FailureClass};
    /// let failure = Failure::http(502);
    /// assert_eq!(failure.class(), Some(FailureClass::Transient));
    /// assert_eq!(failure.error_code(), Some("http_502"));
    /// ```
    pub fn http(status: u16) -> Failure {
        let class = classify::of_status(status, false);
        let failure = Failure::of_class(class, format_args!("HTTP status {status}"));
        // Chosen by the number: a handler that was told to stop and reports it has not been interrupted by that.
        Failure { status: Some(status), ..failure.code(format!("http_{status}")) }
    }

    /// Takes the hint of an HTTP answer, looked up by lower-case header names: `retry-after`, and `date`, by which a hint that is
    /// a date is measured, so that clocks need not agree.
    ///
    /// Seconds and all three forms of an HTTP date are understood. Anything else is no hint, and nothing panics. Of
    /// [`Failure::http`], a 503 with a hint becomes rate limited and a 413 transient; else the class stays.
    ///
    /// ```
    /// use outhaul::{Failure, FailureClass};
    /// use std::time::Duration;
    ///
    /// let headers = [("retry-after", "120"), ("content-type", "text/plain")];
    /// let header = |name: &str| headers.iter().find(|header| header.0 == name).map(|header| header.1);
    /// let failure = Failure::http(503).headers(header);
    /// assert_eq!(failure.class(), Some(FailureClass::RateLimited));
    /// assert_eq!(failure.hint(), Some(Duration::from_secs(120)));
    /// ```
    ///
    /// With the `HeaderMap` of reqwest, hyper or ureq: `.headers(|name| headers.get(name)?.to_str().ok())`.
    pub fn headers<V: AsRef<str>>(mut self, header: impl Fn(&str) -> Option<V>) -> Failure {
        let Some(value) = header("retry-after") else { return self };
        let date = header("date");
        let date = date.as_ref().map(AsRef::as_ref);
        let Some(hint) = classify::retry_after(value.as_ref(), date, Timestamp::now()) else { return self };
        if let (Some(status), FailureKind::Class { class, .. }) = (self.status, &mut self.kind) {
            *class = classify::of_status(status, true);
        }
        self.retry_after(hint)
    }

    /// How long the service asked to wait. The job is due after that and a little more, by which a crowd is spread, and
    /// not after the backoff: see [`RetryPolicy::max_hint`](crate::RetryPolicy::max_hint), which bounds it.
    ///
    /// Counts for every class that is retried with backoff, and is without meaning for the others and for a snooze. Any length is
    /// taken; the last one counts.
    ///
    /// ```
    /// use std::time::Duration;
    /// let failure = outhaul::Failure::transient("maintenance").retry_after(Duration::MAX);
    /// assert_eq!(failure.hint(), Some(Duration::MAX));
    /// ```
    pub fn retry_after(mut self, after: Duration) -> Failure {
        if let FailureKind::Class { hint, .. } = &mut self.kind {
            *hint = Some(after);
        }
        self
    }

    /// A short stable code for grouping, such as `http_503`: lower-case letters, digits and `_`, up to 64 bytes. Upper case is
    /// lowered and anything else becomes `_`.
    ///
    /// Errors that are recognised bring one: `http_503`, `sqlstate_40001`, `io_connection_refused`, `timeout`, `panic`. It
    /// groups, also in metrics, so never put an id into it; a code that had to be changed is `other` there.
    ///
    /// ```
    /// let failure = outhaul::Failure::permanent("no such mailbox").code("SMTP 550");
    /// assert_eq!(failure.error_code(), Some("smtp_550"));
    /// ```
    pub fn code(mut self, code: impl AsRef<str>) -> Failure {
        self.code = words::code(code.as_ref());
        self.code_is_made = self.code.as_deref() != Some(code.as_ref());
        self
    }

    /// The same failure with a class that the handler chooses: for an error whose code and causes are to be kept.
    ///
    /// ```
    /// use outhaul::{Failure, FailureClass};
    /// let missing = std::fs::read("/nowhere/template.html").unwrap_err();
    /// let failure = Failure::from(missing).with_class(FailureClass::Permanent);
    /// assert_eq!(failure.class(), Some(FailureClass::Permanent));
    /// assert_eq!(failure.error_code(), Some("io_not_found"));
    /// ```
    pub fn with_class(mut self, class: FailureClass) -> Failure {
        let hint = self.hint();
        self.kind = FailureKind::Class { class, hint };
        self.chosen = true;
        self.status = None;
        self
    }

    /// What `?` makes of an error, for errors that are boxed or of `anyhow` and have no such conversion.
    ///
    /// ```
    /// use outhaul::{Failure, FailureClass};
    /// fn work() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    /// }
    /// let failure = work().map_err(Failure::of).unwrap_err();
    /// assert_eq!(failure.class(), Some(FailureClass::Transient));
    /// ```
    pub fn of(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Failure {
        let error = error.into();
        let (class, code) = recognise(&*error);
        let summary = match error.downcast_ref::<serde_json::Error>() {
            // Its own words may quote the text that was read.
            Some(json) => format!("JSON does not have the expected form at line {}", json.line()),
            None => error.to_string(),
        };
        let failure = Failure::of_class(class, summary);
        Failure {
            chosen: false,
            code: code.and_then(|code| words::code(&code)),
            detail: Some(error),
            rule: None,
            ..failure
        }
    }

    /// The class, or `None` for a snooze.
    ///
    /// ```
    /// assert_eq!(outhaul::Failure::http(429).class(), Some(outhaul::FailureClass::RateLimited));
    /// ```
    pub fn class(&self) -> Option<FailureClass> {
        match self.kind {
            FailureKind::Class { class, .. } => Some(class),
            FailureKind::Snooze(_) => None,
        }
    }

    /// How long the service asked to wait, as it said it.
    ///
    /// ```
    /// assert_eq!(outhaul::Failure::http(429).hint(), None);
    /// ```
    pub fn hint(&self) -> Option<Duration> {
        match self.kind {
            FailureKind::Class { hint, .. } => hint,
            FailureKind::Snooze(_) => None,
        }
    }

    /// The code as it will stand on the row.
    ///
    /// ```
    /// assert_eq!(outhaul::Failure::http(404).error_code(), Some("http_404"));
    /// ```
    pub fn error_code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    pub(crate) fn of_class(class: FailureClass, error: impl fmt::Display) -> Failure {
        Failure {
            kind: class.into(),
            chosen: true,
            status: None,
            code: None,
            code_is_made: false,
            summary: error.to_string(),
            detail: None,
            rule: None,
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind)
            .field("code", &self.code)
            .field("summary", &self.summary)
            .finish()
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::of(error)
    }
}

/// Causes are followed no further: a chain may lead back to itself.
const CAUSES: usize = 32;

/// The class and code of an error: those of the first link of its chain whose class is known, else the first code.
fn recognise(error: &(dyn StdError + 'static)) -> (FailureClass, Option<String>) {
    let mut code = None;
    let mut next = Some(error);
    for _ in 0..CAUSES {
        let Some(link) = next else { break };
        if let Some((class, found)) = of_link(link) {
            if class != FailureClass::Unknown {
                return (class, Some(found));
            }
            code = code.or(Some(found));
        }
        next = match link.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            // What an I/O error was made of is not among its sources, only what comes after it.
            Some(inside) => Some(inside as &(dyn StdError + 'static)),
            None => link.source(),
        };
    }
    (FailureClass::Unknown, code)
}

/// What one error says by itself, without those that it was caused by.
fn of_link(error: &(dyn StdError + 'static)) -> Option<(FailureClass, String)> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        // Names that cannot be resolved have no kind, only these words of the standard library.
        if error.to_string().starts_with("failed to lookup address information") {
            return Some((FailureClass::Transient, "dns".into()));
        }
        return Some((classify::of_io(error.kind()), classify::io_code(error.kind())));
    }
    if error.is::<tokio::time::error::Elapsed>() {
        return Some((FailureClass::Transient, "timeout".into()));
    }
    if let Some(error) = error.downcast_ref::<tokio::task::JoinError>() {
        return Some((FailureClass::Unknown, if error.is_panic() { "panic" } else { "cancelled" }.into()));
    }
    if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
        if error.is_closed() {
            return Some((FailureClass::Transient, "connection_closed".into()));
        }
        return error.code().map(|sqlstate| of_sqlstate(sqlstate.code()));
    }
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(of_own(error));
    }
    if let Some(error) = error.downcast_ref::<serde_json::Error>() {
        return Some(match error.io_error_kind() {
            Some(kind) => (classify::of_io(kind), classify::io_code(kind)),
            None => (FailureClass::Permanent, "json".into()),
        });
    }
    of_sqlx(error)
}

fn of_sqlstate(sqlstate: &str) -> (FailureClass, String) {
    (classify::of_sqlstate(sqlstate), format!("sqlstate_{sqlstate}"))
}

/// An error of this crate, such as one of enqueuing.
fn of_own(error: &Error) -> (FailureClass, String) {
    let class = if error.is_retryable() || error.is_unavailable() || error.is_outcome_unknown() {
        FailureClass::Transient
    } else if error.is_invalid_input() || error.is_conflict() || error.is_wrong_isolation() {
        FailureClass::Permanent
    } else {
        match error.sqlstate() {
            // What the statement of a caller met, in whose transaction it stood.
            Some(sqlstate) if error.code() == "database" => return of_sqlstate(sqlstate),
            // A lease that is lost, a right or a schema that is missing: not for the job to say.
            _ => FailureClass::Unknown,
        }
    };
    (class, error.code().to_owned())
}

#[cfg(not(any(feature = "sqlx-0_8", feature = "sqlx-0_9")))]
fn of_sqlx(_: &(dyn StdError + 'static)) -> Option<(FailureClass, String)> {
    None
}

/// Errors of sqlx. Those about a connection are told by their cause, which is an I/O error.
#[cfg(any(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
fn of_sqlx(error: &(dyn StdError + 'static)) -> Option<(FailureClass, String)> {
    macro_rules! of_version {
        ($sqlx:ident) => {
            if let Some(error) = error.downcast_ref::<$sqlx::Error>() {
                use $sqlx::Error as E;
                let code = match error {
                    E::Database(database) => return database.code().map(|sqlstate| of_sqlstate(&sqlstate)),
                    E::PoolTimedOut => "pool_timeout",
                    E::PoolClosed | E::WorkerCrashed => "connection_closed",
                    E::RowNotFound => return Some((FailureClass::Unknown, "row_not_found".into())),
                    _ => return None,
                };
                return Some((FailureClass::Transient, code.into()));
            }
        };
    }
    #[cfg(feature = "sqlx-0_9")]
    of_version!(sqlx_0_9);
    #[cfg(feature = "sqlx-0_8")]
    of_version!(sqlx_0_8);
    None
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    use super::*;

    #[derive(Debug)]
    struct Wrapped(Box<dyn StdError + Send + Sync>);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl StdError for Wrapped {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&*self.0)
        }
    }

    #[derive(Debug)]
    struct Circle;

    impl fmt::Display for Circle {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("circle")
        }
    }

    impl StdError for Circle {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(self)
        }
    }

    fn seen(failure: &Failure) -> (FailureClass, Option<&str>) {
        (failure.class().unwrap(), failure.error_code())
    }

    fn json(text: &str) -> serde_json::Error {
        serde_json::from_str::<u8>(text).unwrap_err()
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[test]
    fn errors_of_the_standard_library_say_their_class() {
        use FailureClass::*;
        assert_eq!(seen(&refused().into()), (Transient, Some("io_connection_refused")));
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(seen(&missing.into()), (Unknown, Some("io_not_found")));
        assert_eq!(seen(&"x".parse::<u8>().unwrap_err().into()), (Unknown, None));
        assert_eq!(seen(&Circle.into()), (Unknown, None));
        assert_eq!(seen(&Failure::of("words")), (Unknown, None));
    }

    #[test]
    fn the_cause_of_an_error_says_its_class_however_it_is_wrapped() {
        let twice = Wrapped(Wrapped(refused().into()).into());
        assert_eq!(seen(&twice.into()), (FailureClass::Transient, Some("io_connection_refused")));
        let inside = io::Error::other(Wrapped(refused().into()));
        assert_eq!(seen(&inside.into()), (FailureClass::Transient, Some("io_connection_refused")));
        let inside = io::Error::new(io::ErrorKind::InvalidData, json("x"));
        assert_eq!(seen(&inside.into()), (FailureClass::Permanent, Some("json")));
        let inside = io::Error::new(io::ErrorKind::InvalidData, "no sense");
        assert_eq!(seen(&inside.into()), (FailureClass::Unknown, Some("io_invalid_data")));
    }

    #[test]
    fn a_name_that_cannot_be_resolved_is_transient() {
        let error = "name.invalid:80".to_socket_addrs().unwrap_err();
        assert_eq!(seen(&error.into()), (FailureClass::Transient, Some("dns")));
    }

    #[tokio::test]
    async fn errors_of_tokio_say_their_class() {
        let late = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(seen(&late.into()), (FailureClass::Transient, Some("timeout")));
        let panicked = tokio::spawn(async { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(seen(&panicked.into()), (FailureClass::Unknown, Some("panic")));
    }

    #[test]
    fn json_is_permanent_and_its_text_is_not_repeated() {
        let failure = Failure::from(json("\"swordfish\""));
        assert_eq!(seen(&failure), (FailureClass::Permanent, Some("json")));
        assert!(!failure.summary.contains("swordfish"), "{failure:?}");
        struct BreaksOff;
        impl io::Read for BreaksOff {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let broken = serde_json::from_reader::<_, u8>(BreaksOff).unwrap_err();
        assert_eq!(seen(&broken.into()), (FailureClass::Transient, Some("io_connection_reset")));
    }

    #[test]
    fn errors_of_this_crate_say_their_class_by_their_questions() {
        use FailureClass::*;
        for (sqlstate, expected) in [
            ("40001", (Transient, "retryable")),
            ("57P01", (Transient, "unavailable")),
            ("53100", (Transient, "storage_full")),
            ("25006", (Transient, "read_only")),
            ("OH001", (Permanent, "invalid_input")),
            ("OH002", (Permanent, "conflict")),
            ("OH003", (Unknown, "lease_lost")),
            ("42501", (Unknown, "refused")),
            ("42P01", (Unknown, "schema_missing")),
            ("23502", (Permanent, "sqlstate_23502")),
            ("23503", (Unknown, "sqlstate_23503")),
        ] {
            let failure = Failure::from(Error::from_server(sqlstate, "", None, None));
            assert_eq!(seen(&failure), (expected.0, Some(expected.1)), "{sqlstate}");
        }
        assert_eq!(seen(&Error::config("no").into()), (Unknown, Some("config")));
    }

    #[cfg(all(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
    #[test]
    fn errors_of_sqlx_say_their_class() {
        use FailureClass::*;
        macro_rules! version {
            ($sqlx:ident) => {
                let closed = Failure::from($sqlx::Error::PoolClosed);
                assert_eq!(seen(&closed), (Transient, Some("connection_closed")));
                let late = Failure::from(Wrapped($sqlx::Error::PoolTimedOut.into()));
                assert_eq!(seen(&late), (Transient, Some("pool_timeout")));
                let io = Failure::from($sqlx::Error::Io(refused()));
                assert_eq!(seen(&io), (Transient, Some("io_connection_refused")));
                let none = Failure::from($sqlx::Error::RowNotFound);
                assert_eq!(seen(&none), (Unknown, Some("row_not_found")));
                let other = Failure::from($sqlx::Error::ColumnNotFound("x".into()));
                assert_eq!(seen(&other), (Unknown, None));
            };
        }
        version!(sqlx_0_8);
        version!(sqlx_0_9);
    }

    #[test]
    fn what_a_handler_chooses_counts() {
        let failure = Failure::from(refused()).with_class(FailureClass::Revoked);
        assert_eq!(seen(&failure), (FailureClass::Revoked, Some("io_connection_refused")));
        assert!(failure.detail.is_some() && failure.chosen);
        assert_eq!(seen(&Failure::permanent(refused())), (FailureClass::Permanent, None));
        assert_eq!(Failure::from(refused()).code("own").error_code(), Some("own"));
        let headers = Failure::http(503).with_class(FailureClass::Unknown).headers(|_| Some("5"));
        assert_eq!(headers.class(), Some(FailureClass::Unknown), "headers do not change what was chosen");
        assert_eq!(headers.hint(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_hint_of_an_answer_changes_the_class_of_two_statuses() {
        let hinted = |status| Failure::http(status).headers(|name| (name == "retry-after").then_some("7"));
        for (status, class) in [
            (503, FailureClass::RateLimited),
            (413, FailureClass::Transient),
            (429, FailureClass::RateLimited),
            (500, FailureClass::Transient),
            (404, FailureClass::Permanent),
        ] {
            let failure = hinted(status);
            assert_eq!(
                (failure.class(), failure.hint()),
                (Some(class), Some(Duration::from_secs(7))),
                "{status}"
            );
        }
        let garbage = Failure::http(503).headers(|_| Some("soon"));
        assert_eq!((garbage.class(), garbage.hint()), (Some(FailureClass::Transient), None));
        let none = Failure::http(503).headers(|_| None::<String>);
        assert_eq!((none.class(), none.hint()), (Some(FailureClass::Transient), None));
    }

    #[test]
    fn a_snooze_has_its_own_delay() {
        let failure = Failure::snooze(Duration::from_secs(1)).retry_after(Duration::from_secs(9));
        assert_eq!(failure.kind, FailureKind::Snooze(Duration::from_secs(1)));
    }
}
