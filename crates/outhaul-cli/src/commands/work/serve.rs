//! `/metrics`, `/livez` and `/readyz` of a worker.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use outhaul::{Dsn, Observer, SchemaName};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::exit::{Exit, Problem};

/// How long a scrape or a probe waits for the database. Scrapers give up after 10 s by default, and metrics
/// of a worker whose database is away are wanted most.
const PATIENCE: Duration = Duration::from_secs(2);
/// However many ask, the database is asked this rarely.
const FRESH: Duration = Duration::from_secs(1);
/// How often the recorder folds samples into its histograms, without which they are kept one by one.
const FOLD_EVERY: Duration = Duration::from_secs(5);

/// Seconds: 1 ms to 10 s.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Seconds, beyond the others: work and waiting may take minutes.
const LONG_BUCKETS: [f64; 4] = [30.0, 60.0, 300.0, 900.0];
const LONG_METRICS: [&str; 2] = ["outhaul_job_execution_duration_seconds", "outhaul_job_wait_seconds"];

/// Makes the process record metrics. Before anything else uses them: what was recorded earlier is lost.
pub(super) fn install_recorder() -> anyhow::Result<PrometheusHandle> {
    let failed = |error: metrics_exporter_prometheus::BuildError| {
        Problem::new(Exit::Failed, "metrics", format!("metrics cannot be recorded: {error}"))
    };
    let long: Vec<f64> = BUCKETS.into_iter().chain(LONG_BUCKETS).collect();
    let mut builder = PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(failed)?;
    for metric in LONG_METRICS {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.to_owned()), &long).map_err(failed)?;
    }
    let handle = builder.install_recorder().map_err(failed)?;
    outhaul::telemetry::describe();
    Ok(handle)
}

/// Serves until the task is aborted.
pub(super) fn start(
    listener: TcpListener,
    recorder: PrometheusHandle,
    dsn: Dsn,
    schema: SchemaName,
) -> JoinHandle<()> {
    let state = Arc::new(Served { recorder, dsn, schema, database: Mutex::default() });
    let folding = state.clone();
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(state);
    tokio::spawn(async move {
        let fold = async {
            loop {
                tokio::time::sleep(FOLD_EVERY).await;
                folding.recorder.run_upkeep();
            }
        };
        tokio::select! {
            served = axum::serve(listener, app) => {
                if let Err(error) = served {
                    tracing::error!(%error, "metrics are no longer served");
                }
            }
            () = fold => {}
        }
    })
}

struct Served {
    recorder: PrometheusHandle,
    dsn: Dsn,
    schema: SchemaName,
    database: Mutex<Database>,
}

/// What was found when the database was asked last.
#[derive(Default)]
struct Database {
    observer: Option<Observer>,
    gauges_at: Option<Instant>,
    checked: Option<(Instant, Result<(), String>)>,
}

async fn metrics(State(served): State<Arc<Served>>) -> impl IntoResponse {
    if let Err(error) = served.record_gauges().await {
        tracing::warn!(error, "gauges of the database are not fresh");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], served.recorder.render())
}

async fn ready(State(served): State<Arc<Served>>) -> impl IntoResponse {
    match served.check().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

impl Served {
    async fn record_gauges(&self) -> Result<(), String> {
        let mut database = self.database.lock().await;
        if database.gauges_at.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        database.gauges_at = Some(Instant::now());
        let result = within(async {
            let observer = match database.observer.take() {
                Some(observer) => observer,
                None => Observer::connect(&self.dsn, &self.schema).await?,
            };
            observer.record_gauges().await.map(|()| observer)
        });
        // One that failed or was too slow is not used again.
        database.observer = Some(result.await?);
        Ok(())
    }

    /// Whether the database can be reached and its schema fits, found by doing what a starting worker does.
    async fn check(&self) -> Result<(), String> {
        let mut database = self.database.lock().await;
        if let Some((at, result)) = &database.checked
            && at.elapsed() < FRESH
        {
            return result.clone();
        }
        let result = within(Observer::connect(&self.dsn, &self.schema)).await.map(drop);
        database.checked = Some((Instant::now(), result.clone()));
        result
    }
}

async fn within<T>(asking: impl Future<Output = outhaul::Result<T>>) -> Result<T, String> {
    match timeout(PATIENCE, asking).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the database did not answer within {PATIENCE:?}")),
    }
}
