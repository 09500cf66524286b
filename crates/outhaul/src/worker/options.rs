//! Limits and intervals, and the connections that follow from them.

use std::time::Duration;

use crate::decide::verdict::RetryPolicy;
use crate::error::{Error, Result};

/// Limits and intervals of a worker. Every field has the default that the documentation names.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// How long a claim holds a job before it must be renewed: 1 s to 24 h, 60 s by default. Renewed at a third.
    pub lease: Duration,
    /// How long a claim holds the cursor of a subscription: 1 s to 24 h, 30 s by default.
    pub subscription_lease: Duration,
    /// How often an idle worker looks without being told to: 1 s by default, five times rarer while
    /// notifications are proven to arrive. 10 ms to 24 h, like `sweep`, `probe` and `canary`.
    pub poll: Duration,
    /// How long a handler may run when its job does not say: 1 ms to 24 h, 5 min by default.
    pub timeout: Duration,
    /// How long a stopping worker waits for running handlers: up to 24 h, 30 s by default.
    pub drain: Duration,
    /// How long a handler that was asked to stop may go on before it is dropped: up to 24 h, 5 s by default.
    pub grace: Duration,
    /// How often expired leases are looked for: 1 s by default.
    pub sweep: Duration,
    /// Handlers that run at once in one queue, unless the queue says otherwise: 10 by default.
    pub concurrency: usize,
    /// Verdicts and waits after failures.
    pub retry: RetryPolicy,
    /// Whether to listen for notifications; on by default. Without, only latency changes.
    pub listen: bool,
    /// How often the listener's session is probed, and a notification is sent to it: 5 s and 15 s by default.
    pub probe: Duration,
    /// See `probe`.
    pub canary: Duration,
    /// The most connections this worker may open; the plan is refused when it needs more. 5 by default,
    /// which is also what it opens; 2 at the least.
    pub max_connections: usize,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            lease: Duration::from_secs(60),
            subscription_lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(300),
            drain: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            sweep: Duration::from_secs(1),
            concurrency: 10,
            retry: RetryPolicy::default(),
            listen: true,
            probe: Duration::from_secs(5),
            canary: Duration::from_secs(15),
            max_connections: 5,
        }
    }
}

/// The connections of a worker, by purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Each connection: its name, and what it is for.
    pub connections: Vec<(&'static str, &'static str)>,
    pub(super) share: usize,
}

impl Plan {
    pub(super) fn new(options: &WorkerOptions, owner: bool) -> Result<Plan> {
        let listen = usize::from(options.listen);
        let fixed = 1 + listen + usize::from(owner);
        let budget = options.max_connections;
        // Renewal never shares: waiting behind another statement is how leases are lost.
        if budget < fixed + 1 {
            let need = fixed + 1;
            return Err(Error::config(format!(
                "{budget} connections cannot work, this worker needs at least {need}"
            ))
            .with_hint("Raise max_connections, or switch listening off."));
        }
        let share = (budget - fixed).min(3);
        let mut connections = vec![("pulse", "renews leases; shared with nothing")];
        if listen == 1 {
            connections.push(("listen", "hears notifications"));
        }
        match share {
            1 => connections.push(("work", "claims, settles, and keeps house")),
            2 => {
                connections.push(("work", "claims and keeps house"));
                connections.push(("settle", "settles ended attempts"));
            }
            _ => {
                connections.push(("claim", "claims jobs"));
                connections.push(("settle", "settles ended attempts"));
                connections.push(("upkeep", "sweeps expired leases, keeps partitions and retention"));
            }
        }
        if owner {
            connections.push(("owner", "keeps partitions as the schema's owner"));
        }
        Ok(Plan { connections, share })
    }
}
