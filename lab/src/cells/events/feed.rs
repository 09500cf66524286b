//! From the commit of a publish to the start of the handler of an ordered subscription.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Reader, Seen, check_order, design_of};
use crate::cells::quantile;
use crate::db;
use crate::feed::Feed;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::Style;
use crate::reference::naive::NaiveReader;
use crate::report::Metric::{LatencyP50Ms, LatencyP99Ms};
use crate::report::{Metric, Sample};

/// The goals of an ordered subscription.
const P50: Goal = Goal::AtMost(3.0);
const P99: Goal = Goal::AtMost(15.0);

const fn of(what: &'static str, variant: &'static str, metric: Metric, goal: Goal) -> Comparison {
    Comparison { what, of: (variant, metric), to: None, goal }
}

pub(crate) const FEED: Cell = Cell {
    name: "feed",
    about: "an ordered subscription is given one event every 10 ms or 25 ms; naive has a cursor on the number of insertion",
    variants: &["naive 10ms", "naive 25ms", "outhaul 10ms", "outhaul 25ms"],
    most_rounds: usize::MAX,
    comparisons: &[
        of("p50 ms, one event every 10 ms", "outhaul 10ms", LatencyP50Ms, P50),
        of("p99 ms, one event every 10 ms", "outhaul 10ms", LatencyP99Ms, P99),
        of("p50 ms, one event every 25 ms", "outhaul 25ms", LatencyP50Ms, P50),
        of("p99 ms, one event every 25 ms", "outhaul 25ms", LatencyP99Ms, P99),
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

pub(crate) const FEED_HELD: Cell = Cell {
    name: "feed-held",
    about: "the same, one event every 10 ms for 60 s, while a transaction that has written something stays open; waiting is a \
            reader that waits for the oldest of them",
    variants: &["waiting 10ms held", "outhaul 10ms held"],
    most_rounds: 1,
    comparisons: &[
        of("p50 ms behind a transaction", "outhaul 10ms held", LatencyP50Ms, P50),
        of("p99 ms behind a transaction", "outhaul 10ms held", LatencyP99Ms, P99),
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &'static str) -> Result<Sample> {
    let design = design_of(variant);
    let gap = Duration::from_millis(if variant.contains("25ms") { 25 } else { 10 });
    let arena = bench.ground.arena(design).await?;
    let (seen, held) = (Seen::default(), variant.ends_with("held"));
    let mut reader = None;
    let mut naive = None;
    if variant.starts_with("outhaul") {
        reader = Some(Reader::start(&arena.url, None, &seen).await?);
    } else {
        let (client, wake) = db::connect_listening(&arena.url, design.channel).await?;
        let (follower, seen) =
            (NaiveReader::new(client, variant.starts_with("waiting")).await?, seen.clone());
        naive = Some(tokio::spawn(async move { follower.follow(&wake, |payload| seen.note(payload)).await }));
    }
    let feed = Feed::connect(&arena.url, design, Style::Notifying, 0).await?;
    let holder = if held { Some(arena.hold().await?) } else { None };
    let length = if held { bench.scale.hold } else { bench.scale.drip };
    let sent = feed.drip(gap, bench.scale.warm_up + length).await?;
    drop(holder);
    seen.until(sent.len() as u64, Duration::from_secs(20)).await?;
    if let Some(reader) = reader {
        reader.stop().await?;
    }
    if let Some(naive) = naive {
        naive.abort();
    }
    bench.ground.clear(arena).await?;
    let read = seen.take();
    check_order(&read, 0)?;
    let begun: HashMap<u64, u64> = read.into_iter().collect();
    if begun.len() != sent.len() {
        bail!("{} events were published and {} read", sent.len(), begun.len());
    }
    let skipped = (bench.scale.warm_up.as_secs_f64() / gap.as_secs_f64()) as usize;
    let waits = sent.iter().enumerate().skip(skipped).map(|(number, (_, acknowledged))| {
        let begun = begun.get(&(number as u64)).copied().unwrap_or_default();
        // A handler may start before the client has read the answer to its COMMIT.
        (begun as f64 - *acknowledged as f64) / 1e6
    });
    let mut waits: Vec<f64> = waits.collect();
    Ok(Sample::from([(LatencyP50Ms, quantile(&mut waits, 0.5)), (LatencyP99Ms, quantile(&mut waits, 0.99))]))
}
