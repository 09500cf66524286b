//! The parameters of libpq: which are used, which are refused, and what a misspelt one may have meant.

use Support::{Ignored, Only, Refused, Used};

/// A parameter of libpq: its name, its variable (or none), and what becomes of it here.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) env: &'static str,
    pub(super) support: Support,
}

pub(super) enum Support {
    Used,
    /// These values ask for nothing that is not done anyway; any other is refused.
    Only(&'static [&'static str]),
    /// Concerns authentication that is not offered to the server in the first place.
    Ignored,
    /// Ignoring it would weaken what the user asked for; the text says what to do instead.
    Refused(&'static str),
}

const fn parameter(name: &'static str, env: &'static str, support: Support) -> Parameter {
    Parameter { name, env, support }
}

const NO_REVOCATION: &str = "Revocation lists are not checked; take the certificate's root away instead.";

pub(super) const PARAMETERS: &[Parameter] = &[
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
    parameter("sslcrl", "PGSSLCRL", Refused(NO_REVOCATION)),
    parameter("sslcrldir", "PGSSLCRLDIR", Refused(NO_REVOCATION)),
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

pub(super) fn named(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|parameter| parameter.name == name)
}

/// The parameter that was probably meant.
pub(super) fn similar(name: &str) -> Option<&'static str> {
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
