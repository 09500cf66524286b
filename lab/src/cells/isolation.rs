//! How long an urgent job waits while a queue of reports is saturated beside it, against the same alone.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use outhaul::{Dsn, Operator, SchemaName};

use super::quantile;
use crate::arena::Arena;
use crate::db;
use crate::feed::{Feed, incompressible};
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::Style;
use crate::reference::functions::OUTHAUL;
use crate::report::{Metric, Sample};
use crate::worker::{Kind, REPORTS, Spec, Worker};

pub(crate) const ISOLATION: Cell = Cell {
    name: "isolation",
    about: "urgent jobs every 10 ms, alone and beside 100,000 reports of 20 KiB; the report worker computes 200 ms for each, one at a \
        time, at the lowest process priority. The bounds of the 95 % interval are a bootstrap over the waits of both",
    variants: &["outhaul"],
    most_rounds: 3,
    comparisons: &[
        Comparison {
            what: "p99 wait beside reports / alone",
            of: ("outhaul", Metric::WaitRatio),
            to: None,
            goal: Goal::AtMost(1.5),
        },
        Comparison {
            what: "the same, upper bound of its 95 % interval",
            of: ("outhaul", Metric::WaitRatioHigh),
            to: None,
            goal: Goal::AtMost(1.5),
        },
    ],
    measure: |bench, _| Box::pin(measure(bench)),
};

/// Alone and beside take turns, so that a machine that is slower for some seconds slows both.
const TURNS: u32 = 6;
const GAP: Duration = Duration::from_millis(10);

async fn measure(bench: &Bench) -> Result<Sample> {
    let reports = bench.scale.depth / 100;
    let arena =
        bench.ground.kept_arena("isolation", &OUTHAUL, async |arena| fill(arena, reports).await).await?;
    let operator = Operator::connect(&Dsn::parse(&arena.url, |_| None)?, &SchemaName::default()).await?;
    operator.pause(REPORTS, None).await?;
    let spec =
        |kind| Spec { kind, url: arena.url.clone(), batch: 1, lanes: 1, concurrency: None, wake: true };
    let mut urgent = Worker::start(&spec(Kind::Outhaul)).await?;
    let mut slow = Worker::start(&spec(Kind::Reports)).await?;
    urgent.go(0).await?;
    slow.go(0).await?;
    let watch = db::connect(&arena.url).await?;
    let feed = Feed::connect(&arena.url, &OUTHAUL, Style::Notifying, 0).await?;
    feed.drip(GAP, bench.scale.warm_up).await?;
    urgent.mark().await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for turn in 0..2 * TURNS {
        let busy = turn % 2 == 1;
        match busy {
            true => operator.resume(REPORTS, None).await?,
            false => operator.pause(REPORTS, None).await?,
        };
        until_leased(&watch, busy).await?;
        let sent = feed.drip(GAP, bench.scale.drip).await?;
        tokio::time::sleep(GAP * 4).await;
        let starts: HashMap<u64, u64> = urgent.mark().await?.starts.into_iter().collect();
        let waits = sent.iter().enumerate().map(|(number, (_, acknowledged))| {
            let started = starts.get(&(number as u64)).copied();
            started.map(|started| (started as f64 - *acknowledged as f64) / 1e6)
        });
        let Some(waits) = waits.collect::<Option<Vec<f64>>>() else {
            bail!("an urgent job did not start within {GAP:?}")
        };
        if busy { beside.extend(waits) } else { alone.extend(waits) }
    }
    slow.quit().await?;
    urgent.quit().await?;
    let (low, high) = interval(&alone, &beside);
    let p99 = |waits: &mut Vec<f64>| quantile(waits, 0.99);
    let (quiet, loud) = (p99(&mut alone), p99(&mut beside));
    Ok(Sample::from([
        (Metric::LatencyP99Ms, loud),
        (Metric::AloneP99Ms, quiet),
        (Metric::WaitRatio, loud / quiet),
        (Metric::WaitRatioLow, low),
        (Metric::WaitRatioHigh, high),
    ]))
}

/// The middle 95 % of the ratios of 1,000 pairs of samples drawn from both, with replacement.
fn interval(alone: &[f64], beside: &[f64]) -> (f64, f64) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut draw = |waits: &[f64]| {
        let mut drawn: Vec<f64> = waits.iter().map(|_| waits[random.usize(..waits.len())]).collect();
        quantile(&mut drawn, 0.99)
    };
    let mut ratios: Vec<f64> = (0..1_000).map(|_| draw(beside) / draw(alone)).collect();
    (quantile(&mut ratios, 0.025), quantile(&mut ratios, 0.975))
}

/// Reports whose payloads have little in common.
async fn fill(arena: &Arena, reports: u64) -> Result<()> {
    let client = db::connect(&arena.url).await?;
    let text = incompressible(21 * 1024);
    let sql = "select outhaul.enqueue_many('reports', 'bench.report', \
        array_agg(jsonb_build_object('text', substr($1, (n * 7919 % 1024)::integer, 20480))::text), array_agg(outhaul.uuid7()), notify => false) \
        from generate_series(1, $2::bigint) n";
    let statement = client.prepare(sql).await?;
    for _ in 0..reports.div_ceil(1_000) {
        client.execute(&statement, &[&text, &(reports.min(1_000) as i64)]).await?;
    }
    Ok(())
}

/// Waits until a report is being made, or none is.
async fn until_leased(client: &tokio_postgres::Client, busy: bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let sql =
        "select exists (select from outhaul.jobs where queue = 'reports' and lease_until > '-infinity')";
    while client.query_one(sql, &[]).await?.get::<_, bool>(0) != busy {
        if Instant::now() > deadline {
            bail!("the report worker does not {}", if busy { "begin" } else { "end" });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
