//! Where the database is and how to get in: what libpq users write, read the way libpq reads it.
//!
//! A [`Dsn`] is plain data. Nothing here opens a socket or reads the process's environment: variables come
//! through a function that the caller gives, and password and certificate files are read when a connection
//! is opened, so that a rotated secret is found without a restart.
//!
//! The text, by `url` or `keywords`, and then the variables become `settings` under the names in `parameter`;
//! `build` makes the `parts` of a [`Dsn`] from them, and `show` writes those back as a URL. `passfile` answers
//! when a connection is opened.
//!
//! tokio-postgres opens the connections, from one `Config` for each address, and lends its `ChannelBinding`.
//! The reading is ours, since its own parser
//! * cannot say what a text leaves open, which the variables then fill;
//! * has no values for `sslmode` `allow`, `verify-ca` and `verify-full`, for `target_session_attrs` `primary`,
//!   `standby` and `prefer-standby`, or for a `hostaddr` of some hosts only, and takes `tcp_user_timeout` for
//!   seconds;
//! * knows no certificates, password files, variables or parameters that ask for nothing (`gssencmode=prefer`);
//! * adds a URL's `host=` to the hosts in front of it, which libpq replaces, and lets a broken percent-encoding
//!   stand;
//! * repeats an unknown word in its error, which may be a piece of a password, and does not say what was meant.
//!
//! Deliberately absent: service files, GSSAPI, revocation lists and encrypted client keys. A parameter that
//! would ask for one of them is refused by name instead of being ignored.

mod build;
mod keywords;
mod parameter;
mod parts;
mod passfile;
mod settings;
mod show;
mod url;

use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::config::ChannelBinding;

pub(crate) use self::parts::{Host, Network, Place, Roots, TargetSession, TlsMode, TlsOptions, TlsVersion};
use self::settings::Settings;
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
        let text = text.trim();
        let mut settings = Settings::default();
        match url::behind_scheme(text) {
            Some(rest) => url::read(rest, &mut settings)?,
            None => keywords::read(text, &mut settings)?,
        }
        settings.fill_from(&env);
        settings.refuse_unsupported()?;
        build::dsn(&settings, &env)
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

    /// The same with a worker's role before the `application_name`.
    pub(crate) fn with_role(self, role: &str) -> Dsn {
        let name = match &self.application_name {
            Some(name) => format!("{role} {name}"),
            None => role.to_owned(),
        };
        self.with_application_name(name)
    }

    /// The same servers and role, but another database.
    pub fn with_database(mut self, name: impl Into<String>) -> Dsn {
        self.database = name.into();
        self
    }

    /// The password for one host: the one given, else the password file's, which is read anew each time.
    /// The password for one host: the one given, else the password file's, which is read anew each time.
    pub(crate) fn password(&self, host: &Host) -> Option<String> {
        let of_file = || passfile::password(self.passfile.as_deref()?, host, &self.database, &self.user);
        self.password.clone().or_else(of_file)
    }
}

impl FromStr for Dsn {
    type Err = Error;

    /// Reads a text alone: no variables, no files below a home; the text has to name the user.
    fn from_str(text: &str) -> Result<Dsn> {
        Dsn::parse(text, |_| None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each text means, in one line.
    pub(super) fn means(table: &[(&str, &str)]) {
        for (text, expected) in table {
            let seen = match text.parse::<Dsn>() {
                Ok(dsn) => format!("{dsn} password={:?}", dsn.password),
                Err(error) => format!("error: {error}"),
            };
            assert_eq!(seen, *expected, "{text}");
        }
    }

    /// The error of each text, which also says what to do.
    pub(super) fn refused(table: &[(&str, &str)]) {
        for (text, expected) in table {
            let error = text.parse::<Dsn>().unwrap_err();
            assert_eq!(error.to_string(), *expected, "{text}");
            assert!(error.is_config() && error.hint().is_some(), "{text}");
        }
    }

    pub(super) fn env<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |wanted| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
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
    fn changed_copies_keep_the_rest() {
        let dsn: Dsn = "postgres://u:p@h/d".parse().unwrap();
        let other = dsn.clone().with_database("e").with_application_name("app");
        assert_eq!(other.to_string(), "postgres://u@h:5432/e?application_name=app");
        assert_eq!(other.password, dsn.password);
        assert_ne!(other, dsn);
        assert_eq!(other.with_database("d").with_application_name(""), dsn);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(postgres://)?[a-z@:/?&=%,'\\\\ \\[\\]é0-9]{0,40}") {
            let _ = text.parse::<Dsn>();
        }
    }
}
