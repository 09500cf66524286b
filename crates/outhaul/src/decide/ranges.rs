//! Which partitions of a ranged table to create and to drop.
//!
//! A table is cut by time or by position; here both are numbers: microseconds since 1970, or positions.

/// A partition as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// `None` for the beginning of all.
    pub(crate) low: Option<i64>,
    /// `None` for the end of all: the tail.
    pub(crate) high: Option<i64>,
    pub(crate) detach_pending: bool,
    /// A table of this one's making that is no partition any more: its dropping was interrupted.
    pub(crate) orphan: bool,
    /// Whether it was proven to hold nothing that is needed, and closed; `None` where age alone decides.
    pub(crate) retired: Option<bool>,
}

/// The rules of a ranged table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) step: i64,
    /// Steps to keep ready after the present one.
    pub(crate) ahead: u32,
    /// What must remain before the tail is reached for it to be taken off: rows that belong to it have nowhere
    /// to go meanwhile.
    pub(crate) lead: i64,
    /// The present: the time, or the head.
    pub(crate) now: i64,
    /// What ends here or before may be dropped; nothing while it is not known.
    pub(crate) edge: Option<i64>,
}

/// One thing to do, each safe to repeat after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A concurrent detach of this partition was begun and has to be finished.
    FinishDetach(String),
    /// This table was detached to be dropped.
    DropOrphan(String),
    /// Nothing holds the beginning: it was being replaced when somebody died.
    AttachPast { until: i64 },
    /// The tail is not attached: it was being carved when somebody died.
    AttachTail { low: i64 },
    /// The present has reached the tail: rows may be in it. Close it as an ordinary partition up to `at` and begin a
    /// new tail.
    CloseTail { tail: String, low: i64, at: i64 },
    /// Carve these ranges out of the empty tail.
    Carve { tail: String, ranges: Vec<(i64, i64)>, low: i64 },
    /// This partition was retired, and is needed again: a cursor was set back.
    Reopen(String),
    /// Nothing in these is needed any more. From the lowest on, each with its end.
    Drop { parts: Vec<(String, i64)> },
}

/// The next step for a table, or `None` when all is well. Called again after each step.
pub(crate) fn next_step(parts: &[Part], rules: Rules) -> Option<Step> {
    if let Some(part) = parts.iter().find(|part| part.detach_pending) {
        return Some(Step::FinishDetach(part.name.clone()));
    }
    // One that nobody has proven was detached by hand, to be kept somewhere.
    if let Some(part) = parts.iter().find(|part| part.orphan && part.retired != Some(false)) {
        return Some(Step::DropOrphan(part.name.clone()));
    }
    let parts: Vec<&Part> = parts.iter().filter(|part| !part.orphan).collect();
    if parts.iter().all(|part| part.low.is_some()) {
        return parts.iter().filter_map(|part| part.low).min().map(|until| Step::AttachPast { until });
    }
    let Some(tail) = parts.iter().find(|part| part.high.is_none()) else {
        let low = parts.iter().filter_map(|part| part.high).max()?;
        return Some(Step::AttachTail { low });
    };
    ahead_step(tail, rules).or_else(|| past_step(&parts, rules))
}

fn ahead_step(tail: &Part, rules: Rules) -> Option<Step> {
    let low = tail.low?;
    let near = rules.now.saturating_add(rules.lead);
    if low <= near {
        return Some(Step::CloseTail { tail: tail.name.clone(), low, at: border_after(near, rules.step) });
    }
    // Only when a step is missing: carving takes the tail off for a moment, so not at every call.
    let want =
        border_after(rules.now, rules.step).saturating_add(rules.step.saturating_mul(i64::from(rules.ahead)));
    let mut ranges = Vec::new();
    let mut from = low;
    while from < want {
        let to = border_after(from, rules.step);
        ranges.push((from, to));
        from = to;
    }
    (!ranges.is_empty()).then(|| Step::Carve { tail: tail.name.clone(), ranges, low: from })
}

fn past_step(parts: &[&Part], rules: Rules) -> Option<Step> {
    let edge = rules.edge.unwrap_or(i64::MIN);
    let is_old = |part: &&&Part| part.high.is_some_and(|high| high <= edge);
    if let Some(part) = parts.iter().find(|part| part.retired == Some(true) && !is_old(part)) {
        return Some(Step::Reopen(part.name.clone()));
    }
    let mut old: Vec<&Part> = parts.iter().filter(is_old).copied().collect();
    old.sort_by_key(|part| part.high);
    // The part from the beginning is always there and all but always empty; alone it is not worth a step.
    if old.iter().all(|part| part.is_past()) {
        return None;
    }
    let old = old.into_iter().filter_map(|part| Some((part.name.clone(), part.high?)));
    Some(Step::Drop { parts: old.collect() })
}

impl Part {
    /// Whether it is the one that holds the place of all that was dropped.
    fn is_past(&self) -> bool {
        self.low.is_none() && is_past(&self.name)
    }
}

/// Whether a partition of this name holds the place of all that was dropped.
pub(crate) fn is_past(name: &str) -> bool {
    name.ends_with("_past")
}

/// The first border of the step's grid after a number. The grid counts from zero, for times in UTC.
fn border_after(at: i64, step: i64) -> i64 {
    let step = step.max(1);
    at.div_euclid(step).saturating_add(1).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;
    const HOUR: i64 = DAY / 24;

    fn part(name: &str, low: Option<i64>, high: Option<i64>) -> Part {
        Part {
            name: name.into(),
            low: low.map(|n| n * DAY),
            high: high.map(|n| n * DAY),
            detach_pending: false,
            orphan: false,
            retired: None,
        }
    }

    fn proven(name: &str, low: Option<i64>, high: Option<i64>, retired: bool) -> Part {
        Part { retired: Some(retired), ..part(name, low, high) }
    }

    /// A table cut by days, of which one is kept.
    fn at(now: i64) -> Rules {
        Rules { step: DAY, ahead: 3, lead: HOUR, now, edge: Some(now - DAY) }
    }

    #[test]
    fn carves_what_is_missing_ahead_and_then_rests() {
        let parts = [part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        let now = 100 * DAY + 5 * HOUR;
        let Some(Step::Carve { ranges, low, .. }) = next_step(&parts, at(now)) else { panic!() };
        assert_eq!(ranges, [(102 * DAY, 103 * DAY), (103 * DAY, 104 * DAY)]);
        assert_eq!(low, 104 * DAY);
        let after = [
            part("t_first", None, Some(102)),
            part("a", Some(102), Some(103)),
            part("b", Some(103), Some(104)),
            part("t_tail", Some(104), None),
        ];
        assert_eq!(next_step(&after, at(now)), None);
    }

    #[test]
    fn positions_are_carved_ahead_of_the_head_and_closed_half_a_step_before_it() {
        let parts = |tail: i64| {
            [
                Part { high: Some(tail), ..part("f_first", None, None) },
                Part { low: Some(tail), ..part("f_tail", None, None) },
            ]
        };
        let rules = |now| Rules { step: 100, ahead: 2, lead: 50, now, edge: None };
        assert_eq!(next_step(&parts(300), rules(0)), None);
        let carve = |ranges: &[(i64, i64)], low| {
            Some(Step::Carve { tail: "f_tail".into(), ranges: ranges.to_vec(), low })
        };
        assert_eq!(next_step(&parts(200), rules(0)), carve(&[(200, 300)], 300));
        assert_eq!(next_step(&parts(200), rules(149)), carve(&[(200, 300), (300, 400)], 400));
        let close = |at| Some(Step::CloseTail { tail: "f_tail".into(), low: 200, at });
        assert_eq!(next_step(&parts(200), rules(150)), close(300));
        assert_eq!(next_step(&parts(200), rules(1_049)), close(1_100));
        // A step that was made larger begins at its own grid.
        let off = |now| Rules { step: 1_000, ahead: 2, lead: 500, now, edge: None };
        assert_eq!(next_step(&parts(1_200), off(10)), carve(&[(1_200, 2_000), (2_000, 3_000)], 3_000));
    }

    #[test]
    fn a_tail_that_time_has_reached_is_closed_in_place() {
        let parts = [part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        let step = next_step(&parts, at(150 * DAY)).unwrap();
        assert_eq!(step, Step::CloseTail { tail: "t_tail".into(), low: 102 * DAY, at: 151 * DAY });
        // Shortly before midnight the border must not be minutes away.
        let Some(Step::CloseTail { at, .. }) = next_step(&parts, at(150 * DAY - HOUR / 2)) else { panic!() };
        assert_eq!(at, 151 * DAY);
    }

    #[test]
    fn resumes_at_any_point() {
        let rules = at(100 * DAY);
        let mut parts = vec![part("t_first", None, Some(102)), part("t_tail", Some(102), None)];
        parts[1].detach_pending = true;
        assert_eq!(next_step(&parts, rules), Some(Step::FinishDetach("t_tail".into())));
        let mut orphaned = vec![part("t_tail", Some(102), None), part("a", Some(101), Some(102))];
        assert_eq!(next_step(&orphaned, rules), Some(Step::AttachPast { until: 101 * DAY }));
        orphaned.push(Part { orphan: true, ..part("t_first", None, None) });
        assert_eq!(next_step(&orphaned, rules), Some(Step::DropOrphan("t_first".into())));
        let detached = [part("t_first", None, Some(102)), part("a", Some(102), Some(103))];
        assert_eq!(next_step(&detached, rules), Some(Step::AttachTail { low: 103 * DAY }));
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
        assert_eq!(next_step(&parts, at(102 * DAY + 23 * HOUR)), None, "102 ends less than a day ago");
        let step = next_step(&parts, at(104 * DAY)).unwrap();
        let old = vec![("t_first".into(), 102 * DAY), ("a".into(), 103 * DAY)];
        assert_eq!(step, Step::Drop { parts: old });
        assert_eq!(
            next_step(&parts, Rules { edge: None, ..at(104 * DAY) }),
            None,
            "nothing is known to be old"
        );
        let after = [part("t_past", None, Some(103)), part("b", Some(103), Some(110)), ahead];
        assert_eq!(next_step(&after, at(104 * DAY)), None);
    }

    #[test]
    fn only_what_was_proven_is_dropped_and_what_is_needed_again_is_opened() {
        let tail = proven("t_tail", Some(110), None, false);
        let mut parts = vec![
            proven("t_past", None, Some(101), false),
            proven("a", Some(101), Some(102), true),
            proven("b", Some(102), Some(110), false),
            tail,
        ];
        let old = vec![("t_past".into(), 101 * DAY), ("a".into(), 102 * DAY)];
        assert_eq!(next_step(&parts, at(104 * DAY)), Some(Step::Drop { parts: old }));
        let needed = Rules { edge: Some(101 * DAY), ..at(104 * DAY) };
        assert_eq!(next_step(&parts, needed), Some(Step::Reopen("a".into())));
        let unknown = Rules { edge: None, ..at(104 * DAY) };
        assert_eq!(next_step(&parts, unknown), Some(Step::Reopen("a".into())));
        parts[1] = Part { orphan: true, ..proven("a", None, None, true) };
        assert_eq!(next_step(&parts, at(104 * DAY)), Some(Step::DropOrphan("a".into())));
        parts[1].retired = Some(false);
        assert_eq!(next_step(&parts, at(104 * DAY)), None, "detached by hand");
    }
}
