//! What a streaming standby of a throw-away server is made of.
//!
//! The copy it starts from is taken with functions of the server and not with pg_basebackup, which the smaller
//! server packages lack, and which refuses a server that is newer than itself.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use super::sql;
use crate::error::{Context, Error, Result};
use crate::system::account::Account;

/// A promotion replays what was received; after heavy load that takes a while.
const LIMIT: Duration = Duration::from_secs(60);

/// Folders whose contents mean nothing in a copy. The log of changes comes through the replication slot.
const EMPTIED: [&str; 8] = [
    "pg_dynshmem",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_wal",
];

/// Keeps on the primary what a standby of this name has not received yet, from now on.
///
/// Fails when commits wait for another standby already.
pub(super) async fn reserve(primary: &str, name: &str) -> Result<()> {
    let client = sql::connect(primary).await.context(|| "cannot connect to the primary".to_owned())?;
    let sql = "select current_setting('synchronous_standby_names'), pg_is_in_recovery()";
    let row = client.query_one(sql, &[]).await.context(|| "cannot look at the primary".to_owned())?;
    if !row.get::<_, &str>(0).is_empty() || row.get(1) {
        return Err(Error::new("a standby needs a primary without another standby")
            .with_hint("make one standby of each server, and promote a standby before it gets one"));
    }
    let slot = client.query_one("select pg_create_physical_replication_slot($1, true)", &[&name]).await;
    slot.map(drop).context(|| format!("cannot make the replication slot {name}"))
}

/// Copies the data of the running primary to `to`, so that a server started there becomes its standby.
pub(super) async fn copy(primary: &str, major: u32, account: &Account, from: &Path, to: &Path) -> Result<()> {
    let (begin, end) = if major >= 15 {
        ("select pg_backup_start('standby', true)", "select labelfile from pg_backup_stop(false)")
    } else {
        (
            "select pg_start_backup('standby', true, false)",
            "select labelfile from pg_stop_backup(false, false)",
        )
    };
    let failed = || "cannot take a base backup".to_owned();
    // One session: the backup counts as given up when the session that began it ends.
    let client = sql::connect(primary).await.context(failed)?;
    client.execute(begin, &[]).await.context(failed)?;
    let (account_too, from, target) = (account.clone(), from.to_owned(), to.to_owned());
    let copying = tokio::task::spawn_blocking(move || copy_folder(&account_too, &from, &target));
    copying.await.context(failed)??;
    let label = client.query_one(end, &[]).await.context(failed)?;
    write(account, &to.join("backup_label"), label.get(0))?;
    write(account, &to.join("standby.signal"), "")
}

/// Settings that make a copy follow its primary, under a name that is also the slot's.
pub(super) fn follow(socket_dir: &Path, port: u16, name: &str) -> [(String, String); 3] {
    let folder = socket_dir.to_string_lossy().replace('\\', r"\\").replace('\'', r"\'");
    let user = super::SUPERUSER;
    let primary = format!("host='{folder}' port={port} user={user} application_name={name}");
    let pairs = [
        ("primary_conninfo", primary),
        ("primary_slot_name", name.to_owned()),
        // The default of 5 s is made for networks.
        ("wal_retrieve_retry_interval", "100ms".to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value))
}

/// Makes each commit on the primary wait until this standby has it on disk.
pub(super) async fn synchronize(primary: &str, name: &str) -> Result<()> {
    let streams = format!(
        "select exists (select from pg_stat_replication where application_name = '{name}' and state = 'streaming')"
    );
    sql::wait_true(primary, &streams, "the standby streams", LIMIT).await?;
    let set = format!("alter system set synchronous_standby_names = '{name}'");
    sql::run(primary, &[&set, "select pg_reload_conf()"]).await?;
    // Commits begin to wait when the checkpointer has read the setting, which it does before it looks at a
    // request. It has been told to when a session begins with the new value.
    let told = format!("select current_setting('synchronous_standby_names') = '{name}'");
    sql::wait_true(primary, &told, "the primary reads its settings", LIMIT).await?;
    sql::run(primary, &["checkpoint"]).await?;
    let synchronous = streams.replace("state = 'streaming'", "sync_state = 'sync'");
    sql::wait_true(primary, &synchronous, "commits wait for the standby", LIMIT).await
}

/// Ends the recovery of a standby; returns when it accepts writes.
pub(super) async fn promote(standby: &str) -> Result<()> {
    let failed = || "cannot promote the standby".to_owned();
    let client = sql::connect(standby).await.context(failed)?;
    let limit = LIMIT.as_secs() as i32;
    let row = client.query_one("select pg_promote(true, $1)", &[&limit]).await.context(failed)?;
    if row.get(0) {
        Ok(())
    } else {
        Err(Error::new(format!("the standby was not promoted within {limit} s")))
    }
}

/// The server goes on meanwhile: files may grow, which its log repairs, and vanish, which it knows as well.
fn copy_folder(account: &Account, from: &Path, to: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(to).context(|| format!("cannot create {}", to.display()))?;
    account.own(to)?;
    if EMPTIED.iter().any(|emptied| from.ends_with(emptied)) {
        return Ok(());
    }
    let entries = match std::fs::read_dir(from) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.context(|| format!("cannot list {}", from.display()))?,
    };
    for entry in entries.flatten() {
        let (name, source) = (entry.file_name(), entry.path());
        let target = to.join(&name);
        let failed = || format!("cannot copy {}", source.display());
        if is_of_the_process(&name) {
            continue;
        }
        if source.is_dir() {
            copy_folder(account, &source, &target)?;
            continue;
        }
        match std::fs::copy(&source, &target) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            copied => copied.map(drop).context(failed)?,
        }
        account.own(&target)?;
    }
    Ok(())
}

/// What belongs to the running server and not to its data.
fn is_of_the_process(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("postmaster.") || name.starts_with("pgsql_tmp")
}

fn write(account: &Account, path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(|| format!("cannot write {}", path.display()))?;
    account.own(path)
}
