//! A worker's own view of the leases it holds.
//!
//! The server's clock decides when a lease ends. The worker only needs to know when it can no longer
//! be sure, so it counts from a monotonic instant taken *before* the claim was sent: its own deadline
//! is then never later than the server's.

use std::time::{Duration, Instant};

/// What to do about one held lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Young enough.
    Keep,
    /// A third of it has passed: renew.
    Renew,
    /// It may be over. The handler is told; its report is still sent, and the fence decides.
    PresumeLost,
}

/// `since` is the instant before the claim, or before the last renewal that succeeded, was sent.
pub(crate) fn care(since: Instant, now: Instant, lease: Duration) -> Care {
    let age = now.saturating_duration_since(since);
    if age >= lease {
        Care::PresumeLost
    } else if age >= lease / 3 {
        Care::Renew
    } else {
        Care::Keep
    }
}

/// How often to look: often enough that no lease is found later than a twelfth past its third.
pub(crate) fn look_every(lease: Duration) -> Duration {
    (lease / 12).clamp(Duration::from_millis(50), Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_after_a_third_and_given_up_at_the_end() {
        let start = Instant::now();
        let lease = Duration::from_secs(60);
        let after = |seconds| care(start, start + Duration::from_secs(seconds), lease);
        assert_eq!([after(0), after(19)], [Care::Keep; 2]);
        assert_eq!([after(20), after(59)], [Care::Renew; 2]);
        assert_eq!([after(60), after(600)], [Care::PresumeLost; 2]);
        // A monotonic clock read a moment earlier by another thread.
        assert_eq!(care(start + Duration::from_secs(1), start, lease), Care::Keep);
    }

    #[test]
    fn two_renewals_can_fail_before_the_lease_ends() {
        for seconds in [1, 3, 60, 3600] {
            let lease = Duration::from_secs(seconds);
            assert!(lease / 3 + 2 * look_every(lease) < lease);
        }
    }
}
