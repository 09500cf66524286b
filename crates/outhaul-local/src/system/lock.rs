//! File locks: they end with the process that holds them, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};

/// Waits for an exclusive lock on the file, which is created when missing.
///
/// The wait polls instead of blocking so that the future can be dropped.
pub(crate) async fn lock(path: &Path, limit: Duration) -> Result<File> {
    let started = Instant::now();
    loop {
        if let Some(file) = try_lock(path)? {
            return Ok(file);
        }
        if started.elapsed() > limit {
            let text = format!("another process has held {} for {} s", path.display(), limit.as_secs());
            return Err(Error::new(text).with_hint("wait for it to end, or end it"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes the lock when nobody holds it.
pub(crate) fn try_lock(path: &Path) -> Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let file = file.context(|| format!("cannot open lock file {}", path.display()))?;
    match file.try_lock() {
        // A former holder may have removed the folder: a lock on an unlinked file excludes nobody.
        Ok(()) if same_file(&file, path) => Ok(Some(file)),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(Error::new(format!("cannot lock {}", path.display())).because(e)),
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => held.ino() == named.ino() && held.dev() == named.dev(),
        _ => false,
    }
}
