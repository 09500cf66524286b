//! `outhaul queues list|show`: how queues do, and what holds them apart.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use outhaul::{IsolationView, QueueSettings, QueueView, WaitReason, WaitView, Waiting};
use serde_json::{Value, json};

use super::super::{observer, waits};
use crate::exit::{Exit, Problem};
use crate::output::{Global, facts, or_dash, span};

pub(super) async fn list(jsonl: bool, global: &Global) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    let mut queues = observer.queues().await?;
    let apart: BTreeMap<String, IsolationView> =
        observer.isolation(None).await?.into_iter().map(|view| (view.queue.clone(), view)).collect();
    // One whose jobs all wait is in no other count.
    let known = |name: &String| queues.iter().any(|queue| queue.queue == *name);
    let unseen: Vec<QueueView> =
        apart.keys().filter(|name| !known(name)).map(|name| nothing_of(name)).collect();
    queues.extend(unseen);
    queues.sort_by_key(|queue| (Reverse(oldest_ms(queue, apart.get(&queue.queue))), queue.queue.clone()));
    let both = || queues.iter().map(|queue| (queue, apart.get(&queue.queue)));
    if global.json {
        let queues = both().map(|(queue, apart)| as_json(queue, apart)).collect::<Result<Vec<_>, _>>()?;
        global.print_json(&json!({ "queues": queues }))?;
    } else if jsonl {
        both().try_for_each(|(queue, apart)| global.print_json(&as_json(queue, apart)?))?;
    } else {
        let header = [
            "QUEUE",
            "OLDEST",
            "PENDING",
            "WAITING",
            "SCHEDULED",
            "LEASED",
            "RETRYING",
            "DEAD",
            "WORKERS",
            "LIMIT",
            "RATE",
            "COOLING",
            "PAUSED",
        ];
        global.print_table(&header, both().map(|(queue, apart)| row(queue, apart)).collect())?;
    }
    Ok(Exit::Ok)
}

fn nothing_of(name: &str) -> QueueView {
    QueueView {
        queue: name.to_owned(),
        pending: 0,
        scheduled: 0,
        leased: 0,
        retrying: 0,
        dead_letter: 0,
        capped: false,
        oldest_pending_ms: None,
        oldest_expired_lease_ms: None,
        paused: false,
        paused_reason: None,
        history: "row".to_owned(),
        age_objective_ms: None,
        workers: 0,
    }
}

/// The fields of a queue, and beside them those that hold it apart.
fn as_json(queue: &QueueView, apart: Option<&IsolationView>) -> anyhow::Result<Value> {
    let mut shown = serde_json::to_value(queue)?;
    if let (Some(shown), Value::Object(apart)) = (shown.as_object_mut(), serde_json::to_value(apart)?) {
        shown.extend(apart);
    }
    Ok(shown)
}

/// A number that was counted up to a cap: the reader is told when there are more.
fn counted(n: i64, capped: bool) -> String {
    if capped { format!("{n}+") } else { n.to_string() }
}

fn row(queue: &QueueView, apart: Option<&IsolationView>) -> Vec<String> {
    let live = |n: i64| counted(n, queue.capped);
    let settings = apart.map(|apart| &apart.settings);
    vec![
        queue.queue.clone(),
        or_dash(oldest_ms(queue, apart).map(span)),
        live(queue.pending),
        apart.map_or_else(|| "0".to_owned(), |apart| counted(apart.waiting.held(), apart.waiting_capped)),
        live(queue.scheduled),
        live(queue.leased),
        live(queue.retrying),
        queue.dead_letter.to_string(),
        queue.workers.to_string(),
        or_dash(apart.and_then(|apart| Some(format!("{}/{}", apart.running, apart.settings.max_running?)))),
        or_dash(settings.and_then(|settings| rate(settings.rate, settings.rate_per_seconds))),
        or_dash(apart.and_then(cooling)),
        paused(queue),
    ]
}

/// Age of the oldest job that could run, or would if it were its turn.
fn oldest_ms(queue: &QueueView, apart: Option<&IsolationView>) -> Option<i64> {
    queue.oldest_pending_ms.max(apart.and_then(|apart| apart.oldest_waiting_ms))
}

fn paused(queue: &QueueView) -> String {
    if queue.paused { queue.paused_reason.clone().unwrap_or_else(|| "yes".into()) } else { "-".into() }
}

/// How long the queue still cools down, else how many of its keys do.
fn cooling(apart: &IsolationView) -> Option<String> {
    let keys = (apart.cooling_keys > 0).then(|| match apart.cooling_keys {
        1 => "1 key".to_owned(),
        n => format!("{n} keys"),
    });
    apart.cooling_ms.map(span).or(keys)
}

/// A rate as `--rate` takes it.
pub(super) fn rate(jobs: Option<i32>, per_seconds: Option<f64>) -> Option<String> {
    Some(format!("{}/{}", jobs?, seconds(per_seconds?)))
}

/// Whole seconds in the largest unit that has no rest.
fn seconds(seconds: f64) -> String {
    let n = Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs();
    [(86_400, 'd'), (3_600, 'h'), (60, 'm')]
        .into_iter()
        .find(|(unit, _)| n > 0 && n.is_multiple_of(*unit))
        .map_or_else(|| format!("{n}s"), |(unit, name)| format!("{}{name}", n / unit))
}

pub(super) async fn show(name: &str, keys: i32, global: &Global) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    let queue = observer.queues().await?.into_iter().find(|queue| queue.queue == name);
    let apart = observer.isolation(Some(name)).await?.into_iter().next();
    let Some(apart) = apart.filter(|apart| queue.is_some() || apart.waiting.held() > 0) else {
        return Err(Problem::new(Exit::NotFound, "not_found", format!("there is no queue {name}"))
            .hint("A queue is there when it has jobs, settings or workers: outhaul queues list")
            .into());
    };
    let queue = queue.unwrap_or_else(|| nothing_of(name));
    let waiting = observer.waiting(name, keys).await?;
    if global.json {
        let mut shown = as_json(&queue, Some(&apart))?;
        shown["waiting_keys"] = serde_json::to_value(&waiting)?;
        global.print_json(&shown)?;
        return Ok(Exit::Ok);
    }
    global.print(global.bold(&queue.queue))?;
    for line in facts(counts(&queue, &apart)).into_iter().chain(facts(settings(&apart.settings))) {
        global.print(line)?;
    }
    if !waiting.is_empty() {
        let header = ["WAITS_FOR", "KEY", "JOBS", "STATE"];
        global.print_table(&header, waiting.iter().map(key_row).collect())?;
    }
    Ok(Exit::Ok)
}

fn key_row(wait: &WaitView) -> Vec<String> {
    let word = match wait.reason {
        WaitReason::Lane => "turn",
        WaitReason::Permit => "unit",
        _ => "cooldown",
    };
    vec![word.to_owned(), or_dash(wait.key.as_deref()), or_dash(wait.jobs), waits::of_key(wait)]
}

fn counts<'a>(queue: &QueueView, apart: &IsolationView) -> Vec<(&'a str, Option<String>)> {
    let live = |n: i64| Some(counted(n, queue.capped));
    let some = |n: i64| (n > 0).then(|| counted(n, apart.waiting_capped));
    let Waiting { lane, permit, rate } = apart.waiting;
    let oldest = joined([
        queue.oldest_pending_ms.map(|ms| format!("pending for {}", span(ms))),
        apart.oldest_waiting_ms.map(|ms| format!("waiting for {}", span(ms))),
    ]);
    let waiting = joined([
        some(lane).map(|n| format!("{n} for their turn")),
        some(permit).map(|n| format!("{n} for a unit of their key")),
        some(rate).map(|n| format!("{n} for a place that a rate or a cooldown gave them")),
    ]);
    let in_use = apart.settings.max_running.map(|most| format!("{} of {most}", apart.running));
    vec![
        ("paused", queue.paused.then(|| paused(queue))),
        ("oldest", oldest),
        ("pending", live(queue.pending)),
        ("waiting", waiting),
        ("scheduled", live(queue.scheduled)),
        ("leased", live(queue.leased)),
        ("retrying", live(queue.retrying)),
        ("dead letter", Some(queue.dead_letter.to_string())),
        ("units", in_use),
        ("cooling", apart.cooling_ms.map(span)),
        ("workers", Some(workers(queue.workers, &apart.roles))),
    ]
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// How many, and as what.
fn workers(n: i64, roles: &BTreeMap<String, i64>) -> String {
    let named = roles.iter().filter(|(role, _)| !role.is_empty());
    let named: Vec<String> = named.map(|(role, n)| format!("{n} as {role}")).collect();
    if named.is_empty() { n.to_string() } else { format!("{n} ({})", named.join(", ")) }
}

/// What is set, in the words of the flags that set it.
pub(super) fn settings<'a>(s: &QueueSettings) -> Vec<(&'a str, Option<String>)> {
    let number = |n: Option<i32>| n.map(|n| n.to_string());
    let with = |rate: Option<String>, burst: Option<i32>| {
        rate.map(|rate| burst.map_or(rate.clone(), |burst| format!("{rate}, burst {burst}")))
    };
    vec![
        ("max running", number(s.max_running)),
        ("max per key", number(s.max_running_per_key)),
        ("rate", with(rate(s.rate, s.rate_per_seconds), s.rate_burst)),
        ("key rate", with(rate(s.key_rate, s.key_rate_per_seconds), s.key_rate_burst)),
        ("fair", s.fair.then(|| "on".to_owned())),
        ("objective", s.objective_seconds.map(seconds)),
        ("history", Some(s.history.clone())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_shown_as_it_is_written() {
        for (per, text) in [(60.0, "100/1m"), (1.0, "100/1s"), (90.0, "100/90s"), (86_400.0, "100/1d")] {
            assert_eq!(rate(Some(100), Some(per)).as_deref(), Some(text));
        }
        assert_eq!(rate(None, None), None);
    }
}
