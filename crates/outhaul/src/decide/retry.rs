//! How long to wait before the next attempt.

use std::time::Duration;

/// Exponential backoff with jitter: `base x 2^min(failures - 1, 10)`, at most `max`, then spread by
/// `jitter` around that value within the maximum.
///
/// Any values are taken. What makes no sense is read as the nearest that does, so that no policy burns all attempts at once,
/// waits for ever, or panics: no wait is shorter than 1 ms or longer than 365 days.
///
/// ```
/// use std::time::Duration;
/// let backoff = outhaul::Backoff::default();
/// assert_eq!(backoff.delay(1, 0.5), Duration::from_secs(1));
/// assert_eq!(backoff.delay(4, 0.5), Duration::from_secs(8));
/// assert_eq!(backoff.delay(400, 0.5), Duration::from_secs(1024));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Wait after the first failure. 1 s by default; never less than 1 ms, nor more than `max`.
    pub base: Duration,
    /// Longest wait. 1 h by default; 1 ms to 365 days.
    pub max: Duration,
    /// Spread on both sides as a part of the wait, 0 to 1. 0.2 by default; what is no number is 0.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { base: Duration::from_secs(1), max: Duration::from_secs(3600), jitter: 0.2 }
    }
}

impl Backoff {
    /// The exponent stops growing here, so that no attempt number overflows.
    const MAX_DOUBLINGS: u32 = 10;

    /// The wait after the `failures`-th failure (counted from 1). `random` is uniform in 0..1.
    ///
    /// ```
    /// use std::time::Duration;
    /// let backoff = outhaul::Backoff { jitter: 0.5, ..outhaul::Backoff::default() };
    /// assert_eq!(backoff.delay(3, 0.0), Duration::from_secs(2));
    /// assert_eq!(backoff.delay(3, 1.0), Duration::from_secs(6));
    /// ```
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let max = self.max.clamp(MIN_DELAY, LONGEST_DELAY);
        let doublings = failures.saturating_sub(1).min(Self::MAX_DOUBLINGS);
        let middle = self.base.max(MIN_DELAY).saturating_mul(1 << doublings).min(max);
        let spread = 1.0 + self.part() * (2.0 * unit(random) - 1.0);
        middle.mul_f64(spread).clamp(MIN_DELAY, max)
    }

    /// The wait after a failure with a hint: at least as long, and spread only upwards, because whoever comes sooner than he was
    /// told is turned away again. A hint shorter than a first failure's wait is that, so that hints of nothing
    /// cannot burn all attempts at once.
    pub(super) fn hinted(&self, hint: Duration, random: f64) -> Duration {
        let hint = hint.min(LONGEST_DELAY);
        let after = hint + hint.mul_f64(self.part() * unit(random));
        after.max(self.delay(1, random)).min(LONGEST_DELAY)
    }

    fn part(&self) -> f64 {
        unit(self.jitter)
    }
}

/// A number in 0..=1; what is none is 0.
fn unit(number: f64) -> f64 {
    if number.is_nan() { 0.0 } else { number.clamp(0.0, 1.0) }
}

/// A backoff of zero would burn all attempts within one poll.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(1);

/// The longest delay that the functions of the schema take.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_number() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<f64>(),
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            Just(-1.0),
            0.0f64..1.0,
        ]
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            any::<u64>().prop_map(Duration::from_nanos),
            any::<u64>().prop_map(Duration::from_secs),
        ]
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        (any_duration(), any_duration(), any_number()).prop_map(|(base, max, jitter)| Backoff {
            base,
            max,
            jitter,
        })
    }

    #[test]
    fn absurd_policies_have_sensible_waits() {
        let backoff = Backoff::default();
        let cases = [
            (Backoff { base: Duration::ZERO, ..backoff }, 1, MIN_DELAY),
            (Backoff { base: Duration::ZERO, ..backoff }, u32::MAX, Duration::from_millis(1024)),
            (Backoff { max: Duration::ZERO, ..backoff }, 5, MIN_DELAY),
            (Backoff { max: Duration::from_millis(10), ..backoff }, 1, Duration::from_millis(10)),
            (Backoff { base: Duration::MAX, max: Duration::MAX, jitter: f64::NAN }, 400, LONGEST_DELAY),
            (Backoff { jitter: f64::NAN, ..backoff }, 0, Duration::from_secs(1)),
            (Backoff { jitter: -3.0, ..backoff }, 2, Duration::from_secs(2)),
        ];
        for (backoff, failures, expected) in cases {
            for random in [0.0, 0.3, 1.0] {
                let backoff =
                    Backoff { jitter: if backoff.jitter > 0.0 { 0.0 } else { backoff.jitter }, ..backoff };
                assert_eq!(backoff.delay(failures, random), expected, "{backoff:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn never_zero_never_above_the_maximum(
            backoff in any_backoff(), failures in prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)], random in any_number(),
        ) {
            let delay = backoff.delay(failures, random);
            prop_assert!(delay >= MIN_DELAY);
            prop_assert!(delay <= backoff.max.clamp(MIN_DELAY, LONGEST_DELAY));
        }

        #[test]
        fn jitter_stays_within_its_part(failures in 1u32..40, random in 0.0f64..1.0) {
            let backoff = Backoff::default();
            let middle = backoff.delay(failures, 0.5).as_secs_f64();
            let delay = backoff.delay(failures, random).as_secs_f64();
            prop_assert!(delay >= middle * 0.799 && delay <= middle * 1.201);
        }

        #[test]
        fn waits_do_not_shrink(backoff in any_backoff(), failures in 1u32..1000) {
            prop_assert!(backoff.delay(failures + 1, 0.5) >= backoff.delay(failures, 0.5));
        }

        #[test]
        fn nobody_comes_sooner_than_a_hint_or_at_once(
            backoff in any_backoff(), hint in any_duration(), random in any_number(),
        ) {
            let delay = backoff.hinted(hint, random);
            prop_assert!(delay >= hint.min(LONGEST_DELAY) && delay >= MIN_DELAY);
            prop_assert!(delay <= LONGEST_DELAY);
        }

        #[test]
        fn hints_are_spread_upwards_within_the_jitter(ms in 2_000u64..100_000_000, random in 0.0f64..1.0) {
            let hint = Duration::from_millis(ms);
            let backoff = Backoff::default();
            let (delay, most) = (backoff.hinted(hint, random), hint.as_secs_f64() * 1.2001);
            prop_assert!(delay >= hint && delay.as_secs_f64() <= most);
            prop_assert!(backoff.hinted(hint, 0.0) < backoff.hinted(hint, 0.9));
        }
    }
}
