//! The library's own worker, with the settings it has when nobody sets any.
//!
//! What it has settled is known from its metrics: they count what the server acknowledged, which a handler cannot see.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use outhaul::{Dsn, Failure, Job, Worker};
use serde::{Deserialize, Serialize};

use super::{Spec, Tally, serve};

/// The job of every cell.
#[derive(Serialize, Deserialize)]
pub(crate) struct Noop {
    pub(crate) seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) padding: Option<String>,
}

impl Job for Noop {
    const TYPE: &'static str = "bench.noop";
    const QUEUE: &'static str = "bench";
}

/// Runs a worker until the parent ends the process. Its sessions are opened after the order to go, so opening them is
/// part of what is measured.
pub(crate) async fn work(spec: &Spec) -> Result<()> {
    let tally = Tally::new(spec.wake)?;
    // Before the worker is built: it keeps the counters that it finds then.
    metrics::set_global_recorder(Ear(tally.clone())).map_err(|_| anyhow!("there is a recorder already"))?;
    let starts = tally.clone();
    let mut builder = Worker::builder(Dsn::parse(&spec.url, |_| None)?).handle(move |_: Noop, cx| {
        starts.starts(cx.payload());
        async { Ok::<(), Failure>(()) }
    });
    if let Some(concurrency) = spec.concurrency {
        builder = builder.queue(Noop::QUEUE, concurrency);
    }
    let worker = builder.build().await?;
    serve(&tally, async || Ok(worker.run_until(std::future::pending()).await?)).await
}

/// The queue of the reports.
pub(crate) const REPORTS: &str = "reports";

/// Makes reports until the parent ends the process.
pub(crate) async fn reports(spec: &Spec) -> Result<()> {
    let tally = Tally::new(false)?;
    let worker = Worker::builder(Dsn::parse(&spec.url, |_| None)?)
        .queue(REPORTS, 1)
        .handle_raw(REPORTS, "bench.report", |cx| async move {
            let began = Instant::now();
            let mut sum = 0_u64;
            while began.elapsed() < Duration::from_millis(200) {
                sum = cx.payload().bytes().fold(sum, |sum, byte| sum.rotate_left(5) ^ u64::from(byte));
            }
            std::hint::black_box(sum);
            Ok::<(), Failure>(())
        })
        .build()
        .await?;
    serve(&tally, async || Ok(worker.run_until(std::future::pending()).await?)).await
}

/// Hears completions and claims; everything else costs what it costs without a recorder.
struct Ear(Arc<Tally>);

impl Recorder for Ear {
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let completed = key.labels().any(|label| label.key() == "outcome" && label.value() == "completed");
        match key.name() {
            "outhaul_job_attempts_total" if completed => {
                Counter::from_arc(Arc::new(Completed(self.0.clone())))
            }
            _ => Counter::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "outhaul_claim_duration_seconds" => Histogram::from_arc(Arc::new(Claims(self.0.clone()))),
            _ => Histogram::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
}

struct Completed(Arc<Tally>);

impl CounterFn for Completed {
    fn increment(&self, count: u64) {
        self.0.settles(count);
    }

    fn absolute(&self, _: u64) {}
}

struct Claims(Arc<Tally>);

impl HistogramFn for Claims {
    fn record(&self, seconds: f64) {
        self.0.claimed(Duration::from_secs_f64(seconds));
    }
}
