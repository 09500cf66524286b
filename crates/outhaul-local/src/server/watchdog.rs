//! Cleans up after us when we cannot: a signal ends a process without running `Drop`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::{Context, Result};

/// Waits for the end of the pipe from its parent, which comes however the parent ends, then stops the
/// server below the folder `$1` and removes the folder. A folder that has gone is nothing to do.
const SCRIPT: &str = r#"
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && kill -QUIT "$pid" 2>/dev/null; then
  n=0
  while kill -0 "$pid" 2>/dev/null && [ $n -lt 60 ]; do sleep 0.1; n=$((n+1)); done
  kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
"#;

/// A small shell in a process group of its own, so that Ctrl-C in a terminal does not end it too.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(super) fn over(home: &Path) -> Result<Watchdog> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "outhaul-watchdog"]).arg(home);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = command.spawn().context(|| "cannot start /bin/sh".to_owned())?;
        Ok(Watchdog { shell })
    }
}

/// To be dropped after the folder has been removed.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
