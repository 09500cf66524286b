//! Which partitions of a table ranged by time to create and to drop.

use jiff::{SignedDuration, Timestamp};

/// A partition as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// `None` for the beginning of time.
    pub(crate) low: Option<Timestamp>,
    /// `None` for the end of time: the tail.
    pub(crate) high: Option<Timestamp>,
    pub(crate) detach_pending: bool,
    /// A table of this one's making that is no partition any more: its dropping was interrupted.
    pub(crate) orphan: bool,
}

/// The rules of a ranged table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) step: SignedDuration,
    /// Steps to keep ready after the present one.
    pub(crate) ahead: u32,
    pub(crate) keep: SignedDuration,
}

/// One thing to do, each safe to repeat after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A concurrent detach of this partition was begun and has to be finished.
    FinishDetach(String),
    /// This table was detached to be dropped.
    DropOrphan(String),
    /// Nothing holds the beginning of time: it was being replaced when somebody died.
    AttachPast { until: Timestamp },
    /// The tail is not attached: it was being carved when somebody died.
    AttachTail { low: Timestamp },
    /// Time has reached the tail: rows may be in it. Close it as an ordinary partition up to `at` and begin a new tail.
    CloseTail { tail: String, low: Timestamp, at: Timestamp },
    /// Carve these ranges out of the empty tail.
    Carve { tail: String, ranges: Vec<(Timestamp, Timestamp)>, low: Timestamp },
    /// Nothing in these is young enough to keep. They reach from the beginning of time to `until`.
    Drop { parts: Vec<String>, until: Timestamp },
}

/// Time that must remain before the tail is reached for it to be taken off: rows that belong to it have
/// nowhere to go meanwhile.
const LEAD: SignedDuration = SignedDuration::from_hours(1);

/// The next step for a table, or `None` when all is well. Called again after each step.
pub(crate) fn next_step(parts: &[Part], rules: Rules, now: Timestamp) -> Option<Step> {
    if let Some(part) = parts.iter().find(|part| part.detach_pending) {
        return Some(Step::FinishDetach(part.name.clone()));
    }
    if let Some(part) = parts.iter().find(|part| part.orphan) {
        return Some(Step::DropOrphan(part.name.clone()));
    }
    if parts.iter().all(|part| part.low.is_some()) {
        return parts.iter().filter_map(|part| part.low).min().map(|until| Step::AttachPast { until });
    }
    let Some(tail) = parts.iter().find(|part| part.high.is_none()) else {
        let low = parts.iter().filter_map(|part| part.high).max()?;
        return Some(Step::AttachTail { low });
    };
    let low = tail.low?;
    if low <= now.saturating_add(LEAD).unwrap_or(now) {
        let at = border_after(now.saturating_add(LEAD).unwrap_or(now), rules.step);
        return Some(Step::CloseTail { tail: tail.name.clone(), low, at });
    }
    // Only when a step is missing: carving takes the tail off for a moment, so not at every call.
    let want = border_after(now, rules.step).saturating_add(rules.step * rules.ahead as i32).unwrap_or(low);
    if low < want {
        let mut ranges = Vec::new();
        let mut from = low;
        while from < want {
            let to = border_after(from, rules.step);
            ranges.push((from, to));
            from = to;
        }
        return Some(Step::Carve { tail: tail.name.clone(), ranges, low: from });
    }
    drop_step(parts, rules, now)
}

fn drop_step(parts: &[Part], rules: Rules, now: Timestamp) -> Option<Step> {
    let edge = now.checked_sub(rules.keep).ok()?;
    let old: Vec<&Part> = parts.iter().filter(|part| part.high.is_some_and(|high| high <= edge)).collect();
    // The part from the beginning of time is always there and always empty; alone it is not worth a step.
    if old.iter().all(|part| part.low.is_none() && part.name.ends_with("_past")) {
        return None;
    }
    let until = old.iter().filter_map(|part| part.high).max()?;
    Some(Step::Drop { parts: old.iter().map(|part| part.name.clone()).collect(), until })
}

/// The first border of the step's grid after a time. The grid counts from the Unix epoch in UTC.
fn border_after(at: Timestamp, step: SignedDuration) -> Timestamp {
    let step = step.as_secs().max(1);
    let next = (at.as_second().div_euclid(step) + 1) * step;
    Timestamp::from_second(next).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn day(n: i64) -> Timestamp {
        Timestamp::from_second(n * DAY).unwrap()
    }

    fn part(name: &str, low: Option<i64>, high: Option<i64>) -> Part {
        Part {
            name: name.into(),
            low: low.map(day),
            high: high.map(day),
            detach_pending: false,
            orphan: false,
        }
    }

    fn rules() -> Rules {
        Rules { step: SignedDuration::from_hours(24), ahead: 3, keep: SignedDuration::from_hours(24) }
    }

    #[test]
    fn carves_what_is_missing_ahead_and_then_rests() {
        let parts = [part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        let now = day(100) + SignedDuration::from_hours(5);
        let Some(Step::Carve { ranges, low, .. }) = next_step(&parts, rules(), now) else { panic!() };
        assert_eq!(ranges, [(day(102), day(103)), (day(103), day(104))]);
        assert_eq!(low, day(104));
        let after = [
            part("t_first", None, Some(102)),
            part("a", Some(102), Some(103)),
            part("b", Some(103), Some(104)),
            part("t_tail", Some(104), None),
        ];
        assert_eq!(next_step(&after, rules(), now), None);
    }

    #[test]
    fn a_tail_that_time_has_reached_is_closed_in_place() {
        let parts = [part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        let step = next_step(&parts, rules(), day(150)).unwrap();
        assert_eq!(step, Step::CloseTail { tail: "t_tail".into(), low: day(102), at: day(151) });
        // Shortly before midnight the border must not be minutes away.
        let late = day(150) - SignedDuration::from_mins(30);
        let Some(Step::CloseTail { at, .. }) = next_step(&parts, rules(), late) else { panic!() };
        assert_eq!(at, day(151));
    }

    #[test]
    fn resumes_at_any_point() {
        let mut parts = vec![part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        parts[1].detach_pending = true;
        assert_eq!(next_step(&parts, rules(), day(100)), Some(Step::FinishDetach("t_tail".into())));
        let mut orphaned = vec![part("t_tail", Some(102), None), part("a", Some(101), Some(102))];
        assert_eq!(next_step(&orphaned, rules(), day(100)), Some(Step::AttachPast { until: day(101) }));
        orphaned.push(Part { orphan: true, ..part("t_first", None, None) });
        assert_eq!(next_step(&orphaned, rules(), day(100)), Some(Step::DropOrphan("t_first".into())));
        let detached = [part("t_first", None, Some(102)), part("a", Some(102), Some(103))];
        assert_eq!(next_step(&detached, rules(), day(100)), Some(Step::AttachTail { low: day(103) }));
    }

    #[test]
    fn drops_only_what_is_wholly_older_than_kept_and_keeps_a_beginning() {
        let ahead = part("t_tail", Some(110), None);
        let parts = [
            part("t_first", None, Some(102)),
            part("a", Some(102), Some(103)),
            part("b", Some(103), Some(110)),
            ahead.clone(),
        ];
        assert_eq!(
            next_step(&parts, rules(), day(102) + SignedDuration::from_hours(23)),
            None,
            "102 ends less than a day ago"
        );
        let step = next_step(&parts, rules(), day(104)).unwrap();
        assert_eq!(step, Step::Drop { parts: vec!["t_first".into(), "a".into()], until: day(103) });
        let after = [part("t_past", None, Some(103)), part("b", Some(103), Some(110)), ahead];
        assert_eq!(next_step(&after, rules(), day(104)), None);
    }
}
