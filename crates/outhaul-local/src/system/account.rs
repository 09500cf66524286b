//! The account a server runs as: ourselves, or an unprivileged one when we are root.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Gid, Uid, User, chown, geteuid};

use crate::error::{Context, Error, Result};

/// Tried in this order when we are root, because PostgreSQL and PgBouncer refuse to run as root.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// Who owns and runs a private server.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
    /// We are root and this is somebody else.
    dropped: bool,
}

impl Account {
    pub(crate) fn for_servers() -> Result<Account> {
        let me = geteuid();
        if !me.is_root() {
            return Ok(Account {
                name: me.to_string(),
                uid: me,
                gid: nix::unistd::getegid(),
                dropped: false,
            });
        }
        let found = UNPRIVILEGED.iter().find_map(|name| User::from_name(name).ok().flatten());
        let user = found.filter(|user| !user.uid.is_root()).ok_or_else(|| {
            Error::new(
                "PostgreSQL refuses to run as root, and neither user postgres nor user nobody exists here",
            )
            .with_hint("create one with `useradd --system postgres`, or run this as an ordinary user")
        })?;
        Ok(Account { name: user.name, uid: user.uid, gid: user.gid, dropped: true })
    }

    /// The user name when privileges are dropped, the numeric id otherwise.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// A command that runs as this account with a clean environment.
    ///
    /// The environment is cleared because PGDATA, PGPORT, PGOPTIONS and the locale of the caller would
    /// change what initdb and the server do.
    pub(crate) fn command(&self, program: &Path, home: &Path) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("LC_ALL", "C").env("HOME", home);
        command.current_dir("/").stdin(Stdio::null());
        if self.dropped {
            // As root this also clears the supplementary groups.
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
        }
        command
    }

    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        if !self.dropped {
            return Ok(());
        }
        chown(path, Some(self.uid), Some(self.gid))
            .context(|| format!("cannot give {} to user {}", path.display(), self.name))
    }

    /// Makes a folder that only this account can enter, or accepts an existing one that is.
    ///
    /// The parent must exist.
    pub(crate) fn private_dir(&self, path: &Path) -> Result<()> {
        match std::fs::create_dir(path) {
            Ok(()) => self.own(path)?,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::new(format!("cannot create folder {}", path.display())).because(e)),
        }
        let meta =
            std::fs::symlink_metadata(path).context(|| format!("cannot look at {}", path.display()))?;
        // A second opener may arrive between the creation of the folder and its change of owner.
        if self.dropped && meta.uid() == 0 {
            self.own(path)?;
        } else if !meta.is_dir() || meta.uid() != self.uid.as_raw() {
            let text = format!("{} is not a folder of user {}", path.display(), self.name);
            return Err(Error::new(text).with_hint("choose another directory, or remove this one"));
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .context(|| format!("cannot make {} private", path.display()))
    }

    /// Checks that the account can reach `path` when that account is not ours.
    pub(crate) fn check_reach(&self, path: &Path) -> Result<()> {
        if !self.dropped {
            return Ok(());
        }
        let Some(closed) = self.first_closed_parent(path) else { return Ok(()) };
        let text = format!(
            "user {} cannot reach {}: {} is closed to it",
            self.name,
            path.display(),
            closed.display()
        );
        Err(Error::new(text).with_hint(format!(
            "choose a directory outside {closed}, or run `chmod o+x {closed}`",
            closed = closed.display()
        )))
    }

    fn first_closed_parent(&self, path: &Path) -> Option<PathBuf> {
        let parents: Vec<&Path> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
        let closed = parents.into_iter().rev().find(|parent| !self.can_enter(parent));
        closed.map(Path::to_path_buf)
    }

    fn can_enter(&self, folder: &Path) -> bool {
        // A folder that does not exist yet is made by us, open to the account.
        let Ok(meta) = std::fs::metadata(folder) else { return true };
        let bit = match () {
            () if meta.uid() == self.uid.as_raw() => 0o100,
            () if meta.gid() == self.gid.as_raw() => 0o010,
            () => 0o001,
        };
        meta.mode() & bit != 0
    }
}
