//! The form of key=value pairs.

use super::settings::Settings;
use crate::error::{Error, Result};

const QUOTE: &str = "Put values with spaces into single quotes: password='two words'.";

/// Reads `name = value`, with `'...'` around a value that is empty or has spaces, and `\` before `'` and `\`.
pub(super) fn read(text: &str, settings: &mut Settings) -> Result<()> {
    if text.split(['=', ' ']).next().is_some_and(|head| head.contains("://")) {
        return Err(Error::config("the URL's scheme is not postgres:// or postgresql://")
            .with_hint("Write postgres://user@host/dbname."));
    }
    let mut rest = text.trim_start();
    let mut after_password = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let name = &rest[..end];
        // The word is not repeated: it may be the second word of a password.
        let Some(value) = rest[end..].trim_start().strip_prefix('=') else {
            let error = Error::config("a word of the connection text is not followed by `=`");
            return Err(error.with_hint(QUOTE));
        };
        let (value, quoted, after) = split_value(value.trim_start())?;
        settings.set_by_name(name, value, !after_password)?;
        after_password = !quoted && (name == "password" || after_password);
        rest = after.trim_start();
    }
    Ok(())
}

/// The value at the start of a text, whether it was quoted, and what follows it.
fn split_value(text: &str) -> Result<(String, bool, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, true, &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, false, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(Error::config("a quoted value of the connection text does not end").with_hint(QUOTE));
    }
    Ok((value, false, ""))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{means, refused};

    #[test]
    fn pairs_mean_what_they_mean_to_libpq() {
        means(&[
            ("host=h user=u dbname=d", "postgres://u@h:5432/d password=None"),
            ("  host = h\n user\t= u ", "postgres://u@h:5432/u password=None"),
            ("host=h user=u password='two words'", "postgres://u@h:5432/u password=Some(\"two words\")"),
            (r"host=h user=u password=it\'s\\ok", r#"postgres://u@h:5432/u password=Some("it's\\ok")"#),
            (r"host=h user=u password='it\'s'", r#"postgres://u@h:5432/u password=Some("it's")"#),
            ("host=h user=u password=''", "postgres://u@h:5432/u password=None"),
            ("user=u host=a,b,c port=1,,3", "postgres://u@a:1,b:5432,c:3/u password=None"),
            ("user=u host=/run/pg port=5433", "postgres://u@/u?host=/run/pg&port=5433 password=None"),
            ("user=u host=h keepalives_retries=4", "postgres://u@h:5432/u?keepalives_count=4 password=None"),
            (
                "user=u host=h fallback_application_name=f",
                "postgres://u@h:5432/u?application_name=f password=None",
            ),
        ]);
    }

    #[test]
    fn broken_pairs_are_refused() {
        refused(&[
            ("mysql://u:p@h/d?x=y", "the URL's scheme is not postgres:// or postgresql://"),
            ("user=u host", "a word of the connection text is not followed by `=`"),
            ("user='u", "a quoted value of the connection text does not end"),
        ]);
    }
}
