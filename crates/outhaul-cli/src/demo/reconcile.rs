//! The reconciliation: what the shop has committed against what the handlers say they did.
//!
//! Sets of operation ids from independent places are compared, never counters of Outhaul's own. What is
//! committed comes from the shop's table, what was done from the effect log in another database and from the
//! shop's points, and only what is said to be dead or cancelled from Outhaul.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;
use tokio_postgres::Client;
use uuid::Uuid;

use super::crew::Kill;
use super::effects::{EffectLog, Told};
use super::facts::FACTS;
use super::place::Place;
use super::shop::Sales;
use super::task::QUEUES;

/// An operation that the shop has committed.
#[derive(Clone, Debug)]
struct Operation {
    id: Uuid,
    job: Uuid,
    job_type: String,
    queue: String,
}

/// An entry of the ledger.
#[derive(Clone, Debug)]
struct Entry {
    event: Uuid,
    order: i32,
    what: String,
}

/// Everything that is compared.
#[derive(Debug, Default)]
pub(super) struct Books {
    operations: Vec<Operation>,
    /// One entry for each row of the shop's points.
    points: Vec<Uuid>,
    /// Facts that the shop has committed.
    facts: HashSet<Uuid>,
    /// The ledger's entries, in the order in which they were made.
    ledger: Vec<Entry>,
    /// Facts that the outbox has, without a word about how often.
    outbox: HashSet<Uuid>,
    dead: HashSet<Uuid>,
    cancelled_jobs: HashSet<Uuid>,
    live_jobs: HashSet<Uuid>,
    /// Claims that did not end in completion, as Outhaul's history says.
    unfinished: HashSet<(Uuid, i32)>,
    /// Ends of claims by outcome and class.
    attempts: BTreeMap<(String, String), i64>,
    told: Told,
}

impl Books {
    /// Reads everything. The workers have ended, so nothing moves any more.
    pub(super) async fn read(client: &Client, place: &Place, log: &EffectLog) -> anyhow::Result<Books> {
        let (shop, outhaul) = (&place.shop, &place.outhaul);
        let mut books = Books { told: log.read().await?, ..Books::default() };
        let query = format!("select id, job_id, job_type, queue from {shop}.operations order by at, id");
        for row in client.query(&query, &[]).await? {
            let operation =
                Operation { id: row.get(0), job: row.get(1), job_type: row.get(2), queue: row.get(3) };
            books.operations.push(operation);
        }
        let ids = async |query: String| -> anyhow::Result<Vec<Uuid>> {
            Ok(client.query(&query, &[]).await?.iter().map(|row| row.get(0)).collect())
        };
        books.points = ids(format!("select operation_id from {shop}.points")).await?;
        books.facts = ids(format!("select event_id from {shop}.facts")).await?.into_iter().collect();
        books.outbox = ids(format!("select id from {outhaul}.outbox_events")).await?.into_iter().collect();
        let query = format!("select event_id, order_id, what from {shop}.ledger order by entry");
        for row in client.query(&query, &[]).await? {
            books.ledger.push(Entry { event: row.get(0), order: row.get(1), what: row.get(2) });
        }
        let dead = format!("select (payload->>'operation')::uuid from {outhaul}.jobs_dead");
        books.dead = ids(dead).await?.into_iter().collect();
        let cancelled = format!("select id from {outhaul}.jobs_finished where status = 'cancelled'");
        books.cancelled_jobs = ids(cancelled).await?.into_iter().collect();
        books.live_jobs = ids(format!("select id from {outhaul}.jobs")).await?.into_iter().collect();
        let query = format!("select job_id, claim_no, outcome, error_class from {outhaul}.job_attempts");
        for row in client.query(&query, &[]).await? {
            books.unfinished.insert((row.get(0), row.get(1)));
            *books.attempts.entry((row.get(2), row.get(3))).or_default() += 1;
        }
        Ok(books)
    }

    /// Compares.
    pub(super) fn reconcile(&self, sales: &Sales, kill: Option<&Kill>) -> Reconciliation {
        let done: HashSet<Uuid> = self
            .told
            .effects
            .iter()
            .map(|effect| effect.operation)
            .chain(self.points.iter().copied())
            .collect();
        let mut queues: BTreeMap<&str, QueueTally> = BTreeMap::new();
        let mut lost = Vec::new();
        for operation in &self.operations {
            let tally = queues.entry(&operation.queue).or_default();
            tally.committed += 1;
            if self.dead.contains(&operation.id) {
                tally.dead += 1;
            } else if self.cancelled_jobs.contains(&operation.job) {
                tally.cancelled += 1;
            } else if done.contains(&operation.id) {
                tally.completed += 1;
            } else {
                tally.lost += 1;
                lost.push(Missing::of(operation));
            }
        }
        let total = queues.values().fold(QueueTally::default(), QueueTally::plus);
        let duplicates = self.duplicates();
        let attempts = |outcome: &str| -> i64 {
            self.attempts.iter().filter(|((word, _), _)| word == outcome).map(|(_, n)| n).sum()
        };
        let mut classes = BTreeMap::new();
        for ((outcome, class), n) in &self.attempts {
            if !matches!(&**outcome, "snoozed" | "released") {
                *classes.entry(class.clone()).or_default() += n;
            }
        }
        Reconciliation {
            total,
            lost_operations: lost,
            phantom_operations: self.phantoms(),
            repeats_explained: self.told.repeats.len().saturating_sub(duplicates.outside),
            duplicates_effect: duplicates.outside + duplicates.points,
            duplicate_keys: duplicates.keys,
            rolled_back_transactions: sales.rolled_back_transactions,
            rolled_back: sales.rolled_back.len(),
            enqueued_twice: sales.enqueued_twice,
            answered_duplicate: sales.answered_duplicate,
            cancelled_by_shop: sales.cancelled_in_time,
            points_booked: self.points.len(),
            events: self.events(sales),
            retries: attempts("retry"),
            snoozes: attempts("snoozed"),
            classes,
            unfinished_jobs: self.live_jobs.len(),
            kill: kill.map(|kill| self.recovery(kill)),
            queues: QUEUES
                .iter()
                .filter_map(|(name, _)| queues.remove(name).map(|tally| NamedTally { queue: name, tally }))
                .collect(),
        }
    }

    /// The facts against the ledger, whose reader knows nothing of the shop's table.
    fn events(&self, sales: &Sales) -> EventTally {
        let mut entries: HashMap<Uuid, usize> = HashMap::new();
        let mut stage: HashMap<i32, usize> = HashMap::new();
        let mut tally = EventTally { committed: self.facts.len(), ..EventTally::default() };
        for entry in &self.ledger {
            let n = entries.entry(entry.event).or_default();
            *n += 1;
            tally.twice += usize::from(*n > 1);
            let place = FACTS.iter().position(|(what, _)| *what == entry.what).unwrap_or(FACTS.len());
            let before = stage.insert(entry.order, place);
            // An order is placed first, and each of its changes follows on the one before.
            tally.out_of_order += usize::from(before.map_or(0, |before| before + 1) != place);
        }
        tally.handled = self.facts.iter().filter(|fact| entries.contains_key(fact)).count();
        tally.lost_events = self.facts.iter().filter(|fact| !entries.contains_key(fact)).copied().collect();
        tally.lost_events.sort_unstable();
        let read = entries.keys().chain(&self.outbox);
        let ghosts: HashSet<&Uuid> = read.filter(|event| !self.facts.contains(event)).collect();
        tally.phantom = ghosts.len();
        tally.rolled_back = sales.rolled_back_facts.len();
        let follows = |job_type: &str| FACTS.iter().any(|(_, jobs)| jobs.contains(&job_type));
        tally.jobs = self.operations.iter().filter(|operation| follows(&operation.job_type)).count();
        tally
    }

    /// Operations that ran although no committed transaction promised them.
    fn phantoms(&self) -> Vec<Uuid> {
        let committed: HashSet<Uuid> = self.operations.iter().map(|operation| operation.id).collect();
        let begun = self.told.begun.iter().map(|begun| begun.operation);
        let asked = self.told.effects.iter().chain(&self.told.repeats).map(|asked| asked.operation);
        let ran: BTreeSet<Uuid> = begun.chain(asked).chain(self.points.iter().copied()).collect();
        ran.into_iter().filter(|operation| !committed.contains(operation)).collect()
    }

    /// Second effects under one key.
    ///
    /// A second request is explained when it comes from a later claim of the same job and the claim before
    /// did not complete: that is what at-least-once means, and what keys are for. All others are counted.
    fn duplicates(&self) -> Duplicates {
        let mut asked: HashMap<&str, Vec<(Uuid, i32)>> = HashMap::new();
        for effect in self.told.effects.iter().chain(&self.told.repeats) {
            asked.entry(&effect.key).or_default().push((effect.job, effect.claim_no));
        }
        let mut found = Duplicates::default();
        for (key, mut claims) in asked {
            claims.sort_unstable();
            let unexplained = claims.windows(2).filter(|pair| !self.explains(pair[0], pair[1])).count();
            if unexplained > 0 {
                found.outside += unexplained;
                found.keys.push(key.to_owned());
            }
        }
        let mut bookings: HashMap<Uuid, usize> = HashMap::new();
        for operation in &self.points {
            *bookings.entry(*operation).or_default() += 1;
        }
        for (operation, n) in bookings.into_iter().filter(|(_, n)| *n > 1) {
            found.points += n - 1;
            found.keys.push(operation.to_string());
        }
        found.keys.sort_unstable();
        found
    }

    fn explains(&self, before: (Uuid, i32), after: (Uuid, i32)) -> bool {
        let finished = self.told.done.contains(&before) && !self.unfinished.contains(&before);
        before.0 == after.0 && before.1 < after.1 && !finished
    }

    /// What became of the jobs that the killed worker held.
    fn recovery(&self, kill: &Kill) -> Recovery {
        let mut waits = Vec::new();
        for (job, claim_no) in &kill.held {
            let again = |begun: &&super::effects::Begun| begun.job == *job && begun.claim_no > *claim_no;
            let begun = self.told.begun.iter().find(again);
            if let Some(begun) = begun.filter(|_| !self.live_jobs.contains(job)) {
                waits.push(begun.at - kill.at);
            }
        }
        waits.sort_unstable_by(f64::total_cmp);
        Recovery {
            worker: kill.worker,
            pid: kill.pid,
            held: kill.held.len(),
            recovered: waits.len(),
            first_seconds: waits.first().copied().map(rounded),
            last_seconds: waits.last().copied().map(rounded),
        }
    }
}

#[derive(Default)]
struct Duplicates {
    outside: usize,
    points: usize,
    keys: Vec<String>,
}

/// What the comparison found.
#[derive(Clone, Debug, Default)]
pub(super) struct Reconciliation {
    pub(super) total: QueueTally,
    pub(super) queues: Vec<NamedTally>,
    pub(super) lost_operations: Vec<Missing>,
    pub(super) phantom_operations: Vec<Uuid>,
    pub(super) duplicates_effect: usize,
    pub(super) duplicate_keys: Vec<String>,
    pub(super) repeats_explained: usize,
    pub(super) rolled_back_transactions: usize,
    pub(super) rolled_back: usize,
    pub(super) enqueued_twice: usize,
    pub(super) answered_duplicate: usize,
    pub(super) cancelled_by_shop: usize,
    pub(super) points_booked: usize,
    pub(super) events: EventTally,
    pub(super) retries: i64,
    pub(super) snoozes: i64,
    /// Attempts that failed, by the class of their failure.
    pub(super) classes: BTreeMap<String, i64>,
    pub(super) unfinished_jobs: usize,
    pub(super) kill: Option<Recovery>,
}

impl Reconciliation {
    /// Nothing lost, nothing run or read that was rolled back, no second effect, and facts in their order.
    pub(super) fn holds(&self) -> bool {
        self.lost_operations.is_empty()
            && self.phantom_operations.is_empty()
            && self.duplicates_effect == 0
            && self.events.holds()
    }
}

/// Facts by what the ledger says of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct EventTally {
    pub(super) committed: usize,
    /// Those of them in the ledger.
    pub(super) handled: usize,
    pub(super) lost_events: Vec<Uuid>,
    /// Entries of a fact that had one.
    pub(super) twice: usize,
    /// Entries before, or not right after, the change that their order had before.
    pub(super) out_of_order: usize,
    /// Facts in the ledger or the outbox that no committed transaction stated.
    pub(super) phantom: usize,
    /// Facts of transactions that were rolled back.
    pub(super) rolled_back: usize,
    /// Committed operations whose jobs the projection has made of facts.
    pub(super) jobs: usize,
}

impl EventTally {
    fn holds(&self) -> bool {
        self.lost_events.is_empty() && self.twice + self.out_of_order + self.phantom == 0
    }
}

/// Operations by what became of them; each is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct QueueTally {
    pub(super) committed: usize,
    pub(super) completed: usize,
    pub(super) dead: usize,
    pub(super) cancelled: usize,
    pub(super) lost: usize,
}

impl QueueTally {
    fn plus(self, other: &QueueTally) -> QueueTally {
        QueueTally {
            committed: self.committed + other.committed,
            completed: self.completed + other.completed,
            dead: self.dead + other.dead,
            cancelled: self.cancelled + other.cancelled,
            lost: self.lost + other.lost,
        }
    }
}

/// A queue's operations.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct NamedTally {
    pub(super) queue: &'static str,
    #[serde(flatten)]
    pub(super) tally: QueueTally,
}

/// A committed operation of which nobody knows anything.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Missing {
    pub(super) operation: Uuid,
    pub(super) job: Uuid,
    pub(super) job_type: String,
    pub(super) queue: String,
}

impl Missing {
    fn of(operation: &Operation) -> Missing {
        Missing {
            operation: operation.id,
            job: operation.job,
            job_type: operation.job_type.clone(),
            queue: operation.queue.clone(),
        }
    }
}

/// The killed worker, and what became of its jobs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recovery {
    pub(super) worker: i32,
    pub(super) pid: u32,
    /// Jobs it held when it was killed.
    pub(super) held: usize,
    /// Those that were begun again by another worker and have ended.
    pub(super) recovered: usize,
    /// From the kill to the first and the last of them being begun again.
    pub(super) first_seconds: Option<f64>,
    pub(super) last_seconds: Option<f64>,
}

/// Seconds to a hundredth, for people.
pub(super) fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::effects::{Asked, Begun};

    struct Story {
        books: Books,
    }

    /// A story in which `n` operations were committed and each had its effect.
    fn story(n: u128) -> Story {
        let mut books = Books::default();
        for i in 1..=n {
            let (id, job) = (Uuid::from_u128(i), job(i));
            books.operations.push(Operation { id, job, job_type: "t".into(), queue: "webhooks".into() });
            books.told.begun.push(Begun { job, claim_no: 1, operation: id, at: 100.0 });
            books.told.done.insert((job, 1));
            books.told.effects.push(asked(i, job, 1));
        }
        Story { books }
    }

    fn job(i: u128) -> Uuid {
        Uuid::from_u128(1_000 + i)
    }

    fn asked(i: u128, job: Uuid, claim_no: i32) -> Asked {
        Asked { key: format!("key {i}"), operation: Uuid::from_u128(i), job, claim_no }
    }

    impl Story {
        fn end(&self) -> Reconciliation {
            self.books.reconcile(&Sales::default(), None)
        }
    }

    #[test]
    fn an_operation_without_any_trace_is_lost_and_named() {
        let mut story = story(3);
        assert!(story.end().holds());
        story.books.told.effects.retain(|effect| effect.operation != Uuid::from_u128(2));
        let end = story.end();
        assert_eq!((end.total.committed, end.total.completed, end.total.lost), (3, 2, 1));
        assert_eq!(end.lost_operations[0].operation, Uuid::from_u128(2));
        assert!(!end.holds());
    }

    #[test]
    fn dead_and_cancelled_are_not_lost() {
        let mut story = story(3);
        story.books.told.effects.clear();
        story.books.dead.insert(Uuid::from_u128(1));
        story.books.cancelled_jobs.insert(job(2));
        story.books.points.push(Uuid::from_u128(3));
        let end = story.end();
        assert_eq!((end.total.dead, end.total.cancelled, end.total.completed), (1, 1, 1));
        assert!(end.holds());
    }

    fn entry(event: u128, order: i32, what: &str) -> Entry {
        Entry { event: Uuid::from_u128(event), order, what: what.into() }
    }

    /// Two orders, the facts of both in between each other.
    fn ledger() -> Story {
        let mut story = story(1);
        story.books.facts = (11..=15).map(Uuid::from_u128).collect();
        story.books.outbox = story.books.facts.clone();
        story.books.ledger = vec![
            entry(11, 1, "order.placed"),
            entry(12, 2, "order.placed"),
            entry(13, 1, "order.paid"),
            entry(14, 2, "order.paid"),
            entry(15, 1, "order.delivered"),
        ];
        story
    }

    #[test]
    fn a_fact_is_lost_twice_out_of_order_or_a_phantom_by_the_ledger_alone() {
        let good = ledger().end();
        assert!(good.holds());
        assert_eq!((good.events.committed, good.events.handled), (5, 5));

        let mut story = ledger();
        story.books.ledger.pop();
        let end = story.end();
        assert_eq!((end.events.lost_events, end.events.handled), (vec![Uuid::from_u128(15)], 4));
        assert!(!story.end().holds());

        let mut story = ledger();
        story.books.ledger.swap(0, 2);
        assert!(story.end().events.out_of_order > 0 && !story.end().holds());

        let mut story = ledger();
        story.books.ledger.push(entry(15, 1, "order.delivered"));
        assert!(story.end().events.twice == 1 && !story.end().holds());

        for read in [true, false] {
            let mut story = ledger();
            let ghost = entry(77, 3, "order.placed");
            match read {
                true => story.books.ledger.push(ghost),
                false => assert!(story.books.outbox.insert(ghost.event)),
            }
            assert!(story.end().events.phantom == 1 && !story.end().holds());
        }
    }

    #[test]
    fn what_nobody_committed_is_a_phantom() {
        let mut story = story(1);
        let ghost = Uuid::from_u128(77);
        story.books.told.begun.push(Begun { job: job(77), claim_no: 1, operation: ghost, at: 100.0 });
        assert_eq!(story.end().phantom_operations, [ghost]);
        assert!(!story.end().holds());
        // Whatever it is that tells of it.
        story.books.told.begun.pop();
        story.books.told.effects.push(asked(77, job(77), 1));
        assert_eq!(story.end().phantom_operations, [ghost]);
        story.books.told.effects.pop();
        story.books.told.repeats.push(asked(77, job(77), 1));
        assert_eq!(story.end().phantom_operations, [ghost]);
        story.books.told.repeats.pop();
        story.books.points.push(ghost);
        assert_eq!(story.end().phantom_operations, [ghost]);
    }

    #[test]
    fn a_repeat_after_an_unfinished_claim_is_explained() {
        let mut story = story(1);
        story.books.told.done.clear();
        story.books.told.repeats.push(asked(1, job(1), 2));
        let end = story.end();
        assert_eq!((end.duplicates_effect, end.repeats_explained), (0, 1));

        // The handler ended well, but Outhaul never heard of it: the worker was killed in between.
        story.books.told.done.insert((job(1), 1));
        story.books.unfinished.insert((job(1), 1));
        assert_eq!(story.end().duplicates_effect, 0);
    }

    #[test]
    fn a_repeat_after_a_completed_claim_is_a_second_effect() {
        let mut story = story(1);
        story.books.told.repeats.push(asked(1, job(1), 2));
        let end = story.end();
        assert_eq!((end.duplicates_effect, end.repeats_explained), (1, 0));
        assert!(!end.holds());
    }

    #[test]
    fn two_jobs_under_one_key_are_a_second_effect() {
        let mut story = story(1);
        story.books.told.done.clear();
        story.books.told.repeats.push(asked(1, job(2), 1));
        assert_eq!(story.end().duplicates_effect, 1);
        // Also where the other one's claim has a larger number.
        story.books.told.repeats = vec![asked(1, job(2), 2)];
        assert_eq!(story.end().duplicates_effect, 1);
    }

    #[test]
    fn one_claim_that_asks_twice_is_a_second_effect() {
        let mut story = story(1);
        story.books.told.done.clear();
        story.books.told.repeats.push(asked(1, job(1), 1));
        assert_eq!((story.end().duplicates_effect, story.end().repeats_explained), (1, 0));
    }

    #[test]
    fn points_booked_twice_are_a_second_effect() {
        let mut story = story(1);
        story.books.points = vec![Uuid::from_u128(1), Uuid::from_u128(1)];
        assert_eq!(story.end().duplicates_effect, 1);
    }

    #[test]
    fn only_jobs_begun_again_and_ended_count_as_recovered() {
        let mut story = story(3);
        let kill = Kill { worker: 2, pid: 1, at: 101.0, held: vec![(job(1), 1), (job(2), 1), (job(3), 1)] };
        for i in [1, 2] {
            let operation = Uuid::from_u128(i);
            story.books.told.begun.push(Begun { job: job(i), claim_no: 2, operation, at: 103.0 + i as f64 });
        }
        story.books.live_jobs.insert(job(2));
        let found = story.books.reconcile(&Sales::default(), Some(&kill)).kill.unwrap();
        assert_eq!((found.held, found.recovered, found.first_seconds), (3, 1, Some(3.0)));
    }
}
