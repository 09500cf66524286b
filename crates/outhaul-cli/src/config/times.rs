//! Times as people write them: a number with a unit, within what the setting takes.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

const MS: u64 = 1;
const SECOND: u64 = 1_000 * MS;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// The shortest and the longest time that a setting takes.
///
/// They are the library's, which has the last word; a test compares them.
pub(crate) struct Times {
    least: Duration,
    most: Duration,
}

/// A lease.
pub(crate) const LEASE: Times = Times::of(SECOND, DAY);
/// The pause between looks of an idle worker.
pub(crate) const POLL: Times = Times::of(10 * MS, DAY);
/// One attempt's limit.
pub(crate) const LIMIT: Times = Times::of(MS, DAY);
/// What a stopping worker waits for, and the grace of a command.
pub(crate) const DRAIN: Times = Times::of(0, DAY);
/// How much later a job is due.
pub(crate) const DELAY: Times = Times::of(0, 36_500 * DAY);
/// The period of a rate.
pub(crate) const PERIOD: Times = Times::of(SECOND, DAY);
/// How long a job of a queue should wait at most.
pub(crate) const OBJECTIVE: Times = Times::of(SECOND, 365 * DAY);
/// How long a person waits.
pub(crate) const WAIT: Times = Times::of(MS, 36_500 * DAY);

impl Times {
    const fn of(least_ms: u64, most_ms: u64) -> Times {
        Times { least: Duration::from_millis(least_ms), most: Duration::from_millis(most_ms) }
    }

    /// Reads a time such as `250ms`, `30s`, `1h30m` or `7d`.
    ///
    /// # Errors
    /// What is wrong with the text, and what is taken.
    pub(crate) fn parse(&self, text: &str) -> Result<Duration, String> {
        let time = read(text).and_then(|time| match time {
            _ if (self.least..=self.most).contains(&time) => Ok(time),
            Duration::ZERO => Err("zero is out of range".to_owned()),
            _ => Err("it is out of range".to_owned()),
        });
        time.map_err(|wrong| format!("{wrong}; use {self}"))
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", short(self.least), short(self.most))
    }
}

fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if !time.is_zero() => format!("{}ms", time.as_millis()),
        172_800.. => format!("{}d", seconds / 86_400),
        3_600.. => format!("{}h", seconds / 3_600),
        _ => format!("{seconds}s"),
    }
}

fn read(text: &str) -> Result<Duration, String> {
    let span: Span = text.parse().map_err(|_| wrong(text))?;
    let time = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "months and years differ in length, write days".to_owned())?;
    Duration::try_from(time).map_err(|_| "a negative time is out of range".to_owned())
}

/// Why a text is no time: the first number without a unit, or with one that does not exist.
fn wrong(text: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let mut rest = text.trim().trim_start_matches(['-', '+']);
    if rest.is_empty() {
        return "it is empty".to_owned();
    }
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let number = rest.len() - rest.trim_start_matches(is_digit).len();
        rest = rest[number..].trim_start();
        let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = &rest[..end];
        if unit.is_empty() {
            return "its unit is missing (ms, s, m, h or d)".to_owned();
        }
        if format!("1{unit}").parse::<Span>().is_err() {
            return format!("{unit:?} is no unit (ms, s, m, h or d)");
        }
        if number > 12 {
            return "it is out of range".to_owned();
        }
        rest = rest[end..].trim_start();
    }
    "it is not a time such as 250ms, 30s or 1h30m".to_owned()
}

#[cfg(test)]
mod tests {
    use outhaul::{Error, Failure, Worker, WorkerOptions};

    use super::*;

    #[test]
    fn a_time_has_a_unit_and_is_within_its_range() {
        for (text, ms) in [("250ms", 250), ("1h30m", 5_400_000), ("1.5 s", 1_500), ("24h", DAY), ("1d", DAY)]
        {
            assert_eq!(POLL.parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(DELAY.parse("0s"), Ok(Duration::ZERO));
        assert_eq!(DRAIN.parse("-0s"), Ok(Duration::ZERO));
        assert_eq!(DELAY.parse("36500d"), Ok(Duration::from_secs(36_500 * 86_400)));
    }

    #[test]
    fn what_is_wrong_with_a_time_is_named_with_what_is_taken() {
        for (text, wrong) in [
            ("0s", "zero is out of range"),
            ("0", "its unit is missing (ms, s, m, h or d)"),
            ("5", "its unit is missing (ms, s, m, h or d)"),
            ("1m30", "its unit is missing (ms, s, m, h or d)"),
            ("-5", "its unit is missing (ms, s, m, h or d)"),
            ("1x", "\"x\" is no unit (ms, s, m, h or d)"),
            ("1s5ß", "\"ß\" is no unit (ms, s, m, h or d)"),
            ("-5s", "a negative time is out of range"),
            ("9ms", "it is out of range"),
            ("25h", "it is out of range"),
            ("9999999h", "it is out of range"),
            ("1 month", "months and years differ in length, write days"),
            ("soon", "it is not a time such as 250ms, 30s or 1h30m"),
            ("99999999999999999999s", "it is out of range"),
            ("1m2h", "it is not a time such as 250ms, 30s or 1h30m"),
            ("", "it is empty"),
        ] {
            assert_eq!(POLL.parse(text), Err(format!("{wrong}; use 10ms to 24h")), "{text}");
        }
        assert!(DELAY.parse("-1s").unwrap_err().ends_with("; use 0s to 36500d"));
        assert!(LEASE.parse("0s").unwrap_err().ends_with("; use 1s to 24h"));
    }

    /// A worker whose database is not there gets to know whether its settings are in order.
    async fn refused(change: impl FnOnce(&mut WorkerOptions)) -> Error {
        let nowhere = "postgres://u@127.0.0.1:1/d".parse().unwrap();
        let builder = Worker::builder(nowhere).handle_raw("q", "t", |_| async { Ok::<(), Failure>(()) });
        builder.with(change).build().await.err().expect("there is no database")
    }

    type Set = fn(&mut WorkerOptions, Duration);

    #[tokio::test]
    async fn ranges_are_those_of_the_library() {
        let ranges: [(&Times, Set); 5] = [
            (&LEASE, |options, time| options.lease = time),
            (&POLL, |options, time| options.poll = time),
            (&LIMIT, |options, time| options.timeout = time),
            (&DRAIN, |options, time| options.drain = time),
            (&DRAIN, |options, time| options.grace = time),
        ];
        let little = Duration::from_nanos(1);
        for (place, (times, set)) in ranges.into_iter().enumerate() {
            for time in [times.least, times.most] {
                let error = refused(|options| set(options, time)).await;
                assert!(error.is_unavailable(), "{place} {time:?}: {error:?}");
            }
            for time in times.least.checked_sub(little).into_iter().chain([times.most + little]) {
                let error = refused(|options| set(options, time)).await;
                assert!(error.is_config(), "{place} {time:?}: {error:?}");
            }
        }
        let job = || outhaul::NewJob::raw("q", "t", "{}");
        assert!(job().delay(DELAY.most).timeout(LIMIT.most).check().is_ok());
        assert!(job().delay(DELAY.most + Duration::from_millis(1)).check().is_err());
    }
}
