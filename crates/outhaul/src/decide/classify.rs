//! What an error says about itself: HTTP statuses, SQLSTATEs, kinds of I/O errors, and how long a service asks to wait.
//!
//! One rule stands behind the tables. *Transient* and *permanent* are said only where a repetition is known to help, or
//! known not to. Everything else is *unknown*, because the two wrong guesses do not cost the same: unknown costs a few tries,
//! a wrong permanent costs a person, and a wrong transient costs minutes of load.

use std::io::ErrorKind;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::FailureClass::{self, Permanent, RateLimited, Transient, Unknown};

/// The class of an HTTP answer that a handler calls a failure. `hinted`: it says when to come back (`Retry-After`).
///
/// Sources: RFC 9110, sections 10.2.3 and 15; RFC 6585 (428, 429); RFC 8470 (425); RFC 4918 (423, 424).
pub(crate) fn of_status(status: u16, hinted: bool) -> FailureClass {
    match status {
        429 => RateLimited,
        // A service that is away for a time it knows asks for the same patience as one that limits.
        503 if hinted => RateLimited,
        // The size is only too large for now, says the RFC, when there is a hint.
        413 if hinted => Transient,
        408 | 421 | 423 | 425 => Transient,
        // What was asked is not provided, in this version of HTTP or at all.
        501 | 505 => Permanent,
        500..=599 => Transient,
        // A conflict may be over when the other side is; a dependency may be there later. Or not.
        409 | 424 => Unknown,
        // The same request will be answered the same. That is also so for 401 and 403: what a repetition sends
        // are the same credentials, and a handler that can renew them does so before it gives up.
        400..=499 => Permanent,
        // No errors by themselves, so whoever calls them failures knows more than the number.
        _ => Unknown,
    }
}

/// The class of a database error by its SQLSTATE, five letters and digits; anything else is unknown.
///
/// Source: PostgreSQL, appendix "PostgreSQL Error Codes".
pub(crate) fn of_sqlstate(sqlstate: &str) -> FailureClass {
    if sqlstate.len() != 5 || !sqlstate.is_ascii() {
        return Unknown;
    }
    match sqlstate {
        // Ended from outside: a lock or time limit, an idle transaction, an operator.
        "55P03" | "55006" | "57014" | "25P02" | "25P03" | "25P04" => Transient,
        // A server that is no primary (any more).
        "25006" => Transient,
        // A statement that another session of the same pooler had, or had not, prepared.
        "26000" | "42P05" => Transient,
        "57P04" => Permanent,
        // An event or job may have overtaken the one that brings the row it points to.
        "23503" => Unknown,
        "58030" => Transient,
        "3D000" | "3F000" | "44000" => Permanent,
        // Limits of Outhaul's own functions: what was given is not valid, or its key is in use otherwise.
        "OH001" | "OH002" | "OH004" | "OH005" | "OH006" | "OH007" => Permanent,
        _ => match &sqlstate[..2] {
            "08" | "40" | "53" => Transient,
            "57" if sqlstate.starts_with("57P") => Transient,
            "21" | "22" | "23" | "28" | "42" | "54" => Permanent,
            _ => Unknown,
        },
    }
}

/// The class of an I/O error by its kind. None is permanent: what is missing or forbidden here may be there on the
/// machine of the next attempt.
pub(crate) fn of_io(kind: ErrorKind) -> FailureClass {
    use ErrorKind as K;
    match kind {
        K::ConnectionRefused
        | K::ConnectionReset
        | K::ConnectionAborted
        | K::NotConnected
        | K::BrokenPipe
        | K::UnexpectedEof
        | K::TimedOut
        | K::HostUnreachable
        | K::NetworkUnreachable
        | K::NetworkDown
        | K::AddrInUse
        | K::AddrNotAvailable
        | K::WouldBlock
        | K::Interrupted
        | K::ResourceBusy
        | K::ExecutableFileBusy
        | K::Deadlock
        | K::StaleNetworkFileHandle
        | K::StorageFull
        | K::QuotaExceeded
        | K::OutOfMemory => Transient,
        _ => Unknown,
    }
}

/// The code of an I/O error: `io_connection_refused`.
pub(crate) fn io_code(kind: ErrorKind) -> String {
    let mut code = String::from("io");
    for c in format!("{kind:?}").chars() {
        if c.is_ascii_uppercase() {
            code.push('_');
        }
        code.push(c.to_ascii_lowercase());
    }
    code
}

/// How long an answer asks to wait: its `Retry-After`, in seconds or as one of the three forms of an HTTP date.
///
/// A date is measured against the `Date` of the same answer, so that a wrong clock on either side does not matter; without one,
/// against `now`. One that has passed asks for no wait. A number too large for a `u64` is as long as there is; what is neither a
/// number nor a date is no hint.
pub(crate) fn retry_after(value: &str, date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let value = value.trim_matches([' ', '\t']);
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = http_date(value)?;
    let from = date.and_then(http_date).unwrap_or(now);
    Some(Duration::try_from(at.duration_since(from)).unwrap_or_default())
}

fn http_date(text: &str) -> Option<Timestamp> {
    let at = httpdate::parse_http_date(text.trim_matches([' ', '\t'])).ok()?;
    // The last day of the year 9999, which is how some say never, is beyond what the type holds.
    Some(Timestamp::try_from(at).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_status_has_the_class_of_the_table() {
        for status in 100..=999 {
            let expected = match status {
                429 => RateLimited,
                408 | 421 | 423 | 425 => Transient,
                501 | 505 => Permanent,
                500..=599 => Transient,
                409 | 424 => Unknown,
                400..=499 => Permanent,
                _ => Unknown,
            };
            assert_eq!(of_status(status, false), expected, "{status}");
            let hinted = match status {
                503 => RateLimited,
                413 => Transient,
                _ => expected,
            };
            assert_eq!(of_status(status, true), hinted, "{status} with a hint");
        }
    }

    #[test]
    fn no_answer_is_revoked_or_a_crash_and_success_is_no_reason_to_repeat_for_long() {
        for status in 0..=u16::MAX {
            for hinted in [false, true] {
                let class = of_status(status, hinted);
                assert!(matches!(class, Transient | RateLimited | Permanent | Unknown), "{status}");
                assert!((400..600).contains(&status) || class == Unknown, "{status}");
            }
        }
    }

    #[test]
    fn sqlstates_that_a_repetition_heals_are_transient() {
        let healed = "40001 40P01 40003 55P03 55006 57014 25P02 25P03 25P04 25006 08000 08001 08003 08004 08006 08007 08P01 \
            57P01 57P02 57P03 57P05 53000 53100 53200 53300 53400 26000 42P05 58030";
        for sqlstate in healed.split_whitespace() {
            assert_eq!(of_sqlstate(sqlstate), Transient, "{sqlstate}");
        }
    }

    #[test]
    fn sqlstates_of_the_statement_and_its_values_are_permanent() {
        let of_it = "22001 22003 22021 22P02 22P05 23502 23505 23514 23P01 28000 28P01 42501 42601 42703 42P01 42883 57P04 3D000 \
            3F000 21000 54000 44000 OH001 OH002";
        for sqlstate in of_it.split_whitespace() {
            assert_eq!(of_sqlstate(sqlstate), Permanent, "{sqlstate}");
        }
    }

    #[test]
    fn sqlstates_that_do_not_tell_are_unknown() {
        for sqlstate in [
            "23503", "0A000", "P0001", "XX000", "XX001", "58P01", "OH003", "55000", "", "4", "40", "ÄÖ1",
            "HY000",
        ] {
            assert_eq!(of_sqlstate(sqlstate), Unknown, "{sqlstate}");
        }
    }

    #[test]
    fn io_errors_of_the_way_are_transient_and_none_is_permanent() {
        use ErrorKind::*;
        for (kind, code) in [
            (ConnectionRefused, "io_connection_refused"),
            (ConnectionReset, "io_connection_reset"),
            (ConnectionAborted, "io_connection_aborted"),
            (BrokenPipe, "io_broken_pipe"),
            (UnexpectedEof, "io_unexpected_eof"),
            (TimedOut, "io_timed_out"),
            (HostUnreachable, "io_host_unreachable"),
            (NetworkUnreachable, "io_network_unreachable"),
            (StorageFull, "io_storage_full"),
        ] {
            assert_eq!((of_io(kind), &*io_code(kind)), (Transient, code));
        }
        for (kind, code) in [
            (NotFound, "io_not_found"),
            (PermissionDenied, "io_permission_denied"),
            (InvalidInput, "io_invalid_input"),
            (InvalidData, "io_invalid_data"),
            (Other, "io_other"),
        ] {
            assert_eq!((of_io(kind), &*io_code(kind)), (Unknown, code));
        }
    }

    /// Of the RFC: one moment in all three forms.
    const FORMS: [&str; 3] =
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn seconds_are_a_hint() {
        let now = Timestamp::UNIX_EPOCH;
        for (value, seconds) in [
            ("120", 120),
            (" 7\t", 7),
            ("0", 0),
            ("007", 7),
            ("18446744073709551615", u64::MAX),
            (&*format!("1{}", "0".repeat(30)), u64::MAX),
        ] {
            assert_eq!(retry_after(value, None, now), Some(Duration::from_secs(seconds)), "{value}");
        }
    }

    #[test]
    fn all_three_forms_of_a_date_are_a_hint() {
        for form in FORMS {
            let wait = retry_after(form, None, at("1994-11-06T08:49:07Z"));
            assert_eq!(wait, Some(Duration::from_secs(30)), "{form}");
        }
    }

    #[test]
    fn a_date_is_measured_by_the_clock_of_who_sent_it() {
        let now = at("2026-01-01T00:00:00Z");
        for form in FORMS {
            for date in ["Sun, 06 Nov 1994 08:48:37 GMT", "Sunday, 06-Nov-94 08:48:37 GMT"] {
                assert_eq!(retry_after(form, Some(date), now), Some(Duration::from_secs(60)), "{form}");
            }
        }
        // A Date that cannot be read is as good as none.
        let wait = retry_after("Thu, 01 Jan 2026 00:00:10 GMT", Some("yesterday"), now);
        assert_eq!(wait, Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_date_that_has_passed_asks_for_no_wait() {
        let now = at("2026-01-01T00:00:00Z");
        for date in [None, Some("Mon, 07 Nov 1994 08:49:37 GMT")] {
            assert_eq!(retry_after(FORMS[0], date, now), Some(Duration::ZERO));
        }
    }

    #[test]
    fn the_end_of_the_year_9999_is_far_away_and_no_panic() {
        let wait = retry_after("Fri, 31 Dec 9999 23:59:59 GMT", None, Timestamp::MIN).unwrap();
        assert!(wait > Duration::from_secs(365 * 86_400 * 9_000));
    }

    #[test]
    fn what_is_neither_a_number_nor_a_date_is_no_hint() {
        for value in [
            "",
            " ",
            "-1",
            "+5",
            "1.5",
            "1e3",
            "NaN",
            "inf",
            "soon",
            "5 seconds",
            "120, 120",
            "٣",
            "Sun, 06 Nov 1994 25:00:00 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 10000 08:49:37 GMT",
            "Sun, 06 Nov 1894 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
        ] {
            assert_eq!(retry_after(value, None, Timestamp::UNIX_EPOCH), None, "{value:?}");
        }
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        (Timestamp::MIN.as_second()..=Timestamp::MAX.as_second())
            .prop_map(|second| Timestamp::from_second(second).unwrap())
    }

    proptest! {
        #[test]
        fn no_text_panics(value in ".*", date in ".*", now in any_time()) {
            retry_after(&value, Some(&date), now);
            of_sqlstate(&value);
        }

        #[test]
        fn nearly_dates_do_not_panic(
            value in "(Sun|Mon|Sunday|Monday)(,)? [0-9]{1,3}[ -](Feb|Nov|Dec)[ -][0-9]{1,5} [0-9]{1,3}:[0-9]{2}:[0-9]{2}( GMT)?",
            now in any_time(),
        ) {
            retry_after(&value, Some(&value), now);
        }

        #[test]
        fn any_number_is_a_hint_or_the_longest_one(value in "[0-9]{1,40}", now in any_time()) {
            let expected = value.parse::<u128>().map_or(u64::MAX, |n| n.try_into().unwrap_or(u64::MAX));
            prop_assert_eq!(retry_after(&value, None, now), Some(Duration::from_secs(expected)));
        }
    }
}
