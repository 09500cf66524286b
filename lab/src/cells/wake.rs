//! From the commit of an enqueue to the start of the handler, on an idle worker.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{design_of, quantile};
use crate::feed::Feed;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::Style;
use crate::report::Metric::{LatencyP50Ms, LatencyP99Ms};
use crate::report::{Metric, Sample};
use crate::worker::{Spec, Worker};

pub(crate) const WAKE: Cell = Cell {
    name: "wake",
    about: "an idle worker is woken by one job every 10 ms or 25 ms; plain notifies in the inserting statement",
    variants: &["plain 10ms", "plain 25ms", "outhaul 10ms", "outhaul 25ms"],
    most_rounds: usize::MAX,
    comparisons: &[
        Comparison {
            what: "p50 ms, one job every 10 ms",
            of: ("outhaul 10ms", LatencyP50Ms),
            to: None,
            goal: Goal::AtMost(0.6),
        },
        Comparison {
            what: "p99 ms, one job every 10 ms",
            of: ("outhaul 10ms", LatencyP99Ms),
            to: None,
            goal: Goal::AtMost(1.0),
        },
        Comparison {
            what: "p50 ms, one job every 25 ms",
            of: ("outhaul 25ms", LatencyP50Ms),
            to: None,
            goal: Goal::AtMost(0.6),
        },
        Comparison {
            what: "p99 ms, one job every 25 ms",
            of: ("outhaul 25ms", LatencyP99Ms),
            to: None,
            goal: Goal::AtMost(1.0),
        },
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let design = design_of(variant)?;
    let gap = Duration::from_millis(if variant.ends_with("10ms") { 10 } else { 25 });
    let arena = bench.ground.arena(design).await?;
    let spec = Spec {
        kind: design.worker,
        url: arena.url.clone(),
        batch: 100,
        lanes: 1,
        concurrency: None,
        wake: true,
    };
    let mut worker = Worker::start(&spec).await?;
    worker.go(0).await?;
    let feed = Feed::connect(&arena.url, design, Style::Notifying, 0).await?;
    let sent = feed.drip(gap, bench.scale.warm_up + bench.scale.drip).await?;
    // One gap more, so that the last job has started.
    tokio::time::sleep(gap * 4).await;
    let starts: HashMap<u64, u64> = worker.mark().await?.starts.into_iter().collect();
    worker.quit().await?;
    bench.ground.clear(arena).await?;
    if starts.len() != sent.len() {
        bail!("{} jobs were sent and {} started", sent.len(), starts.len());
    }
    let skipped = (bench.scale.warm_up.as_secs_f64() / gap.as_secs_f64()) as usize;
    let timed = sent.iter().enumerate().skip(skipped);
    let waits = timed.map(|(number, (sent, acknowledged))| {
        let started = starts.get(&(number as u64)).copied().unwrap_or_default();
        // A handler may start before the client has read the answer to its COMMIT.
        (ms(started, *acknowledged), ms(started, *sent))
    });
    let (mut since_commit, mut since_send): (Vec<f64>, Vec<f64>) = waits.unzip();
    Ok(Sample::from([
        (Metric::LatencyP50Ms, quantile(&mut since_commit, 0.5)),
        (Metric::LatencyP99Ms, quantile(&mut since_commit, 0.99)),
        (Metric::LatencyFromSendP50Ms, quantile(&mut since_send, 0.5)),
        (Metric::LatencyFromSendP99Ms, quantile(&mut since_send, 0.99)),
    ]))
}

fn ms(later: u64, earlier: u64) -> f64 {
    (later as f64 - earlier as f64) / 1e6
}
