//! Where temporary things live: one folder per user below the temporary directory.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::error::{Context, Error, Result};
use crate::system::account::Account;

/// The folder of this user; created when missing.
///
/// Its name is predictable, so a folder that belongs to somebody else is refused.
pub(crate) fn base(account: &Account) -> Result<PathBuf> {
    let me = geteuid();
    let base = temp_dir(account)?.join(format!("outhaul-local-{me}"));
    open_dir(&base, account)?;
    let meta = std::fs::symlink_metadata(&base).context(|| format!("cannot look at {}", base.display()))?;
    if !meta.is_dir() || meta.uid() != me.as_raw() {
        let text = format!("{} exists and is not a folder of ours", base.display());
        return Err(Error::new(text).with_hint("remove it, or set TMPDIR to another directory"));
    }
    Ok(base)
}

/// A named folder inside [`base`].
pub(crate) fn within(account: &Account, name: &str) -> Result<PathBuf> {
    let path = base(account)?.join(name);
    open_dir(&path, account)?;
    Ok(path)
}

/// Makes a folder of ours that the server's account can pass through but not list.
pub(crate) fn open_dir(path: &Path, account: &Account) -> Result<()> {
    let mode = if account.is_dropped() { 0o711 } else { 0o700 };
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        // The mode given to mkdir is cut by the umask.
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .context(|| format!("cannot set the mode of {}", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::new(format!("cannot create folder {}", path.display())).because(e)),
    }
}

/// TMPDIR may lie in a closed home; `/tmp` is the fallback that every account can reach.
fn temp_dir(account: &Account) -> Result<PathBuf> {
    let preferred = std::env::temp_dir();
    let probe = preferred.join("x");
    if preferred.is_dir() && account.check_reach(&probe).is_ok() && preferred.as_os_str().len() < 40 {
        return Ok(preferred);
    }
    let fallback = PathBuf::from("/tmp");
    account.check_reach(&fallback.join("x"))?;
    Ok(fallback)
}
