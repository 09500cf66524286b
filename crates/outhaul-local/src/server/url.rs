//! Connection URLs that libpq, tokio-postgres and sqlx all read.

use std::path::Path;

use super::SUPERUSER;

/// Builds `postgresql://` URLs for one endpoint.
///
/// The user stands in a parameter because sqlx refuses `user@` before an empty host.
#[derive(Clone, Debug)]
pub(crate) struct Url;

impl Url {
    pub(crate) fn socket(folder: &Path, port: u16, database: &str) -> String {
        let folder = encode(&folder.to_string_lossy());
        format!("postgresql:///{}?host={folder}&port={port}&user={SUPERUSER}", encode(database))
    }

    pub(crate) fn tcp(port: u16, database: &str) -> String {
        format!("postgresql://{SUPERUSER}@127.0.0.1:{port}/{}", encode(database))
    }
}

/// Percent-encodes everything but unreserved characters and `/`.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char)
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
