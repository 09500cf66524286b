//! How much to claim, where to start scanning, and when to look again.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Most jobs in one claim.
pub(crate) const MAX_CLAIM: usize = 1_000;

/// What a source of jobs looks like at the moment it considers a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Handlers that may run at once.
    pub(crate) concurrency: usize,
    /// Whether more may be claimed than can start now.
    pub(crate) ahead: bool,
    /// Handlers running now.
    pub(crate) running: usize,
    /// Claimed jobs that wait for a handler.
    pub(crate) buffered: usize,
    /// Ended attempts whose settlement is not acknowledged.
    pub(crate) unsettled: usize,
    /// Observed time of one handler run.
    pub(crate) service_time: Duration,
    /// Observed time of one claim.
    pub(crate) claim_time: Duration,
    pub(crate) lease: Duration,
}

/// How many jobs to claim now; 0 for none.
///
/// Slow handlers get only what free slots can start at once: a job that waits in this process could
/// have started in another. Fast handlers get what will run while the next claims are on their way,
/// and never more than runs within a quarter of the lease.
pub(crate) fn claim_size(load: Load) -> usize {
    let free = load.concurrency.saturating_sub(load.running + load.buffered);
    let ahead =
        runs_within(load, (load.claim_time * 4).clamp(Duration::from_millis(5), Duration::from_millis(50)))
            .min(runs_within(load, load.lease / 4))
            .min(2 * MAX_CLAIM);
    let room = (2 * MAX_CLAIM + load.concurrency).saturating_sub(load.unsettled);
    // Jobs that would be started later than the ones running now: below one per slot there is no backlog
    // worth prefetching for.
    let prefetch =
        if load.ahead && ahead > load.concurrency { ahead.saturating_sub(load.buffered) } else { 0 };
    let want = free.max(prefetch).min(room).min(MAX_CLAIM);
    // With a stock in hand, wait until a good part of a batch fits: small claims cost as much as large ones.
    if load.buffered > 0 && want < MAX_CLAIM.min(ahead) / 2 { 0 } else { want }
}

fn runs_within(load: Load, time: Duration) -> usize {
    let each = load.service_time.max(Duration::from_micros(1)).as_secs_f64();
    (load.concurrency as f64 * time.as_secs_f64() / each).min(1e6) as usize
}

/// A running average that forgets: each new value counts a fifth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average(f64);

impl Average {
    pub(crate) fn new(start: Duration) -> Average {
        Average(start.as_secs_f64())
    }

    pub(crate) fn add(&mut self, value: Duration) {
        self.0 += (value.as_secs_f64() - self.0) / 5.0;
    }

    pub(crate) fn get(self) -> Duration {
        Duration::from_secs_f64(self.0.max(0.0))
    }
}

/// One (priority, share) of a queue and where the next claim starts in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lane {
    pub(crate) priority: i16,
    pub(crate) share: i32,
    pub(crate) floor: Floor,
}

/// Where the next ordinary claim starts scanning a lane. Only a hint: the rescans find what lies below,
/// which is late commits and given-back jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Floor {
    /// A claim ended here with more to come: start exactly here. Half a second behind it a bulk load can
    /// have put tens of thousands of rows that each claim would walk again.
    At(Timestamp),
    /// A claim sent at this instant found the lane's end: start [`SHORT_MARGIN`] before it, on the server's
    /// clock, counted back from the next statement.
    Exhausted(Instant),
}

/// How far behind a claim that came back short the next one starts.
pub(crate) const SHORT_MARGIN: Duration = Duration::from_millis(500);
/// How far behind the floor the near rescan starts.
pub(crate) const NEAR_MARGIN: Duration = Duration::from_secs(5);

/// How long until a busy source rescans near its floor: the rarer the dearer that is, and once a second at least.
pub(crate) fn near_every(last_cost: Duration) -> Duration {
    (last_cost * NEAR_SHARE).clamp(Duration::from_millis(500), Duration::from_secs(1))
}

const NEAR_SHARE: u32 = 100;

/// The lanes after a claim: `sent` is when it was sent, `asked` its limit, `got` the claimed rows' lanes; `governed`
/// when the queue has limits or fair shares, so that a claim can be short without having seen a lane's end.
pub(crate) fn floors_after(
    lanes: &[Lane],
    got: &[(i16, i32, Timestamp)],
    asked: usize,
    governed: bool,
    sent: Instant,
) -> Vec<Lane> {
    let mut next = lanes.to_vec();
    for &(priority, share, run_at) in got {
        match next.iter_mut().find(|lane| lane.priority == priority && lane.share == share) {
            Some(lane) => {
                lane.floor = match lane.floor {
                    Floor::At(at) if at >= run_at => lane.floor,
                    _ => Floor::At(run_at),
                }
            }
            None => next.push(Lane { priority, share, floor: Floor::At(run_at) }),
        }
    }
    next.sort_by_key(|lane| (std::cmp::Reverse(lane.priority), lane.share));
    if governed {
        return next;
    }
    // Lanes are scanned in this order. A full claim ended in the last lane that gave rows; those above it
    // came to their end, and so did all of them when the claim came back short.
    let last = got.iter().map(|&(priority, share, _)| (std::cmp::Reverse(priority), share)).max();
    for lane in &mut next {
        let place = (std::cmp::Reverse(lane.priority), lane.share);
        if got.len() < asked || last.is_some_and(|last| place < last) {
            lane.floor = Floor::Exhausted(sent);
        }
    }
    next
}

/// The share of a fair queue that had its turn last: of those that a claim came to, the farthest one around the circle
/// from where it began.
pub(crate) fn served_last(before: i32, shares: impl Iterator<Item = i32>) -> i32 {
    let way = |share: i32| (i64::from(share) - i64::from(before) - 1).rem_euclid(1 << 31);
    shares.max_by_key(|share| way(*share)).unwrap_or(before)
}

/// When a source looks next without being told to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Since the last wake, if there was one and nothing was found after it yet.
    pub(crate) since_wake: Option<Duration>,
    /// The poll interval in force.
    pub(crate) poll: Duration,
    /// The next job known to become due.
    pub(crate) next_due: Option<Duration>,
}

/// A gated notification can be suppressed by a transaction that commits before it, so after a wake the
/// source looks again at these distances.
pub(crate) const LINGER: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
];

/// How long an idle source sleeps.
pub(crate) fn sleep(look: Look) -> Duration {
    let linger = look
        .since_wake
        .and_then(|since| LINGER.iter().find(|at| **at > since).map(|at| *at - since))
        .unwrap_or(Duration::MAX);
    look.poll.min(linger).min(look.next_due.unwrap_or(Duration::MAX)).max(Duration::from_millis(1))
}

/// A scan from the beginning is due again after this many times its own cost, so that dead rows under a held
/// snapshot cost a twentieth of the time at most.
pub(crate) const FAR_SHARE: u32 = 20;

/// How long until the next scan from the beginning.
pub(crate) fn far_every(last_cost: Duration) -> Duration {
    (last_cost * FAR_SHARE).max(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            concurrency: 10,
            ahead: true,
            running: 0,
            buffered: 0,
            unsettled: 0,
            service_time: Duration::from_secs(1),
            claim_time: Duration::from_millis(2),
            lease: Duration::from_secs(60),
        }
    }

    #[test]
    fn slow_handlers_get_only_what_can_start_now() {
        assert_eq!(claim_size(load()), 10);
        assert_eq!(claim_size(Load { running: 7, ..load() }), 3);
        assert_eq!(claim_size(Load { running: 10, ..load() }), 0);
        assert_eq!(claim_size(Load { running: 8, buffered: 2, ..load() }), 0);
    }

    #[test]
    fn fast_handlers_get_full_batches_and_small_claims_are_saved() {
        let fast = Load { service_time: Duration::from_micros(10), ..load() };
        assert_eq!(claim_size(fast), MAX_CLAIM);
        assert_eq!(claim_size(Load { running: 10, buffered: 1_000, ..fast }), MAX_CLAIM);
        assert_eq!(claim_size(Load { running: 10, buffered: 1_900, ..fast }), 0);
    }

    #[test]
    fn never_more_than_runs_within_a_quarter_of_the_lease() {
        let load = Load {
            service_time: Duration::from_millis(10),
            lease: Duration::from_secs(1),
            claim_time: Duration::from_secs(9),
            concurrency: 1,
            ..load()
        };
        assert!(claim_size(load) <= 25);
    }

    #[test]
    fn unsettled_work_is_bounded() {
        let fast = Load { service_time: Duration::from_micros(10), unsettled: 2_010, ..load() };
        assert_eq!(claim_size(fast), 0);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn a_full_claim_leaves_an_exact_floor_and_a_short_one_the_end() {
        let sent = Instant::now();
        let lanes = [
            Lane { priority: 5, share: 0, floor: Floor::At(at(0)) },
            Lane { priority: 0, share: 0, floor: Floor::At(at(0)) },
            Lane { priority: -5, share: 0, floor: Floor::At(at(0)) },
        ];
        let got = [(5, 0, at(1)), (0, 0, at(2)), (0, 0, at(3))];
        let full = floors_after(&lanes, &got, 3, false, sent);
        assert_eq!(full[0].floor, Floor::Exhausted(sent), "above the last lane that gave rows");
        assert_eq!(full[1].floor, Floor::At(at(3)));
        assert_eq!(full[2].floor, Floor::At(at(0)), "not reached");
        let short = floors_after(&lanes, &got, 4, false, sent);
        assert!(short.iter().all(|lane| lane.floor == Floor::Exhausted(sent)));
    }

    #[test]
    fn a_claim_that_a_limit_cut_short_has_seen_no_end() {
        let lanes = [Lane { priority: 0, share: 0, floor: Floor::At(at(9)) }];
        let none = floors_after(&lanes, &[], 5, true, Instant::now());
        assert_eq!(none[0].floor, Floor::At(at(9)));
        let some = floors_after(&lanes, &[(0, 0, at(11))], 5, true, Instant::now());
        assert_eq!(some[0].floor, Floor::At(at(11)));
    }

    #[test]
    fn turns_go_around_the_circle() {
        assert_eq!(served_last(-1, [].into_iter()), -1);
        assert_eq!(served_last(-1, [5, 9, 7].into_iter()), 9);
        assert_eq!(served_last(8, [9, 3, i32::MAX].into_iter()), 3, "beyond the end comes the beginning");
        assert_eq!(served_last(8, [8].into_iter()), 8, "all the way around");
        assert_eq!(served_last(8, [8, 9].into_iter()), 8);
    }

    #[test]
    fn a_new_lane_is_added_in_order_and_floors_do_not_go_back() {
        let lanes = [Lane { priority: 0, share: 0, floor: Floor::At(at(9)) }];
        let next = floors_after(&lanes, &[(0, 0, at(4)), (7, 0, at(1))], 2, false, Instant::now());
        assert_eq!(next.iter().map(|lane| lane.priority).collect::<Vec<_>>(), [7, 0]);
        assert_eq!(next[1].floor, Floor::At(at(9)));
    }

    #[test]
    fn sleep_is_bounded_by_poll_due_and_linger() {
        let ms = Duration::from_millis;
        let look = Look { since_wake: None, poll: ms(1000), next_due: None };
        assert_eq!(sleep(look), ms(1000));
        assert_eq!(sleep(Look { next_due: Some(ms(300)), ..look }), ms(300));
        assert_eq!(sleep(Look { next_due: Some(ms(0)), ..look }), ms(1), "no hot loop");
        assert_eq!(sleep(Look { since_wake: Some(ms(0)), ..look }), ms(5));
        assert_eq!(sleep(Look { since_wake: Some(ms(6)), ..look }), ms(14));
        assert_eq!(sleep(Look { since_wake: Some(ms(101)), ..look }), ms(1000));
    }
}
