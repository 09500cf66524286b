//! What a job of the shop carries, and what the world will do to it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Every job type of the shop with the queue it goes to.
pub(super) const TYPES: [(&str, &str); 8] = [
    ("mail.confirmation", "notifications"),
    ("mail.receipt", "notifications"),
    ("sms.delivered", "notifications"),
    ("mail.review", "notifications"),
    ("partner.paid", "webhooks"),
    ("courier.assign", "dispatch"),
    (LOYALTY, "loyalty"),
    ("delivery.report", "reports"),
];

/// The type whose effect lies in the shop's own database, in the transaction that completes the job.
pub(super) const LOYALTY: &str = "loyalty.book";

/// Every queue with the handlers that one worker process runs at once in it.
pub(super) const QUEUES: [(&str, usize); 5] =
    [("notifications", 8), ("webhooks", 6), ("dispatch", 6), ("loyalty", 2), ("reports", 4)];

/// The queue of a job type of the shop.
pub(super) fn queue_of(job_type: &str) -> &'static str {
    TYPES.iter().find(|(name, _)| *name == job_type).map_or("notifications", |(_, queue)| queue)
}

/// The partition of its queue that waits when the other side of a job asks for patience: one of four services for each type.
pub(super) fn service_of(job_type: &str, order: i32) -> String {
    format!("{job_type}-{}", order % 4)
}

/// The payload of every job of the shop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// Written into the shop's `operations` by the transaction that enqueued the job.
    pub(super) operation: Uuid,
    pub(super) order: i32,
    /// The outside world makes one effect per key, however often it is asked.
    pub(super) key: String,
    /// How long the work takes, in milliseconds.
    pub(super) work_ms: u64,
    pub(super) fate: Fate,
}

/// What happens to a job. Decided at the till, so that one seed gives one story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    Works,
    /// The other side is busy for this many attempts.
    Busy(i32),
    /// The other side asks for patience once, and says for how long.
    Limited,
    /// The effect takes place, its answer is lost, and the attempt fails.
    AnswerLost,
    /// The first attempt fails with an error that nobody has classified.
    Puzzling,
    /// The first attempt panics.
    Panics,
    /// Every attempt fails with an error that nobody has classified.
    Hopeless,
    /// The other side refuses for good.
    Refused,
    /// The other side says that it must not be done any more.
    Withdrawn,
    /// It is too early once; nothing has failed.
    TooEarly,
    /// Runs longer than its lease, which must be renewed meanwhile.
    Long,
}

impl Fate {
    /// How long the work takes, longer than the lease for [`Fate::Long`].
    pub(super) fn work(self, usual: Duration, lease: Duration) -> Duration {
        if self == Fate::Long { lease + lease / 4 } else { usual }
    }
}

/// Fates in a proportion that shows each of them at least once in every 40 jobs.
const DECK: [(Fate, usize); 12] = [
    (Fate::Works, 25),
    (Fate::Busy(1), 3),
    (Fate::Busy(2), 1),
    (Fate::Limited, 1),
    (Fate::AnswerLost, 2),
    (Fate::Puzzling, 1),
    (Fate::Panics, 1),
    (Fate::Hopeless, 1),
    (Fate::Refused, 2),
    (Fate::Withdrawn, 1),
    (Fate::TooEarly, 1),
    (Fate::Long, 1),
];

/// Deals fates like cards: shuffled, and none comes back before all have been dealt.
pub(super) struct Deck {
    random: fastrand::Rng,
    cards: Vec<Fate>,
}

impl Deck {
    pub(super) fn new(seed: u64) -> Deck {
        Deck { random: fastrand::Rng::with_seed(seed), cards: Vec::new() }
    }

    /// A job of a type for an order, with a new operation id.
    pub(super) fn task(&mut self, job_type: &str, order: i32) -> Task {
        let operation = Uuid::now_v7();
        // Its own database is not away while it answers; everything else is for the outside world.
        let fate = if job_type == LOYALTY { self.small_trouble() } else { self.deal() };
        Task { operation, order, key: operation.to_string(), work_ms: self.usual_work(job_type), fate }
    }

    fn small_trouble(&mut self) -> Fate {
        if self.random.u8(..6) == 0 { Fate::Busy(1) } else { Fate::Works }
    }

    fn deal(&mut self) -> Fate {
        if self.cards.is_empty() {
            self.cards = DECK.iter().flat_map(|(fate, n)| std::iter::repeat_n(*fate, *n)).collect();
            self.random.shuffle(&mut self.cards);
        }
        self.cards.pop().unwrap_or(Fate::Works)
    }

    fn usual_work(&mut self, job_type: &str) -> u64 {
        match job_type {
            "delivery.report" => self.random.u64(200..700),
            LOYALTY => self.random.u64(1..5),
            _ => self.random.u64(10..120),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fate_is_dealt_within_forty_jobs() {
        let mut deck = Deck::new(7);
        let dealt: Vec<Fate> = (0..40).map(|n| deck.task("mail.receipt", n).fate).collect();
        for (fate, n) in DECK {
            assert_eq!(dealt.iter().filter(|dealt| **dealt == fate).count(), n, "{fate:?}");
        }
    }

    #[test]
    fn one_seed_gives_one_story() {
        let story = |seed| {
            let mut deck = Deck::new(seed);
            (0..200).map(|n| deck.task("partner.paid", n)).map(|t| (t.fate, t.work_ms)).collect::<Vec<_>>()
        };
        assert_eq!(story(1), story(1));
        assert_ne!(story(1), story(2));
    }

    #[test]
    fn every_type_goes_to_a_queue_that_is_worked() {
        for (_, queue) in TYPES {
            assert!(QUEUES.iter().any(|(name, _)| *name == queue), "{queue}");
        }
    }
}
