//! The alert rules that ship: each fires on the fault it is for, and none because notifications are few.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use outhaul::{
    Backoff, Context, EventContext, Failure, NewJob, RecordedEvent, Relay, Start, Subscription, enqueue,
    telemetry,
};
use serde::Deserialize;

use crate::metrics_text::{Sample, recorder, samples};
use crate::support::{Counter, Db, Running, until};

#[derive(Deserialize)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasting: Option<String>,
    annotations: BTreeMap<String, String>,
}

fn alerts() -> Vec<Alert> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.yaml");
    let file: File = serde_norway::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    file.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// `NAME{label="value"}`; `=~` takes alternatives.
#[derive(Debug)]
struct Selector {
    name: String,
    label: Option<(String, Vec<String>)>,
}

impl Selector {
    fn read(text: &str) -> Selector {
        let Some((name, matcher)) = text.trim().split_once('{') else {
            return Selector { name: text.trim().into(), label: None };
        };
        let (label, value) = matcher.trim_end_matches('}').split_once('=').expect("label=value");
        let alternatives = value.strip_prefix('~');
        let value = alternatives.unwrap_or(value).trim_matches('"');
        let values = match alternatives {
            Some(_) => value.split('|').map(str::to_owned).collect(),
            None => vec![value.to_owned()],
        };
        Selector { name: name.into(), label: Some((label.into(), values)) }
    }

    /// Each series that it selects, by its labels.
    fn select(&self, text: &str) -> BTreeMap<Vec<(String, String)>, f64> {
        let wanted = |sample: &Sample| {
            sample.name == self.name
                && self.label.as_ref().is_none_or(|(label, values)| {
                    sample.labels.iter().any(|(name, value)| name == label && values.contains(value))
                })
        };
        samples(text).into_iter().filter(wanted).map(|sample| (sample.labels, sample.value)).collect()
    }
}

/// The few forms that the rules have: `a > n`, `a - b > n` with equal labels, and `increase(a[t]) > n`, which is taken
/// here from one rendering to a later one.
struct Rule {
    left: Selector,
    minus: Option<Selector>,
    increase: bool,
    limit: f64,
}

impl Rule {
    fn read(expr: &str) -> Rule {
        let (left, limit) = expr.rsplit_once(" > ").unwrap_or_else(|| panic!("no limit: {expr}"));
        let limit = limit.trim().parse().unwrap_or_else(|_| panic!("no number: {expr}"));
        if let Some(inner) = left.strip_prefix("increase(").and_then(|rest| rest.strip_suffix("m])")) {
            let (inner, minutes) = inner.rsplit_once('[').expect("a range");
            assert!(minutes.parse::<u32>().is_ok(), "{expr}");
            return Rule { left: Selector::read(inner), minus: None, increase: true, limit };
        }
        let (left, minus) = match left.split_once(" - ") {
            Some((left, minus)) => (left, Some(Selector::read(minus))),
            None => (left, None),
        };
        Rule { left: Selector::read(left), minus, increase: false, limit }
    }

    fn selectors(&self) -> impl Iterator<Item = &Selector> {
        [&self.left].into_iter().chain(&self.minus)
    }

    fn fires(&self, before: &str, after: &str) -> bool {
        let past = self.left.select(before);
        let minus = self.minus.as_ref().map(|minus| minus.select(after));
        self.left.select(after).into_iter().any(|(labels, value)| {
            let less = match (&minus, self.increase) {
                (Some(minus), _) => minus.get(&labels).copied(),
                (None, true) => Some(past.get(&labels).copied().unwrap_or(0.0)),
                (None, false) => Some(0.0),
            };
            less.is_some_and(|less| value - less > self.limit)
        })
    }
}

fn firing(before: &str, after: &str) -> BTreeSet<String> {
    let fires = |alert: &Alert| Rule::read(&alert.expr).fires(before, after);
    alerts().into_iter().filter(fires).map(|alert| alert.alert).collect()
}

#[test]
fn every_rule_speaks_of_metrics_and_labels_that_exist_and_says_what_to_do() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        assert!(names.insert(alert.alert.clone()), "{} twice", alert.alert);
        assert!(alert.lasting.is_none_or(|time| time.ends_with('m')), "{}", alert.alert);
        for said in ["summary", "action"] {
            assert!(alert.annotations.get(said).is_some_and(|text| text.len() > 20), "{}", alert.alert);
        }
        for selector in Rule::read(&alert.expr).selectors() {
            let metric = telemetry::METRICS.iter().find(|metric| metric.name == selector.name);
            let metric = metric.unwrap_or_else(|| panic!("{}: no metric {}", alert.alert, selector.name));
            let label = selector.label.as_ref().map(|(label, _)| label.as_str());
            assert!(label.is_none_or(|label| metric.labels.contains(&label)), "{}", alert.alert);
        }
        for word in ["wakes", "listener", "drain_empty", "notification_failures"] {
            assert!(!alert.expr.contains(word), "{} speaks of notifications", alert.alert);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_nothing_fires_while_nothing_is_late() {
    let shown = recorder();
    let mut db = Db::new().await;
    let counter = Counter::default();
    let subscription = Subscription::new("quiet").start(Start::Beginning);
    let read = |_: RecordedEvent, _: EventContext| std::future::ready(Ok::<(), Failure>(()));
    let builder = db.worker().handle(counter.handler()).subscribe(subscription, read);
    let builder = builder.relay(Relay::default(), read).with(|o| o.listen = false);
    let before = shown.render();
    let running = Running::start(builder).await;
    db.client.query("select outhaul.publish('a.b', 'a', gen_random_uuid())", &[]).await.unwrap();
    enqueue(&mut db.client, &NewJob::new(&crate::support::Tick { n: 1 }).unwrap()).await.unwrap();
    counter.until_ended(1).await;
    db.until("the event is read", "select position = 1 from outhaul.subscriptions").await;
    db.until("and relayed", "select count(*) = 1 from outhaul.outbox_events where processed_at is not null")
        .await;
    running.stop().await;
    db.observer().await.record_gauges().await.unwrap();
    assert_eq!(firing(&before, &shown.render()), BTreeSet::new());
}

/// Faults as the tables have them after a while: late jobs and leases, cursors that stand or are gone, and a relay that
/// nobody runs.
const LATE: &str = "
    insert into outhaul.queues (name, age_objective) values ('late', '90 s');
    begin;
    set local session_replication_role = replica;
    insert into outhaul.jobs (queue, job_type, run_at, status, lease_until) values
      ('late', 't', now() - interval '1 h', 'pending', '-infinity'),
      ('late', 't', now() - interval '1 h', 'leased', now() - interval '1 h');
    insert into outhaul.jobs (queue, job_type, run_at, limit_key, held, held_for) values
      ('late', 't', now() - interval '1 h', 'k', true, 'permit');
    commit;
    select outhaul.register_relay('beginning');
    select outhaul.subscribe('stands', 'beginning');
    select outhaul.subscribe('gone', 'beginning', gone_after => '1 s');
    select outhaul.publish('late.one', 'late', gen_random_uuid()) from generate_series(1, 3);
    select outhaul.sequence(2);
    update outhaul.outbox_events set at = at - interval '1 h', available_at = available_at - interval '1 h';
    update outhaul.outbox_feed set at = at - interval '1 h';
    update outhaul.outbox_unsequenced set at = at - interval '1 h';
    update outhaul.relay set starts_at = '-infinity';
    update outhaul.subscriptions set moved_at = moved_at - interval '1 h', seen_at = seen_at - interval '1 h';";

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_fires_on_its_fault() {
    let shown = recorder();
    let db = Db::new().await;
    let before = shown.render();
    // What fails: a dead letter, an unknown type, a blocked cursor, an event that is set aside, one that the relay gave up.
    let failing = |_: RecordedEvent, _: EventContext| std::future::ready(Err(Failure::permanent("no")));
    let blocked = Subscription::new("blocks").start(Start::Beginning);
    let parking = Subscription::new("parks").start(Start::Beginning).park_after(1);
    let dies = |_: Context| std::future::ready(Err::<(), Failure>(Failure::permanent("no")));
    let builder = db.worker().handle_raw("alerts", "alerts.dies", dies).subscribe(blocked, failing);
    let builder =
        builder.subscribe(parking, failing).relay(Relay::default().start(Start::Beginning), failing);
    let backoff = Backoff { base: Duration::from_millis(5), ..Backoff::default() };
    let running = Running::start(builder.with(|o| o.retry.backoff = backoff)).await;
    db.client.query("select outhaul.publish('a.b', 'a', gen_random_uuid())", &[]).await.unwrap();
    for job_type in ["alerts.dies", "alerts.unknown"] {
        db.client.query("select outhaul.enqueue('alerts', $1)", &[&job_type]).await.unwrap();
    }
    let expected = [
        "OuthaulDeadLetters",
        "OuthaulUnknownJobType",
        "OuthaulSubscriptionBlocked",
        "OuthaulEventsParked",
        "OuthaulRelayParked",
    ];
    let observer = db.observer().await;
    for alert in expected {
        until(alert, || async {
            observer.record_gauges().await.unwrap();
            firing(&before, &shown.render()).contains(alert)
        })
        .await;
    }
    running.stop().await;
    // What is late, in a database in which nobody works.
    let db = Db::new().await;
    db.client.batch_execute(LATE).await.unwrap();
    db.observer().await.record_gauges().await.unwrap();
    metrics::gauge!("outhaul_notification_queue_usage_ratio").set(0.2);
    metrics::counter!("outhaul_upkeep_failures_total", "task" => "partitions").increment(4);
    let mut fired = firing(&before, &shown.render());
    fired.extend(expected.map(str::to_owned));
    for alert in alerts() {
        assert!(fired.contains(&alert.alert), "{} does not fire", alert.alert);
    }
}
