//! Settings to a `Dsn`: what the values mean, their defaults, and which go together.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;

use super::Dsn;
use super::parts::{
    BINDINGS, DEFAULT_PORT, Host, MODES, Network, OLDEST, Place, Roots, SESSIONS, TargetSession, TlsMode,
    TlsOptions, TlsVersion, VERSIONS, default_socket_folder,
};
use super::settings::{ENCODE, Settings};
use crate::error::{Error, Result};

/// The variables here are those of the system: who runs this, and where is their home.
pub(super) fn dsn(settings: &Settings, env: &impl Fn(&str) -> Option<String>) -> Result<Dsn> {
    let home = env("HOME").map(PathBuf::from);
    let user = settings.text("user").or_else(|| env("USER")).or_else(|| env("LOGNAME")).ok_or_else(|| {
        Error::config("the connection text names no user")
            .with_hint("Write it as postgres://USER@HOST/DBNAME, or set PGUSER.")
    })?;
    Ok(Dsn {
        hosts: hosts(settings)?,
        database: settings.text("dbname").unwrap_or_else(|| user.clone()),
        user,
        password: settings.text("password"),
        passfile: settings.path("passfile").or_else(|| home.as_ref().map(|home| home.join(".pgpass"))),
        application_name: settings
            .text("application_name")
            .or_else(|| settings.text("fallback_application_name")),
        options: settings.text("options"),
        network: network(settings)?,
        session: settings.one_of("target_session_attrs", SESSIONS)?.unwrap_or(TargetSession::Any),
        random_order: settings
            .one_of("load_balance_hosts", &[("disable", false), ("random", true)])?
            .unwrap_or(false),
        channel_binding: settings.one_of("channel_binding", BINDINGS)?.unwrap_or(ChannelBinding::Prefer),
        tls: tls(settings, home.map(|home| home.join(".postgresql")))?,
    })
}

fn hosts(settings: &Settings) -> Result<Vec<Host>> {
    let list = |name| -> Vec<&str> { settings.get(name).map(|v| v.split(',').collect()).unwrap_or_default() };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len()).max(1);
    let mismatch = |name, n: usize| {
        let text = format!("{} has {n} entries for {count} hosts", settings.called(name));
        Error::config(text).with_hint("Give one for each host, separated by commas, or one `port` for all.")
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
    let one_port = ports.first().filter(|_| ports.len() == 1);
    (0..count)
        .map(|i| {
            let name = names.get(i).copied().unwrap_or("");
            let address = address(settings, i, addresses.get(i).map_or("", |a| a.trim()))?;
            Ok(Host {
                place: place(settings, name, address)?,
                address,
                port: port(settings, i, ports.get(i).or(one_port).map_or("", |port| port.trim()))?,
            })
        })
        .collect()
}

fn address(settings: &Settings, index: usize, text: &str) -> Result<Option<IpAddr>> {
    let address = Some(text).filter(|text| !text.is_empty()).map(str::parse).transpose();
    address.map_err(|_| {
        let text = format!("{} {} is not an IP address", settings.called("hostaddr"), index + 1);
        Error::config(text).with_hint("Write names as `host`.")
    })
}

fn place(settings: &Settings, name: &str, address: Option<IpAddr>) -> Result<Place> {
    match (name, address) {
        (name, Some(address)) if name.is_empty() || name.starts_with('/') => {
            Ok(Place::Name(address.to_string()))
        }
        ("", None) => Ok(Place::Socket(default_socket_folder())),
        (name, _) if name.starts_with('/') => Ok(Place::Socket(PathBuf::from(name))),
        (name, _) if name.starts_with('@') => {
            Err(Error::config(format!("{} names an abstract socket", settings.called("host")))
                .with_hint("Use the socket's folder, or a host name."))
        }
        // The rest of a password that was cut at its first `@` would be shown as a host.
        (name, _) if name.contains('@') => {
            Err(Error::config(format!("{} contains `@`", settings.called("host"))).with_hint(ENCODE))
        }
        (name, _) => Ok(Place::Name(name.to_owned())),
    }
}

/// The value is not repeated: in `postgres://user:pass/word@host` libpq takes `pass` for the port.
fn port(settings: &Settings, index: usize, text: &str) -> Result<u16> {
    match text.parse() {
        _ if text.is_empty() => Ok(DEFAULT_PORT),
        Ok(port) if port > 0 => Ok(port),
        _ => {
            let text = format!("{} {} is not a number from 1 to 65535", settings.called("port"), index + 1);
            Err(Error::config(text).with_hint(ENCODE))
        }
    }
}

fn network(settings: &Settings) -> Result<Network> {
    let seconds = |name| Ok::<_, Error>(settings.number(name)?.map(|n| Duration::from_secs(n.into())));
    Ok(Network {
        connect_timeout: seconds("connect_timeout")?,
        keepalives: settings.number("keepalives")? != Some(0),
        keepalives_idle: seconds("keepalives_idle")?,
        keepalives_interval: seconds("keepalives_interval")?,
        keepalives_count: settings.number("keepalives_count")?,
        tcp_user_timeout: settings.number("tcp_user_timeout")?.map(|n| Duration::from_millis(n.into())),
    })
}

fn tls(settings: &Settings, home: Option<PathBuf>) -> Result<TlsOptions> {
    let roots = match settings.get("sslrootcert") {
        None => Roots::Default,
        Some("system") => Roots::System,
        Some(file) => Roots::File(PathBuf::from(file)),
    };
    let system = roots == Roots::System;
    let mode = settings.one_of("sslmode", MODES)?.unwrap_or(TlsMode::default_with(&roots));
    if system && mode < TlsMode::VerifyFull && mode != TlsMode::Disable {
        let text = format!("{} is too weak for sslrootcert=system", settings.called("sslmode"));
        return Err(Error::config(text)
            .with_hint("Anybody can get a certificate of a public authority: use sslmode=verify-full."));
    }
    let direct =
        settings.one_of("sslnegotiation", &[("postgres", false), ("direct", true)])?.unwrap_or(false);
    if direct && mode < TlsMode::Require {
        let text = format!("{} is too weak for sslnegotiation=direct", settings.called("sslmode"));
        return Err(Error::config(text).with_hint("Use sslmode=require or stronger."));
    }
    Ok(TlsOptions {
        mode,
        direct,
        roots,
        cert: settings.path("sslcert"),
        key: settings.path("sslkey"),
        send_cert: settings.one_of("sslcertmode", &[("disable", false), ("allow", true)])?.unwrap_or(true),
        sni: settings.one_of("sslsni", &[("0", false), ("1", true)])?.unwrap_or(true),
        oldest: settings.one_of("ssl_min_protocol_version", OLDEST)?.unwrap_or(TlsVersion::V1_2),
        newest: settings.one_of("ssl_max_protocol_version", VERSIONS)?.unwrap_or(TlsVersion::V1_3),
        home,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{env, refused};
    use super::*;

    #[test]
    fn a_value_that_cannot_be_is_refused_by_name() {
        refused(&[
            ("postgres://h/d", "the connection text names no user"),
            ("postgres://u@h:0/d", "port 1 is not a number from 1 to 65535"),
            ("postgres://u@h:65536/d", "port 1 is not a number from 1 to 65535"),
            ("postgres://u@h1,h2:x/d", "port 2 is not a number from 1 to 65535"),
            ("postgres://u@h/d?sslmode=on", "sslmode cannot be \"on\""),
            ("postgres://u@h/d?target_session_attrs=master", "target_session_attrs cannot be \"master\""),
            ("postgres://u@h/d?connect_timeout=5s", "connect_timeout is not a whole number"),
            ("postgres://u@h/d?hostaddr=h", "hostaddr 1 is not an IP address"),
            ("user=u host=a,b port=1,2,3", "port has 3 entries for 2 hosts"),
            ("user=u host=a,b hostaddr=::1,::2,::3", "host has 2 entries for 3 hosts"),
            ("user=u host=@x", "host names an abstract socket"),
            ("user=u sslcertmode=require", "sslcertmode cannot be \"require\""),
            ("user=u sslrootcert=system sslmode=require", "sslmode is too weak for sslrootcert=system"),
            ("user=u sslnegotiation=direct", "sslmode is too weak for sslnegotiation=direct"),
        ]);
    }

    #[test]
    fn the_user_defaults_to_the_person_and_the_database_to_the_user() {
        let target = |text, variables: &[_]| Dsn::parse(text, env(variables)).map(|dsn| dsn.target());
        assert_eq!(target("host=h", &[("USER", "me")]).unwrap(), "me@h:5432/me");
        assert_eq!(target("host=h", &[("USER", ""), ("LOGNAME", "me")]).unwrap(), "me@h:5432/me");
        assert_eq!(target("host=h", &[("USER", "me"), ("PGUSER", "u")]).unwrap(), "u@h:5432/u");
        assert!(target("host=h", &[]).unwrap_err().is_config());
    }
}
