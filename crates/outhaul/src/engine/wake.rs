//! Reasons to look for work, and the listener that makes one of them.
//!
//! A notification is permission to look and nothing else: its payload selects nothing, and losing it
//! costs time, never work. One session per process listens, in this order: connect, LISTEN, *then* look once,
//! then wait. The same steps follow every reconnect. A listener can go deaf without an error (half-open
//! socket, transaction pooler), so it is probed in its own session and by a notification sent to it through
//! another one. While it is not proven to hear, the worker polls and says so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::link::{Db, Link};
use crate::model::SchemaName;
use crate::store::statement::CANARY;
use crate::telemetry;

/// Why a source looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Startup,
    Notification,
    Reconnect,
    Poll,
    Linger,
    Due,
    Rescan,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Cause::Startup => "startup",
            Cause::Notification => "notification",
            Cause::Reconnect => "reconnect",
            Cause::Poll => "poll",
            Cause::Linger => "linger",
            Cause::Due => "due",
            Cause::Rescan => "rescan",
        }
    }
}

/// The coalesced flag: any number of wakes before a look are one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wake {
    pub(crate) cause: Cause,
}

/// What is known about the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerState {
    /// Not yet, or not any more, on a session.
    Connecting,
    /// Registered; not yet shown to hear.
    Listening,
    /// A notification has arrived lately: polling can be rarer.
    Proven,
    /// It cannot work here, or was switched off: the worker polls.
    Polling,
}

impl ListenerState {
    const ALL: [ListenerState; 4] =
        [ListenerState::Connecting, ListenerState::Listening, ListenerState::Proven, ListenerState::Polling];

    /// The word used in SQL, metrics and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            ListenerState::Connecting => "connecting",
            ListenerState::Listening => "listening",
            ListenerState::Proven => "proven",
            ListenerState::Polling => "polling",
        }
    }
}

/// Shared by all sources of a process.
pub(crate) struct Waker {
    wake: watch::Sender<Wake>,
    state: Mutex<ListenerState>,
    pid: AtomicI32,
    warned: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Waker {
        Waker {
            wake: watch::Sender::new(Wake { cause: Cause::Startup }),
            state: Mutex::new(ListenerState::Connecting),
            pid: AtomicI32::new(0),
            warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Wake> {
        let mut receiver = self.wake.subscribe();
        receiver.mark_unchanged();
        receiver
    }

    pub(crate) fn wake(&self, cause: Cause) {
        self.wake.send_replace(Wake { cause });
    }

    pub(crate) fn state(&self) -> ListenerState {
        *self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The server process of the listener's session, 0 for none.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The poll interval in force: five times longer while notifications are proven to arrive.
    pub(crate) fn poll(&self, poll: Duration) -> Duration {
        if self.state() == ListenerState::Proven { poll * 5 } else { poll }
    }

    fn set(&self, state: ListenerState, pid: i32) {
        *self.state.lock().unwrap_or_else(|p| p.into_inner()) = state;
        self.pid.store(pid, Ordering::Relaxed);
        for each in ListenerState::ALL {
            let value = if each == state { 1.0 } else { 0.0 };
            metrics::gauge!(telemetry::LISTENER_STATE, "state" => each.as_str()).set(value);
        }
        let connected = matches!(state, ListenerState::Listening | ListenerState::Proven);
        metrics::gauge!(telemetry::LISTENER_CONNECTED).set(if connected { 1.0 } else { 0.0 });
        if state == ListenerState::Proven && self.warned.swap(false, Ordering::Relaxed) {
            tracing::info!("notifications arrive again");
        }
    }

    /// Notes that wake-ups do not work; said aloud once until they work again.
    fn deaf(&self, stage: &'static str, why: &dyn std::fmt::Display) {
        metrics::counter!(telemetry::NOTIFICATION_FAILURES, "stage" => stage).increment(1);
        self.set(ListenerState::Polling, 0);
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(stage, %why, "notifications do not arrive; work goes on by polling");
        }
    }
}

/// The listener's task.
pub(crate) struct Listener {
    pub(crate) link: Link,
    /// A connection of the ordinary kind, through which the canary is sent.
    pub(crate) canary: Db,
    pub(crate) schema: SchemaName,
    pub(crate) worker: Uuid,
    pub(crate) waker: std::sync::Arc<Waker>,
    pub(crate) probe_every: Duration,
    pub(crate) canary_every: Duration,
    pub(crate) stop: CancellationToken,
}

/// What producers that write plain SQL notify.
const PLAIN_CHANNEL: &str = "outbox_ready";
/// How long a probe's answer, or the canary, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the canary's own statement may take before its connection is taken for dead.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

impl Listener {
    /// Listens until stopped. A listener that cannot work is tried again, ever less often, up to every 30 s.
    pub(crate) async fn run(self) {
        let mut rest = Duration::from_secs(1);
        loop {
            let heard = tokio::select! {
                heard = self.session() => heard,
                () = self.stop.cancelled() => return,
            };
            if heard {
                // The session was good and ended: come back at once, the link keeps its own pace.
                rest = Duration::from_secs(1);
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(rest.mul_f64(0.8 + 0.4 * fastrand::f64())) => {}
                () = self.stop.cancelled() => return,
            }
            rest = (rest * 2).min(Duration::from_secs(30));
        }
    }

    /// One session, from LISTEN to its end. True when a notification was received on it.
    async fn session(&self) -> bool {
        if self.waker.state() != ListenerState::Polling {
            self.waker.set(ListenerState::Connecting, 0);
        }
        let conn = self.link.get().await;
        let own = format!("outhaul_canary_{}", self.worker.simple());
        let listen = format!(
            "/* outhaul:listen */ listen {}; listen {PLAIN_CHANNEL}; listen {own}",
            self.schema.quoted()
        );
        if let Err(error) = conn.batch(&listen, PATIENCE).await {
            self.waker.deaf("listen", &error);
            self.link.discard(&conn);
            return false;
        }
        self.waker.set(ListenerState::Listening, conn.pid());
        // What was committed before the registration took effect is found by this look.
        self.waker.wake(Cause::Reconnect);
        let mut heard_any = false;
        let mut heard = conn.notifications();
        let mut probe =
            tokio::time::interval_at((Instant::now() + self.probe_every).into(), self.probe_every);
        let mut canary = tokio::time::interval(self.canary_every);
        probe.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        canary.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                changed = heard.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    heard_any = true;
                    self.waker.set(ListenerState::Proven, conn.pid());
                    self.waker.wake(Cause::Notification);
                }
                () = conn.closed() => break,
                _ = canary.tick() => {
                    match self.canary(&own, &mut heard).await {
                        Some(true) => {
                            heard_any = true;
                            self.waker.set(ListenerState::Proven, conn.pid());
                            // What arrived may have been more than the canary.
                            self.waker.wake(Cause::Notification);
                        }
                        Some(false) => {
                            self.waker.deaf("canary", &"a notification sent to the listener did not come back");
                            break;
                        }
                        None => {}
                    }
                }
                _ = probe.tick() => {
                    if let Err(error) = self.probe(&conn).await {
                        self.waker.deaf("probe", &error);
                        break;
                    }
                }
            }
        }
        self.link.discard(&conn);
        heard_any && self.waker.state() != ListenerState::Polling
    }

    /// Proves in the listener's own session that the socket lives and the registration stands.
    async fn probe(&self, conn: &super::link::Conn) -> crate::Result<()> {
        let sql = "/* outhaul:probe */ select count(*) from pg_listening_channels() c where c = $1";
        let rows =
            conn.query(sql, &[(&self.schema.as_str(), tokio_postgres::types::Type::TEXT)], PATIENCE).await?;
        match rows.first().map(|row| row.get::<_, i64>(0)) {
            Some(1) => Ok(()),
            _ => Err(crate::Error::new(
                crate::error::Kind::Unavailable,
                "the session is not registered on the channel",
            )
            .with_hint("LISTEN needs a connection of its own, not a transaction pooler: set a listen URL.")),
        }
    }

    /// Sends a notification the ordinary way and waits for any to arrive; `None` when it could not be sent,
    /// which proves nothing about the listener.
    async fn canary(&self, own: &str, heard: &mut watch::Receiver<u64>) -> Option<bool> {
        // The sender's connection serves others, whose statements may take long; it must not be given up for
        // the canary's sake, so the short limit is only on this wait. The long one is the sending task's own: it
        // outlives the wait, because in a worker with nothing to settle nobody else would find this connection dead.
        let (db, channel, stop) = (self.canary.clone(), own.to_owned(), self.stop.clone());
        let send = tokio::spawn(async move {
            let channel: [&(dyn ToSql + Sync); 1] = [&channel];
            tokio::select! {
                sent = db.rows_within(&CANARY, &channel, SEND_PATIENCE) => sent.is_ok(),
                () = stop.cancelled() => false,
            }
        });
        tokio::select! {
            biased;
            changed = heard.changed() => return Some(changed.is_ok()),
            sent = tokio::time::timeout(PATIENCE, send) => {
                if !matches!(sent, Ok(Ok(true))) {
                    return None;
                }
            }
        }
        Some(tokio::time::timeout(PATIENCE, heard.changed()).await.is_ok_and(|changed| changed.is_ok()))
    }
}
