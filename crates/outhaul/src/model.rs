//! Plain data of the domain: jobs as they are enqueued, leased, failed and shown, and events as they are published.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};

/// Limits on what can be enqueued and published. The database holds the same ones and has the last word.
pub mod limits {
    /// Bytes of a payload, in the text form in which PostgreSQL prints its jsonb: 256 KiB.
    pub const PAYLOAD_BYTES: usize = 262_144;
    /// Bytes of a queue name, job type, event type, aggregate type or role name.
    pub const NAME_BYTES: usize = 63;
    /// Bytes of an idempotency key or a partition key.
    pub const KEY_BYTES: usize = 255;
    /// Bytes of the error code kept on a row.
    pub const ERROR_CODE_BYTES: usize = 64;
    /// Bytes of the error summary kept on a row.
    pub const ERROR_SUMMARY_BYTES: usize = 1_000;
    /// Smallest and largest priority; larger runs sooner.
    pub const PRIORITY: std::ops::RangeInclusive<i32> = -10..=10;
    /// Fewest and most attempts of a job.
    pub const MAX_ATTEMPTS: std::ops::RangeInclusive<i32> = 1..=1000;
}

/// An id that people and programs can copy: a UUID, version 7 when the library makes it.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $shown_by:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub uuid::Uuid);

        impl $name {
            /// Makes a new id from the local clock and random bits.
            pub fn new() -> $name {
                $name(uuid::Uuid::now_v7())
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::error::Error;

            fn from_str(text: &str) -> crate::error::Result<$name> {
                uuid::Uuid::parse_str(text).map($name).map_err(|_| {
                    crate::error::Error::invalid(
                        "id",
                        concat!($what, " id is a UUID"),
                        concat!("Copy the id as `", $shown_by, "` shows it."),
                    )
                })
            }
        }
    };
}

mod check;
mod event;

pub(crate) use check::check_name;
pub use event::{Event, EventId, NewEvent, Published};

id! {
    /// The id of a job: a UUID, version 7 when the library makes it.
    ///
    /// It shows when the job was created and is no order of delivery.
    JobId, "a job", "outhaul jobs list"
}

/// A type of job: its payload, the name it is stored under, and the queue it goes to.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Welcome { user: i64 }
///
/// impl outhaul::Job for Welcome {
///     const TYPE: &'static str = "mail.welcome";
///     const QUEUE: &'static str = "notifications";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name the type is stored under: 1 to 63 characters, a letter, then letters, digits and `_ . : -`.
    const TYPE: &'static str;
    /// The queue that jobs of this type go to unless told otherwise.
    const QUEUE: &'static str = "default";
}

/// A job about to be enqueued.
///
/// Built from a [`Job`], or from a type name and JSON text where the type is only known at run time.
/// Limits are checked by [`NewJob::check`], which enqueuing calls before anything is sent.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub(crate) id: JobId,
    pub(crate) queue: String,
    pub(crate) job_type: String,
    pub(crate) payload: Payload,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) organization: Option<Uuid>,
    pub(crate) priority: i32,
    pub(crate) due: Due,
    pub(crate) max_attempts: i32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) traceparent: Option<String>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) rate_key: Option<String>,
}

/// When a job is due. A delay is counted by the database from the enqueue, not by this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Due {
    Now,
    In(Duration),
    At(Timestamp),
}

/// JSON text whose `Debug` shows its size and not its contents.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub(crate) String);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl std::ops::Deref for Payload {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Payload {
    /// The JSON text of a value, which the error calls by the name of its type.
    fn of(name: &str, value: &impl Serialize) -> Result<String> {
        serde_json::to_string(value).map_err(|error| {
            Error::invalid(
                "payload",
                format!("payload of {name} cannot be written as JSON: {error}"),
                "Check its Serialize.",
            )
        })
    }
}

impl NewJob {
    /// A job with the payload, type and queue of `job`.
    ///
    /// # Errors
    /// When the payload cannot be written as JSON.
    pub fn new<J: Job>(job: &J) -> Result<NewJob> {
        Ok(NewJob::raw(J::QUEUE, J::TYPE, Payload::of(J::TYPE, job)?))
    }

    /// A job of a type known only at run time, with its payload as JSON text.
    pub fn raw(queue: impl Into<String>, job_type: impl Into<String>, payload: impl Into<String>) -> NewJob {
        NewJob {
            id: JobId::new(),
            queue: queue.into(),
            job_type: job_type.into(),
            payload: Payload(payload.into()),
            idempotency_key: None,
            organization: None,
            priority: 0,
            due: Due::Now,
            max_attempts: 10,
            timeout: None,
            traceparent: None,
            ordering_key: None,
            limit_key: None,
            rate_key: None,
        }
    }

    /// Chooses the id. By default a new UUIDv7.
    ///
    /// An id names one job for ever. One that is alive is refused; of a job that has ended it is not looked for, and its
    /// second use runs again. To store something only once, use [`NewJob::idempotency_key`].
    pub fn id(mut self, id: JobId) -> NewJob {
        self.id = id;
        self
    }

    /// Puts the job into another queue than its type's.
    pub fn queue(mut self, queue: impl Into<String>) -> NewJob {
        self.queue = queue.into();
        self
    }

    /// Makes enqueuing idempotent: within one organization and job type there is one job per key, from the
    /// first commit until seven days after that job's end. 1 to 255 bytes.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewJob {
        self.idempotency_key = Some(key.into());
        self
    }

    /// The organization (tenant) the job belongs to. By default none, which is one scope of its own; the nil UUID
    /// is refused.
    pub fn organization(mut self, organization: Uuid) -> NewJob {
        self.organization = Some(organization);
        self
    }

    /// -10 to 10, larger runs sooner; 0 by default. It orders jobs inside one queue.
    pub fn priority(mut self, priority: i32) -> NewJob {
        self.priority = priority;
        self
    }

    /// Runs the job not before a time, which is before the year 2200. A time in the past means now.
    pub fn run_at(mut self, at: Timestamp) -> NewJob {
        // Any time that is long past says the same, and PostgreSQL does not read how the years before 1 are written here.
        self.due = Due::At(at.max(Timestamp::UNIX_EPOCH));
        self
    }

    /// Runs the job not before a delay has passed, counted by the database's clock from the enqueue.
    pub fn delay(mut self, delay: Duration) -> NewJob {
        self.due = Due::In(delay);
        self
    }

    /// How often the job is tried before it becomes a dead letter: 1 to 1000, 10 by default.
    pub fn max_attempts(mut self, attempts: i32) -> NewJob {
        self.max_attempts = attempts;
        self
    }

    /// How long one attempt may take: 1 ms to 24 h. By default the worker's limit (5 minutes) holds.
    pub fn timeout(mut self, timeout: Duration) -> NewJob {
        self.timeout = Some(timeout);
        self
    }

    /// Runs jobs of one queue with this key one after another, in the order in which they were enqueued: each begins when
    /// the one before has ended, whether completed, cancelled or a dead letter. A job that is retried keeps its place, and
    /// those behind it wait. 1 to 255 bytes; by default none.
    ///
    /// Of two enqueues the first is before the second when it had committed before the second began.
    pub fn ordering_key(mut self, key: impl Into<String>) -> NewJob {
        self.ordering_key = Some(key.into());
        self
    }

    /// Counts the job against the limit of this key in its queue: so many of them run at the same time in the whole
    /// cluster, as the queue's `max_running_per_key` says (see [`crate::QueueSettings`]). 1 to 255 bytes; by default none.
    pub fn limit_key(mut self, key: impl Into<String>) -> NewJob {
        self.limit_key = Some(key.into());
        self
    }

    /// Names the partition of the queue whose rate the job counts against and whose cooldowns it waits for: the host it
    /// calls, for example. A job without one that is told to wait cools its whole queue down. 1 to 255 bytes.
    pub fn rate_key(mut self, key: impl Into<String>) -> NewJob {
        self.rate_key = Some(key.into());
        self
    }

    /// The W3C trace context under which the job was created, passed on to its handler.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> NewJob {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// The id that the job will have if its key is not in use.
    pub fn job_id(&self) -> JobId {
        self.id
    }

    /// Checks every limit without asking the database.
    ///
    /// What passes here can still be refused by the database, which measures the payload in its own text
    /// form; it never is the other way round.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`], with the field named.
    pub fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        check_name("job_type", &self.job_type)?;
        crate::json::check(&self.payload.0)?;
        check::idempotency_key(self.idempotency_key.as_deref())?;
        if !limits::PRIORITY.contains(&self.priority) {
            return Err(Error::invalid(
                "priority",
                format!("priority {} is out of range", self.priority),
                "Use -10 to 10; larger runs sooner.",
            ));
        }
        if !limits::MAX_ATTEMPTS.contains(&self.max_attempts) {
            return Err(Error::invalid(
                "max_attempts",
                format!("max_attempts {} is out of range", self.max_attempts),
                "Use 1 to 1000.",
            ));
        }
        check::organization(self.organization)?;
        self.check_times()?;
        check::job_key("ordering_key", self.ordering_key.as_deref())?;
        check::job_key("limit_key", self.limit_key.as_deref())?;
        check::job_key("rate_key", self.rate_key.as_deref())?;
        check::traceparent(self.traceparent.as_deref())
    }

    fn check_times(&self) -> Result<()> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        if self.timeout.is_some_and(|timeout| timeout < Duration::from_millis(1) || timeout > DAY) {
            return Err(Error::invalid(
                "timeout",
                "timeout is out of range",
                "Use 1 millisecond to 24 hours.",
            ));
        }
        let in_range = match self.due {
            Due::Now => true,
            Due::In(delay) => delay <= DAY * 36_500,
            Due::At(at) => at < check::YEAR_2200,
        };
        if !in_range {
            return Err(Error::invalid(
                "run_at",
                "run_at is out of range",
                "Use a time before the year 2200; a time in the past means now.",
            ));
        }
        Ok(())
    }
}

/// What an enqueue did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A new job was stored. Also the answer to the very same [`NewJob`] with its key a second time, as after a
    /// COMMIT without an answer: the job under its id is there once.
    New(JobId),
    /// The idempotency key was in use: this is the job that has it, and nothing was stored.
    Duplicate(JobId),
}

impl Enqueued {
    /// The id of the job, whoever enqueued it.
    pub fn id(self) -> JobId {
        match self {
            Enqueued::New(id) | Enqueued::Duplicate(id) => id,
        }
    }

    /// Whether this call stored the job.
    pub fn is_new(self) -> bool {
        matches!(self, Enqueued::New(_))
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Waiting to be claimed, now or at its time.
    Pending,
    /// A worker holds its lease.
    Leased,
    /// It failed and waits for its next attempt.
    Retrying,
    /// It ended well.
    Completed,
    /// It was cancelled.
    Cancelled,
    /// It ended badly and waits for a person.
    DeadLetter,
}

impl JobStatus {
    /// Every status, in the order of a job's life.
    pub const ALL: [JobStatus; 6] = [
        JobStatus::Pending,
        JobStatus::Leased,
        JobStatus::Retrying,
        JobStatus::Completed,
        JobStatus::Cancelled,
        JobStatus::DeadLetter,
    ];

    /// The word used in SQL, metrics and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            JobStatus::Pending => "pending",
            JobStatus::Leased => "leased",
            JobStatus::Retrying => "retrying",
            JobStatus::Completed => "completed",
            JobStatus::Cancelled => "cancelled",
            JobStatus::DeadLetter => "dead_letter",
        }
    }

    /// Whether nothing more will happen to the job by itself.
    pub fn is_end(self) -> bool {
        matches!(self, JobStatus::Completed | JobStatus::Cancelled | JobStatus::DeadLetter)
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for JobStatus {
    type Err = Error;

    fn from_str(text: &str) -> Result<JobStatus> {
        JobStatus::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            Error::invalid(
                "status",
                format!("there is no status {text:?}"),
                "Use pending, leased, retrying, completed, cancelled or dead_letter.",
            )
        })
    }
}

/// Why an attempt failed, which decides what happens next.
///
/// ```
/// use outhaul::{Failure, FailureClass};
/// assert_eq!(Failure::http(410).class(), Some(FailureClass::Permanent));
/// assert_eq!(FailureClass::RateLimited.to_string(), "rate_limited");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// A network or a service was away for a moment: retried with backoff until the attempts are spent.
    Transient,
    /// A service asked for patience: retried until the attempts are spent, after its hint when it gave one, else with backoff.
    RateLimited,
    /// It will never work: dead letter at once.
    Permanent,
    /// It must not be done any more: cancelled, not run again.
    Revoked,
    /// The process that did the work went away. This is what the expiry of a lease is (code `lease_expired`), and what a
    /// handler says of a process of its own that was killed ([`Failure::crash`](crate::Failure::crash)). The first time it
    /// is tried again at once, later with backoff, until the attempts are spent.
    Crash,
    /// Nobody knows: a few tries ([`RetryPolicy::unknown_attempts`](crate::RetryPolicy::unknown_attempts)), then dead letter.
    Unknown,
}

impl FailureClass {
    /// Every class.
    pub const ALL: [FailureClass; 6] = [
        FailureClass::Transient,
        FailureClass::RateLimited,
        FailureClass::Permanent,
        FailureClass::Revoked,
        FailureClass::Crash,
        FailureClass::Unknown,
    ];

    /// The word used in SQL, metrics and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureClass::Transient => "transient",
            FailureClass::RateLimited => "rate_limited",
            FailureClass::Permanent => "permanent",
            FailureClass::Revoked => "revoked",
            FailureClass::Crash => "crash",
            FailureClass::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an attempt ended that did not complete, as far as it decides what happens next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FailureKind {
    Class {
        class: FailureClass,
        /// How long the service asked to wait, as it said it: not bounded by any policy yet.
        hint: Option<Duration>,
    },
    Snooze(Duration),
}

impl From<FailureClass> for FailureKind {
    fn from(class: FailureClass) -> FailureKind {
        FailureKind::Class { class, hint: None }
    }
}

/// A schema name that can be part of a statement: checked once, quoted everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SchemaName(Arc<str>);

impl SchemaName {
    /// Checks a schema name: 1 to 63 characters, a lower-case letter, then lower-case letters, digits and `_`;
    /// not `public`, `information_schema` or `pg_…`.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`] when it is anything else.
    pub fn new(name: &str) -> Result<SchemaName> {
        let mut bytes = name.bytes();
        let valid = name.len() <= limits::NAME_BYTES
            && bytes.next().is_some_and(|first| first.is_ascii_lowercase())
            && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            && !name.starts_with("pg_")
            && !matches!(name, "public" | "information_schema");
        if valid {
            return Ok(SchemaName(name.into()));
        }
        Err(Error::new(Kind::InvalidInput, "schema name is not valid").with_hint(
            "Use 1 to 63 characters: a lower-case letter, then lower-case letters, digits and _; not public, information_schema or pg_…",
        ))
    }

    /// The name as it is.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as part of a statement. The rule above leaves nothing to escape.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for SchemaName {
    fn default() -> SchemaName {
        SchemaName("outhaul".into())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SchemaName {
    type Err = Error;

    fn from_str(name: &str) -> Result<SchemaName> {
        SchemaName::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_names_need_no_escaping() {
        assert_eq!(SchemaName::new("outhaul_2").unwrap().quoted(), "\"outhaul_2\"");
        for bad in
            ["", "Outhaul", "pg_catalog", "public", "a-b", "x\"; drop table t;--", "a.b", &"x".repeat(64)]
        {
            assert!(SchemaName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_of_a_job_shows_no_payload() {
        let job = NewJob::raw("mail", "mail.welcome", r#"{"secret":"swordfish"}"#);
        assert!(!format!("{job:?}").contains("swordfish"));
    }
}
