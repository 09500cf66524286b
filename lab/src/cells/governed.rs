//! What limits, order and fair shares cost: the drain of a queue that has them, against the same queue without.

use std::time::Duration;

use anyhow::Result;
use outhaul::{Dsn, Operator, QueueChange, SchemaName};

use super::{drainer, of_worker};
use crate::arena::Arena;
use crate::db;
use crate::harness::{Bench, Cell, Comparison, Goal};
use crate::reference::functions::OUTHAUL;
use crate::report::Metric::JobsPerSecond;
use crate::report::Sample;
use crate::worker::{Noop, Worker};

const PLAIN: &str = "no limits";

pub(crate) const GOVERNED: Cell = Cell {
    name: "governed",
    about: "20,000 no-op jobs are drained by one worker process: without limits; with 5,000 units for the queue, which are never used up; with 20 units for each of 100 \
        keys; with a rate that is never reached; as 1,000 ordered lanes; with fair shares for 100 organizations",
    variants: &[PLAIN, "max_running", "limit keys", "rate", "lanes", "fair"],
    most_rounds: usize::MAX,
    comparisons: &[
        ratio("drain with max_running / without limits", "max_running"),
        ratio("drain with limit keys / without limits", "limit keys"),
        ratio("drain with a rate / without limits", "rate"),
        ratio("drain of lanes / without limits", "lanes"),
        ratio("drain with fair shares / without limits", "fair"),
    ],
    measure: |bench, variant| Box::pin(measure(bench, variant)),
};

const fn ratio(what: &'static str, variant: &'static str) -> Comparison {
    Comparison { what, of: (variant, JobsPerSecond), to: Some((PLAIN, JobsPerSecond)), goal: Goal::None }
}

async fn measure(bench: &Bench, variant: &str) -> Result<Sample> {
    let (change, keys) = match variant {
        "max_running" => (QueueChange::new().max_running(5_000), ""),
        "limit keys" => (
            QueueChange::new().max_running_per_key(20),
            ", limit_keys => array_agg('key ' || n % 100 order by n)",
        ),
        "rate" => (QueueChange::new().rate(1_000_000, Duration::from_secs(1)), ""),
        "lanes" => (QueueChange::new(), ", ordering_keys => array_agg('lane ' || n % 1000 order by n)"),
        "fair" => (
            QueueChange::new().fair(true),
            ", organization_ids => array_agg(md5((n % 100)::text)::uuid order by n)",
        ),
        _ => (QueueChange::new(), ""),
    };
    let jobs = bench.scale.drain / 10;
    let arena = bench.ground.arena(&OUTHAUL).await?;
    let operator = Operator::connect(&Dsn::parse(&arena.url, |_| None)?, &SchemaName::default()).await?;
    operator.set_queue("bench", &change, None).await?;
    drop(operator);
    fill(&arena, jobs, keys).await?;
    let mut worker = Worker::start(&drainer(&arena, &OUTHAUL)).await?;
    let before = arena.reading().await?;
    worker.go(jobs).await?;
    let report = worker.finished(Duration::from_secs(60)).await?;
    let after = arena.reading().await?;
    worker.quit().await?;
    let mut sample = of_worker(&report);
    after.per_job(&before, report.settled as f64, &mut sample);
    bench.ground.clear(arena).await?;
    Ok(sample)
}

async fn fill(arena: &Arena, jobs: u64, keys: &str) -> Result<()> {
    let client = db::connect(&arena.url).await?;
    let sql = format!(
        "select outhaul.enqueue_many('bench', '{}', array_agg(format('{{\"seq\":%s}}', n) order by n), array_agg(outhaul.uuid7()), \
            notify => false{keys}) from generate_series($1::bigint, $1 + 999) n",
        <Noop as outhaul::Job>::TYPE
    );
    let statement = client.prepare(&sql).await?;
    for first in (0..jobs).step_by(1_000) {
        client.execute(&statement, &[&(first as i64)]).await?;
    }
    Ok(())
}
