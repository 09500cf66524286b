//! How long to wait before the next attempt.

use std::time::Duration;

/// Exponential backoff with jitter: `base x 2^min(failures - 1, 10)`, at most `max`, then spread by
/// `jitter` around that value within the maximum.
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
    /// Wait after the first failure. 1 s by default; never less than 1 ms.
    pub base: Duration,
    /// Longest wait. 1 h by default.
    pub max: Duration,
    /// Spread on both sides as a part of the wait, 0 to 1. 0.2 by default.
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
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let max = self.max.max(MIN_DELAY);
        let doublings = failures.saturating_sub(1).min(Self::MAX_DOUBLINGS);
        let middle = self.base.max(MIN_DELAY).saturating_mul(1 << doublings).min(max);
        let jitter = if self.jitter.is_finite() { self.jitter.clamp(0.0, 1.0) } else { 0.0 };
        let spread = 1.0 + jitter * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        middle.mul_f64(spread).clamp(MIN_DELAY, max)
    }
}

/// A backoff of zero would burn all attempts within one poll.
const MIN_DELAY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_zero_never_above_the_maximum(
            base in 0u64..u64::MAX, max in 0u64..u64::MAX, jitter in any::<f64>(),
            failures in any::<u32>(), random in any::<f64>(),
        ) {
            let backoff = Backoff { base: Duration::from_millis(base), max: Duration::from_millis(max), jitter };
            let delay = backoff.delay(failures, random);
            prop_assert!(delay >= MIN_DELAY);
            prop_assert!(delay <= backoff.max.max(MIN_DELAY));
        }

        #[test]
        fn jitter_stays_within_its_part(failures in 1u32..40, random in 0.0f64..1.0) {
            let backoff = Backoff::default();
            let middle = backoff.delay(failures, 0.5).as_secs_f64();
            let delay = backoff.delay(failures, random).as_secs_f64();
            prop_assert!(delay >= middle * 0.799 && delay <= middle * 1.201);
        }

        #[test]
        fn waits_do_not_shrink(failures in 1u32..1000) {
            let backoff = Backoff::default();
            prop_assert!(backoff.delay(failures + 1, 0.5) >= backoff.delay(failures, 0.5));
        }
    }
}
