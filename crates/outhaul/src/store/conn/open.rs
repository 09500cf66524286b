//! The search for a server: hosts, addresses and encryptions in libpq's order, and what refusals mean.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Conn, Purpose, Session, cause_of};
use crate::error::{Error, Kind, Result};
use crate::store::dsn::{Dsn, Host, Place, TargetSession, TlsMode};
use crate::store::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVES_COUNT: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// The server cuts longer ones, with a notice.
const MAX_APPLICATION_NAME: usize = 63;

/// See [`Conn::open`].
pub(super) async fn open(dsn: &Dsn, purpose: Purpose, within: Duration) -> Result<Conn> {
    let until = Instant::now() + within;
    // Reading the system's roots takes some milliseconds of file access.
    let options = dsn.tls.clone();
    let tls = tokio::task::spawn_blocking(move || tls::connector(&options)).await;
    let tls =
        tls.map_err(|error| Error::new(Kind::Unavailable, "TLS was not set up").with_source(error))??;
    Opening::new(dsn, purpose, until, tls).run().await
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

impl<'a> Opening<'a> {
    fn new(dsn: &'a Dsn, purpose: Purpose, until: Instant, tls: MakeRustlsConnect) -> Opening<'a> {
        Opening { dsn, purpose, until, tls, failures: Vec::new(), refused: false }
    }

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
            self.note(label(host, address), error);
            self.refused = everywhere;
            if self.is_over() || !may_be_tls {
                return None;
            }
        }
        None
    }

    /// Asked again with or without TLS, a server often says the same, and once is enough.
    fn note(&mut self, at: String, error: Error) {
        let same = |(place, known): &(String, Error)| *place == at && known.to_string() == error.to_string();
        if !self.failures.iter().any(same) {
            self.failures.push((at, error));
        }
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
            let target = format!("{}@{host}/{}", self.dsn.user, self.dsn.database);
            let started = Conn::start(client, connection, target, self.tls.clone()).await;
            let conn = started.map_err(|error| refusal(error, mode))?;
            unsuitable(&conn.session, wanted).map_or(Ok(conn), |error| Err(Refusal::of(error)))
        };
        timeout_at(limit, work).await.unwrap_or_else(|_| {
            let error = Error::new(Kind::Unavailable, format!("no answer within {:.1?}", started.elapsed()))
                .with_hint("Check host, port, firewall and load; raise connect_timeout for slow networks.");
            Err(Refusal::of(error))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_application_name_is_cut_between_characters() {
        let name = application_name(Purpose::Upkeep, Some(&"ü".repeat(60)));
        assert!(name.len() <= MAX_APPLICATION_NAME && name.starts_with("outhaul/upkeep üü"), "{name}");
    }

    #[test]
    fn a_dead_peer_is_noticed_unless_the_user_leaves_it_to_the_system() {
        let config = |parameters: &str| {
            let dsn: Dsn = format!("postgres://u@h/d?{parameters}").parse().unwrap();
            let tls = tls::connector(&dsn.tls).unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            Opening::new(&dsn, Purpose::Claim, until, tls).config(&dsn.hosts[0], None, SslMode::Prefer)
        };
        let seconds = Duration::from_secs;
        let ours = config("");
        assert!(ours.get_keepalives());
        assert_eq!(ours.get_keepalives_idle(), seconds(30));
        assert_eq!(ours.get_keepalives_interval(), Some(seconds(10)));
        assert_eq!(ours.get_keepalives_retries(), Some(3));
        assert_eq!(ours.get_tcp_user_timeout(), Some(&seconds(15)));
        assert!(*ours.get_connect_timeout().unwrap() <= seconds(5));
        assert_eq!(ours.get_options(), None);
        let users =
            config("keepalives_idle=7&keepalives_interval=0&keepalives_count=0&tcp_user_timeout=1500");
        assert_eq!(users.get_keepalives_idle(), seconds(7));
        assert_eq!((users.get_keepalives_interval(), users.get_keepalives_retries()), (None, None));
        assert_eq!(users.get_tcp_user_timeout(), Some(&Duration::from_millis(1_500)));
        assert_eq!(config("tcp_user_timeout=0").get_tcp_user_timeout(), None);
        assert!(!config("keepalives=0").get_keepalives());
        assert_eq!(config("options=-c%20jit%3Doff").get_options(), Some("-c jit=off"));
    }
}
