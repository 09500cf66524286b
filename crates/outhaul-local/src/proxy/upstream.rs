//! The server behind the proxy.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{Config, Host, SslMode};

use crate::error::{Context, Error, Result};
use crate::server::encode;

/// Where the server is, and what its URL says beside that.
#[derive(Clone)]
pub(crate) struct Target {
    place: Place,
    user: String,
    password: Option<String>,
    database: String,
}

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Tcp(String, u16),
    /// The folder of the socket, and the port that its name has.
    Unix(PathBuf, u16),
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Target> {
        // The parser's own error names the bad option, never a password.
        let config: Config = url.parse().context(|| "cannot read the URL of the server".to_owned())?;
        if config.get_ssl_mode() == SslMode::Require {
            let error = Error::new(
                "the proxy speaks to its server without TLS, and the URL asks for sslmode=require",
            );
            return Err(error.with_hint("use a socket or a loopback address of the server"));
        }
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let place = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => Place::Tcp(host.clone(), port),
            Some(Host::Unix(folder)) => Place::Unix(folder.clone(), port),
            None => return Err(Error::new("the URL of the server names no host")),
        };
        let user = config.get_user().unwrap_or("postgres").to_owned();
        let password = config.get_password().map(|password| String::from_utf8_lossy(password).into_owned());
        let database = config.get_dbname().map_or_else(|| user.clone(), str::to_owned);
        Ok(Target { place, user, password, database })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// The URL of a client that comes through the proxy.
    pub(super) fn url_through(&self, port: u16, database: &str, role: Option<&str>) -> String {
        let part = |text: &str| encode(text).replace('/', "%2F");
        let password = self.password.as_deref().map(|p| format!(":{}", part(p))).unwrap_or_default();
        let role = role.map(|role| format!("?application_name={}", encode(role))).unwrap_or_default();
        format!("postgresql://{}{password}@127.0.0.1:{port}/{}{role}", part(&self.user), part(database))
    }
}

/// A connection to the server; another kind (TLS) is another variant.
pub(super) enum Upstream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Upstream {
    pub(super) async fn connect(place: &Place) -> io::Result<Upstream> {
        match place {
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Upstream::Tcp(stream))
            }
            Place::Unix(folder, port) => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                Ok(Upstream::Unix(UnixStream::connect(path).await?))
            }
        }
    }

    /// Makes the coming close a reset, where the kind of socket knows one.
    pub(super) fn reset_on_close(&self) {
        if let Upstream::Tcp(stream) = self {
            // Fails only on a socket that is already gone.
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Upstream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Upstream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Upstream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Upstream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Upstream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Upstream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Upstream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Upstream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Upstream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
