//! Named connections of a worker or a tool: opening them, keeping them honest, opening them again.
//!
//! A [`Conn`] is one session for one [`Purpose`]; a [`Link`] is the place of such a session, where it is
//! opened again for as long as it takes. Invariants:
//!
//! * Every wait ends: opening has a total deadline over all hosts and addresses, every statement one on this
//!   side of the network. A statement that is overdue breaks its connection, because nothing tells whether
//!   its answer would still come, and its outcome is reported as unknown.
//! * A statement is one autocommit exchange with one Sync and an unnamed statement, so nothing is left on the
//!   server. Through a transaction pooler, a second Sync hands the backend to another client in between, and
//!   then answers of the wrong statement come back without any error (measured with PgBouncer 1.18).
//! * The driver is polled for messages and never awaited as a future, which would drop notifications. Of a
//!   notification only the fact is kept, as a counter: however many arrive, nothing grows.
//!
//! Deliberately absent: a pool, transactions, prepared statements.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::dsn::Dsn;
use crate::error::{Error, Kind, Result};

mod link;
mod open;
#[cfg(test)]
mod tests;

pub(crate) use link::Link;

/// What a connection is for; shown in `pg_stat_activity` as `outhaul/<purpose>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Listen,
    Claim,
    Settle,
    Pulse,
    Upkeep,
    Tool,
}

impl Purpose {
    /// The word in metrics, logs and `application_name`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Purpose::Listen => "listen",
            Purpose::Claim => "claim",
            Purpose::Settle => "settle",
            Purpose::Pulse => "pulse",
            Purpose::Upkeep => "upkeep",
            Purpose::Tool => "tool",
        }
    }
}

/// What the server said about a session when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Session {
    backend_pid: i32,
    read_only: bool,
    in_recovery: bool,
}

/// The limit of a request to cancel, which nobody waits for.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

const CHECK: &str = "/* outhaul:connect */ select pg_catalog.pg_backend_pid(), \
     pg_catalog.current_setting('transaction_read_only')::bool, pg_catalog.pg_is_in_recovery(), \
     pg_catalog.current_setting('transaction_isolation')";

/// A role or database may default to more, under which a claim that meets another one fails with 40001.
const READ_COMMITTED: &str = "/* outhaul:connect */ set default_transaction_isolation = 'read committed'";

/// One session with the database. Dropping it closes the socket, whatever is under way.
pub(crate) struct Conn {
    client: Client,
    driver: JoinHandle<()>,
    ended: CancellationToken,
    reason: Arc<OnceLock<String>>,
    notified: watch::Receiver<u64>,
    abandoned: AtomicBool,
    session: Session,
    /// `user@host:port/dbname` of the one server it is connected to.
    target: String,
    tls: MakeRustlsConnect,
}

impl Conn {
    /// Connects to the first host that is reachable and suits the purpose, and checks the session.
    ///
    /// Workers need to write: a standby or a read-only session is passed over. A tool takes such a session
    /// when there is no other, to look around; what it writes there is refused by the server. A session
    /// whose default isolation level is not READ COMMITTED is set to it.
    ///
    /// `within` bounds everything together: looking up names, all addresses of all hosts, TLS, login and the
    /// check. Each address has `connect_timeout` of the DSN in it.
    ///
    /// # Errors
    /// The most telling failure, with the others in its message: read-only when every server that answered
    /// cannot be written to, config for names, certificates and settings, refused for the login, else
    /// unavailable. Never a timeout: nothing was sent that could have an outcome.
    pub(crate) async fn open(dsn: &Dsn, purpose: Purpose, within: Duration) -> Result<Conn> {
        open::open(dsn, purpose, within).await
    }

    /// Runs one statement and returns its rows.
    ///
    /// Columns must be of built-in types: for any other the driver would ask the catalogue with named
    /// statements. Dropping the future leaves the statement running on the server; later ones wait behind it.
    ///
    /// # Errors
    /// `is_timeout` when no answer came `within` the time, and outcome unknown when the connection was lost
    /// after the statement was sent; unavailable only when it was not sent.
    pub(crate) async fn query(
        &self,
        text: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        within: Duration,
    ) -> Result<Vec<Row>> {
        self.bounded(text, within, self.client.query_typed(text, params)).await
    }

    /// Runs statements without parameters through the simple protocol: DDL, LISTEN, SET.
    ///
    /// Several statements in one text are one transaction. Otherwise as [`Conn::query`].
    pub(crate) async fn batch(&self, text: &str, within: Duration) -> Result<()> {
        self.bounded(text, within, self.client.batch_execute(text)).await
    }

    /// The driver itself, for work with transactions of its own (migrations). Its calls have no deadline here.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The same for a transaction, which the driver lets one borrow have at a time.
    pub(crate) fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The server process of the session.
    pub(crate) fn pid(&self) -> i32 {
        self.session.backend_pid
    }

    /// A counter of the notifications since the session began, of whatever channels it listens to; none of
    /// them is seen yet by the receiver. It closes with the session.
    pub(crate) fn notifications(&self) -> watch::Receiver<u64> {
        self.notified.clone()
    }

    /// Waits for the end of the session.
    pub(crate) async fn closed(&self) {
        self.ended.cancelled().await;
    }

    /// False from the moment that nothing more can be sent.
    fn is_usable(&self) -> bool {
        !self.abandoned.load(Ordering::Acquire) && !self.ended.is_cancelled() && !self.client.is_closed()
    }

    /// Closes the socket at once. What is under way has an unknown outcome.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.driver.abort();
    }

    /// Starts the driver and asks in one round trip what kind of session this is.
    async fn start<S, T>(
        client: Client,
        connection: Connection<S, T>,
        target: String,
        tls: MakeRustlsConnect,
    ) -> Result<Conn, tokio_postgres::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (ended, reason) = (CancellationToken::new(), Arc::new(OnceLock::new()));
        let (counter, notified) = watch::channel(0);
        let driver = tokio::spawn(drive(connection, counter, reason.clone(), ended.clone().drop_guard()));
        let mut conn = Conn {
            client,
            driver,
            ended,
            reason,
            notified,
            abandoned: AtomicBool::new(false),
            session: Session::default(),
            target,
            tls,
        };
        let row = conn.client.query_typed_one(CHECK, &[]).await?;
        conn.session = Session {
            backend_pid: row.try_get(0)?,
            read_only: row.try_get(1)?,
            in_recovery: row.try_get(2)?,
        };
        if row.try_get::<_, &str>(3)? != "read committed" {
            conn.client.batch_execute(READ_COMMITTED).await?;
        }
        Ok(conn)
    }

    async fn bounded<T>(
        &self,
        text: &str,
        within: Duration,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        if !self.is_usable() {
            let text = format!("the connection to {} is closed ({})", self.target, self.reason());
            return Err(Error::new(Kind::Unavailable, text).with_hint("Nothing was sent; connect again."));
        }
        match timeout(within, work).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failed(tag(text), error)),
            Err(_) => Err(self.overdue(tag(text), within)),
        }
    }

    fn failed(&self, tag: &str, error: tokio_postgres::Error) -> Error {
        if let Some(db) = error.as_db_error() {
            // A backend that is told to end reports it in place of the answer, also after the commit.
            if matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) {
                self.abandon();
                return self.lost(tag, db.message());
            }
            let own = db.code().code().starts_with("OH");
            let error = Error::from(error);
            if error.is_read_only() {
                self.abandon();
            }
            return if own { error } else { error.context(tag) };
        }
        if let Some(cause) = never_sent(&error) {
            return Error::new(Kind::Database, format!("{tag} cannot be sent: {cause}"));
        }
        self.abandon();
        let reason = if error.is_closed() { self.reason().to_owned() } else { cause_of(&error) };
        self.lost(tag, &reason).with_source(error)
    }

    fn lost(&self, tag: &str, reason: &str) -> Error {
        let text = format!("the connection to {} was lost during {tag} ({reason})", self.target);
        Error::new(Kind::OutcomeUnknown, text).with_hint(
            "It may or may not have taken effect: repeat it, with the same idempotency key if it enqueues.",
        )
    }

    fn overdue(&self, tag: &str, within: Duration) -> Error {
        self.abandon();
        self.cancel_in_background();
        let text = format!("no answer to {tag} within {within:?} from {}", self.target);
        Error::new(Kind::Timeout, text).with_hint(
            "It may or may not have taken effect. Check locks, load and the network to the server.",
        )
    }

    /// Asks the server to stop, so that an abandoned statement does not hold its locks on. At worst it ends
    /// the wait of a COMMIT for its standby, which is then committed: one of the outcomes "unknown" covers.
    fn cancel_in_background(&self) {
        let (token, tls) = (self.client.cancel_token(), self.tls.clone());
        tokio::spawn(async move {
            if let Ok(Err(error)) = timeout(CANCEL_LIMIT, token.cancel_query(tls)).await {
                tracing::debug!(error = %cause_of(&error), "an overdue statement could not be cancelled");
            }
        });
    }

    fn reason(&self) -> &str {
        self.reason.get().map_or("closed by this side", String::as_str)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conn({} {:?})", self.target, self.session)
    }
}

/// `claim` of `/* outhaul:claim */ select ...`.
fn tag(text: &str) -> &str {
    let tag = text.strip_prefix("/* outhaul:").and_then(|rest| rest.split_once(" */"));
    tag.map_or("a statement", |(tag, _)| tag)
}

/// The cause when the driver refused the parameters before anything was sent: a fault of this crate. The
/// driver tells its kinds of error apart only in their text.
fn never_sent(error: &tokio_postgres::Error) -> Option<String> {
    let text = error.to_string();
    (text.starts_with("error serializing") || text.starts_with("error encoding")).then(|| cause_of(error))
}

fn cause_of(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => db.message().to_owned(),
        (None, Some(cause)) => cause.to_string(),
        (None, None) if error.is_closed() => "the server closed it".to_owned(),
        (None, None) => error.to_string(),
    }
}

/// Polls the connection for as long as it lives. Ending in any way, abort included, drops the guard, the
/// counter's sender and the socket.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    notified: watch::Sender<u64>,
    reason: Arc<OnceLock<String>>,
    _ended: DropGuard,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(_))) => notified.send_modify(|count| *count += 1),
            // Its text may quote a row.
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!(
                    severity = notice.severity(),
                    sqlstate = notice.code().code(),
                    "notice of the server"
                );
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let _ = reason.set(cause_of(&error));
                return;
            }
            None => return,
        }
    }
}
