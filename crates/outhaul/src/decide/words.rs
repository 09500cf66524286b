//! What of an error's own words may stand on a row, in a log line and on a terminal.

use crate::model::limits::{ERROR_CODE_BYTES, ERROR_SUMMARY_BYTES};

/// The summary of an error: at most 1,000 bytes, cut at a character's border, in one line.
///
/// Left out is what a row cannot hold or what changes how the text around it is shown: U+0000 and other control characters, so
/// also the escape that begins a terminal's commands; what changes the direction of writing; invisible tags. White space
/// of all kinds becomes a space.
pub(crate) fn summary(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(ERROR_SUMMARY_BYTES));
    for c in text.chars() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if is_hidden(c) {
            continue;
        }
        if out.len() + c.len_utf8() > ERROR_SUMMARY_BYTES {
            break;
        }
        out.push(c);
    }
    out
}

/// Source: Unicode, the properties Cc and Bidi_Control, and the block Tags; U+FEFF is a mark of byte order.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// An error's code: at most 64 bytes of lower-case letters, digits and `_`, which stand for themselves in SQL, in a metric's
/// label and on a command line. Upper case is lowered, and whatever else stands in a row becomes one `_`. `None` when nothing is left.
pub(crate) fn code(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len().min(ERROR_CODE_BYTES));
    for c in text.chars() {
        let c = if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        if c == '_' && (out.is_empty() || out.ends_with('_')) {
            continue;
        }
        if out.len() == ERROR_CODE_BYTES {
            break;
        }
        out.push(c);
    }
    out.truncate(out.trim_end_matches('_').len());
    Some(out).filter(|code| !code.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn summaries_are_cut_by_bytes_at_a_character() {
        let cut = summary(&"€".repeat(1_000));
        assert_eq!(cut, "€".repeat(333));
        assert_eq!(summary(&format!("{}€", "a".repeat(998))), "a".repeat(998));
        assert_eq!(summary(&format!("{}é", "a".repeat(998))).len(), 1_000);
    }

    #[test]
    fn summaries_are_one_harmless_line() {
        assert_eq!(summary("a\0b\u{1b}[31mc\nd\u{9b}2Je\u{7f}"), "ab[31mc d2Je");
        assert_eq!(summary("a\u{2028}b\u{2029}c\u{85}d\r\ne\tf"), "a b c d  e f");
        assert_eq!(summary("in\u{202e}txt.exe\u{202c} \u{2066}x\u{2069}\u{200f}\u{feff}"), "intxt.exe x");
        assert_eq!(summary("Straße 👩‍👩‍👧 中文 עברית"), "Straße 👩‍👩‍👧 中文 עברית");
    }

    #[test]
    fn codes_are_made_of_few_characters() {
        for (given, kept) in [
            ("http_503", Some("http_503")),
            ("HTTP 503\n", Some("http_503")),
            ("mail.Bounce--hard", Some("mail_bounce_hard")),
            ("__init__", Some("init")),
            ("\u{1b}[31mred", Some("31mred")),
            ("größe", Some("gr_e")),
            ("", None),
            (" \0€", None),
        ] {
            assert_eq!(code(given).as_deref(), kept, "{given:?}");
        }
        assert_eq!(code(&"x".repeat(100)).unwrap().len(), 64);
        assert_eq!(code(&format!("{}-yes", "x".repeat(63))).unwrap(), "x".repeat(63));
    }

    proptest! {
        #[test]
        fn no_text_leaves_a_summary_that_is_too_long_or_hides_something(text in any::<String>(), times in 1usize..200) {
            let kept = summary(&text.repeat(times));
            prop_assert!(kept.len() <= ERROR_SUMMARY_BYTES);
            prop_assert!(!kept.chars().any(is_hidden));
            prop_assert_eq!(summary(&kept), kept);
        }

        #[test]
        fn a_code_is_one_already(text in any::<String>(), times in 1usize..20) {
            if let Some(kept) = code(&text.repeat(times)) {
                prop_assert!(kept.len() <= ERROR_CODE_BYTES);
                prop_assert!(kept.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
                prop_assert_eq!(code(&kept), Some(kept));
            }
        }
    }
}
