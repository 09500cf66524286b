//! The URL form, and percent-encoding in both directions.

use super::settings::{ENCODE, Settings};
use crate::error::{Error, Result};

/// What follows the scheme, when the text is a URL for PostgreSQL.
pub(super) fn behind_scheme(text: &str) -> Option<&str> {
    ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme))
}

/// Reads `[user[:password]@][host[:port],...][/dbname][?name=value&...]`.
pub(super) fn read(text: &str, settings: &mut Settings) -> Result<()> {
    let mut rest = text;
    if let Some((login, after)) = split_login(text) {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        set_decoded("user", user, settings)?;
        set_decoded("password", password, settings)?;
        rest = after;
    }
    // Behind an `@` that should have been encoded, the rest of the password is taken for what follows.
    let echo = !(settings.get("password").is_some() && rest.contains('@'));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    read_hosts(&rest[..end], settings)?;
    rest = &rest[end..];
    if let Some(path) = rest.strip_prefix('/') {
        let end = path.find('?').unwrap_or(path.len());
        set_decoded("dbname", &path[..end], settings)?;
        rest = &path[end..];
    }
    let query = rest.strip_prefix('?').unwrap_or("");
    read_query(query.strip_suffix('&').unwrap_or(query), echo, settings)
}

/// The part before the first `@`, which counts only in front of the first `/`.
fn split_login(text: &str) -> Option<(&str, &str)> {
    let at = text.find(['@', '/'])?;
    text[at..].strip_prefix('@').map(|after| (&text[..at], after))
}

fn set_decoded(name: &'static str, text: &str, settings: &mut Settings) -> Result<()> {
    if !text.is_empty() {
        settings.set(name, decode(text)?);
    }
    Ok(())
}

fn read_hosts(text: &str, settings: &mut Settings) -> Result<()> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in text.split(',') {
        let (host, port) = split_port(one)?;
        hosts.push(decode(host)?);
        ports.push(decode(port)?);
    }
    // Left open, so that PGHOST and PGPORT count, only when nothing at all is written.
    for (name, list) in [("host", hosts.join(",")), ("port", ports.join(","))] {
        if !list.is_empty() {
            settings.set(name, list);
        }
    }
    Ok(())
}

fn split_port(text: &str) -> Result<(&str, &str)> {
    let Some(bracketed) = text.strip_prefix('[') else {
        return Ok(text.split_once(':').unwrap_or((text, "")));
    };
    match bracketed.split_once(']') {
        Some((host, "")) if !host.is_empty() => Ok((host, "")),
        Some((host, port)) if !host.is_empty() && port.starts_with(':') => Ok((host, &port[1..])),
        _ => Err(Error::config("the URL has a broken `[address]`").with_hint("Write [::1]:5432.")),
    }
}

/// See [`Settings::set_by_name`] for `echo`.
fn read_query(query: &str, echo: bool, settings: &mut Settings) -> Result<()> {
    for pair in query.split('&').filter(|_| !query.is_empty()) {
        let Some((name, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
            let error = Error::config("a parameter of the URL is not of the form name=value");
            return Err(error.with_hint(ENCODE));
        };
        settings.set_by_name(&decode(name)?, decode(value)?, echo)?;
    }
    Ok(())
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
pub(super) fn encode(text: &str, keep: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::super::parts::default_socket_folder;
    use super::super::tests::{means, refused};
    use super::*;

    #[test]
    fn urls_mean_what_they_mean_to_libpq() {
        let socket = encode(&default_socket_folder().to_string_lossy(), "/");
        let default_socket = format!("postgres://u@/u?host={socket} password=None");
        means(&[
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
        ]);
    }

    #[test]
    fn hosts_of_a_url_may_be_several_bracketed_and_sockets() {
        means(&[
            ("postgres://u@h1,h2:1,h3/d", "postgres://u@h1:5432,h2:1,h3:5432/d password=None"),
            ("postgres://u@h1,h2/d?port=7", "postgres://u@h1:7,h2:7/d password=None"),
            ("postgres://u@[::1]:7,[fe80::1]/d", "postgres://u@[::1]:7,[fe80::1]:5432/d password=None"),
            ("postgres://u@%2Frun%2Fpg/d", "postgres://u@/d?host=/run/pg password=None"),
            (
                "postgres://u@/d?host=/run/pg&port=5433",
                "postgres://u@/d?host=/run/pg&port=5433 password=None",
            ),
            ("postgres://u@/d?host=/a,h", "postgres://u@%2Fa:5432,h:5432/d password=None"),
        ]);
    }

    #[test]
    fn parameters_of_a_url_mean_what_they_mean_to_libpq() {
        means(&[
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
        ]);
    }

    #[test]
    fn a_broken_url_is_refused() {
        refused(&[
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
        ]);
    }
}
