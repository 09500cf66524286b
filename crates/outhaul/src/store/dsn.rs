//! Where the database is and how to get in: what libpq users write, read the way libpq reads it.
//!
//! A [`Dsn`] is plain data. Nothing here opens a socket or reads the process's environment: variables come
//! through a function that the caller gives, and password and certificate files are read when a connection
//! is opened, so that a rotated secret is found without a restart.
//!
//! Deliberately absent: service files, GSSAPI, revocation lists and encrypted client keys. A parameter that
//! would ask for one of them is refused by name instead of being ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;

use crate::error::{Error, Result};

/// Where a database is and how to connect to it, as libpq's users write it.
///
/// A text is either a URL (`postgres://user:password@host1:5432,host2/dbname?sslmode=verify-full`) or
/// key=value pairs (`host=/run/postgresql dbname=app user=me`). Several hosts, Unix sockets, percent-encoding
/// and quoting follow libpq; so do the meanings and units of the parameters, of which these are understood:
///
/// | parameter | default |
/// | --- | --- |
/// | `host`, `hostaddr`, `port` | the socket in `/var/run/postgresql`, else in `/tmp`; port 5432 |
/// | `user`, `dbname` | with an environment `$USER`, else required; the user's name |
/// | `password`, `passfile` | with an environment `~/.pgpass`; a file that others may read is ignored |
/// | `application_name` | none; shown behind `outhaul/<purpose>` |
/// | `options` | none; sent at the start of a session, which most poolers refuse |
/// | `connect_timeout` | 5 s for each address; 0 sets no such limit |
/// | `keepalives`, `keepalives_idle`, `keepalives_interval`, `keepalives_count` | on, 30 s, 10 s, 3; 0 is the system's default |
/// | `tcp_user_timeout` | 15,000 ms; 0 is the system's default |
/// | `target_session_attrs` | `any`: the first host that can be used; workers pass over those that cannot be written to |
/// | `load_balance_hosts` | `disable` |
/// | `channel_binding` | `prefer` |
/// | `sslmode`, `sslnegotiation` | `prefer` (`verify-full` with `sslrootcert=system`), `postgres` |
/// | `sslrootcert` | a file or `system`; the system's roots in the verifying modes |
/// | `sslcert`, `sslkey`, `sslcertmode`, `sslsni` | none; with an environment the files in `~/.postgresql` |
/// | `ssl_min_protocol_version`, `ssl_max_protocol_version` | TLS 1.2 and 1.3 |
///
/// Neither `Debug` nor `Display` nor any error shows the password.
///
/// ```
/// # use outhaul::Dsn;
/// let dsn: Dsn = "postgres://app:secret@db1,db2:5433/shop?target_session_attrs=read-write".parse()?;
/// assert_eq!(dsn.target(), "app@db1:5432,db2:5433/shop");
/// assert!(!dsn.to_string().contains("secret"));
///
/// let error = "postgres://app@db1/shop?ssl_mode=require".parse::<Dsn>().unwrap_err();
/// assert_eq!(error.hint(), Some("Did you mean `sslmode`?"));
/// # Ok::<(), outhaul::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Dsn {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) database: String,
    password: Option<String>,
    passfile: Option<PathBuf>,
    pub(crate) application_name: Option<String>,
    pub(crate) options: Option<String>,
    pub(crate) network: Network,
    pub(crate) session: TargetSession,
    pub(crate) random_order: bool,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) tls: TlsOptions,
}

/// One server that may be the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) place: Place,
    /// Saves the look-up of the name, which certificates and password files still go by.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Name(String),
    Socket(PathBuf),
}

/// Limits of the network. `None` is Outhaul's default; zero is the system's, or no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) keepalives: bool,
    pub(crate) keepalives_idle: Option<Duration>,
    pub(crate) keepalives_interval: Option<Duration>,
    pub(crate) keepalives_count: Option<u32>,
    pub(crate) tcp_user_timeout: Option<Duration>,
}

/// Which of several servers is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetSession {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) mode: TlsMode,
    /// Starts with TLS at once instead of asking for it; PostgreSQL 17 and later.
    pub(crate) direct: bool,
    pub(crate) roots: Roots,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) send_cert: bool,
    pub(crate) sni: bool,
    pub(crate) oldest: TlsVersion,
    pub(crate) newest: TlsVersion,
    /// `~/.postgresql`, whose files are used when none are named.
    pub(crate) home: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    Default,
    System,
    File(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsVersion {
    V1_2,
    V1_3,
}

const DEFAULT_PORT: u16 = 5432;

impl Dsn {
    /// Reads a text and, for what it leaves open, the variables that libpq knows (`PGHOST`, `PGUSER`,
    /// `PGPASSWORD` and so on), then `USER` and the files below `HOME`.
    ///
    /// The function is asked for each variable by name; this library itself reads no environment. A variable
    /// that is empty counts as not set.
    ///
    /// # Errors
    /// [`Error::is_config`] for a text that is neither form, an unknown or refused parameter or variable, a
    /// value out of range, or when nothing names a user. The error names the parameter, never the password.
    ///
    /// ```
    /// # use outhaul::Dsn;
    /// let env = |name: &str| (name == "PGUSER").then(|| "app".to_owned());
    /// assert_eq!(Dsn::parse("postgres://db1/shop", env)?.target(), "app@db1:5432/shop");
    /// # Ok::<(), outhaul::Error>(())
    /// ```
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Dsn> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let mut settings = Settings::of_text(text.trim())?;
        settings.fill_from(&env);
        settings.refuse_unsupported()?;
        settings.build(&env)
    }

    /// Everything from the variables that libpq knows; see [`Dsn::parse`].
    ///
    /// ```
    /// # use outhaul::Dsn;
    /// let env = |name: &str| match name {
    ///     "PGHOST" => Some("db1".to_owned()),
    ///     "USER" => Some("app".to_owned()),
    ///     _ => None,
    /// };
    /// assert_eq!(Dsn::from_env(env)?.target(), "app@db1:5432/app");
    /// # Ok::<(), outhaul::Error>(())
    /// ```
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Dsn> {
        Dsn::parse("", env)
    }

    /// User, hosts and database for messages, as `user@host:port/dbname`; several hosts are separated by commas.
    pub fn target(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        format!("{}@{}/{}", self.user, hosts.join(","), self.database)
    }

    /// The database role that logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The same with another `application_name`, which is shown behind Outhaul's own in `pg_stat_activity`.
    pub fn with_application_name(mut self, name: impl Into<String>) -> Dsn {
        self.application_name = Some(name.into()).filter(|name| !name.is_empty());
        self
    }

    /// The same servers and role, but another database.
    pub fn with_database(mut self, name: impl Into<String>) -> Dsn {
        self.database = name.into();
        self
    }

    /// The password for one host: the one given, else the password file's, which is read anew each time.
    pub(crate) fn password(&self, host: &Host) -> Option<String> {
        if self.password.is_some() {
            return self.password.clone();
        }
        let text = read_passfile(self.passfile.as_deref()?)?;
        passfile_entry(&text, [&host.passfile_name(), &host.port.to_string(), &self.database, &self.user])
    }

    /// What [`Display`](fmt::Display) shows behind the `?`: every parameter that is not at its default.
    fn shown_parameters(&self) -> Vec<(&'static str, String)> {
        let tls = &self.tls;
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let seconds = |time: Duration| time.as_secs().to_string();
        let word = |differs: bool, word: &str| differs.then(|| word.to_owned());
        let addresses: Vec<String> =
            self.hosts.iter().map(|host| host.address.map(|a| a.to_string()).unwrap_or_default()).collect();
        let version = |version| if version == TlsVersion::V1_3 { "TLSv1.3" } else { "TLSv1.2" };
        let roots = match &tls.roots {
            Roots::Default => None,
            Roots::System => Some("system".to_owned()),
            Roots::File(file) => Some(path(file)),
        };
        let default_mode = if tls.roots == Roots::System { TlsMode::VerifyFull } else { TlsMode::Prefer };
        let all = [
            ("hostaddr", word(self.hosts.iter().any(|host| host.address.is_some()), &addresses.join(","))),
            ("passfile", self.passfile.as_ref().map(path)),
            ("application_name", self.application_name.clone()),
            ("options", self.options.clone()),
            ("connect_timeout", self.network.connect_timeout.map(seconds)),
            ("keepalives", word(!self.network.keepalives, "0")),
            ("keepalives_idle", self.network.keepalives_idle.map(seconds)),
            ("keepalives_interval", self.network.keepalives_interval.map(seconds)),
            ("keepalives_count", self.network.keepalives_count.map(|n| n.to_string())),
            ("tcp_user_timeout", self.network.tcp_user_timeout.map(|time| time.as_millis().to_string())),
            ("target_session_attrs", word_of(SESSIONS, self.session, TargetSession::Any)),
            ("load_balance_hosts", word(self.random_order, "random")),
            ("channel_binding", word_of(BINDINGS, self.channel_binding, ChannelBinding::Prefer)),
            ("sslmode", word_of(MODES, tls.mode, default_mode)),
            ("sslnegotiation", word(tls.direct, "direct")),
            ("sslrootcert", roots),
            ("sslcert", tls.cert.as_ref().map(path)),
            ("sslkey", tls.key.as_ref().map(path)),
            ("sslcertmode", word(!tls.send_cert, "disable")),
            ("sslsni", word(!tls.sni, "0")),
            ("ssl_min_protocol_version", word(tls.oldest != TlsVersion::V1_2, version(tls.oldest))),
            ("ssl_max_protocol_version", word(tls.newest != TlsVersion::V1_3, version(tls.newest))),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl FromStr for Dsn {
    type Err = Error;

    /// Reads a text alone: no variables, no files below a home; the text has to name the user.
    fn from_str(text: &str) -> Result<Dsn> {
        Dsn::parse(text, |_| None)
    }
}

impl fmt::Display for Dsn {
    /// A URL without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parameters = self.shown_parameters();
        write!(f, "postgres://{}@", encode(&self.user, ""))?;
        match &self.hosts[..] {
            [Host { place: Place::Socket(folder), port, .. }] => {
                if *port != DEFAULT_PORT {
                    parameters.insert(0, ("port", port.to_string()));
                }
                parameters.insert(0, ("host", folder.to_string_lossy().into_owned()));
            }
            hosts => {
                let hosts: Vec<String> = hosts.iter().map(Host::in_url).collect();
                f.write_str(&hosts.join(","))?;
            }
        }
        write!(f, "/{}", encode(&self.database, ""))?;
        for (i, (name, value)) in parameters.iter().enumerate() {
            write!(f, "{}{name}={}", if i == 0 { "?" } else { "&" }, encode(value, "/:,"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dsn({self})")
    }
}

impl Host {
    fn in_url(&self) -> String {
        match &self.place {
            Place::Name(name) if name.contains(':') => format!("[{name}]:{}", self.port),
            Place::Name(name) => format!("{}:{}", encode(name, ""), self.port),
            Place::Socket(folder) => format!("{}:{}", encode(&folder.to_string_lossy(), ""), self.port),
        }
    }

    /// The first field of a password file's line; the default socket is called localhost there.
    fn passfile_name(&self) -> String {
        match &self.place {
            Place::Name(name) => name.clone(),
            Place::Socket(folder) if *folder == default_socket_folder() => "localhost".to_owned(),
            Place::Socket(folder) => folder.to_string_lossy().into_owned(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Name(name) if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Place::Name(name) => write!(f, "{name}:{}", self.port),
            Place::Socket(folder) => write!(f, "{}:{}", folder.display(), self.port),
        }
    }
}

/// Debian, Fedora and their relatives build libpq with the first, the project itself with the second.
fn default_socket_folder() -> PathBuf {
    let system = Path::new("/var/run/postgresql");
    if system.is_dir() { system.to_owned() } else { PathBuf::from("/tmp") }
}

/// A parameter of libpq: its name, its variable (or none), and what becomes of it here.
struct Parameter {
    name: &'static str,
    env: &'static str,
    support: Support,
}

enum Support {
    Used,
    /// These values ask for nothing that is not done anyway; any other is refused.
    Only(&'static [&'static str]),
    /// Concerns authentication that is not offered to the server in the first place.
    Ignored,
    /// Ignoring it would weaken what the user asked for; the text says what to do instead.
    Refused(&'static str),
}

use Support::{Ignored, Only, Refused, Used};

const fn parameter(name: &'static str, env: &'static str, support: Support) -> Parameter {
    Parameter { name, env, support }
}

const PARAMETERS: &[Parameter] = &[
    parameter("application_name", "PGAPPNAME", Used),
    parameter("channel_binding", "PGCHANNELBINDING", Used),
    parameter("client_encoding", "PGCLIENTENCODING", Only(&["UTF8", "UTF-8", "unicode", "auto"])),
    parameter("connect_timeout", "PGCONNECT_TIMEOUT", Used),
    parameter("dbname", "PGDATABASE", Used),
    parameter("fallback_application_name", "", Used),
    parameter("gssdelegation", "PGGSSDELEGATION", Ignored),
    parameter("gssencmode", "PGGSSENCMODE", Only(&["disable", "prefer"])),
    parameter("gsslib", "PGGSSLIB", Ignored),
    parameter("host", "PGHOST", Used),
    parameter("hostaddr", "PGHOSTADDR", Used),
    parameter("keepalives", "", Used),
    parameter("keepalives_count", "", Used),
    parameter("keepalives_idle", "", Used),
    parameter("keepalives_interval", "", Used),
    parameter("krbsrvname", "PGKRBSRVNAME", Ignored),
    parameter("load_balance_hosts", "PGLOADBALANCEHOSTS", Used),
    parameter("max_protocol_version", "PGMAXPROTOCOLVERSION", Only(&["3.0", "3.2", "latest"])),
    parameter("min_protocol_version", "PGMINPROTOCOLVERSION", Only(&["3.0"])),
    parameter("options", "PGOPTIONS", Used),
    parameter("passfile", "PGPASSFILE", Used),
    parameter("password", "PGPASSWORD", Used),
    parameter("port", "PGPORT", Used),
    parameter("replication", "", Only(&["false", "off", "no", "0"])),
    parameter(
        "require_auth",
        "PGREQUIREAUTH",
        Refused("Use sslmode=verify-full or channel_binding=require instead."),
    ),
    parameter(
        "requirepeer",
        "PGREQUIREPEER",
        Refused("Restrict who may write to the socket's folder instead."),
    ),
    parameter(
        "service",
        "PGSERVICE",
        Refused("Write host, dbname and user themselves; service files are not read."),
    ),
    parameter("servicefile", "PGSERVICEFILE", Ignored),
    parameter("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Used),
    parameter("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Used),
    parameter("sslcert", "PGSSLCERT", Used),
    parameter("sslcertmode", "PGSSLCERTMODE", Used),
    parameter("sslcompression", "PGSSLCOMPRESSION", Only(&["0", "1"])),
    parameter(
        "sslcrl",
        "PGSSLCRL",
        Refused("Revocation lists are not checked; take the certificate's root away instead."),
    ),
    parameter(
        "sslcrldir",
        "PGSSLCRLDIR",
        Refused("Revocation lists are not checked; take the certificate's root away instead."),
    ),
    parameter("sslkey", "PGSSLKEY", Used),
    parameter("sslmode", "PGSSLMODE", Used),
    parameter("sslnegotiation", "PGSSLNEGOTIATION", Used),
    parameter(
        "sslpassword",
        "",
        Refused("Store the key unencrypted in a file of mode 0600 (`openssl pkey -in KEY -out PLAIN`)."),
    ),
    parameter("sslrootcert", "PGSSLROOTCERT", Used),
    parameter("sslsni", "PGSSLSNI", Used),
    parameter("target_session_attrs", "PGTARGETSESSIONATTRS", Used),
    parameter("tcp_user_timeout", "", Used),
    parameter("user", "PGUSER", Used),
];

/// What people write who come from other drivers.
const SYNONYMS: &[(&str, &str)] = &[
    ("database", "dbname"),
    ("db", "dbname"),
    ("hostname", "host"),
    ("keepalives_retries", "keepalives_count"),
    ("pass", "password"),
    ("pwd", "password"),
    ("ssl", "sslmode"),
    ("timeout", "connect_timeout"),
    ("username", "user"),
];

const MODES: &[(&str, TlsMode)] = &[
    ("disable", TlsMode::Disable),
    ("allow", TlsMode::Allow),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];

const SESSIONS: &[(&str, TargetSession)] = &[
    ("any", TargetSession::Any),
    ("read-write", TargetSession::ReadWrite),
    ("read-only", TargetSession::ReadOnly),
    ("primary", TargetSession::Primary),
    ("standby", TargetSession::Standby),
    ("prefer-standby", TargetSession::PreferStandby),
];

const BINDINGS: &[(&str, ChannelBinding)] = &[
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];

/// rustls speaks nothing older than 1.2, so an older minimum asks for nothing.
const OLDEST: &[(&str, TlsVersion)] = &[
    ("TLSv1", TlsVersion::V1_2),
    ("TLSv1.1", TlsVersion::V1_2),
    ("TLSv1.2", TlsVersion::V1_2),
    ("TLSv1.3", TlsVersion::V1_3),
];
const NEWEST: &[(&str, TlsVersion)] = &[("TLSv1.2", TlsVersion::V1_2), ("TLSv1.3", TlsVersion::V1_3)];

fn word_of<T: Copy + PartialEq>(words: &[(&str, T)], value: T, default: T) -> Option<String> {
    let word = words.iter().find(|(_, candidate)| *candidate == value)?.0;
    (value != default).then(|| word.to_owned())
}

/// Values by parameter, with the variable they came from.
#[derive(Default)]
struct Settings(BTreeMap<&'static str, Setting>);

struct Setting {
    value: String,
    env: Option<&'static str>,
}

impl Settings {
    fn of_text(text: &str) -> Result<Settings> {
        let url = ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let mut settings = Settings::default();
        match url {
            Some(rest) => settings.read_url(rest)?,
            None => settings.read_pairs(text)?,
        }
        Ok(settings)
    }

    fn fill_from(&mut self, env: &impl Fn(&str) -> Option<String>) {
        for parameter in PARAMETERS.iter().filter(|parameter| !parameter.env.is_empty()) {
            if !self.0.contains_key(parameter.name)
                && let Some(value) = env(parameter.env)
            {
                self.0.insert(parameter.name, Setting { value, env: Some(parameter.env) });
            }
        }
        if !self.0.contains_key("sslmode") && env("PGREQUIRESSL").is_some_and(|value| value.starts_with('1'))
        {
            self.0.insert("sslmode", Setting { value: "require".into(), env: Some("PGREQUIRESSL") });
        }
    }

    fn refuse_unsupported(&self) -> Result<()> {
        for parameter in PARAMETERS {
            let Some(value) = self.get(parameter.name) else { continue };
            match parameter.support {
                Refused(instead) => {
                    return Err(Error::config(format!("{} is not supported", self.called(parameter.name)))
                        .with_hint(instead));
                }
                Only(values) if !values.iter().any(|v| v.eq_ignore_ascii_case(value)) => {
                    return Err(self.not_one_of(parameter.name, values.iter().copied()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn build(&self, env: &impl Fn(&str) -> Option<String>) -> Result<Dsn> {
        let home = env("HOME").map(PathBuf::from);
        let user = self.text("user").or_else(|| env("USER")).or_else(|| env("LOGNAME")).ok_or_else(|| {
            Error::config("the connection text names no user")
                .with_hint("Write it as postgres://USER@HOST/DBNAME, or set PGUSER.")
        })?;
        Ok(Dsn {
            hosts: self.hosts()?,
            database: self.text("dbname").unwrap_or_else(|| user.clone()),
            user,
            password: self.text("password"),
            passfile: self.path("passfile").or_else(|| home.as_ref().map(|home| home.join(".pgpass"))),
            application_name: self
                .text("application_name")
                .or_else(|| self.text("fallback_application_name")),
            options: self.text("options"),
            network: self.network()?,
            session: self.one_of("target_session_attrs", SESSIONS)?.unwrap_or(TargetSession::Any),
            random_order: self
                .one_of("load_balance_hosts", &[("disable", false), ("random", true)])?
                .unwrap_or(false),
            channel_binding: self.one_of("channel_binding", BINDINGS)?.unwrap_or(ChannelBinding::Prefer),
            tls: self.tls(home.map(|home| home.join(".postgresql")))?,
        })
    }

    fn hosts(&self) -> Result<Vec<Host>> {
        let list = |name| -> Vec<&str> { self.get(name).map(|v| v.split(',').collect()).unwrap_or_default() };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let count = names.len().max(addresses.len()).max(1);
        let mismatch = |name, n: usize| {
            let text = format!("{} has {n} entries for {count} hosts", self.called(name));
            Error::config(text)
                .with_hint("Give one for each host, separated by commas, or one `port` for all.")
        };
        if !names.is_empty() && names.len() != count {
            return Err(mismatch("host", names.len()));
        }
        if !addresses.is_empty() && addresses.len() != count {
            return Err(mismatch("hostaddr", addresses.len()));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(mismatch("port", ports.len()));
        }
        (0..count)
            .map(|i| {
                let address = addresses.get(i).map(|a| a.trim()).filter(|a| !a.is_empty());
                let address = address.map(|a| a.parse().map_err(|_| self.no_address(i))).transpose()?;
                let port = ports.get(i).or(ports.first().filter(|_| ports.len() == 1)).copied().unwrap_or("");
                Ok(Host {
                    place: self.place(names.get(i).copied().unwrap_or(""), address)?,
                    address,
                    port: self.port(i, port.trim())?,
                })
            })
            .collect()
    }

    fn place(&self, name: &str, address: Option<IpAddr>) -> Result<Place> {
        match (name, address) {
            (name, Some(address)) if name.is_empty() || name.starts_with('/') => {
                Ok(Place::Name(address.to_string()))
            }
            ("", None) => Ok(Place::Socket(default_socket_folder())),
            (name, _) if name.starts_with('/') => Ok(Place::Socket(PathBuf::from(name))),
            (name, _) if name.starts_with('@') => {
                Err(Error::config(format!("{} names an abstract socket", self.called("host")))
                    .with_hint("Use the socket's folder, or a host name."))
            }
            // The rest of a password that was cut at its first `@` would be shown as a host.
            (name, _) if name.contains('@') => {
                Err(Error::config(format!("{} contains `@`", self.called("host"))).with_hint(ENCODE))
            }
            (name, _) => Ok(Place::Name(name.to_owned())),
        }
    }

    /// The value is not repeated: in `postgres://user:pass/word@host` libpq takes `pass` for the port.
    fn port(&self, index: usize, text: &str) -> Result<u16> {
        match text.parse() {
            _ if text.is_empty() => Ok(DEFAULT_PORT),
            Ok(port) if port > 0 => Ok(port),
            _ => {
                let text = format!("{} {} is not a number from 1 to 65535", self.called("port"), index + 1);
                Err(Error::config(text).with_hint(ENCODE))
            }
        }
    }

    fn no_address(&self, index: usize) -> Error {
        Error::config(format!("{} {} is not an IP address", self.called("hostaddr"), index + 1))
            .with_hint("Write names as `host`.")
    }

    fn network(&self) -> Result<Network> {
        let seconds = |name| Ok::<_, Error>(self.number(name)?.map(|n| Duration::from_secs(n.into())));
        Ok(Network {
            connect_timeout: seconds("connect_timeout")?,
            keepalives: self.number("keepalives")? != Some(0),
            keepalives_idle: seconds("keepalives_idle")?,
            keepalives_interval: seconds("keepalives_interval")?,
            keepalives_count: self.number("keepalives_count")?,
            tcp_user_timeout: self.number("tcp_user_timeout")?.map(|n| Duration::from_millis(n.into())),
        })
    }

    fn tls(&self, home: Option<PathBuf>) -> Result<TlsOptions> {
        let roots = match self.get("sslrootcert") {
            None => Roots::Default,
            Some("system") => Roots::System,
            Some(file) => Roots::File(PathBuf::from(file)),
        };
        let system = roots == Roots::System;
        let default = if system { TlsMode::VerifyFull } else { TlsMode::Prefer };
        let mode = self.one_of("sslmode", MODES)?.unwrap_or(default);
        if system && mode < TlsMode::VerifyFull && mode != TlsMode::Disable {
            let text = format!("{} is too weak for sslrootcert=system", self.called("sslmode"));
            return Err(Error::config(text)
                .with_hint("Anybody can get a certificate of a public authority: use sslmode=verify-full."));
        }
        let direct =
            self.one_of("sslnegotiation", &[("postgres", false), ("direct", true)])?.unwrap_or(false);
        if direct && mode < TlsMode::Require {
            let text = format!("{} is too weak for sslnegotiation=direct", self.called("sslmode"));
            return Err(Error::config(text).with_hint("Use sslmode=require or stronger."));
        }
        Ok(TlsOptions {
            mode,
            direct,
            roots,
            cert: self.path("sslcert"),
            key: self.path("sslkey"),
            send_cert: self.one_of("sslcertmode", &[("disable", false), ("allow", true)])?.unwrap_or(true),
            sni: self.one_of("sslsni", &[("0", false), ("1", true)])?.unwrap_or(true),
            oldest: self.one_of("ssl_min_protocol_version", OLDEST)?.unwrap_or(TlsVersion::V1_2),
            newest: self.one_of("ssl_max_protocol_version", NEWEST)?.unwrap_or(TlsVersion::V1_3),
            home,
        })
    }

    /// The value of a parameter; an empty one counts as not given, as in libpq.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// A whole number; negative ones mean the system's default in libpq, as zero does.
    fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.trim().parse::<i32>() {
            Ok(number) => Ok(Some(u32::try_from(number).unwrap_or(0))),
            Err(_) => Err(Error::config(format!("{} is not a whole number", self.called(name)))
                .with_hint("Units are fixed: seconds, and milliseconds for tcp_user_timeout.")),
        }
    }

    fn one_of<T: Copy>(&self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found
            .map(|(_, value)| Some(*value))
            .ok_or_else(|| self.not_one_of(name, words.iter().map(|(word, _)| *word)))
    }

    fn not_one_of<'a>(&self, name: &str, words: impl Iterator<Item = &'a str>) -> Error {
        let words: Vec<&str> = words.collect();
        let value = self.get(name).unwrap_or("");
        Error::config(format!("{} cannot be {value:?}", self.called(name)))
            .with_hint(format!("Use one of: {}.", words.join(", ")))
    }

    /// How the user knows the parameter: by its variable when the value came from there.
    fn called<'a>(&self, name: &'a str) -> &'a str {
        self.0.get(name).and_then(|setting| setting.env).unwrap_or(name)
    }

    fn set(&mut self, name: &'static str, value: String) {
        self.0.insert(name, Setting { value, env: None });
    }

    /// `echo` is false where the name may be a piece of a password that was not quoted or encoded.
    fn set_by_name(&mut self, name: &str, value: String, echo: bool) -> Result<()> {
        // The JDBC driver's word, which libpq takes in URLs too.
        if name == "ssl" && value == "true" {
            self.set("sslmode", "require".into());
            return Ok(());
        }
        let name = if name == "keepalives_retries" { "keepalives_count" } else { name };
        match PARAMETERS.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => self.set(parameter.name, value),
            // Not repeated when it has other characters: then it is a mangled URL with a password in it.
            None if echo && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) => {
                return Err(unknown(name));
            }
            None => {
                return Err(Error::config("the connection text has an unknown parameter").with_hint(ENCODE));
            }
        }
        Ok(())
    }

    /// `[user[:password]@][host[:port],...][/dbname][?name=value&...]`
    fn read_url(&mut self, text: &str) -> Result<()> {
        let mut rest = text;
        if let Some((login, after)) = split_login(text) {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            self.set_decoded("user", user)?;
            self.set_decoded("password", password)?;
            rest = after;
        }
        // Behind an `@` that should have been encoded, the rest of the password is taken for what follows.
        let echo = !(self.0.contains_key("password") && rest.contains('@'));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        self.read_authority(&rest[..end])?;
        rest = &rest[end..];
        if let Some(path) = rest.strip_prefix('/') {
            let end = path.find('?').unwrap_or(path.len());
            self.set_decoded("dbname", &path[..end])?;
            rest = &path[end..];
        }
        let query = rest.strip_prefix('?').unwrap_or("");
        let query = query.strip_suffix('&').unwrap_or(query);
        for pair in query.split('&').filter(|_| !query.is_empty()) {
            let Some((name, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
                return Err(
                    Error::config("a parameter of the URL is not of the form name=value").with_hint(ENCODE)
                );
            };
            let (name, value) = (decode(name)?, decode(value)?);
            self.set_by_name(&name, value, echo)?;
        }
        Ok(())
    }

    fn read_authority(&mut self, text: &str) -> Result<()> {
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for one in text.split(',') {
            let (host, port) = match one.strip_prefix('[') {
                Some(bracketed) => match bracketed.split_once(']') {
                    Some((host, "")) if !host.is_empty() => (host, ""),
                    Some((host, port)) if !host.is_empty() && port.starts_with(':') => (host, &port[1..]),
                    _ => {
                        return Err(
                            Error::config("the URL has a broken `[address]`").with_hint("Write [::1]:5432.")
                        );
                    }
                },
                None => one.split_once(':').unwrap_or((one, "")),
            };
            hosts.push(decode(host)?);
            ports.push(decode(port)?);
        }
        // Left open, so that PGHOST and PGPORT count, only when nothing at all is written.
        for (name, list) in [("host", hosts.join(",")), ("port", ports.join(","))] {
            if !list.is_empty() {
                self.set(name, list);
            }
        }
        Ok(())
    }

    fn set_decoded(&mut self, name: &'static str, text: &str) -> Result<()> {
        if !text.is_empty() {
            self.set(name, decode(text)?);
        }
        Ok(())
    }

    /// `name = value`, with `'...'` around a value that is empty or has spaces, and `\` before `'` and `\`.
    fn read_pairs(&mut self, text: &str) -> Result<()> {
        if text.split(['=', ' ']).next().is_some_and(|head| head.contains("://")) {
            return Err(Error::config("the URL's scheme is not postgres:// or postgresql://")
                .with_hint("Write postgres://user@host/dbname."));
        }
        let mut rest = text.trim_start();
        let mut after_password = false;
        while !rest.is_empty() {
            let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
            let name = &rest[..end];
            // The word is not repeated: it may be the second word of a password.
            let Some(value) = rest[end..].trim_start().strip_prefix('=') else {
                return Err(
                    Error::config("a word of the connection text is not followed by `=`").with_hint(QUOTE)
                );
            };
            let (value, quoted, after) = pair_value(value.trim_start())?;
            self.set_by_name(name, value, !after_password)?;
            after_password = !quoted && (name == "password" || after_password);
            rest = after.trim_start();
        }
        Ok(())
    }
}

const ENCODE: &str =
    "Percent-encode `@`, `:`, `/`, `?`, `#`, `&`, `=` and `%` in user names and passwords (`@` is %40).";
const QUOTE: &str = "Put values with spaces into single quotes: password='two words'.";

/// The part before the first `@`, which counts only in front of the first `/`.
fn split_login(text: &str) -> Option<(&str, &str)> {
    let at = text.find(['@', '/'])?;
    text[at..].strip_prefix('@').map(|after| (&text[..at], after))
}

/// The value at the start of a text, whether it was quoted, and what follows it.
fn pair_value(text: &str) -> Result<(String, bool, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, true, &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, false, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(Error::config("a quoted value of the connection text does not end").with_hint(QUOTE));
    }
    Ok((value, false, ""))
}

fn unknown(name: &str) -> Error {
    let error = Error::config(format!("the connection text has an unknown parameter {name:?}"));
    match similar(name) {
        Some(known) => error.with_hint(format!("Did you mean `{known}`?")),
        None => error.with_hint("Take it out; the parameters are those of libpq."),
    }
}

fn similar(name: &str) -> Option<&'static str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
    let wanted = plain(name);
    if let Some((_, known)) = SYNONYMS.iter().find(|(word, _)| plain(word) == wanted) {
        return Some(known);
    }
    let nearest = PARAMETERS.iter().map(|p| (distance(&plain(p.name), &wanted), p.name)).min()?;
    (nearest.0 <= 2.min(wanted.len() / 2)).then_some(nearest.1)
}

/// How many letters have to be added, removed or changed.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn decode(text: &str) -> Result<String> {
    let broken =
        || Error::config("the URL has a broken percent-encoding").with_hint("Write `%` itself as %25.");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok()).ok_or_else(broken)?;
        let digits = Some(digits).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit())).ok_or_else(broken)?;
        match u8::from_str_radix(digits, 16) {
            Ok(byte) if byte != 0 => bytes.push(byte),
            _ => return Err(broken()),
        }
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

/// Percent-encodes all but letters, digits, `-._~` and the characters in `keep`.
fn encode(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || c.is_ascii() && keep.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The text of a password file; `None`, with a warning where the user should know, when it is not to be used.
fn read_passfile(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() {
        tracing::warn!(file = %path.display(), "the password file is not a plain file and is ignored");
        return None;
    }
    if readable_by_others(&meta) {
        tracing::warn!(
            file = %path.display(),
            "the password file may be read by others and is ignored; run `chmod 0600` on it"
        );
        return None;
    }
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) => Some(text),
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "the password file cannot be read");
            None
        }
    }
}

#[cfg(unix)]
fn readable_by_others(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn readable_by_others(_: &std::fs::Metadata) -> bool {
    false
}

/// The password of the first line `host:port:database:user:password` that matches; `*` matches anything.
fn passfile_entry(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for wanted in wanted {
            let (field, after) = passfile_field(rest)?;
            if rest.starts_with("*:") || field == wanted {
                rest = after?;
            } else {
                return None;
            }
        }
        passfile_field(rest).map(|(password, _)| password).filter(|password| !password.is_empty())
    })
}

/// A field up to the next `:` that has no `\` before it, and the rest of the line.
fn passfile_field(line: &str) -> Option<(String, Option<&str>)> {
    let mut field = String::new();
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ':' => return Some((field, Some(&line[at + 1..]))),
            '\\' => field.push(chars.next().map_or('\\', |(_, c)| c)),
            c => field.push(c),
        }
    }
    Some((field, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Shows what was understood, in one line.
    fn seen(text: &str) -> String {
        match text.parse::<Dsn>() {
            Ok(dsn) => format!("{dsn} password={:?}", dsn.password),
            Err(error) => format!("error: {error}"),
        }
    }

    fn error(text: &str) -> Error {
        text.parse::<Dsn>().unwrap_err()
    }

    fn env<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |wanted| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn urls_mean_what_they_mean_to_libpq() {
        let socket = encode(&default_socket_folder().to_string_lossy(), "/");
        let default_socket = format!("postgres://u@/u?host={socket} password=None");
        let table = [
            ("postgres://u@h/d", "postgres://u@h:5432/d password=None"),
            ("postgresql://u@h/d", "postgres://u@h:5432/d password=None"),
            ("postgres://u@h", "postgres://u@h:5432/u password=None"),
            ("postgres://u@", &default_socket),
            ("postgres://?user=u", &default_socket),
            ("  postgres://u@h/d\n", "postgres://u@h:5432/d password=None"),
            ("postgres://u:p@h:6000/d", "postgres://u@h:6000/d password=Some(\"p\")"),
            ("postgres://u:@h/d", "postgres://u@h:5432/d password=None"),
            ("postgres://u:p:q@h/d", "postgres://u@h:5432/d password=Some(\"p:q\")"),
            ("postgres://u%40x:p%2Fq%25@h/d%20e", "postgres://u%40x@h:5432/d%20e password=Some(\"p/q%\")"),
            ("postgres://u@h1,h2:1,h3/d", "postgres://u@h1:5432,h2:1,h3:5432/d password=None"),
            ("postgres://u@h1,h2/d?port=7", "postgres://u@h1:7,h2:7/d password=None"),
            ("postgres://u@[::1]:7,[fe80::1]/d", "postgres://u@[::1]:7,[fe80::1]:5432/d password=None"),
            ("postgres://u@%2Frun%2Fpg/d", "postgres://u@/d?host=/run/pg password=None"),
            (
                "postgres://u@/d?host=/run/pg&port=5433",
                "postgres://u@/d?host=/run/pg&port=5433 password=None",
            ),
            ("postgres://u@/d?host=/a,h", "postgres://u@%2Fa:5432,h:5432/d password=None"),
            ("postgres://u@ignored/d?host=used", "postgres://u@used:5432/d password=None"),
            ("postgres:///d?user=u&password=p%26q&host=h", "postgres://u@h:5432/d password=Some(\"p&q\")"),
            (
                "postgres://u@h/d?application_name=a@b",
                "postgres://u@h:5432/d?application_name=a%40b password=None",
            ),
            ("postgres://u@h/d?sslmode=prefer&", "postgres://u@h:5432/d password=None"),
            ("postgres://u@h/d?ssl=true", "postgres://u@h:5432/d?sslmode=require password=None"),
            ("postgres://u@h/d?sslmode=verify-full&sslmode=prefer", "postgres://u@h:5432/d password=None"),
            ("postgres://u@h/d?hostaddr=10.0.0.1", "postgres://u@h:5432/d?hostaddr=10.0.0.1 password=None"),
            (
                "postgres://u@/d?hostaddr=10.0.0.1",
                "postgres://u@10.0.0.1:5432/d?hostaddr=10.0.0.1 password=None",
            ),
            ("postgres://u@h/d?connect_timeout=-1", "postgres://u@h:5432/d?connect_timeout=0 password=None"),
            ("postgres://u@h/d?sslrootcert=system", "postgres://u@h:5432/d?sslrootcert=system password=None"),
            (
                "postgres://u@h/d?gssencmode=prefer&client_encoding=utf8",
                "postgres://u@h:5432/d password=None",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(seen(text), expected, "{text}");
        }
    }

    #[test]
    fn pairs_mean_what_they_mean_to_libpq() {
        let table = [
            ("host=h user=u dbname=d", "postgres://u@h:5432/d password=None"),
            ("  host = h\n user\t= u ", "postgres://u@h:5432/u password=None"),
            ("host=h user=u password='two words'", "postgres://u@h:5432/u password=Some(\"two words\")"),
            (r"host=h user=u password=it\'s\\ok", r#"postgres://u@h:5432/u password=Some("it's\\ok")"#),
            (r"host=h user=u password='it\'s'", r#"postgres://u@h:5432/u password=Some("it's")"#),
            ("host=h user=u password=''", "postgres://u@h:5432/u password=None"),
            ("user=u host=a,b,c port=1,,3", "postgres://u@a:1,b:5432,c:3/u password=None"),
            ("user=u host=/run/pg port=5433", "postgres://u@/u?host=/run/pg&port=5433 password=None"),
            ("user=u host=h keepalives_retries=4", "postgres://u@h:5432/u?keepalives_count=4 password=None"),
            (
                "user=u host=h fallback_application_name=f",
                "postgres://u@h:5432/u?application_name=f password=None",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(seen(text), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let table = [
            ("postgres://h/d", "the connection text names no user"),
            ("mysql://u:p@h/d?x=y", "the URL's scheme is not postgres:// or postgresql://"),
            ("postgres://u@h:0/d", "port 1 is not a number from 1 to 65535"),
            ("postgres://u@h:65536/d", "port 1 is not a number from 1 to 65535"),
            ("postgres://u@h1,h2:x/d", "port 2 is not a number from 1 to 65535"),
            ("postgres://u@[::1/d", "the URL has a broken `[address]`"),
            ("postgres://u@[]/d", "the URL has a broken `[address]`"),
            ("postgres://u%4@h/d", "the URL has a broken percent-encoding"),
            ("postgres://u%zz@h/d", "the URL has a broken percent-encoding"),
            ("postgres://u%+1@h/d", "the URL has a broken percent-encoding"),
            ("postgres://u%00@h/d", "the URL has a broken percent-encoding"),
            ("postgres://u%ff@h/d", "the URL has a broken percent-encoding"),
            ("postgres://u@h/d?sslmode", "a parameter of the URL is not of the form name=value"),
            ("postgres://u@h/d?sslmode=a=b", "a parameter of the URL is not of the form name=value"),
            ("postgres://u@h/d?&&", "a parameter of the URL is not of the form name=value"),
            ("postgres://u@h/d?sslmode=on", "sslmode cannot be \"on\""),
            ("postgres://u@h/d?target_session_attrs=master", "target_session_attrs cannot be \"master\""),
            ("postgres://u@h/d?connect_timeout=5s", "connect_timeout is not a whole number"),
            ("postgres://u@h/d?hostaddr=h", "hostaddr 1 is not an IP address"),
            ("user=u host=a,b port=1,2,3", "port has 3 entries for 2 hosts"),
            ("user=u host=a,b hostaddr=::1,::2,::3", "host has 2 entries for 3 hosts"),
            ("user=u host=@x", "host names an abstract socket"),
            ("user=u host", "a word of the connection text is not followed by `=`"),
            ("user='u", "a quoted value of the connection text does not end"),
            ("user=u service=x", "service is not supported"),
            ("user=u sslcrl=x", "sslcrl is not supported"),
            ("user=u sslpassword=x", "sslpassword is not supported"),
            ("user=u require_auth=scram-sha-256", "require_auth is not supported"),
            ("user=u gssencmode=require", "gssencmode cannot be \"require\""),
            ("user=u client_encoding=latin1", "client_encoding cannot be \"latin1\""),
            ("user=u replication=database", "replication cannot be \"database\""),
            ("user=u sslcertmode=require", "sslcertmode cannot be \"require\""),
            ("user=u sslrootcert=system sslmode=require", "sslmode is too weak for sslrootcert=system"),
            ("user=u sslnegotiation=direct", "sslmode is too weak for sslnegotiation=direct"),
        ];
        for (text, expected) in table {
            let error = error(text);
            assert_eq!(error.to_string(), expected, "{text}");
            assert!(error.is_config() && error.hint().is_some(), "{text}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_with_what_was_meant() {
        let table = [
            ("sslmod", "Did you mean `sslmode`?"),
            ("ssl-mode", "Did you mean `sslmode`?"),
            ("sslRootCert", "Did you mean `sslrootcert`?"),
            ("database", "Did you mean `dbname`?"),
            ("targetSessionAttrs", "Did you mean `target_session_attrs`?"),
            ("username", "Did you mean `user`?"),
            ("pool_size", "Take it out; the parameters are those of libpq."),
            ("x", "Take it out; the parameters are those of libpq."),
        ];
        for (name, hint) in table {
            let error = error(&format!("postgres://u@h/d?{name}=1"));
            assert_eq!(error.to_string(), format!("the connection text has an unknown parameter {name:?}"));
            assert_eq!(error.hint(), Some(hint), "{name}");
        }
    }

    #[test]
    fn no_error_repeats_a_password_however_it_was_mangled() {
        let secrets = [
            "s3cr3t",
            "s3cr3t@x",
            "s3cr3t/x",
            "x/s3cr3t",
            "x?s3cr3t",
            "x?s3cr3t=1",
            "x@s3cr3t:y",
            "x@s3cr3t?a=b",
        ];
        let mut texts = vec![
            "postgre://u:s3cr3t@h/d?sslmode=require".to_owned(),
            "postgres:/u:s3cr3t@h/d?sslmode=require".to_owned(),
            "postgres:u:s3cr3t@h/d".to_owned(),
            "user=u password=one s3cr3t host=h".to_owned(),
            "user=u password=one s3cr3t=two host=h".to_owned(),
            "user=u password=one two=three s3cr3t=4".to_owned(),
            "user=u password='s3cr3t host=h".to_owned(),
        ];
        for secret in secrets {
            texts.push(format!("postgres://u:{secret}@h/d"));
            texts.push(format!("postgres://u:{secret}@h/d?sslmod=1"));
            texts.push(format!("postgres://u:{secret}@h:x/d"));
        }
        for text in texts {
            if let Err(error) = text.parse::<Dsn>() {
                let shown = format!("{error} {error:?} {:?}", error.hint());
                assert!(!shown.contains("s3cr3t"), "{text}: {shown}");
            }
        }
    }

    #[test]
    fn display_and_debug_hide_the_password() {
        let dsn: Dsn = "postgres://u:s3cr3t@h/d?sslkey=/k&sslcert=/c".parse().unwrap();
        assert_eq!(dsn.to_string(), "postgres://u@h:5432/d?sslcert=/c&sslkey=/k");
        assert_eq!(format!("{dsn:?}"), "Dsn(postgres://u@h:5432/d?sslcert=/c&sslkey=/k)");
        assert_eq!(dsn.target(), "u@h:5432/d");
    }

    #[test]
    fn variables_fill_what_the_text_leaves_open() {
        let all = [
            ("PGHOST", "h1,h2"),
            ("PGPORT", "1,2"),
            ("PGDATABASE", "d"),
            ("PGUSER", "u"),
            ("PGPASSWORD", "p"),
            ("PGAPPNAME", "a"),
            ("PGSSLMODE", "require"),
            ("PGTARGETSESSIONATTRS", "primary"),
            ("PGCONNECT_TIMEOUT", "3"),
            ("HOME", "/nowhere"),
        ];
        let dsn = Dsn::from_env(env(&all)).unwrap();
        assert_eq!(
            dsn.to_string(),
            "postgres://u@h1:1,h2:2/d?passfile=/nowhere/.pgpass&application_name=a&connect_timeout=3\
             &target_session_attrs=primary&sslmode=require"
        );
        assert_eq!(dsn.password.as_deref(), Some("p"));
        let dsn = Dsn::parse("postgres://me@h3:3/mine?sslmode=disable", env(&all)).unwrap();
        assert_eq!(dsn.target(), "me@h3:3/mine");
        assert_eq!(dsn.tls.mode, TlsMode::Disable);
    }

    #[test]
    fn the_user_defaults_to_the_person_and_the_database_to_the_user() {
        let target = |text, variables: &[_]| Dsn::parse(text, env(variables)).map(|dsn| dsn.target());
        assert_eq!(target("host=h", &[("USER", "me")]).unwrap(), "me@h:5432/me");
        assert_eq!(target("host=h", &[("USER", ""), ("LOGNAME", "me")]).unwrap(), "me@h:5432/me");
        assert_eq!(target("host=h", &[("USER", "me"), ("PGUSER", "u")]).unwrap(), "u@h:5432/u");
        assert!(target("host=h", &[]).unwrap_err().is_config());
    }

    #[test]
    fn a_bad_variable_is_called_by_its_own_name() {
        let error =
            |name, value| Dsn::parse("postgres://u@h/d", env(&[(name, value)])).unwrap_err().to_string();
        assert_eq!(error("PGSSLMODE", "on"), "PGSSLMODE cannot be \"on\"");
        assert_eq!(error("PGSERVICE", "x"), "PGSERVICE is not supported");
        assert_eq!(error("PGCONNECT_TIMEOUT", "x"), "PGCONNECT_TIMEOUT is not a whole number");
        let required = Dsn::parse("postgres://u@h/d", env(&[("PGREQUIRESSL", "1")])).unwrap();
        assert_eq!(required.tls.mode, TlsMode::Require);
    }

    #[test]
    fn changed_copies_keep_the_rest() {
        let dsn: Dsn = "postgres://u:p@h/d".parse().unwrap();
        let other = dsn.clone().with_database("e").with_application_name("app");
        assert_eq!(other.to_string(), "postgres://u@h:5432/e?application_name=app");
        assert_eq!(other.password, dsn.password);
        assert_ne!(other, dsn);
        assert_eq!(other.with_database("d").with_application_name(""), dsn);
    }

    #[test]
    fn password_lines_match_like_in_libpq() {
        let text = "# h:1:d:u:comment\n\
                    h:1:d:other:no\n\
                    h\\:x:1:d:u:escaped host\n\
                    h:1:d:u:pass\\:word\\\\:ignored\n\
                    h:1:d:u:second\n\
                    *:*:all:*:everywhere\r\n\
                    *x:1:d:u:no wildcard\n\
                    short:1\n\
                    h:1:empty:u:\n\
                    h:1:empty:*:fallback\n";
        let find = |host, database| passfile_entry(text, [host, "1", database, "u"]);
        assert_eq!(find("h", "d").as_deref(), Some("pass:word\\"));
        assert_eq!(find("h:x", "d").as_deref(), Some("escaped host"));
        assert_eq!(find("elsewhere", "all").as_deref(), Some("everywhere"));
        assert_eq!(find("h", "empty").as_deref(), Some("fallback"));
        assert_eq!(find("yx", "d"), None);
        assert_eq!(find("short", "d"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_password_file_that_others_may_read_is_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("outhaul-dsn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(".pgpass");
        std::fs::write(&file, "h:5432:d:u:from file\nlocalhost:5432:d:u:from socket\n").unwrap();
        let home = folder.to_string_lossy().into_owned();
        let home = [("HOME", home.as_str()), ("USER", "u"), ("PGDATABASE", "d")];
        let password = |text| {
            let dsn = Dsn::parse(text, env(&home)).unwrap();
            dsn.password(&dsn.hosts[0])
        };
        for (mode, expected) in
            [(0o600, Some("from file")), (0o640, None), (0o604, None), (0o400, Some("from file"))]
        {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(password("host=h").as_deref(), expected, "{mode:o}");
        }
        assert_eq!(password("").as_deref(), Some("from socket"));
        assert_eq!(password("host=h password=given").as_deref(), Some("given"));
        assert_eq!(password("host=h port=1"), None);
        assert_eq!(password("host=h passfile=/nowhere"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    proptest! {
        #[test]
        fn a_shown_url_means_the_same_again(
            user in ".{1,8}", database in ".{1,8}", app in ".{0,8}",
            hosts in prop::collection::vec(("[a-z0-9.-]{1,8}|/[^,\0]{0,8}|::1", 1u16..), 1..4),
            timeout in prop::option::of(0u32..1000), mode in 0usize..6, roots in prop::option::of("[^\0]{1,8}"),
        ) {
            prop_assume!(![&user, &database, &app].iter().any(|text| text.contains('\0')));
            let mut settings = Settings::default();
            let join = |list: Vec<String>| list.join(",");
            settings.set("host", join(hosts.iter().map(|(host, _)| host.clone()).collect()));
            settings.set("port", join(hosts.iter().map(|(_, port)| port.to_string()).collect()));
            settings.set("user", user);
            settings.set("dbname", database);
            settings.set("application_name", app);
            settings.set("sslmode", MODES[mode].0.to_owned());
            settings.set("sslrootcert", roots.unwrap_or_default());
            settings.set("connect_timeout", timeout.map(|n| n.to_string()).unwrap_or_default());
            let dsn = settings.build(&|_: &str| None).unwrap();
            prop_assert_eq!(dsn.to_string().parse::<Dsn>().unwrap(), dsn);
        }

        #[test]
        fn no_text_makes_it_panic(text in "(postgres://)?[a-z@:/?&=%,'\\\\ \\[\\]é0-9]{0,40}") {
            let _ = text.parse::<Dsn>();
        }
    }
}
