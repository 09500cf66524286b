//! Waits that end on a condition, so that no test guesses how long something takes.

use std::time::{Duration, Instant};

/// How long a test waits for anything: 30 s, which bounds a hang and measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(10);

/// Looks every 10 ms whether a condition holds, and returns when it does.
///
/// # Panics
/// When it does not within [`PATIENCE`]; the message says what was waited for.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
