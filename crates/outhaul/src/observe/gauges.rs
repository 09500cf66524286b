//! Gauges that come from the database: set for a program that is about to show its metrics.

use super::isolation::GAUGES_CAP;
use super::{Hold, IsolationView, Observer, OutboxView, QueueView, SubscriptionView};
use crate::error::Result;
use crate::telemetry;

impl Observer {
    /// Sets the gauges that come from the database, for a program that is about to show its metrics: of the queues, the
    /// outbox and the subscriptions.
    ///
    /// # Errors
    /// When the database does not answer; gauges then keep their last values.
    pub async fn record_gauges(&self) -> Result<()> {
        for queue in self.queues().await? {
            record_queue(&queue);
        }
        for queue in self.isolation_to(None, GAUGES_CAP).await? {
            record_isolation(&queue);
        }
        metrics::gauge!(telemetry::NOTIFICATION_QUEUE).set(self.notification_queue_usage().await?);
        let outbox = self.outbox().await?;
        record_outbox(&outbox);
        for subscription in self.subscriptions().await? {
            record_subscription(&subscription, &outbox);
        }
        Ok(())
    }
}

/// Milliseconds as metrics have them.
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

fn record_queue(queue: &QueueView) {
    let name = queue.queue.clone();
    let age = |ms: Option<i64>| seconds(ms.unwrap_or(0));
    metrics::gauge!(telemetry::QUEUE_OLDEST_PENDING, "queue" => name.clone())
        .set(age(queue.oldest_pending_ms));
    metrics::gauge!(telemetry::QUEUE_OLDEST_EXPIRED, "queue" => name.clone())
        .set(age(queue.oldest_expired_lease_ms));
    let counts = [
        ("pending", queue.pending),
        ("scheduled", queue.scheduled),
        ("leased", queue.leased),
        ("retrying", queue.retrying),
        ("dead_letter", queue.dead_letter),
    ];
    for (state, n) in counts {
        metrics::gauge!(telemetry::QUEUE_JOBS, "queue" => name.clone(), "state" => state).set(n as f64);
    }
    metrics::gauge!(telemetry::QUEUE_JOBS_CAPPED, "queue" => name.clone())
        .set(f64::from(u8::from(queue.capped)));
    metrics::gauge!(telemetry::QUEUE_PAUSED, "queue" => name.clone()).set(f64::from(u8::from(queue.paused)));
    metrics::gauge!(telemetry::QUEUE_WORKERS, "queue" => name.clone()).set(queue.workers as f64);
    if let Some(ms) = queue.age_objective_ms {
        metrics::gauge!(telemetry::QUEUE_AGE_OBJECTIVE, "queue" => name).set(seconds(ms));
    }
}

fn record_isolation(queue: &IsolationView) {
    let name = || queue.queue.clone();
    let waiting = queue.waiting;
    for (reason, n) in [("lane", waiting.lane), ("permit", waiting.permit), ("rate", waiting.rate)] {
        metrics::gauge!(telemetry::QUEUE_WAITING, "queue" => name(), "reason" => reason).set(n as f64);
    }
    // None is 0 and not absent, so that a limit that was taken back does not stay.
    let limit = f64::from(queue.settings.max_running.unwrap_or(0));
    for (kind, n) in [("used", queue.running as f64), ("limit", limit)] {
        metrics::gauge!(telemetry::QUEUE_UNITS, "queue" => name(), "kind" => kind).set(n);
    }
    let age = |ms: Option<i64>| seconds(ms.unwrap_or(0));
    metrics::gauge!(telemetry::QUEUE_OLDEST_WAITING, "queue" => name()).set(age(queue.oldest_waiting_ms));
    metrics::gauge!(telemetry::QUEUE_COOLING, "queue" => name()).set(age(queue.cooling_ms));
    metrics::gauge!(telemetry::QUEUE_COOLING_KEYS, "queue" => name()).set(queue.cooling_keys as f64);
}

fn record_outbox(outbox: &OutboxView) {
    metrics::gauge!(telemetry::OUTBOX_HEAD).set(outbox.head as f64);
    metrics::gauge!(telemetry::OUTBOX_UNSEQUENCED).set(outbox.unsequenced as f64);
    metrics::gauge!(telemetry::OUTBOX_UNSEQUENCED_AGE)
        .set(seconds(outbox.oldest_unsequenced_ms.unwrap_or(0)));
    let relay = outbox.relay.as_ref();
    let watermark = relay.and_then(|relay| relay.oldest_ms).unwrap_or(0);
    metrics::gauge!(telemetry::OUTBOX_WATERMARK_LAG).set(seconds(watermark));
    let (pending, leased, parked) =
        relay.map_or((0, 0, 0), |relay| (relay.pending, relay.leased, relay.parked));
    for (state, n) in [("pending", pending), ("leased", leased), ("parked", parked)] {
        metrics::gauge!(telemetry::RELAY_EVENTS, "state" => state).set(n as f64);
    }
}

fn record_subscription(subscription: &SubscriptionView, outbox: &OutboxView) {
    let (name, lag) = (|| subscription.name.clone(), subscription.lag(outbox));
    let gauges = [
        (telemetry::SUBSCRIPTION_POSITION, subscription.position as f64),
        (telemetry::SUBSCRIPTION_LAG_EVENTS, lag.events as f64),
        (telemetry::SUBSCRIPTION_LAG, seconds(lag.age_ms)),
        (telemetry::SUBSCRIPTION_CHECKPOINT_LAG, seconds(lag.checkpoint_ms)),
        (telemetry::SUBSCRIPTION_ATTEMPTS, f64::from(subscription.attempts)),
        (telemetry::SUBSCRIPTION_PARKED, subscription.parked as f64),
    ];
    for (gauge, value) in gauges {
        metrics::gauge!(gauge, "subscription" => name()).set(value);
    }
    if let Some(ms) = subscription.caught_up_ms {
        metrics::gauge!(telemetry::SUBSCRIPTION_CAUGHT_UP, "subscription" => name()).set(seconds(ms));
    }
    for hold in Hold::ALL {
        let holds = f64::from(u8::from(subscription.holds == Some(hold)));
        metrics::gauge!(telemetry::SUBSCRIPTION_HELD, "subscription" => name(), "hold" => hold.as_str())
            .set(holds);
    }
}
