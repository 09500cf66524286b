//! Events after the cursor of an ordered subscription. What is leased is the cursor: one claim at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{Batch, Common, millis};
use crate::engine::events::{self, RecordedEvent};
use crate::engine::handle::Registered;
use crate::engine::held::{Claimed, Work};
use crate::error::Result;
use crate::model::Payload;
use crate::store::statement::{CLAIM_SUBSCRIPTION, SEQUENCE, SUBSCRIPTION_DUE};

/// The most events that get a position in one turn.
const TURN: i32 = 1_000;
/// How long to wait for a turn that somebody else has. A turn takes milliseconds.
const OTHERS_TURN: Duration = Duration::from_millis(1);

/// The cursor of one subscription.
pub(crate) struct Cursor {
    pub(crate) common: Common,
    /// The subscription's name in the database.
    pub(crate) subscription: String,
    /// The most events of one batch.
    pub(crate) batch: i32,
    /// The last batch was full: there is more to read that has a position, so nobody needs a turn for it.
    pub(crate) behind: AtomicBool,
    pub(crate) registered: Arc<Registered>,
}

impl Cursor {
    /// Gives positions to what was committed, whoever reads it, and claims what follows the cursor.
    ///
    /// A reader that is behind leaves the turn to others, at the latest to upkeep, which has one a second.
    pub(crate) async fn claim(&self) -> Result<Batch> {
        let common = &self.common;
        let sent = Instant::now();
        // Sent together: the claim is executed after the turn, with a snapshot of its own.
        let lease_ms = common.lease_ms();
        let params: [&(dyn ToSql + Sync); 4] = [&self.subscription, &self.batch, &common.worker, &lease_ms];
        let skipped = self.behind.load(Ordering::Relaxed);
        let turn = async {
            if skipped {
                return Ok(0);
            }
            let rows = common.db.rows(&SEQUENCE, &[&TURN]).await?;
            Ok(rows.first().map_or(0, |row| row.get::<_, i32>(0)))
        };
        let claim = common.db.rows(&CLAIM_SUBSCRIPTION, &params);
        let (turn, rows): (Result<i32>, Result<Vec<Row>>) = tokio::join!(biased; turn, claim);
        let (given, rows) = (turn?, rows?);
        self.behind.store(rows.len() >= self.batch as usize, Ordering::Relaxed);
        let took = sent.elapsed();
        let others_turn = given < 0 && rows.is_empty();
        if others_turn {
            tokio::time::sleep(OTHERS_TURN).await;
        }
        // Without a turn nobody knows what else is committed: the next look has one.
        let full = others_turn || skipped || given >= TURN || rows.len() >= self.batch as usize;
        let held = if rows.is_empty() { Vec::new() } else { vec![self.held(&rows, sent)] };
        Ok(Batch::of(held, full, took))
    }

    pub(crate) async fn next_due(&self) -> Result<Option<Duration>> {
        Ok(millis(&self.common.db.rows(&SUBSCRIPTION_DUE, &[&self.subscription]).await?))
    }

    fn held(&self, rows: &[Row], sent: Instant) -> Arc<crate::engine::held::Held> {
        let first = &rows[0];
        let events = rows.iter().map(event).collect();
        let blocks = first.get::<_, &str>(5) == "block";
        let claimed = Claimed {
            id: first.get(0),
            token: first.get(1),
            claim_no: first.get(2),
            attempts: first.get(3),
            max_attempts: if blocks { i32::MAX } else { first.get(4) },
            timeout: self.common.timeout,
            lease: self.common.lease,
            work: Work::Batch(events::Batch::new(events, first.get(6), first.get(7), blocks)),
        };
        self.common.held(claimed, &self.registered, sent)
    }
}

fn event(row: &Row) -> RecordedEvent {
    RecordedEvent {
        position: row.get(8),
        seq: row.get(9),
        recorded_at: row.get(10),
        id: row.get(11),
        organization: row.get(12),
        aggregate_type: row.get(13),
        aggregate_id: row.get(14),
        event_type: row.get(15),
        schema_version: row.get(16),
        payload: Payload(row.get(17)),
        occurred_at: row.get(18),
        partition_key: row.get(19),
        traceparent: row.get(20),
    }
}
