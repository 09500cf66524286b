//! The checks that jobs and events share, in the words of `valid` and `event_valid` of the schema.

use jiff::Timestamp;
use uuid::Uuid;

use super::limits;
use crate::error::{Error, Result};

/// No time that is stored is as late as this.
pub(super) const YEAR_2200: Timestamp = Timestamp::constant(7_258_118_400, 0);

/// Refuses a name that the database would refuse; queues, types and roles share the rule.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    let mut bytes = name.bytes();
    let valid = name.len() <= limits::NAME_BYTES
        && bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte));
    if valid {
        return Ok(());
    }
    let (what, more) = match field {
        "job_type" => ("job type", ""),
        "event_type" => ("event type", "; name the fact in the past tense."),
        "aggregate_type" => ("aggregate type", ""),
        "subscription" => ("subscription name", ""),
        "rule" => ("rule name", ""),
        _ => ("queue name", ""),
    };
    Err(Error::invalid(
        field,
        format!("{what} is not valid"),
        format!("Use 1 to 63 characters: a letter, then letters, digits, and _ . : -{more}"),
    ))
}

pub(super) fn idempotency_key(key: Option<&str>) -> Result<()> {
    bounded("idempotency_key", "idempotency key", key, "Use 1 to 255 bytes; hash longer keys.")
}

pub(super) fn partition_key(key: Option<&str>) -> Result<()> {
    let hint = "Use 1 to 255 bytes, or leave it out: the aggregate's id stands for it then.";
    bounded("partition_key", "partition key", key, hint)
}

/// A key by which jobs of a queue are ordered, limited or paced.
pub(super) fn job_key(field: &str, key: Option<&str>) -> Result<()> {
    bounded(field, &field.replace('_', " "), key, "Use 1 to 255 bytes; hash longer keys.")
}

fn bounded(field: &str, what: &str, key: Option<&str>, hint: &str) -> Result<()> {
    match key {
        Some(key) if key.is_empty() || key.len() > limits::KEY_BYTES || key.contains('\0') => {
            Err(Error::invalid(field, format!("{what} has {} bytes, or contains U+0000", key.len()), hint))
        }
        _ => Ok(()),
    }
}

pub(super) fn organization(id: Option<Uuid>) -> Result<()> {
    if id.is_some_and(|id| id.is_nil()) {
        return Err(Error::invalid(
            "organization_id",
            "the nil UUID is no organization",
            "Leave the organization out for what belongs to none.",
        ));
    }
    Ok(())
}

pub(super) fn traceparent(text: Option<&str>) -> Result<()> {
    if text.is_some_and(|text| !is_traceparent(text)) {
        return Err(Error::invalid(
            "traceparent",
            "traceparent is not valid",
            "Use the form of W3C Trace Context: version-traceid-parentid-flags in lower-case hexadecimal.",
        ));
    }
    Ok(())
}

/// Source: W3C Trace Context, section "traceparent Header Field Values".
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    parts.len() == 4
        && parts.iter().zip([2, 32, 16, 2]).all(|(part, length)| part.len() == length && hex(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_rule_for_queues_and_types() {
        for good in ["a", "critical_alerts", "mail.welcome", "A:b-1", &"x".repeat(63)] {
            assert!(check_name("queue", good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "a b", "a\"", "a'; drop table t;--", "ä", "a\0", "$$", &"x".repeat(64)] {
            let error = check_name("queue", bad).unwrap_err();
            assert!(error.is_invalid_input() && error.field() == Some("queue"), "{bad:?}");
        }
    }

    #[test]
    fn traceparent_is_the_standard_form() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        assert!(!is_traceparent("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"));
        assert!(!is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"));
    }
}
