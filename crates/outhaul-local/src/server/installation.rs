//! Finding an installed PostgreSQL server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Error, Result};
use crate::system::account::Account;

/// The oldest major version that Outhaul supports.
const OLDEST: u32 = 14;

/// A folder counts only with all three: pg_config alone comes with libpq's headers, without a server.
const NEEDED: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Names a folder whose server is used and nothing else is looked at.
const VARIABLE: &str = "OUTHAUL_PG_BINDIR";

/// Where distributions put server programs that are not on PATH; `*` is any one name.
const WELL_KNOWN: [&str; 8] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/Library/PostgreSQL/*/bin",
    "/opt/local/lib/postgresql*/bin",
];

/// The server programs of one PostgreSQL version on this machine.
#[derive(Clone, Debug)]
pub struct Installation {
    bin: PathBuf,
    version: String,
    major: u32,
    minor: u32,
}

impl Installation {
    /// Finds the installed server with the highest major version, 14 or later.
    ///
    /// Looks at `$OUTHAUL_PG_BINDIR` (alone, when it is set), then at `pg_config --bindir`, `PATH` and the
    /// folders of the usual distributions. When there is none, the error's hint is the one command that
    /// installs one on this system.
    pub fn find() -> Result<Installation> {
        if let Some(dir) = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) {
            return Installation::at(Path::new(&dir))
                .map_err(|e| Error::new(format!("{VARIABLE} does not name a usable PostgreSQL")).because(e));
        }
        Installation::all().into_iter().next().ok_or_else(|| {
            Error::new(format!("no PostgreSQL server {OLDEST} or later is installed here")).with_hint(
                format!(
                    "install one with `{}`, or set {VARIABLE} to the folder of its programs",
                    Installation::install_command()
                ),
            )
        })
    }

    /// Every usable installation outside `$OUTHAUL_PG_BINDIR`, best first: one for each folder of programs.
    pub fn all() -> Vec<Installation> {
        let mut found = BTreeMap::new();
        for (place, dir) in candidates().into_iter().enumerate() {
            let Ok(dir) = dir.canonicalize() else { continue };
            found.entry(dir).or_insert(place);
        }
        let at = |(dir, place): (PathBuf, usize)| Some((place, Installation::at(&dir).ok()?));
        let mut usable: Vec<(usize, Installation)> = found.into_iter().filter_map(at).collect();
        usable.sort_by_key(|(place, i)| (std::cmp::Reverse((i.major, i.minor)), *place));
        usable.into_iter().map(|(_, installation)| installation).collect()
    }

    /// Takes the server programs in `bin`.
    ///
    /// Fails when one of `initdb`, `postgres` and `pg_ctl` is missing, does not run, or is older than 14.
    pub fn at(bin: impl AsRef<Path>) -> Result<Installation> {
        let bin = bin.as_ref();
        if let Some(missing) = NEEDED.iter().find(|name| !bin.join(name).is_file()) {
            return Err(Error::new(format!("{} has no program {missing}", bin.display())));
        }
        let bin = bin.canonicalize().context(|| format!("cannot resolve {}", bin.display()))?;
        let version = ask_version(&bin.join("postgres"))?;
        let (major, minor) = parse_version(&version).ok_or_else(|| {
            Error::new(format!("cannot read the version of {}: {version:?}", bin.display()))
        })?;
        if major < OLDEST {
            let text = format!("{} is PostgreSQL {version}, and {OLDEST} or later is needed", bin.display());
            return Err(
                Error::new(text).with_hint(format!("install one with `{}`", Installation::install_command()))
            );
        }
        Ok(Installation { bin, version, major, minor })
    }

    /// The folder of the programs, with links resolved.
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// The major version, such as 17.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The version as the server itself tells it, such as `17.10 (Debian 17.10-1)`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A client program of this installation (`psql`, `pg_dump`, `pg_basebackup` ...), else the one on `PATH`.
    ///
    /// Some server packages carry no client programs; then this is `None`. A `pg_dump` from `PATH` may be
    /// too old for this server.
    pub fn tool(&self, name: &str) -> Option<PathBuf> {
        let own = self.bin.join(name);
        if own.is_file() { Some(own) } else { on_path(name) }
    }

    /// The one command that installs a PostgreSQL server on this system.
    pub fn install_command() -> String {
        let sudo = if nix::unistd::geteuid().is_root() { "" } else { "sudo " };
        let family = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        install_command_for(&family, cfg!(target_os = "macos"), sudo)
    }

    pub(crate) fn command(&self, program: &str, account: &Account, home: &Path) -> Result<Command> {
        let path = self.bin.join(program);
        account.check_reach(&path)?;
        Ok(account.command(&path, home))
    }
}

/// A program in a folder of `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        dirs.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    for dir in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        // /usr/local/bin/pg_ctl may be a link into the folder where its companions are.
        let real = dir.join("pg_ctl").canonicalize().ok();
        dirs.extend(real.and_then(|program| program.parent().map(Path::to_path_buf)));
    }
    dirs.extend(WELL_KNOWN.iter().flat_map(|pattern| expand(pattern)));
    dirs
}

/// Expands the one `*` of a pattern.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![PathBuf::from(pattern)] };
    let (folder, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let matching = names.filter(|name| name.starts_with(prefix));
    matching.map(|name| PathBuf::from(format!("{folder}/{name}{after}"))).collect()
}

fn ask_version(postgres: &Path) -> Result<String> {
    let output = Command::new(postgres).arg("--version").output();
    let output = output.context(|| format!("cannot run {}", postgres.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().strip_prefix("postgres (PostgreSQL) ") {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(Error::new(format!("{} does not tell its version: {}", postgres.display(), told.trim())))
        }
    }
}

/// "17.10 (Debian 17.10-1)" is (17, 10); "18beta1" is (18, 0).
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    let word = version.split_whitespace().next()?;
    let (major, minor) = word.split_once('.').unwrap_or((word, "0"));
    Some((number(major)?, number(minor).unwrap_or(0)))
}

fn install_command_for(os_release: &str, macos: bool, sudo: &str) -> String {
    let ids: Vec<&str> = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .collect();
    let is = |names: &[&str]| ids.iter().any(|id| names.contains(id));
    match () {
        () if macos => "brew install postgresql@17".into(),
        () if is(&["debian", "ubuntu"]) => {
            format!("{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends postgresql")
        }
        () if is(&["fedora", "rhel", "centos"]) => format!("{sudo}dnf install -y postgresql-server"),
        () if is(&["suse", "opensuse"]) => format!("{sudo}zypper install -y postgresql-server"),
        () if is(&["arch"]) => format!("{sudo}pacman -S --noconfirm postgresql"),
        () if is(&["alpine"]) => format!("{sudo}apk add postgresql"),
        () => "install the package postgresql of your system".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases_and_betas() {
        assert_eq!(parse_version("15.18 (Debian 15.18-0+deb12u1)"), Some((15, 18)));
        assert_eq!(parse_version("18beta2"), Some((18, 0)));
        assert_eq!(parse_version("devel"), None);
    }

    #[test]
    fn each_system_gets_its_own_install_command() {
        let ubuntu = "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n";
        assert!(
            install_command_for(ubuntu, false, "sudo ")
                .starts_with("sudo apt-get update && sudo apt-get install")
        );
        assert!(
            install_command_for("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"", false, "")
                .starts_with("dnf ")
        );
        assert!(install_command_for("", true, "").starts_with("brew "));
        assert!(install_command_for("ID=plan9", false, "").contains("postgresql"));
    }

    #[test]
    fn a_folder_without_a_server_is_refused_by_the_name_of_what_is_missing() {
        let empty = tempfile::tempdir().unwrap();
        assert!(Installation::at(empty.path()).unwrap_err().message().contains("initdb"));
    }
}
