//! A connection for a statement of the caller's own: enqueuing happens in the caller's transaction, and here
//! the caller is this program.

use anyhow::Context;
use outhaul::Dsn;
use tokio_postgres::{Client, NoTls};

use crate::config::{Config, process_env};
use crate::exit::{Exit, Problem};

/// Parameters of a URL that this connection has to take over; the others are about TLS and passwords.
const TAKEN: [&str; 11] = [
    "host",
    "hostaddr",
    "port",
    "application_name",
    "options",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "target_session_attrs",
    "load_balance_hosts",
    "channel_binding",
];

/// Connects without TLS.
pub(crate) async fn connect(config: &Config, dsn: &Dsn) -> anyhow::Result<Client> {
    let shown = dsn.to_string();
    let (base, query) = shown.split_once('?').unwrap_or((&shown, ""));
    let parameters = || query.split('&').filter_map(|parameter| parameter.split_once('='));
    let mode = parameters().find(|(name, _)| *name == "sslmode").map_or("prefer", |(_, mode)| mode);
    if !matches!(mode, "disable" | "allow" | "prefer") {
        return Err(Problem::new(
            Exit::Refused,
            "no_tls",
            format!("enqueue cannot connect with sslmode={mode}"),
        )
        .hint("Enqueue from psql: select outhaul.enqueue('queue', 'type', '{}');")
        .into());
    }
    let taken: Vec<String> = parameters()
        .filter(|(name, _)| TAKEN.contains(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut wanted: tokio_postgres::Config =
        format!("{base}?{}", taken.join("&")).parse().context("connecting")?;
    if let Some(password) = password(config.database_text().unwrap_or_default()) {
        wanted.password(password);
    }
    let (client, connection) = wanted.connect(NoTls).await.map_err(outhaul::Error::from)?;
    tokio::spawn(connection);
    Ok(client)
}

fn password(text: &str) -> Option<Vec<u8>> {
    let base = if text.contains("://") { text.split('?').next().unwrap_or(text) } else { text };
    let parsed = base.parse::<tokio_postgres::Config>().ok();
    let written = parsed.and_then(|parsed| parsed.get_password().map(<[u8]>::to_vec));
    written.or_else(|| process_env("PGPASSWORD").map(String::into_bytes))
}
