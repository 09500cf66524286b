//! The place of a connection that is opened again for as long as it takes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Conn, Purpose};
use crate::error::{Error, Result};
use crate::store::dsn::Dsn;
use crate::telemetry;

/// At least this long from the start of one attempt to the next, and up to a quarter more, so that a fleet
/// does not come back in step. A connection that lived longer is therefore opened again at once.
pub(super) const ATTEMPT_EVERY: Duration = Duration::from_secs(1);

/// Room for two hosts that do not answer and a third that does.
const OPEN_LIMIT: Duration = Duration::from_secs(15);

/// A place for one connection, which is opened on demand, again and again. Clones share the place.
///
/// It never gives up by itself: whoever waits for it stops by dropping the future.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    dsn: Dsn,
    purpose: Purpose,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    conn: Option<Arc<Conn>>,
    /// Set by the first attempt.
    next_attempt: Option<Instant>,
    /// Attempts since the last one that succeeded.
    failures: u64,
}

impl Link {
    /// An empty place; nothing is opened yet.
    pub(crate) fn new(dsn: Dsn, purpose: Purpose) -> Link {
        Link(Arc::new(Shared { dsn, purpose, slot: Mutex::default() }))
    }

    /// The connection, opened first when there is none that can be used; tries for ever, about once a second.
    pub(crate) async fn get(&self) -> Arc<Conn> {
        let mut slot = self.0.slot.lock().await;
        loop {
            match self.usable_or_open(&mut slot, OPEN_LIMIT).await {
                Ok(conn) => return conn,
                Err(error) => self.log(slot.failures, &error),
            }
        }
    }

    /// The same with one attempt only, for a start that should fail at once when the configuration is wrong.
    ///
    /// # Errors
    /// Those of [`Conn::open`].
    pub(crate) async fn connect_once(&self, within: Duration) -> Result<Arc<Conn>> {
        self.usable_or_open(&mut *self.0.slot.lock().await, within).await
    }

    /// Closes a connection that was got here and does not serve; the next call opens another.
    pub(crate) fn discard(&self, conn: &Arc<Conn>) {
        conn.abandon();
    }

    async fn usable_or_open(&self, slot: &mut Slot, within: Duration) -> Result<Arc<Conn>> {
        if let Some(conn) = slot.conn.as_ref().filter(|conn| conn.is_usable()) {
            return Ok(conn.clone());
        }
        slot.conn = None;
        if let Some(at) = slot.next_attempt {
            tokio::time::sleep_until(at).await;
        }
        let again = slot.next_attempt.is_some();
        slot.next_attempt = Some(Instant::now() + ATTEMPT_EVERY.mul_f64(1.0 + fastrand::f64() / 4.0));
        let opened = Conn::open(&self.0.dsn, self.0.purpose, within).await;
        self.count(again, slot.failures, &opened);
        match opened {
            Ok(conn) => {
                slot.failures = 0;
                Ok(slot.conn.insert(Arc::new(conn)).clone())
            }
            Err(error) => {
                slot.failures += 1;
                Err(error)
            }
        }
    }

    fn count(&self, again: bool, failures: u64, opened: &Result<Conn>) {
        if !again {
            return;
        }
        let purpose = self.0.purpose.name();
        let result = if opened.is_ok() { "connected" } else { "failed" };
        metrics::counter!(telemetry::RECONNECTS, "purpose" => purpose, "result" => result).increment(1);
        if let Ok(conn) = opened {
            tracing::info!(purpose, failures, server = conn.target, "connected again");
        }
    }

    /// Aloud once for each outage: a line a second for each purpose would hide the rest of the log.
    fn log(&self, failures: u64, error: &Error) {
        let purpose = self.0.purpose.name();
        if failures == 1 {
            tracing::warn!(purpose, %error, hint = error.hint(), "no connection; trying about every second");
        } else {
            tracing::debug!(purpose, %error, failures, "still no connection");
        }
    }
}
