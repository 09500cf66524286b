//! The state machine of an attempt: how it ended, and what that means for the job.

use std::time::Duration;

use super::retry::Backoff;
use crate::model::{FailureClass, FailureKind};

/// What spends an attempt, in one rule: a claim spends it; a snooze, a release and an unknown type give
/// it back. A crash is found by the expiry of its lease and keeps the attempt spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Attempts after which a failure of unknown class is a dead letter, if the job's own maximum is not
    /// smaller. 3 by default.
    pub unknown_attempts: u32,
    /// Snoozes (and releases) that cost no attempt; later ones count as transient failures. 100 by default.
    pub free_snoozes: u32,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { backoff: Backoff::default(), unknown_attempts: 3, free_snoozes: 100 }
    }
}

/// The counters of the claim that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Attempts spent, this one included.
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    /// Claims ever made, this one included.
    pub(crate) claim_no: u32,
}

/// How the attempt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ending {
    Done,
    Failed(FailureKind),
    /// Given back unfinished: drain, a type this worker does not know, a lease given up.
    Released,
}

/// What happens to the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Complete,
    Retry(Duration),
    Snooze(Duration),
    Release,
    DeadLetter,
    Cancel,
}

/// The verdict on an attempt. `random` is uniform in 0..1.
pub(crate) fn verdict(ending: Ending, attempt: Attempt, policy: &RetryPolicy, random: f64) -> Verdict {
    match ending {
        Ending::Done => Verdict::Complete,
        Ending::Released => Verdict::Release,
        Ending::Failed(FailureKind::Snooze(delay)) => {
            if attempt.claim_no.saturating_sub(attempt.attempts) < policy.free_snoozes {
                Verdict::Snooze(
                    delay
                        .clamp(Duration::from_millis(1), policy.backoff.max.max(Duration::from_secs(86_400))),
                )
            } else {
                again(attempt, policy, random)
            }
        }
        Ending::Failed(FailureKind::Class(class)) => match class {
            FailureClass::Permanent => Verdict::DeadLetter,
            FailureClass::Revoked => Verdict::Cancel,
            FailureClass::Transient | FailureClass::RateLimited => again(attempt, policy, random),
            FailureClass::Unknown if attempt.attempts >= policy.unknown_attempts => Verdict::DeadLetter,
            FailureClass::Unknown => again(attempt, policy, random),
            FailureClass::Crash => after_crash(attempt, policy, random),
        },
    }
}

fn again(attempt: Attempt, policy: &RetryPolicy, random: f64) -> Verdict {
    if attempt.attempts >= attempt.max_attempts {
        return Verdict::DeadLetter;
    }
    Verdict::Retry(policy.backoff.delay(attempt.attempts, random))
}

/// The first crash is taken for the worker's misfortune and the job is due at once. From the second on
/// the job may be what kills its worker, so it waits and does not stand in front again.
fn after_crash(attempt: Attempt, policy: &RetryPolicy, random: f64) -> Verdict {
    if attempt.attempts >= attempt.max_attempts {
        Verdict::DeadLetter
    } else if attempt.attempts <= 1 {
        Verdict::Retry(Duration::ZERO)
    } else {
        Verdict::Retry(policy.backoff.delay(attempt.attempts - 1, random))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLASSES: [FailureClass; 6] = [
        FailureClass::Transient,
        FailureClass::RateLimited,
        FailureClass::Permanent,
        FailureClass::Revoked,
        FailureClass::Crash,
        FailureClass::Unknown,
    ];

    fn at(attempts: u32, max_attempts: u32) -> Attempt {
        Attempt { attempts, max_attempts, claim_no: attempts }
    }

    fn fail(class: FailureClass, attempt: Attempt) -> Verdict {
        verdict(Ending::Failed(FailureKind::Class(class)), attempt, &RetryPolicy::default(), 0.5)
    }

    #[test]
    fn each_class_has_its_verdict_on_a_first_attempt() {
        let second = Duration::from_secs(1);
        let expect = [
            (FailureClass::Transient, Verdict::Retry(second)),
            (FailureClass::RateLimited, Verdict::Retry(second)),
            (FailureClass::Permanent, Verdict::DeadLetter),
            (FailureClass::Revoked, Verdict::Cancel),
            (FailureClass::Crash, Verdict::Retry(Duration::ZERO)),
            (FailureClass::Unknown, Verdict::Retry(second)),
        ];
        for (class, verdict) in expect {
            assert_eq!(fail(class, at(1, 10)), verdict, "{class}");
        }
    }

    #[test]
    fn unknown_errors_get_three_tries() {
        assert!(matches!(fail(FailureClass::Unknown, at(2, 10)), Verdict::Retry(_)));
        assert_eq!(fail(FailureClass::Unknown, at(3, 10)), Verdict::DeadLetter);
        assert_eq!(fail(FailureClass::Unknown, at(2, 2)), Verdict::DeadLetter);
    }

    #[test]
    fn a_second_crash_waits() {
        assert_eq!(fail(FailureClass::Crash, at(2, 10)), Verdict::Retry(Duration::from_secs(1)));
        assert_eq!(fail(FailureClass::Crash, at(10, 10)), Verdict::DeadLetter);
    }

    #[test]
    fn the_hundred_and_first_snooze_spends_an_attempt() {
        let snooze = Ending::Failed(FailureKind::Snooze(Duration::from_secs(5)));
        let after = |claims, attempts| {
            let attempt = Attempt { attempts, max_attempts: 10, claim_no: claims };
            verdict(snooze, attempt, &RetryPolicy::default(), 0.5)
        };
        assert_eq!(after(100, 1), Verdict::Snooze(Duration::from_secs(5)));
        assert!(matches!(after(101, 1), Verdict::Retry(_)));
        assert_eq!(after(110, 10), Verdict::DeadLetter);
    }

    proptest! {
        #[test]
        fn no_failure_runs_beyond_the_maximum(
            class in prop::sample::select(&CLASSES[..]), max in 1u32..1000, over in 0u32..5, random in 0.0f64..1.0,
        ) {
            let attempt = at(max + over, max);
            let verdict = verdict(Ending::Failed(FailureKind::Class(class)), attempt, &RetryPolicy::default(), random);
            prop_assert!(matches!(verdict, Verdict::DeadLetter | Verdict::Cancel));
        }

        #[test]
        fn only_done_completes(class in prop::sample::select(&CLASSES[..]), attempts in 1u32..20) {
            prop_assert_ne!(fail(class, at(attempts, 10)), Verdict::Complete);
        }
    }
}
