//! A part of the engine that panics takes its worker with it.
//!
//! The parts need each other: without the settler nothing that ran is ever reported, and a pulse that went on
//! alone would renew the leases of those jobs for ever. So renewal stops in the same instant, the leases expire,
//! other workers run the jobs, and [`Worker::run_until`](crate::Worker::run_until) ends with an error.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Kind};

#[derive(Clone)]
pub(crate) struct Vital {
    died: CancellationToken,
    /// What ends pulse, settler, listener and upkeep.
    quiet: CancellationToken,
    /// The first death, in words.
    cause: Arc<OnceLock<String>>,
}

impl Vital {
    pub(crate) fn new(quiet: CancellationToken) -> Vital {
        Vital { died: CancellationToken::new(), quiet, cause: Arc::default() }
    }

    /// Runs a part. The log may be what panicked, so nothing is written here.
    pub(crate) async fn part(self, name: &'static str, work: impl Future<Output = ()>) {
        if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
            let _ = self.cause.set(format!("the {name} panicked: {}", panic_message(&*panic)));
            self.quiet.cancel();
            self.died.cancel();
        }
    }

    /// Resolves when a part has died.
    pub(crate) async fn death(&self) -> Error {
        self.died.cancelled().await;
        let cause = self.cause.get().map_or("a part of the worker panicked", String::as_str);
        Error::new(Kind::Internal, cause)
            .with_hint("The jobs it held run elsewhere when their leases expire. Start the worker again, and report this.")
    }
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
