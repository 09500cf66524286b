//! A plain connection for programs that have none yet.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use tokio_postgres::Client;

use crate::error::Result;
use crate::store::conn::{Conn, Purpose};
use crate::store::dsn::Dsn;

/// A connection of tokio-postgres, opened by everything that a [`Dsn`] says: hosts, TLS, password files.
///
/// It is a `tokio_postgres::Client` for every purpose; dropping it closes the connection.
pub struct Session(Conn);

/// Connects to the database of a [`Dsn`], within 15 s.
///
/// # Errors
/// [`crate::Error::is_config`] for names, certificates and settings, [`crate::Error::is_refused`] for the login,
/// [`crate::Error::is_unavailable`] for the rest.
///
/// ```no_run
/// # async fn example() -> outhaul::Result<()> {
/// let dsn: outhaul::Dsn = "postgres://app@db1,db2/shop?sslmode=verify-full&target_session_attrs=read-write".parse()?;
/// let mut session = outhaul::connect(&dsn).await?;
/// let mut tx = session.transaction().await?;
/// outhaul::enqueue(&mut tx, &outhaul::NewJob::raw("mail", "mail.welcome", "{}")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn connect(dsn: &Dsn) -> Result<Session> {
    Ok(Session(Conn::open(dsn, Purpose::Tool, Duration::from_secs(15)).await?))
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        self.0.client_mut()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("backend", &self.0.pid()).finish_non_exhaustive()
    }
}
