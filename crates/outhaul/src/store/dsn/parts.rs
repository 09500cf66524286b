//! The parts of a `Dsn`, as the rest of the library reads them, and libpq's words for them.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;

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

impl TlsMode {
    /// The system's roots are asked for by those who want the server checked.
    pub(super) fn default_with(roots: &Roots) -> TlsMode {
        if *roots == Roots::System { TlsMode::VerifyFull } else { TlsMode::Prefer }
    }
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

pub(super) const DEFAULT_PORT: u16 = 5432;

pub(super) const MODES: &[(&str, TlsMode)] = &[
    ("disable", TlsMode::Disable),
    ("allow", TlsMode::Allow),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];

pub(super) const SESSIONS: &[(&str, TargetSession)] = &[
    ("any", TargetSession::Any),
    ("read-write", TargetSession::ReadWrite),
    ("read-only", TargetSession::ReadOnly),
    ("primary", TargetSession::Primary),
    ("standby", TargetSession::Standby),
    ("prefer-standby", TargetSession::PreferStandby),
];

pub(super) const BINDINGS: &[(&str, ChannelBinding)] = &[
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];

/// rustls speaks nothing older than 1.2, so an older minimum asks for nothing.
pub(super) const OLDEST: &[(&str, TlsVersion)] = &[
    ("TLSv1", TlsVersion::V1_2),
    ("TLSv1.1", TlsVersion::V1_2),
    ("TLSv1.2", TlsVersion::V1_2),
    ("TLSv1.3", TlsVersion::V1_3),
];
pub(super) const VERSIONS: &[(&str, TlsVersion)] =
    &[("TLSv1.2", TlsVersion::V1_2), ("TLSv1.3", TlsVersion::V1_3)];

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
pub(super) fn default_socket_folder() -> PathBuf {
    let system = Path::new("/var/run/postgresql");
    if system.is_dir() { system.to_owned() } else { PathBuf::from("/tmp") }
}
