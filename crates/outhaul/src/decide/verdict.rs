//! The state machine of an attempt: how it ended, and what that means for the job.

use std::time::Duration;

use super::retry::{Backoff, LONGEST_DELAY, MIN_DELAY};
use crate::model::{FailureClass, FailureKind};

/// Verdicts and waits after attempts that did not complete.
///
/// # What spends an attempt
///
/// One rule: **a claim spends an attempt, and it is given back only when the job's work was not tried, or said itself that it is
/// too early.** So these give it back: a snooze, up to [`free_snoozes`](RetryPolicy::free_snoozes); a release, which is a
/// job claimed and not begun, or interrupted, by a worker that stops; a type that the worker does not know. These keep it spent:
/// every failure, whatever its class, also one that was rate limited, because the service was asked; a panic;
/// a time limit; a crash, which is the expiry of a lease, because what kills its worker must not do so for ever; an operator's
/// cancellation of a job that runs. No attempt is begun after the last one is spent. An operator's retry of a dead letter
/// begins again at zero.
///
/// ```
/// use std::time::Duration;
/// let mut options = outhaul::WorkerOptions::default();
/// options.retry.unknown_attempts = 1;
/// options.retry.max_hint = Duration::from_secs(6 * 3600);
/// options.retry.backoff.base = Duration::from_secs(5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Waits between attempts.
    pub backoff: Backoff,
    /// The longest that a service's hint ([`Failure::retry_after`](crate::Failure::retry_after)) is followed; a longer one
    /// counts as this long. 1 h by default, up to 365 days; zero ignores all hints.
    ///
    /// The wait after a hint is the hint, so bounded, and up to `backoff.jitter` (20 %) more, which may go beyond this limit: those
    /// who were told the same time must not come back at one instant, and never before it. The exponential backoff has no
    /// part in it, as the service knows better, except that no wait is shorter than the one after a first failure.
    pub max_hint: Duration,
    /// Attempts after which a failure of unknown class is a dead letter, if the job's own maximum is not
    /// smaller. 3 by default; 0 is 1.
    pub unknown_attempts: u32,
    /// How many claims of a job a snooze finds that have cost no attempt, releases included, before it counts as a
    /// transient failure. 100 by default; with 0 no snooze is free. Releases themselves are always free.
    pub free_snoozes: u32,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            backoff: Backoff::default(),
            max_hint: Duration::from_secs(3600),
            unknown_attempts: 3,
            free_snoozes: 100,
        }
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
                Verdict::Snooze(delay.clamp(MIN_DELAY, longest_snooze(policy)))
            } else {
                again(attempt, policy, None, random)
            }
        }
        Ending::Failed(FailureKind::Class { class, hint }) => match class {
            FailureClass::Permanent => Verdict::DeadLetter,
            FailureClass::Revoked => Verdict::Cancel,
            FailureClass::Transient | FailureClass::RateLimited => again(attempt, policy, hint, random),
            FailureClass::Unknown if attempt.attempts >= policy.unknown_attempts => Verdict::DeadLetter,
            FailureClass::Unknown => again(attempt, policy, hint, random),
            FailureClass::Crash => after_crash(attempt, policy, random),
        },
    }
}

fn again(attempt: Attempt, policy: &RetryPolicy, hint: Option<Duration>, random: f64) -> Verdict {
    if attempt.attempts >= attempt.max_attempts {
        return Verdict::DeadLetter;
    }
    Verdict::Retry(match hint {
        Some(hint) if !policy.max_hint.is_zero() => policy.backoff.hinted(hint.min(policy.max_hint), random),
        _ => policy.backoff.delay(attempt.attempts, random),
    })
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

/// A day, or the longest backoff if that is more.
fn longest_snooze(policy: &RetryPolicy) -> Duration {
    policy.backoff.max.clamp(Duration::from_secs(86_400), LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(attempts: u32, max_attempts: u32) -> Attempt {
        Attempt { attempts, max_attempts, claim_no: attempts }
    }

    fn fail(class: FailureClass, attempt: Attempt) -> Verdict {
        verdict(Ending::Failed(class.into()), attempt, &RetryPolicy::default(), 0.5)
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

    fn hinted(class: FailureClass, hint: Duration, attempt: Attempt, policy: &RetryPolicy) -> Verdict {
        verdict(Ending::Failed(FailureKind::Class { class, hint: Some(hint) }), attempt, policy, 0.5)
    }

    #[test]
    fn a_hint_takes_the_place_of_the_backoff() {
        let (policy, seconds) = (RetryPolicy::default(), Duration::from_secs);
        for class in [FailureClass::RateLimited, FailureClass::Transient, FailureClass::Unknown] {
            // 10 % more: half of the jitter.
            assert_eq!(hinted(class, seconds(30), at(1, 10), &policy), Verdict::Retry(seconds(33)));
            assert_eq!(hinted(class, seconds(7200), at(1, 10), &policy), Verdict::Retry(seconds(3960)));
            assert_eq!(hinted(class, Duration::MAX, at(1, 10), &policy), Verdict::Retry(seconds(3960)));
            assert_eq!(hinted(class, Duration::ZERO, at(2, 10), &policy), Verdict::Retry(seconds(1)));
        }
        let hint = seconds(30);
        assert_eq!(hinted(FailureClass::RateLimited, hint, at(9, 10), &policy), Verdict::Retry(seconds(33)));
        assert_eq!(hinted(FailureClass::RateLimited, hint, at(10, 10), &policy), Verdict::DeadLetter);
        assert_eq!(hinted(FailureClass::Permanent, hint, at(1, 10), &policy), Verdict::DeadLetter);
        assert_eq!(hinted(FailureClass::Crash, hint, at(1, 10), &policy), Verdict::Retry(Duration::ZERO));
    }

    #[test]
    fn a_policy_may_ignore_all_hints() {
        let policy = RetryPolicy { max_hint: Duration::ZERO, ..RetryPolicy::default() };
        let after = hinted(FailureClass::RateLimited, Duration::from_secs(30), at(4, 10), &policy);
        assert_eq!(after, Verdict::Retry(Duration::from_secs(8)));
    }

    #[test]
    fn snoozes_are_a_millisecond_to_a_day_or_to_the_longest_backoff() {
        let snooze = |delay, policy: &RetryPolicy| {
            verdict(Ending::Failed(FailureKind::Snooze(delay)), at(1, 10), policy, 0.5)
        };
        let (policy, day) = (RetryPolicy::default(), Duration::from_secs(86_400));
        assert_eq!(snooze(Duration::ZERO, &policy), Verdict::Snooze(Duration::from_millis(1)));
        assert_eq!(snooze(Duration::MAX, &policy), Verdict::Snooze(day));
        for (max, longest) in [(day * 7, day * 7), (Duration::MAX, LONGEST_DELAY), (Duration::ZERO, day)] {
            let policy = RetryPolicy { backoff: Backoff { max, ..policy.backoff }, ..policy };
            assert_eq!(snooze(Duration::MAX, &policy), Verdict::Snooze(longest));
        }
    }

    fn any_time() -> impl Strategy<Value = Duration> {
        let lengths = any::<u64>().prop_map(Duration::from_nanos);
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            lengths,
            (0u64..100_000).prop_map(Duration::from_secs)
        ]
    }

    fn any_number() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), 0.0f64..1.0]
    }

    fn any_count() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..20, any::<u32>(), Just(u32::MAX)]
    }

    fn any_policy() -> impl Strategy<Value = RetryPolicy> {
        let numbers = (any_number(), any_count(), any_count());
        (any_time(), any_time(), any_time(), numbers).prop_map(|(base, max, max_hint, numbers)| {
            let (jitter, unknown_attempts, free_snoozes) = numbers;
            RetryPolicy { backoff: Backoff { base, max, jitter }, max_hint, unknown_attempts, free_snoozes }
        })
    }

    fn any_attempt() -> impl Strategy<Value = Attempt> {
        (any_count(), any_count(), any_count()).prop_map(|(attempts, max_attempts, claim_no)| Attempt {
            attempts,
            max_attempts,
            claim_no,
        })
    }

    fn any_class() -> impl Strategy<Value = FailureClass> {
        prop::sample::select(&FailureClass::ALL[..])
    }

    proptest! {
        #[test]
        fn every_class_at_every_attempt_under_every_policy(
            class in any_class(), hint in prop::option::of(any_time()), attempt in any_attempt(), policy in any_policy(),
            random in any_number(),
        ) {
            let verdict = verdict(Ending::Failed(FailureKind::Class { class, hint }), attempt, &policy, random);
            let spent = attempt.attempts >= attempt.max_attempts;
            match class {
                FailureClass::Permanent => prop_assert_eq!(verdict, Verdict::DeadLetter),
                FailureClass::Revoked => prop_assert_eq!(verdict, Verdict::Cancel),
                _ if spent => prop_assert_eq!(verdict, Verdict::DeadLetter),
                FailureClass::Unknown if attempt.attempts >= policy.unknown_attempts => {
                    prop_assert_eq!(verdict, Verdict::DeadLetter)
                }
                FailureClass::Crash if attempt.attempts <= 1 => {
                    prop_assert_eq!(verdict, Verdict::Retry(Duration::ZERO))
                }
                _ => {
                    let Verdict::Retry(delay) = verdict else { panic!("{verdict:?}") };
                    prop_assert!(delay >= MIN_DELAY && delay <= LONGEST_DELAY, "{:?}", delay);
                    let backoff = policy.backoff.max.clamp(MIN_DELAY, LONGEST_DELAY);
                    match hint.filter(|_| !policy.max_hint.is_zero() && class != FailureClass::Crash) {
                        Some(hint) => {
                            let hint = hint.min(policy.max_hint).min(LONGEST_DELAY);
                            prop_assert!(delay >= hint);
                            prop_assert!(delay <= backoff.max(hint.saturating_mul(2)));
                        }
                        None => prop_assert!(delay <= backoff),
                    }
                }
            }
        }

        #[test]
        fn a_job_of_one_attempt_is_never_retried(
            class in any_class(), hint in prop::option::of(any_time()), policy in any_policy(), random in any_number(),
        ) {
            let verdict = verdict(Ending::Failed(FailureKind::Class { class, hint }), at(1, 1), &policy, random);
            prop_assert!(matches!(verdict, Verdict::DeadLetter | Verdict::Cancel));
        }

        #[test]
        fn snoozes_are_free_up_to_the_limit_and_then_failures(
            delay in any_time(), attempt in any_attempt(), policy in any_policy(), random in any_number(),
        ) {
            let verdict = verdict(Ending::Failed(FailureKind::Snooze(delay)), attempt, &policy, random);
            let free = attempt.claim_no.saturating_sub(attempt.attempts) < policy.free_snoozes;
            match verdict {
                Verdict::Snooze(delay) => {
                    prop_assert!(free);
                    prop_assert!(delay >= MIN_DELAY && delay <= longest_snooze(&policy));
                }
                Verdict::Retry(delay) => {
                    prop_assert!(!free && attempt.attempts < attempt.max_attempts && delay >= MIN_DELAY)
                }
                verdict => {
                    prop_assert_eq!(verdict, Verdict::DeadLetter);
                    prop_assert!(!free && attempt.attempts >= attempt.max_attempts);
                }
            }
        }

        #[test]
        fn what_was_done_or_given_back_is_so_under_every_policy(
            attempt in any_attempt(), policy in any_policy(), random in any_number(),
        ) {
            prop_assert_eq!(verdict(Ending::Done, attempt, &policy, random), Verdict::Complete);
            prop_assert_eq!(verdict(Ending::Released, attempt, &policy, random), Verdict::Release);
        }

        #[test]
        fn an_unknown_failure_ends_after_a_small_number_of_tries(tries in 1u32..10, max in 1u32..1000) {
            let policy = RetryPolicy { unknown_attempts: tries, ..RetryPolicy::default() };
            let unknown = Ending::Failed(FailureClass::Unknown.into());
            let first = (1..=max).find(|n| verdict(unknown, at(*n, max), &policy, 0.5) == Verdict::DeadLetter);
            prop_assert_eq!(first, Some(tries.min(max)));
        }

        #[test]
        fn no_failure_runs_beyond_the_maximum(
            class in prop::sample::select(&FailureClass::ALL[..]), max in 1u32..1000, over in 0u32..5, random in 0.0f64..1.0,
        ) {
            let attempt = at(max + over, max);
            let verdict = verdict(Ending::Failed(class.into()), attempt, &RetryPolicy::default(), random);
            prop_assert!(matches!(verdict, Verdict::DeadLetter | Verdict::Cancel));
        }

        #[test]
        fn only_done_completes(class in prop::sample::select(&FailureClass::ALL[..]), attempts in 1u32..20) {
            prop_assert_ne!(fail(class, at(attempts, 10)), Verdict::Complete);
        }
    }
}
