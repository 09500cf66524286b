//! A `Dsn` as people may see it: a URL without the password, which reads as the same `Dsn` again.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;

use super::Dsn;
use super::parts::{
    BINDINGS, DEFAULT_PORT, Host, MODES, Network, Place, Roots, SESSIONS, TargetSession, TlsMode, TlsOptions,
    TlsVersion, VERSIONS,
};
use super::url::encode;

impl fmt::Display for Dsn {
    /// A URL without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parameters = parameters(self);
        write!(f, "postgres://{}@", encode(&self.user, ""))?;
        match &self.hosts[..] {
            [Host { place: Place::Socket(folder), port, .. }] => {
                if *port != DEFAULT_PORT {
                    parameters.insert(0, ("port", port.to_string()));
                }
                parameters.insert(0, ("host", folder.to_string_lossy().into_owned()));
            }
            hosts => {
                let hosts: Vec<String> = hosts.iter().map(in_url).collect();
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

fn in_url(host: &Host) -> String {
    match &host.place {
        Place::Name(name) if name.contains(':') => format!("[{name}]:{}", host.port),
        Place::Name(name) => format!("{}:{}", encode(name, ""), host.port),
        Place::Socket(folder) => format!("{}:{}", encode(&folder.to_string_lossy(), ""), host.port),
    }
}

/// A parameter, and its value unless that is the default.
type Shown = (&'static str, Option<String>);

/// Every parameter that is not at its default.
fn parameters(dsn: &Dsn) -> Vec<(&'static str, String)> {
    let addresses: Vec<String> =
        dsn.hosts.iter().map(|host| host.address.map(|a| a.to_string()).unwrap_or_default()).collect();
    let has_address = dsn.hosts.iter().any(|host| host.address.is_some());
    let all = [
        ("hostaddr", has_address.then(|| addresses.join(","))),
        ("passfile", dsn.passfile.as_deref().map(path)),
        ("application_name", dsn.application_name.clone()),
        ("options", dsn.options.clone()),
    ];
    let choice = [
        ("target_session_attrs", word_of(SESSIONS, dsn.session, TargetSession::Any)),
        ("load_balance_hosts", word(dsn.random_order, "random")),
        ("channel_binding", word_of(BINDINGS, dsn.channel_binding, ChannelBinding::Prefer)),
    ];
    let all = all.into_iter().chain(network(&dsn.network)).chain(choice).chain(tls(&dsn.tls));
    all.filter_map(|(name, value)| Some((name, value?))).collect()
}

fn network(network: &Network) -> [Shown; 6] {
    let seconds = |time: Duration| time.as_secs().to_string();
    [
        ("connect_timeout", network.connect_timeout.map(seconds)),
        ("keepalives", word(!network.keepalives, "0")),
        ("keepalives_idle", network.keepalives_idle.map(seconds)),
        ("keepalives_interval", network.keepalives_interval.map(seconds)),
        ("keepalives_count", network.keepalives_count.map(|n| n.to_string())),
        ("tcp_user_timeout", network.tcp_user_timeout.map(|time| time.as_millis().to_string())),
    ]
}

fn tls(tls: &TlsOptions) -> [Shown; 9] {
    let roots = match &tls.roots {
        Roots::Default => None,
        Roots::System => Some("system".to_owned()),
        Roots::File(file) => Some(path(file)),
    };
    [
        ("sslmode", word_of(MODES, tls.mode, TlsMode::default_with(&tls.roots))),
        ("sslnegotiation", word(tls.direct, "direct")),
        ("sslrootcert", roots),
        ("sslcert", tls.cert.as_deref().map(path)),
        ("sslkey", tls.key.as_deref().map(path)),
        ("sslcertmode", word(!tls.send_cert, "disable")),
        ("sslsni", word(!tls.sni, "0")),
        ("ssl_min_protocol_version", word_of(VERSIONS, tls.oldest, TlsVersion::V1_2)),
        ("ssl_max_protocol_version", word_of(VERSIONS, tls.newest, TlsVersion::V1_3)),
    ]
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn word(differs: bool, word: &str) -> Option<String> {
    differs.then(|| word.to_owned())
}

fn word_of<T: Copy + PartialEq>(words: &[(&str, T)], value: T, default: T) -> Option<String> {
    let word = words.iter().find(|(_, candidate)| *candidate == value)?.0;
    (value != default).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::build;
    use super::super::settings::Settings;
    use super::*;

    #[test]
    fn display_and_debug_hide_the_password() {
        let dsn: Dsn = "postgres://u:s3cr3t@h/d?sslkey=/k&sslcert=/c".parse().unwrap();
        assert_eq!(dsn.to_string(), "postgres://u@h:5432/d?sslcert=/c&sslkey=/k");
        assert_eq!(format!("{dsn:?}"), "Dsn(postgres://u@h:5432/d?sslcert=/c&sslkey=/k)");
        assert_eq!(dsn.target(), "u@h:5432/d");
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
            let dsn = build::dsn(&settings, &|_: &str| None).unwrap();
            prop_assert_eq!(dsn.to_string().parse::<Dsn>().unwrap(), dsn);
        }
    }
}
