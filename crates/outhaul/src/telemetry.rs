//! Every metric of the library, in one table: names, units, labels.
//!
//! Labels take only names that are declared in code or configuration (queue, job_type), words of closed lists, and
//! error codes of a bounded number. Never an organization, an id, a key or a part of a payload: those go to
//! logs and spans. Metrics go to whatever recorder the program has installed for the `metrics` crate; without
//! one they cost nothing.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};

use metrics::{Counter, Histogram, Unit};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name ends in `_total`.
    Counter,
    /// A distribution.
    Histogram,
}

/// One metric: its name, kind, unit, labels and meaning.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name, as Prometheus knows it.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

macro_rules! metrics_table {
    ($($id:ident $kind:ident $unit:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) const $id: &str = $name;)*
        /// Every metric that this library reports.
        pub const METRICS: &[Metric] = &[
            $(Metric { name: $name, kind: MetricKind::$kind, unit: Unit::$unit, labels: &[$($label),*], help: $help },)*
        ];
    };
}

metrics_table! {
    QUEUE_OLDEST_PENDING Gauge Seconds "outhaul_queue_oldest_pending_age_seconds" ["queue"]
        "Age of the oldest job that could run now. The number to watch: a count says nothing about delay.";
    QUEUE_JOBS Gauge Count "outhaul_queue_jobs" ["queue", "state"]
        "Jobs by state (pending, scheduled, leased, retrying, dead_letter), counted up to a cap.";
    QUEUE_JOBS_CAPPED Gauge Count "outhaul_queue_jobs_capped" ["queue"]
        "1 when the counts of a queue stopped at the cap.";
    QUEUE_AGE_OBJECTIVE Gauge Seconds "outhaul_queue_age_objective_seconds" ["queue"]
        "The age that a queue's oldest pending job should stay under, where one is set.";
    QUEUE_OLDEST_EXPIRED Gauge Seconds "outhaul_queue_oldest_expired_lease_seconds" ["queue"]
        "How long the longest overdue lease has been over; more than a few seconds means that no sweep runs.";
    QUEUE_PAUSED Gauge Count "outhaul_queue_paused" ["queue"] "1 while a queue is paused.";
    QUEUE_WORKERS Gauge Count "outhaul_queue_workers" ["queue"] "Worker processes that serve a queue.";
    QUEUE_SLOTS Gauge Count "outhaul_queue_slots" ["queue", "kind"] "Handler slots of this process: used and limit.";
    QUEUE_WAITING Gauge Count "outhaul_queue_waiting_jobs" ["queue", "reason"]
        "Jobs that wait: for another of their ordering key (lane), for a unit of their limit key (permit), for the place in time that a rate or a cooldown gave them (rate). Counted up to 1,000 of each.";
    QUEUE_OLDEST_WAITING Gauge Seconds "outhaul_queue_oldest_waiting_age_seconds" ["queue"]
        "Age of the oldest job that waits for another of its ordering key or for a unit of its limit key, among those counted; 0 without one.";
    QUEUE_UNITS Gauge Count "outhaul_queue_units" ["queue", "kind"]
        "Units of the limit of a queue in the whole cluster: used, and limit, which is 0 where there is none.";
    QUEUE_COOLING Gauge Seconds "outhaul_queue_cooling_seconds" ["queue"]
        "How much longer nothing of a queue begins because a service asked for patience; 0 otherwise.";
    QUEUE_COOLING_KEYS Gauge Count "outhaul_queue_cooling_keys" ["queue"] "Rate keys of a queue that wait for the same reason.";
    COOLDOWNS Counter Count "outhaul_cooldowns_total" ["queue"]
        "Attempts that ended as rate_limited and will be tried again: each tells its rate key, or its queue, to wait.";
    CLAIMS_KEPT_BACK Counter Count "outhaul_claims_kept_back_total" ["queue"]
        "Claims that a limit, a rate, a cooldown or an ordering key kept from taking all they could hold.";
    CLAIM_DURATION Histogram Seconds "outhaul_claim_duration_seconds" ["queue"] "Time of one claim, as the worker sees it.";
    CLAIMED Counter Count "outhaul_jobs_claimed_total" ["queue"] "Jobs claimed.";
    BATCHES Counter Count "outhaul_batches_total" ["queue", "saturated"] "Claims that returned jobs, by whether they were full.";
    BATCH_DB Histogram Seconds "outhaul_batch_db_seconds" ["phase"] "Database time of one batch: claim, settle, renew, expire.";
    JOB_WAIT Histogram Seconds "outhaul_job_wait_seconds" ["queue", "job_type"] "From the time a job was due to its claim, by the server's clock.";
    JOB_EXECUTION Histogram Seconds "outhaul_job_execution_duration_seconds" ["queue", "job_type", "outcome"]
        "Time in the handler, by outcome: ok or error.";
    JOB_ATTEMPTS Counter Count "outhaul_job_attempts_total" ["queue", "job_type", "outcome", "error_code"]
        "Attempts settled, by outcome: completed, retry, dead_letter, cancelled, snoozed, released, lease_lost.";
    JOB_REPEATS Counter Count "outhaul_job_repeats_total" ["queue", "job_type"] "Attempts that were not the first.";
    LEASE_EXPIRATIONS Counter Count "outhaul_lease_expirations_total" ["queue"] "Leases that ran out and were settled by the sweep.";
    STALE_REPORTS Counter Count "outhaul_stale_reports_total" ["report"]
        "Reports of a worker whose lease was lost, which changed nothing: complete, fail or renew.";
    RENEWALS Counter Count "outhaul_lease_renewals_total" ["result"] "Leases renewed, or not: renewed, locked, lost, cancelled.";
    UNKNOWN_TYPES Counter Count "outhaul_unknown_job_type_total" ["queue"]
        "Jobs given back because this worker has no handler for their type. Alert on any.";
    WAKES Counter Count "outhaul_wakes_total" ["cause"]
        "Reasons to look for work: notification, poll, linger, due, reconnect, startup, rescan.";
    DRAIN_EMPTY Counter Count "outhaul_drain_empty_total" ["queue", "cause"] "Looks that found nothing.";
    DRAIN_DURATION Histogram Seconds "outhaul_drain_duration_seconds" ["queue"]
        "From a claim that brought work to the look that saw the end of it.";
    OUTBOX_HEAD Gauge Count "outhaul_outbox_head_position" [] "The last position of the feed.";
    OUTBOX_UNSEQUENCED Gauge Count "outhaul_outbox_unsequenced_events" []
        "Events, committed or about to be, that have no position yet; counted up to a cap.";
    OUTBOX_UNSEQUENCED_AGE Gauge Seconds "outhaul_outbox_unsequenced_age_seconds" []
        "Age of the oldest of them; more than some seconds means a transaction that stays open, or that nobody turns the sequencer.";
    OUTBOX_WATERMARK_LAG Gauge Seconds "outhaul_outbox_watermark_lag_seconds" []
        "Age of the oldest event that waits for the relay: everything older has been handed on. 0 without a relay.";
    RELAY_EVENTS Gauge Count "outhaul_outbox_relay_events" ["state"]
        "Events for the relay by state (pending, leased, parked), counted up to a cap.";
    SUBSCRIPTION_POSITION Gauge Count "outhaul_subscription_position" ["subscription"]
        "Everything up to here was handled, parked or skipped.";
    SUBSCRIPTION_LAG_EVENTS Gauge Count "outhaul_subscription_lag_events" ["subscription"]
        "Events that the cursor has to pass, of whatever type.";
    SUBSCRIPTION_LAG Gauge Seconds "outhaul_subscription_lag_seconds" ["subscription"]
        "Age of the oldest of them. The number to watch: a count says nothing about delay.";
    SUBSCRIPTION_CHECKPOINT_LAG Gauge Seconds "outhaul_subscription_checkpoint_lag_seconds" ["subscription"]
        "Since the cursor moved while there was something to move past; 0 at the head.";
    SUBSCRIPTION_CAUGHT_UP Gauge Seconds "outhaul_subscription_caught_up_age_seconds" ["subscription"]
        "Since the cursor was at the head last; absent when it never was.";
    SUBSCRIPTION_ATTEMPTS Gauge Count "outhaul_subscription_attempts" ["subscription"]
        "Failures in a row at the event that the cursor waits at.";
    SUBSCRIPTION_PARKED Gauge Count "outhaul_subscription_parked_events" ["subscription"]
        "Events that were set aside and wait for an operator.";
    SUBSCRIPTION_HELD Gauge Count "outhaul_subscription_held" ["subscription", "hold"]
        "1 for what holds a subscription back: paused, blocked, truncated, diverged, gone, idle_consumer.";
    LISTENER_CONNECTED Gauge Count "outhaul_listener_connected" [] "1 while the listener is registered on a live session.";
    LISTENER_STATE Gauge Count "outhaul_listener_state" ["state"] "1 for the listener's state: connecting, listening, proven, polling.";
    RECONNECTS Counter Count "outhaul_reconnects_total" ["purpose", "result"] "Attempts to connect again, by purpose and result.";
    NOTIFICATION_FAILURES Counter Count "outhaul_notification_failures_total" ["stage"]
        "Wake-ups that do not work: listen, probe, canary.";
    NOTIFICATION_QUEUE Gauge Count "outhaul_notification_queue_usage_ratio" []
        "How full the server's notification queue is, 0 to 1; at 1 commits that notify fail. Alarm at 0.1.";
    UPKEEP_FAILURES Counter Count "outhaul_upkeep_failures_total" ["task"] "Runs of a background task that failed.";
    UPKEEP_DURATION Histogram Seconds "outhaul_upkeep_duration_seconds" ["task"] "Time of one run of a background task.";
    BUILD_INFO Gauge Count "outhaul_build_info" ["version", "schema"] "Always 1; the labels tell the version.";
}

/// Tells the installed recorder the units and meanings of all metrics.
pub fn describe() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.unit, metric.help),
            MetricKind::Counter => metrics::describe_counter!(metric.name, metric.unit, metric.help),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, metric.unit, metric.help),
        }
    }
}

/// Error codes that this process has used as a label.
static CODES: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Default::default);
const MAX_CODES: usize = 64;

/// The label for an error code: the code itself while it has the form of one and there are not too many, else
/// `other`. Codes come from handlers, which might put anything into them.
pub(crate) fn code_label(code: Option<&str>) -> String {
    let Some(code) = code else { return "none".into() };
    let formed = is_code(code);
    let mut codes = CODES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if formed && (codes.contains(code) || codes.len() < MAX_CODES) {
        if !codes.contains(code) {
            codes.insert(code.to_owned());
        }
        return code.to_owned();
    }
    "other".into()
}

/// Words of small letters and digits with `_` between them. A word with digits is short, so that no id and no number
/// of a customer is taken for one.
fn is_code(code: &str) -> bool {
    let is_word = |word: &str| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let letters = word.bytes().filter(u8::is_ascii_lowercase).count();
        !word.is_empty() && digits + letters == word.len() && (digits == 0 || digits <= 5 && word.len() <= 8)
    };
    code.len() <= 40 && code.split('_').all(is_word)
}

/// Handles of the metrics of one job type in one queue, looked up once instead of for each job.
#[derive(Clone)]
pub(crate) struct TypeMetrics {
    queue: String,
    job_type: String,
    pub(crate) wait: Histogram,
    pub(crate) ok: Histogram,
    pub(crate) error: Histogram,
    pub(crate) completed: Counter,
    pub(crate) repeats: Counter,
}

impl TypeMetrics {
    pub(crate) fn new(queue: &str, job_type: &str) -> TypeMetrics {
        let (queue, job_type) = (queue.to_owned(), job_type.to_owned());
        let execution = |outcome: &'static str| metrics::histogram!(JOB_EXECUTION, "queue" => queue.clone(), "job_type" => job_type.clone(), "outcome" => outcome);
        TypeMetrics {
            wait: metrics::histogram!(JOB_WAIT, "queue" => queue.clone(), "job_type" => job_type.clone()),
            ok: execution("ok"),
            error: execution("error"),
            completed: metrics::counter!(JOB_ATTEMPTS, "queue" => queue.clone(), "job_type" => job_type.clone(),
                "outcome" => "completed", "error_code" => "none"),
            repeats: metrics::counter!(JOB_REPEATS, "queue" => queue.clone(), "job_type" => job_type.clone()),
            queue,
            job_type,
        }
    }

    pub(crate) fn settled(&self, outcome: &'static str, code: Option<&str>) {
        metrics::counter!(JOB_ATTEMPTS, "queue" => self.queue.clone(), "job_type" => self.job_type.clone(),
            "outcome" => outcome, "error_code" => code_label(code))
        .increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_follow_the_rules() {
        const LABELS: &[&str] = &[
            "queue",
            "state",
            "kind",
            "job_type",
            "outcome",
            "error_code",
            "saturated",
            "phase",
            "report",
            "result",
            "cause",
            "purpose",
            "stage",
            "task",
            "version",
            "schema",
            "subscription",
            "hold",
            "reason",
        ];
        for metric in METRICS {
            assert!(metric.name.starts_with("outhaul_"), "{}", metric.name);
            assert_eq!(
                metric.kind == MetricKind::Counter,
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(metric.unit != Unit::Seconds || metric.name.ends_with("_seconds"), "{}", metric.name);
            for label in metric.labels {
                assert!(LABELS.contains(label), "{}: {label}", metric.name);
            }
        }
    }

    #[test]
    fn a_code_that_is_no_code_becomes_other() {
        assert_eq!(code_label(Some("http_503")), "http_503");
        assert_eq!(code_label(Some("user 7 <a@example.test>")), "other");
        assert_eq!(code_label(Some(&"x".repeat(41))), "other");
        for id in ["01a22db6839a712d91f72529230257c9", "user_1000003", "", "_", "a__b", "Http_503"] {
            assert_eq!(code_label(Some(id)), "other", "{id}");
        }
        assert!(["e2e_timeout", "sha256_mismatch", "503", "card_declined"].into_iter().all(is_code));
        assert_eq!(code_label(None), "none");
    }

    #[test]
    fn codes_are_bounded_in_number() {
        for n in 0..1_000 {
            code_label(Some(&format!("code_{n}")));
        }
        assert_eq!(code_label(Some("one_more")), "other");
    }
}
