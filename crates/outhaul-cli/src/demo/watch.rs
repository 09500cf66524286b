//! What the live table shows, asked of the database.

use std::collections::HashMap;

use outhaul::Session;
use outhaul::{Observer, QueueView};
use uuid::Uuid;

use super::crew::HandView;
use super::effects::EffectLog;
use super::place::Place;
use super::task::QUEUES;

/// Everything the screen shows at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Seconds since the beginning.
    pub(super) elapsed: f64,
    pub(super) placed: usize,
    pub(super) orders: usize,
    pub(super) queues: Vec<QueueLine>,
    pub(super) workers: Vec<WorkerLine>,
    pub(super) outbox: OutboxLine,
    /// Newest last.
    pub(super) events: Vec<Event>,
}

/// A queue's counts.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueLine {
    pub(super) queue: &'static str,
    pub(super) waiting: i64,
    pub(super) leased: i64,
    pub(super) retrying: i64,
    pub(super) completed: i64,
    pub(super) dead: i64,
    pub(super) cancelled: i64,
    pub(super) oldest_ms: Option<i64>,
}

/// The outbox: facts with a position, and what its two readers have before them.
#[derive(Clone, Debug, Default)]
pub(super) struct OutboxLine {
    pub(super) facts: i64,
    /// Name and events behind.
    pub(super) readers: Vec<(String, i64)>,
}

/// A worker process.
#[derive(Clone, Debug)]
pub(super) struct WorkerLine {
    pub(super) number: i32,
    pub(super) pid: u32,
    pub(super) killed: bool,
    /// Jobs leased to it, also after it was killed.
    pub(super) holds: i64,
    /// Handlers that came to an end.
    pub(super) handled: i64,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Seconds since the beginning.
    pub(super) at: f64,
    pub(super) text: String,
    /// Something done to the system, and not one job's failure.
    pub(super) loud: bool,
}

/// Asks for snapshots.
pub(super) struct Watcher {
    observer: Observer,
    client: Session,
    log: EffectLog,
    schema: String,
}

/// Failures that are shown; more would push the table off a small terminal.
const FAILURES: i64 = 6;

impl Watcher {
    pub(super) async fn open(place: &Place) -> anyhow::Result<Watcher> {
        Ok(Watcher {
            observer: Observer::connect(&place.dsn, &place.outhaul).await?,
            client: place.shop_connection("watch").await?,
            log: place.effect_log().await?,
            schema: place.outhaul.to_string(),
        })
    }

    /// Jobs that have not ended, and events that a reader has before it. One statement: a projection makes jobs of events
    /// in one transaction.
    pub(super) async fn live(&self) -> anyhow::Result<i64> {
        let query = format!(
            "select (select count(*) from {0}.jobs) + (select count(*) from {0}.outbox_unsequenced)
                    + (select coalesce(sum(h.last_position - s.position), 0)::bigint
                         from {0}.subscriptions s cross join {0}.outbox_feed_head h)",
            self.schema
        );
        Ok(self.client.query_one(&query, &[]).await?.get(0))
    }

    /// How things are now, in the queues and with the workers.
    pub(super) async fn look(&self, elapsed: f64, hands: &[HandView]) -> anyhow::Result<Snapshot> {
        Ok(Snapshot {
            elapsed,
            queues: self.queues().await?,
            workers: self.workers(hands).await?,
            outbox: self.outbox().await?,
            events: self.failures(elapsed).await?,
            ..Snapshot::default()
        })
    }

    async fn queues(&self) -> anyhow::Result<Vec<QueueLine>> {
        let now: HashMap<String, QueueView> =
            self.observer.queues().await?.into_iter().map(|view| (view.queue.clone(), view)).collect();
        let ended = format!(
            "select queue, status::text, count(*) from {}.jobs_finished group by queue, status",
            self.schema
        );
        let rows = self.client.query(&ended, &[]).await?;
        let ended: HashMap<(String, String), i64> =
            rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        let of = |queue: &str, status: &str| ended.get(&(queue.into(), status.into())).copied().unwrap_or(0);
        let line = |queue: &'static str| {
            let mut line = QueueLine { queue, ..QueueLine::default() };
            line.completed = of(queue, "completed");
            line.cancelled = of(queue, "cancelled");
            if let Some(view) = now.get(queue) {
                line.waiting = view.pending + view.scheduled;
                line.leased = view.leased;
                line.retrying = view.retrying;
                line.dead = view.dead_letter;
                line.oldest_ms = view.oldest_pending_ms;
            }
            line
        };
        Ok(QUEUES.iter().map(|(queue, _)| line(queue)).collect())
    }

    async fn outbox(&self) -> anyhow::Result<OutboxLine> {
        let query = format!(
            "select s.name, h.last_position, h.last_position - s.position
               from {0}.outbox_feed_head h left join {0}.subscriptions s on true order by s.name desc",
            self.schema
        );
        let rows = self.client.query(&query, &[]).await?;
        let readers = rows.iter().filter_map(|row| Some((row.get::<_, Option<String>>(0)?, row.get(2))));
        Ok(OutboxLine { facts: rows.first().map_or(0, |row| row.get(1)), readers: readers.collect() })
    }

    async fn workers(&self, hands: &[HandView]) -> anyhow::Result<Vec<WorkerLine>> {
        let leased = format!(
            "select locked_by, count(*) from {}.jobs where status = 'leased' group by locked_by",
            self.schema
        );
        let rows = self.client.query(&leased, &[]).await?;
        let leased: HashMap<Uuid, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let handled = self.log.ended_by_worker().await?;
        let line = |hand: &HandView| WorkerLine {
            number: hand.number,
            pid: hand.pid,
            killed: hand.killed,
            holds: leased.get(&hand.id).copied().unwrap_or(0),
            handled: handled.get(&hand.number).copied().unwrap_or(0),
        };
        Ok(hands.iter().map(line).collect())
    }

    /// The last claims that did not complete, oldest first.
    async fn failures(&self, elapsed: f64) -> anyhow::Result<Vec<Event>> {
        let schema = &self.schema;
        let query = format!(
            "select date_part('epoch', clock_timestamp() - a.ended_at), j.job_type, a.error_class, a.error_code,
                    a.outcome, a.attempt
               from (select * from {schema}.job_attempts order by ended_at desc limit $1) a
               join {schema}.all_jobs j on j.id = a.job_id
              order by a.ended_at"
        );
        let event = |row: &tokio_postgres::Row| {
            let (job_type, class): (&str, &str) = (row.get(1), row.get(2));
            let (code, outcome): (Option<&str>, &str) = (row.get(3), row.get(4));
            let cause = match (class, code) {
                ("crash", _) => "lease expired".to_owned(),
                ("snooze", _) => "too early".to_owned(),
                (class, Some(code)) => format!("{class} {code}"),
                (class, None) => class.to_owned(),
            };
            let attempt: i32 = row.get(5);
            let text = format!("{job_type:<18} attempt {attempt}  {cause:<26} {}", outcome.replace('_', " "));
            Event { at: elapsed - row.get::<_, f64>(0), text, loud: class == "crash" }
        };
        Ok(self.client.query(&query, &[&FAILURES]).await?.iter().map(event).collect())
    }
}
