//! How far a reader of the outbox is behind, in numbers.

use serde::Serialize;

/// Where a cursor and the feed stand at one moment. Ages in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) position: i64,
    /// The last position that was given.
    pub(crate) head: i64,
    /// Age of the event that follows the cursor in the feed.
    pub(crate) next_ms: Option<i64>,
    /// Events without a position yet, and the age of the oldest.
    pub(crate) unsequenced: i64,
    pub(crate) unsequenced_ms: Option<i64>,
    /// Since the cursor moved.
    pub(crate) moved_ms: i64,
}

/// How far a reader of the outbox is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lag {
    /// Events that the cursor has to pass, of whatever type.
    pub events: i64,
    /// Age of the oldest of them in milliseconds, 0 at the head.
    pub age_ms: i64,
    /// Milliseconds since the cursor moved while there was something to move past, 0 at the head: work that does not
    /// get on.
    pub checkpoint_ms: i64,
}

/// Measures the distance between a cursor and what was inserted.
pub(crate) fn lag(stand: Stand) -> Lag {
    // A cursor beyond the head is one of another history: how far it is behind, nobody knows.
    let events = (stand.head - stand.position).max(0) + stand.unsequenced.max(0);
    // An event that committed late is older than what has a position already.
    let oldest = stand.next_ms.max(stand.unsequenced_ms).unwrap_or(0).max(0);
    let behind = events > 0;
    Lag {
        events,
        age_ms: if behind { oldest } else { 0 },
        // An event that was inserted after the last move cannot have waited for longer than it is old.
        checkpoint_ms: if behind { stand.moved_ms.clamp(0, oldest) } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_HEAD: Stand =
        Stand { position: 7, head: 7, next_ms: None, unsequenced: 0, unsequenced_ms: None, moved_ms: 90_000 };

    #[test]
    fn at_the_head_nothing_is_behind_however_long_ago_the_cursor_moved() {
        assert_eq!(lag(AT_HEAD), Lag { events: 0, age_ms: 0, checkpoint_ms: 0 });
    }

    #[test]
    fn events_with_and_without_a_position_count_and_the_oldest_decides() {
        let stand = Stand { head: 10, next_ms: Some(4_000), unsequenced: 2, ..AT_HEAD };
        assert_eq!(lag(Stand { unsequenced_ms: Some(3_000), ..stand }).age_ms, 4_000);
        let late = lag(Stand { unsequenced_ms: Some(5_000), ..stand });
        assert_eq!(late, Lag { events: 5, age_ms: 5_000, checkpoint_ms: 5_000 });
    }

    #[test]
    fn a_cursor_that_gets_on_has_a_small_checkpoint_lag_and_one_that_just_fell_behind_too() {
        let stand = Stand { head: 1_000, next_ms: Some(60_000), moved_ms: 20, ..AT_HEAD };
        assert_eq!(lag(stand), Lag { events: 993, age_ms: 60_000, checkpoint_ms: 20 });
        let fell_behind = Stand { next_ms: Some(15), moved_ms: 3_600_000, ..stand };
        assert_eq!(lag(fell_behind).checkpoint_ms, 15);
    }

    #[test]
    fn nonsense_is_nothing_behind() {
        let other_history = Stand { position: 900, ..AT_HEAD };
        assert_eq!(lag(other_history).events, 0);
        let clock_step = Stand { head: 8, next_ms: Some(-40), moved_ms: -5, ..AT_HEAD };
        assert_eq!(lag(clock_step), Lag { events: 1, age_ms: 0, checkpoint_ms: 0 });
    }
}
