//! Making a data directory, and the arguments every private server starts with.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Installation, SUPERUSER};
use crate::error::{Context, Error, Result};
use crate::system::account::Account;
use crate::system::{lock, place};

/// initdb takes about one second; a loaded machine has needed five.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(120);

/// Trust is enough: the socket lies in a folder closed to others, and TCP is loopback and off by default.
const HBA: &str = "# Written by outhaul when the data directory was made.
local all all trust
local replication all trust
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
";

/// Socket paths longer than this do not fit into `sockaddr_un` with the file name appended (107 bytes on
/// Linux, 103 on macOS).
pub(super) const LONGEST_SOCKET_DIR: usize = 80;

/// Makes `data`, which must not exist, in one step: a killed initdb leaves nothing that looks finished.
pub(super) async fn init(
    installation: &Installation,
    account: &Account,
    data: &Path,
    durable: bool,
) -> Result<()> {
    let unfinished = sibling(data, "new");
    remove_dir(&unfinished)?;
    let home = data.parent().unwrap_or(data);
    let mut command = installation.command("initdb", account, home)?;
    command
        .args(["-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .arg("-D")
        .arg(&unfinished);
    if !durable {
        command.arg("--no-sync");
    }
    run(command, "initdb").await?;
    let hba = unfinished.join("pg_hba.conf");
    std::fs::write(&hba, HBA).context(|| format!("cannot write {}", hba.display()))?;
    std::fs::rename(&unfinished, data).context(|| format!("cannot rename {}", unfinished.display()))
}

/// Makes `data` as a copy of a stopped cluster that is made once per programs, version and account.
pub(super) async fn copy_of_template(
    installation: &Installation,
    account: &Account,
    data: &Path,
) -> Result<()> {
    let template = template(installation, account).await?;
    let home = data.parent().unwrap_or(data);
    let mut command = account.command(Path::new("cp"), home);
    command.arg("-a").arg(&template).arg(data);
    run(command, "cp").await
}

async fn template(installation: &Installation, account: &Account) -> Result<PathBuf> {
    let templates = place::within(account, "templates")?;
    let key = (installation.bin_dir(), installation.version(), account.name(), HBA);
    let home = templates.join(format!("pg{}-{:016x}", installation.major(), hash(key)));
    let data = home.join("data");
    if data.is_dir() {
        return Ok(data);
    }
    let _lock = lock::lock(&home.with_extension("lock"), SETUP_LIMIT).await?;
    if !data.is_dir() {
        account.private_dir(&home)?;
        init(installation, account, &data, false).await?;
    }
    Ok(data)
}

/// Stable within one build of the standard library, which is all that a cache key or a folder name needs.
pub(super) fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The settings that decide where a server can be reached.
pub(super) fn reach(socket_dir: &Path, port: u16, tcp: bool) -> Vec<(String, String)> {
    let listen = if tcp { "127.0.0.1" } else { "" };
    let pairs = [
        ("listen_addresses", listen.to_owned()),
        ("port", port.to_string()),
        ("unix_socket_directories", socket_dir.to_string_lossy().into_owned()),
        ("unix_socket_permissions", "0700".to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Runs a helper program to its end; its output becomes the error.
pub(super) async fn run(command: Command, what: &str) -> Result<()> {
    let mut command = tokio::process::Command::from(command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await.context(|| format!("cannot run {what}"))?;
    if output.status.success() {
        return Ok(());
    }
    let told = [output.stdout, output.stderr].concat();
    Err(Error::new(format!("{what} failed ({}): {}", output.status, String::from_utf8_lossy(&told).trim())))
}

/// The last lines of a log, for error messages.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    if last.is_empty() {
        format!("{} is empty", log.display())
    } else {
        format!("end of {}:\n{last}", log.display())
    }
}

pub(super) fn remove_dir(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(format!("cannot remove {}", path.display())).because(e))
        }
        _ => Ok(()),
    }
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.{suffix}"))
}
