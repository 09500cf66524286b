//! Refusing JSON that PostgreSQL's jsonb would refuse, before it is sent.
//!
//! A statement that fails aborts the caller's transaction, so input is checked here first. jsonb
//! refuses more than broken syntax: U+0000 (its text type cannot hold it), a lone UTF-16 surrogate
//! and numbers outside `numeric` (PostgreSQL, "JSON Types", section "JSON Primitive Types"). The server has
//! the last word; what it alone can find out is reported with the same kind of error.

use serde::de::IgnoredAny;

use crate::error::{Error, Result};
use crate::model::limits;

/// `numeric` holds up to 131072 digits before the decimal point and 16383 after it.
const NUMERIC_DIGITS: i64 = 131_072;
const NUMERIC_SCALE: i64 = 16_383;
/// Larger exponents are refused whatever the number, zero included; before PostgreSQL 16 this one is, too.
const NUMERIC_EXPONENT: i64 = i32::MAX as i64 / 2;

/// Checks a payload: valid JSON, at most 256 KiB, nothing that jsonb cannot hold.
pub(crate) fn check(text: &str) -> Result<()> {
    // The compact form sent is never longer than jsonb's text form by more than white space and escapes,
    // so only text far over the limit is refused by its raw length here.
    if text.len() > limits::PAYLOAD_BYTES * 6 {
        return Err(too_large(text.len()));
    }
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
        // The parser's own words name a position, never the text.
        refuse(&format!("payload is not valid JSON (line {}, column {})", error.line(), error.column()))
    })?;
    let printed = scan(text.as_bytes())?;
    if printed > limits::PAYLOAD_BYTES {
        return Err(too_large(printed));
    }
    Ok(())
}

fn too_large(bytes: usize) -> Error {
    Error::invalid(
        "payload",
        format!("payload has {bytes} bytes, the limit is {}", limits::PAYLOAD_BYTES),
        "Store large data elsewhere and pass a reference to it.",
    )
}

fn refuse(what: &str) -> Error {
    Error::invalid("payload", what, "Send valid JSON without U+0000 and lone surrogates.")
}

/// Walks valid JSON once. Returns a lower bound of the bytes of jsonb's text form: tokens without white
/// space, escapes as the characters they stand for. Duplicate keys, which jsonb drops, make it no bound, so
/// objects with long repeated keys may be refused early; they are not worth a parse tree.
fn scan(text: &[u8]) -> Result<usize> {
    let mut at = 0;
    let mut printed = 0;
    while at < text.len() {
        match text[at] {
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            b'"' => {
                let (end, bytes) = string(text, at + 1)?;
                at = end;
                printed += bytes + 2;
            }
            b'-' | b'0'..=b'9' => {
                let end = number(text, at)?;
                printed += 1;
                at = end;
            }
            _ => {
                at += 1;
                printed += 1;
            }
        }
    }
    Ok(printed)
}

/// From behind the opening quote to behind the closing one, and the bytes of the characters between.
fn string(text: &[u8], mut at: usize) -> Result<(usize, usize)> {
    let mut bytes = 0;
    loop {
        match text[at] {
            b'"' => return Ok((at + 1, bytes)),
            b'\\' if text[at + 1] == b'u' => {
                let unit = hex(text, at + 2);
                at += 6;
                bytes += match unit {
                    0 => {
                        return Err(refuse("payload contains the character U+0000, which jsonb cannot hold"));
                    }
                    0xd800..=0xdbff => {
                        let paired = text[at] == b'\\'
                            && text[at + 1] == b'u'
                            && (0xdc00..=0xdfff).contains(&hex(text, at + 2));
                        if !paired {
                            return Err(refuse("payload contains a lone surrogate, which is no character"));
                        }
                        at += 6;
                        4
                    }
                    0xdc00..=0xdfff => {
                        return Err(refuse("payload contains a lone surrogate, which is no character"));
                    }
                    0x01..=0x7f => 1,
                    0x80..=0x7ff => 2,
                    _ => 3,
                };
            }
            b'\\' => {
                at += 2;
                bytes += 1;
            }
            _ => {
                at += 1;
                bytes += 1;
            }
        }
    }
}

fn hex(text: &[u8], at: usize) -> u32 {
    text.get(at..at + 4)
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .unwrap_or(0xffff)
}

/// The end of a number, refused when its magnitude or scale is outside `numeric`.
fn number(text: &[u8], at: usize) -> Result<usize> {
    let end = text[at..].iter().position(|b| !b"+-.eE0123456789".contains(b)).map_or(text.len(), |n| at + n);
    let token = &text[at..end];
    let (mantissa, exponent) = match token.iter().position(|b| b"eE".contains(b)) {
        Some(e) => {
            (&token[..e], std::str::from_utf8(&token[e + 1..]).ok().and_then(|t| t.parse::<i64>().ok()))
        }
        None => (token, Some(0)),
    };
    let point = mantissa.iter().position(|b| *b == b'.').unwrap_or(mantissa.len());
    let fraction = mantissa.len().saturating_sub(point + 1) as i64;
    // Digits before the point from the first that is not zero on; below zero for zeros behind the point.
    let whole = mantissa.iter().position(|b| (b'1'..=b'9').contains(b)).map(|first| match first < point {
        true => (point - first) as i64,
        false => point as i64 + 1 - first as i64,
    });
    let fits = exponent
        .filter(|e| e.abs() <= NUMERIC_EXPONENT)
        .is_some_and(|e| whole.is_none_or(|n| n + e <= NUMERIC_DIGITS) && fraction - e <= NUMERIC_SCALE);
    if !fits {
        return Err(refuse("payload contains a number out of range"));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_jsonb_cannot_hold() {
        for bad in [
            r#"{"a":"\u0000"}"#,
            r#"{"\u0000":1}"#,
            r#""\ud800""#,
            r#""\ud800\u0041""#,
            r#""\udc00""#,
            r#""\ud83d\ud83d""#,
            "1e131073",
            "[1e-20000]",
            "1e99999999999999999999",
            "{",
            "",
            "{\"a\":1,}",
            "NaN",
            "\"\u{1}\"",
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.is_invalid_input(), "{bad}");
            assert_eq!(error.field(), Some("payload"), "{bad}");
        }
    }

    #[test]
    fn keeps_honest_escapes() {
        for good in [
            r#""\\u0000""#,
            r#""\\\\u0000""#,
            r#""\ud83d\ude00""#,
            r#""\u00e9\n\"""#,
            "1e400",
            "-0.5e-3",
            "[]",
            "null",
            r#"{"a":{"b":[1,2,{"c":"d"}]}}"#,
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_limit_is_inclusive_and_counts_characters_not_escapes() {
        let of = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
        assert!(check(&of(limits::PAYLOAD_BYTES)).is_ok());
        assert!(check(&of(limits::PAYLOAD_BYTES + 1)).is_err());
        let escaped = format!("\"{}\"", "\\u00e9".repeat(100_000));
        assert!(check(&escaped).is_ok(), "600 kB of escapes are 200 kB of characters");
    }

    #[test]
    fn errors_never_quote_the_payload() {
        for bad in [r#"{"secret":swordfish}"#, r#"{"swordfish":"\u0000"}"#] {
            assert!(!format!("{:?}", check(bad).unwrap_err()).contains("swordfish"));
        }
    }
}
