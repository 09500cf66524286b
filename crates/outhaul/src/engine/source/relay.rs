//! Events for the relay: leased one by one, without order, by however many workers compete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::{Batch, Common, millis};
use crate::engine::events::RecordedEvent;
use crate::engine::handle::Registered;
use crate::engine::held::{Claimed, Held, Work, event_key};
use crate::error::Result;
use crate::model::Payload;
use crate::store::statement::{CLAIM_EVENTS, EVENTS_DUE};

/// The events that wait for the relay.
pub(crate) struct Relay {
    pub(crate) common: Common,
    pub(crate) registered: Arc<Registered>,
}

impl Relay {
    pub(crate) async fn claim(&self, n: usize) -> Result<Batch> {
        let common = &self.common;
        let sent = Instant::now();
        let rows = common.db.rows(&CLAIM_EVENTS, &[&(n as i32), &common.worker, &common.lease_ms()]).await?;
        let took = sent.elapsed();
        let full = rows.len() >= n;
        let mut held: Vec<Arc<Held>> = rows.iter().map(|row| self.held(row, sent)).collect();
        // A claim promises no order of its rows; the number of insertion gives it.
        held.sort_by_key(|held| held.id);
        Ok(Batch::of(held, full, took))
    }

    pub(crate) async fn next_due(&self) -> Result<Option<Duration>> {
        Ok(millis(&self.common.db.rows(&EVENTS_DUE, &[]).await?))
    }

    fn held(&self, row: &Row, sent: Instant) -> Arc<Held> {
        let event = RecordedEvent {
            position: 0,
            seq: row.get(0),
            recorded_at: row.get(1),
            id: row.get(6),
            organization: row.get(7),
            aggregate_type: row.get(8),
            aggregate_id: row.get(9),
            event_type: row.get(10),
            schema_version: row.get(11),
            payload: Payload(row.get(12)),
            occurred_at: row.get(13),
            partition_key: row.get(15),
            traceparent: row.get(16),
        };
        let claimed = Claimed {
            id: event_key(event.seq),
            token: row.get(2),
            claim_no: row.get(3),
            attempts: row.get(4),
            max_attempts: row.get(5),
            timeout: self.common.timeout,
            lease: self.common.lease,
            work: Work::Event(Box::new(event)),
        };
        self.common.held(claimed, &self.registered, sent)
    }
}
