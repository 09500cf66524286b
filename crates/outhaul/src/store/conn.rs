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
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::dsn::{Dsn, Host, Place, TargetSession, TlsMode};
use super::tls;
use crate::error::{Error, Kind, Result};
use crate::telemetry;

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVES_COUNT: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// The limit of a request to cancel, which nobody waits for.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// The server cuts longer ones, with a notice.
const MAX_APPLICATION_NAME: usize = 63;

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
        let until = Instant::now() + within;
        // Reading the system's roots takes some milliseconds of file access.
        let options = dsn.tls.clone();
        let tls = tokio::task::spawn_blocking(move || tls::connector(&options)).await;
        let tls =
            tls.map_err(|error| Error::new(Kind::Unavailable, "TLS was not set up").with_source(error))??;
        Opening { dsn, purpose, until, tls, failures: Vec::new(), refused: false }.run().await
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

/// The search for a server to connect to.
struct Opening<'a> {
    dsn: &'a Dsn,
    purpose: Purpose,
    until: Instant,
    tls: MakeRustlsConnect,
    /// Of this pass over the hosts: where, and what.
    failures: Vec<(String, Error)>,
    /// A server refused the login in a way that the others would repeat.
    refused: bool,
}

/// What a session must be in one pass over the hosts.
#[derive(Clone, Copy)]
struct Wanted {
    session: TargetSession,
    writes: bool,
}

/// Why a server was not taken.
struct Refusal {
    error: Error,
    /// The same address may be reached with or without TLS, where the mode leaves it open.
    may_be_tls: bool,
    /// The other hosts would say the same.
    everywhere: bool,
}

impl Opening<'_> {
    async fn run(mut self) -> Result<Conn> {
        for (round, wanted) in self.passes()?.into_iter().enumerate() {
            let found_others = wanted.session != self.dsn.session
                || self.failures.iter().any(|(_, error)| error.is_read_only());
            let worth_it = round == 0 || found_others && !self.is_over();
            if worth_it && let Some(conn) = self.pass(wanted).await {
                return Ok(conn);
            }
        }
        Err(self.failed())
    }

    /// What to look for, in order; the second round is for when only others were found.
    fn passes(&self) -> Result<Vec<Wanted>> {
        use TargetSession::{Any, PreferStandby, ReadOnly, Standby};
        let of = |session, writes| Wanted { session, writes };
        Ok(match (self.dsn.session, self.purpose) {
            (Any, Purpose::Tool) => vec![of(Any, true), of(Any, false)],
            (PreferStandby, Purpose::Tool) => vec![of(Standby, false), of(Any, false)],
            (session, Purpose::Tool) => vec![of(session, false)],
            (ReadOnly | Standby, _) => {
                return Err(Error::config(
                    "target_session_attrs asks for a server that cannot be written to",
                )
                .with_hint("Use target_session_attrs=read-write for workers."));
            }
            (PreferStandby, _) => vec![of(Any, true)],
            (session, _) => vec![of(session, true)],
        })
    }

    async fn pass(&mut self, wanted: Wanted) -> Option<Conn> {
        self.failures.clear();
        for host in shuffled(self.dsn.hosts.iter().collect(), self.dsn.random_order) {
            let conn = self.try_host(host, wanted).await;
            if conn.is_some() || self.is_over() {
                return conn;
            }
        }
        None
    }

    async fn try_host(&mut self, host: &Host, wanted: Wanted) -> Option<Conn> {
        let addresses = match timeout_at(self.attempt_limit(), addresses(host)).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => {
                let error = Error::new(Kind::Unavailable, format!("its name is not known ({error})"));
                self.failures.push((host.to_string(), error.with_hint("Check the host's name.")));
                return None;
            }
            Err(_) => {
                let error = Error::new(Kind::Unavailable, "its name was not looked up in time");
                self.failures.push((host.to_string(), error.with_hint("Check the name servers.")));
                return None;
            }
        };
        for address in shuffled(addresses, self.dsn.random_order) {
            let conn = self.try_address(host, address, wanted).await;
            if conn.is_some() || self.is_over() {
                return conn;
            }
        }
        None
    }

    async fn try_address(&mut self, host: &Host, address: Option<IpAddr>, wanted: Wanted) -> Option<Conn> {
        for mode in modes(self.dsn.tls.mode, address) {
            let Refusal { error, may_be_tls, everywhere } =
                match self.attempt(host, address, *mode, wanted).await {
                    Ok(conn) => return Some(conn),
                    Err(refusal) => refusal,
                };
            self.failures.push((label(host, address), error));
            self.refused = everywhere;
            if self.is_over() || !may_be_tls {
                return None;
            }
        }
        None
    }

    async fn attempt(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        mode: SslMode,
        wanted: Wanted,
    ) -> Result<Conn, Refusal> {
        let (started, limit) = (Instant::now(), self.attempt_limit());
        let work = async {
            let config = self.config(host, address, mode);
            let connected = config.connect(self.tls.clone()).await;
            let (client, connection) = connected.map_err(|error| refusal(error, mode))?;
            let conn = self.start(client, connection, host).await.map_err(|error| refusal(error, mode))?;
            unsuitable(&conn.session, wanted).map_or(Ok(conn), |error| Err(Refusal::of(error)))
        };
        timeout_at(limit, work).await.unwrap_or_else(|_| {
            let error = Error::new(Kind::Unavailable, format!("no answer within {:.1?}", started.elapsed()))
                .with_hint("Check host, port, firewall and load; raise connect_timeout for slow networks.");
            Err(Refusal::of(error))
        })
    }

    /// Starts the driver and asks in one round trip what kind of session this is.
    async fn start<S, T>(
        &self,
        client: Client,
        connection: Connection<S, T>,
        host: &Host,
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
            target: format!("{}@{host}/{}", self.dsn.user, self.dsn.database),
            tls: self.tls.clone(),
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

    fn config(&self, host: &Host, address: Option<IpAddr>, mode: SslMode) -> Config {
        let (dsn, network) = (self.dsn, &self.dsn.network);
        let mut config = Config::new();
        config.user(&dsn.user).dbname(&dsn.database).port(host.port);
        config.application_name(application_name(self.purpose, dsn.application_name.as_deref()));
        config.ssl_mode(mode).channel_binding(dsn.channel_binding);
        if dsn.tls.direct && mode == SslMode::Require {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        match (&host.place, address) {
            (Place::Name(name), Some(address)) => config.host(name).hostaddr(address),
            (Place::Name(name), None) => config.host(name),
            (Place::Socket(folder), _) => config.host(folder.to_string_lossy()),
        };
        if let Some(password) = dsn.password(host) {
            config.password(password);
        }
        // Only what the user wrote: poolers refuse this parameter.
        if let Some(options) = &dsn.options {
            config.options(options);
        }
        config.connect_timeout(self.attempt_limit().saturating_duration_since(Instant::now()));
        config.keepalives(network.keepalives);
        if let Some(time) = given(network.keepalives_idle, KEEPALIVES_IDLE) {
            config.keepalives_idle(time);
        }
        if let Some(time) = given(network.keepalives_interval, KEEPALIVES_INTERVAL) {
            config.keepalives_interval(time);
        }
        if let Some(count) = given(network.keepalives_count, KEEPALIVES_COUNT) {
            config.keepalives_retries(count);
        }
        if let Some(time) = given(network.tcp_user_timeout, TCP_USER_TIMEOUT) {
            config.tcp_user_timeout(time);
        }
        config
    }

    fn attempt_limit(&self) -> Instant {
        match given(self.dsn.network.connect_timeout, CONNECT_TIMEOUT) {
            Some(limit) => self.until.min(Instant::now() + limit),
            None => self.until,
        }
    }

    /// As in libpq, other hosts are not asked when the login or the database's name was refused.
    fn is_over(&self) -> bool {
        self.refused || Instant::now() >= self.until
    }

    /// The first failure that is not about a standby tells most; the others stand before it.
    fn failed(mut self) -> Error {
        let doing = format!("cannot connect to {}", self.dsn.target());
        if self.failures.is_empty() {
            return Error::new(Kind::Unavailable, format!("{doing}: no time was left"));
        }
        let telling = self.failures.iter().position(|(_, error)| !error.is_read_only()).unwrap_or(0);
        let (at, error) = self.failures.remove(telling);
        if self.failures.is_empty() {
            return error.context(doing);
        }
        let others: Vec<String> = self.failures.iter().map(|(at, error)| format!("{at}: {error}")).collect();
        error.context(format!("{doing}: {}; {at}", others.join("; ")))
    }
}

const CHECK: &str = "/* outhaul:connect */ select pg_catalog.pg_backend_pid(), \
     pg_catalog.current_setting('transaction_read_only')::bool, pg_catalog.pg_is_in_recovery(), \
     pg_catalog.current_setting('transaction_isolation')";

/// A role or database may default to more, under which a claim that meets another one fails with 40001.
const READ_COMMITTED: &str = "/* outhaul:connect */ set default_transaction_isolation = 'read committed'";

async fn addresses(host: &Host) -> std::io::Result<Vec<Option<IpAddr>>> {
    match (&host.place, host.address) {
        (_, Some(address)) => Ok(vec![Some(address)]),
        (Place::Socket(_), None) => Ok(vec![None]),
        (Place::Name(name), None) => {
            let mut addresses = Vec::new();
            for address in tokio::net::lookup_host((name.as_str(), host.port)).await? {
                if !addresses.contains(&Some(address.ip())) {
                    addresses.push(Some(address.ip()));
                }
            }
            Ok(addresses)
        }
    }
}

/// With and without TLS in the order that libpq tries them; a socket never has it.
fn modes(mode: TlsMode, address: Option<IpAddr>) -> &'static [SslMode] {
    match mode {
        _ if address.is_none() => &[SslMode::Disable],
        TlsMode::Disable => &[SslMode::Disable],
        TlsMode::Allow => &[SslMode::Disable, SslMode::Require],
        TlsMode::Prefer => &[SslMode::Prefer, SslMode::Disable],
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => &[SslMode::Require],
    }
}

/// `None` for a zero, by which the user asks for the system's default.
fn given<T: Default + PartialEq>(users: Option<T>, ours: T) -> Option<T> {
    Some(users.unwrap_or(ours)).filter(|value| *value != T::default())
}

fn shuffled<T>(mut list: Vec<T>, random: bool) -> Vec<T> {
    if random {
        fastrand::shuffle(&mut list);
    }
    list
}

fn label(host: &Host, address: Option<IpAddr>) -> String {
    match (&host.place, address) {
        (Place::Name(name), Some(address)) if *name != address.to_string() => format!("{host} ({address})"),
        _ => host.to_string(),
    }
}

fn application_name(purpose: Purpose, users: Option<&str>) -> String {
    let mut name = match users {
        Some(users) => format!("outhaul/{} {users}", purpose.name()),
        None => format!("outhaul/{}", purpose.name()),
    };
    name.truncate(name.floor_char_boundary(MAX_APPLICATION_NAME));
    name
}

fn unsuitable(session: &Session, wanted: Wanted) -> Option<Error> {
    let read_only = |text: &str, hint: &str| Some(Error::new(Kind::ReadOnly, text).with_hint(hint));
    let other = |text: &str| {
        Some(
            Error::new(Kind::Unavailable, text)
                .with_hint("Name a server that target_session_attrs asks for."),
        )
    };
    let writes = wanted.writes || wanted.session == TargetSession::ReadWrite;
    let primary = writes || wanted.session == TargetSession::Primary;
    match wanted.session {
        _ if session.in_recovery && primary => {
            read_only("it is a standby", "Connect to the primary, or name all servers: host=a,b.")
        }
        _ if session.read_only && writes => read_only(
            "its sessions are read-only",
            "Turn default_transaction_read_only off for this role and database, or use another server.",
        ),
        TargetSession::ReadOnly if !session.read_only => other("its sessions are not read-only"),
        TargetSession::Standby if !session.in_recovery => other("it is not a standby"),
        _ => None,
    }
}

impl Refusal {
    fn of(error: Error) -> Refusal {
        Refusal { error, may_be_tls: false, everywhere: false }
    }
}

/// An error of connecting. Nothing but the login was sent, so the server's words are free of row contents.
fn refusal(error: tokio_postgres::Error, mode: SslMode) -> Refusal {
    if let Some(db) = error.as_db_error() {
        return refused_by_server(db);
    }
    let cause = cause_of(&error);
    if let Some(refused) = refused_by_rustls(&error) {
        let error = Error::config(format!("TLS failed: {cause}")).with_hint(tls::hint(refused));
        return Refusal { may_be_tls: mode != SslMode::Require, ..Refusal::of(error) };
    }
    let (kind, hint) = match cause.as_str() {
        "server does not support TLS" => {
            (Kind::Config, "Turn `ssl` on at the server, or use a weaker sslmode on a trusted network.")
        }
        "password missing" => {
            (Kind::Refused, "Give the password in the URL, as PGPASSWORD, or in ~/.pgpass.")
        }
        "server did not use channel binding" => {
            (Kind::Refused, "Use SCRAM passwords over TLS, or channel_binding=prefer.")
        }
        _ => (Kind::Unavailable, "Check host and port, and that the server runs and accepts connections."),
    };
    Refusal::of(Error::new(kind, cause).with_hint(hint).with_source(error))
}

fn refused_by_server(db: &DbError) -> Refusal {
    let (code, text) = (db.code(), format!("{} (SQLSTATE {})", db.message(), db.code().code()));
    let error = match Error::from_server(code.code(), db.message(), None, None) {
        _ if *code == SqlState::INVALID_CATALOG_NAME => {
            Error::config(text).with_hint("Create the database, or correct its name.")
        }
        // Its own text would keep the server's back.
        general if general.code() == "database" => Error::new(Kind::Database, text),
        known => known,
    };
    Refusal {
        error,
        // The server's rules for hosts may ask for TLS or against it, and each server has its own.
        may_be_tls: *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        everywhere: *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_CATALOG_NAME,
    }
}

fn refused_by_rustls(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let cause = std::error::Error::source(error)?.downcast_ref::<std::io::Error>()?;
    cause.get_ref()?.downcast_ref::<rustls::Error>()
}

/// At least this long from the start of one attempt to the next, and up to a quarter more, so that a fleet
/// does not come back in step. A connection that lived longer is therefore opened again at once.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);

/// Room for two hosts that do not answer and a third that does.
const OPEN_LIMIT: Duration = Duration::from_secs(15);

/// A place for one connection, which is opened on demand, again and again. Clones share the place.
///
/// It never gives up by itself: whoever waits for it stops by dropping the future.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    dsn: Dsn,
    purpose: Purpose,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    conn: Option<Arc<Conn>>,
    /// Set by the first attempt.
    next_attempt: Option<Instant>,
    /// Attempts since the last one that succeeded.
    failures: u64,
}

impl Link {
    /// An empty place; nothing is opened yet.
    pub(crate) fn new(dsn: Dsn, purpose: Purpose) -> Link {
        Link(Arc::new(Shared { dsn, purpose, slot: Mutex::default() }))
    }

    /// The connection, opened first when there is none that can be used; tries for ever, about once a second.
    pub(crate) async fn get(&self) -> Arc<Conn> {
        let mut slot = self.0.slot.lock().await;
        loop {
            match self.usable_or_open(&mut slot, OPEN_LIMIT).await {
                Ok(conn) => return conn,
                Err(error) => self.log(slot.failures, &error),
            }
        }
    }

    /// The same with one attempt only, for a start that should fail at once when the configuration is wrong.
    ///
    /// # Errors
    /// Those of [`Conn::open`].
    pub(crate) async fn connect_once(&self, within: Duration) -> Result<Arc<Conn>> {
        self.usable_or_open(&mut *self.0.slot.lock().await, within).await
    }

    /// Closes a connection that was got here and does not serve; the next call opens another.
    pub(crate) fn discard(&self, conn: &Arc<Conn>) {
        conn.abandon();
    }

    async fn usable_or_open(&self, slot: &mut Slot, within: Duration) -> Result<Arc<Conn>> {
        if let Some(conn) = slot.conn.as_ref().filter(|conn| conn.is_usable()) {
            return Ok(conn.clone());
        }
        slot.conn = None;
        if let Some(at) = slot.next_attempt {
            tokio::time::sleep_until(at).await;
        }
        let again = slot.next_attempt.is_some();
        slot.next_attempt = Some(Instant::now() + ATTEMPT_EVERY.mul_f64(1.0 + fastrand::f64() / 4.0));
        let opened = Conn::open(&self.0.dsn, self.0.purpose, within).await;
        self.count(again, slot.failures, &opened);
        match opened {
            Ok(conn) => {
                slot.failures = 0;
                Ok(slot.conn.insert(Arc::new(conn)).clone())
            }
            Err(error) => {
                slot.failures += 1;
                Err(error)
            }
        }
    }

    fn count(&self, again: bool, failures: u64, opened: &Result<Conn>) {
        if !again {
            return;
        }
        let purpose = self.0.purpose.name();
        let result = if opened.is_ok() { "connected" } else { "failed" };
        metrics::counter!(telemetry::RECONNECTS, "purpose" => purpose, "result" => result).increment(1);
        if let Ok(conn) = opened {
            tracing::info!(purpose, failures, server = conn.target, "connected again");
        }
    }

    /// Aloud once for each outage: a line a second for each purpose would hide the rest of the log.
    fn log(&self, failures: u64, error: &Error) {
        let purpose = self.0.purpose.name();
        if failures == 1 {
            tracing::warn!(purpose, %error, hint = error.hint(), "no connection; trying about every second");
        } else {
            tracing::debug!(purpose, %error, failures, "still no connection");
        }
    }
}

#[cfg(test)]
mod tests;
