//! Persistent and throw-away servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outhaul_local::{
    Child, ChildOptions, PATIENCE, PoolMode, Pooler, Server, ServerOptions, Status, Throwaway,
    ThrowawayOptions, until,
};

use crate::common::{connect, runs};

/// A folder below /tmp that the server's account can reach; removed with its server.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Folder {
        Folder(std::env::temp_dir().join(format!("outhaul-it-{}", uuid::Uuid::now_v7().simple())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pid(server: &Server) -> u32 {
    match server.status() {
        Status::Running { pid } => pid,
        Status::Stopped => panic!("the server does not run"),
    }
}

#[tokio::test]
async fn a_second_open_adopts_the_running_server() {
    let folder = Folder::new();
    let first = Server::open(ServerOptions::new(&folder.0)).await.unwrap();
    assert!(!first.adopted());
    connect(&first.url()).await.batch_execute("create table kept (n int)").await.unwrap();
    let second = Server::open(ServerOptions::new(&folder.0)).await.unwrap();
    assert!(second.adopted());
    assert_eq!(pid(&first), pid(&second));
    assert_eq!(first.url(), second.url());

    first.stop().await.unwrap();
    assert_eq!(second.status(), Status::Stopped);
    assert!(Server::find(&folder.0).unwrap().is_none());
    let third = Server::open(ServerOptions::new(&folder.0)).await.unwrap();
    assert!(!third.adopted());
    connect(&third.url()).await.query("select * from kept", &[]).await.unwrap();
    third.remove().await.unwrap();
    assert!(!folder.0.exists());
}

#[tokio::test]
async fn tcp_is_off_until_asked_for_and_keeps_its_port() {
    let folder = Folder::new();
    let server = Server::open(ServerOptions::new(&folder.0)).await.unwrap();
    assert_eq!(server.tcp_url(), None);
    let listen = connect(&server.url()).await.query_one("show listen_addresses", &[]).await.unwrap();
    assert_eq!(listen.get::<_, &str>(0), "");
    let refused = Server::open(ServerOptions::new(&folder.0).tcp(true)).await.unwrap_err();
    assert!(refused.hint().unwrap().contains("stop it first"), "{refused}");
    server.stop().await.unwrap();

    let options =
        ServerOptions::new(&folder.0).tcp(true).setting("application_name", "it's; \"quoted\" $HOME");
    let server = Server::open(options.clone()).await.unwrap();
    let client = connect(&server.tcp_url().unwrap()).await;
    let name = client
        .query_one("select setting from pg_settings where name = 'application_name'", &[])
        .await
        .unwrap();
    assert_eq!(name.get::<_, &str>(0), "it's; \"quoted\" $HOME");
    drop(client);
    server.stop().await.unwrap();
    let again = Server::open(options).await.unwrap();
    assert_eq!(server.tcp_url(), again.tcp_url());
    again.remove().await.unwrap();
}

#[tokio::test]
async fn a_long_path_gets_a_short_socket_folder() {
    let folder = Folder::new();
    let long = folder.0.join("d".repeat(60)).join("e".repeat(60));
    let server = Server::open(ServerOptions::new(&long)).await.unwrap();
    assert!(server.socket_dir().as_os_str().len() < 80);
    connect(&server.url()).await.query_one("select 1", &[]).await.unwrap();
    server.remove().await.unwrap();
}

#[tokio::test]
async fn a_directory_of_another_major_version_is_refused_with_the_way_out() {
    let folder = Folder::new();
    let server = Server::open(ServerOptions::new(&folder.0)).await.unwrap();
    server.stop().await.unwrap();
    std::fs::write(folder.0.join("data/PG_VERSION"), "13\n").unwrap();
    let refused = Server::open(ServerOptions::new(&folder.0)).await.unwrap_err();
    assert!(refused.message().contains("PostgreSQL 13"), "{refused}");
    assert!(refused.hint().unwrap().contains("OUTHAUL_PG_BINDIR"), "{refused}");
}

#[tokio::test]
async fn a_parent_closed_to_the_server_account_is_named() {
    use std::os::unix::fs::PermissionsExt;
    if !nix::unistd::geteuid().is_root() {
        outhaul_local::skip("only root drops to another account");
        return;
    }
    let folder = Folder::new();
    let closed = folder.0.join("closed");
    std::fs::create_dir_all(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let refused = Server::open(ServerOptions::new(closed.join("data"))).await.unwrap_err();
    assert!(refused.message().contains(closed.to_str().unwrap()), "{refused}");
    assert!(refused.hint().unwrap().contains("chmod o+x"), "{refused}");
}

#[tokio::test]
async fn many_openers_at_once_end_with_one_server() {
    let folder = Folder::new();
    let open = |_| tokio::spawn(Server::open(ServerOptions::new(&folder.0)));
    let mut pids = Vec::new();
    for opener in (0..6).map(open).collect::<Vec<_>>() {
        pids.push(pid(&opener.await.unwrap().unwrap()));
    }
    pids.dedup();
    assert_eq!(pids.len(), 1);
    Server::find(&folder.0).unwrap().unwrap().remove().await.unwrap();
}

/// Runs one ignored test of this binary in another process.
fn helper(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env("OUTHAUL_IT_DIR", folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn marked(output: &[u8], mark: &str) -> String {
    let text = String::from_utf8_lossy(output).into_owned();
    let line =
        text.lines().find_map(|line| line.split_once(mark)).unwrap_or_else(|| panic!("no {mark} in {text}"));
    line.1.trim().to_owned()
}

#[tokio::test]
#[ignore = "helper process of other tests"]
async fn helper_opens() {
    let folder = std::env::var_os("OUTHAUL_IT_DIR").expect("set by the caller");
    let server = Server::open(ServerOptions::new(folder)).await.unwrap();
    println!("opened={}", pid(&server));
}

#[tokio::test]
async fn two_processes_opening_one_directory_end_with_one_server() {
    let folder = Folder::new();
    let spawn = || helper("servers::helper_opens", &folder.0).spawn().unwrap();
    let (one, other) = (spawn(), spawn());
    let pids = [one, other].map(|child| marked(&child.wait_with_output().unwrap().stdout, "opened="));
    assert_eq!(pids[0], pids[1]);
    let server = Server::find(&folder.0).unwrap().expect("the server outlives its openers");
    assert_eq!(pids[0], pid(&server).to_string());
    server.remove().await.unwrap();
}

#[tokio::test]
async fn an_ordinary_user_runs_a_server_as_itself() {
    if !nix::unistd::geteuid().is_root() {
        outhaul_local::skip("every other test already runs as an ordinary user");
        return;
    }
    let folder = Folder::new();
    std::fs::create_dir(&folder.0).unwrap();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().expect("user nobody");
    nix::unistd::chown(&folder.0, Some(nobody.uid), Some(nobody.gid)).unwrap();
    // The test binary may lie in a folder that is closed to nobody.
    let program = folder.0.join("it");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    use std::os::unix::process::CommandExt;
    command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw()).current_dir("/");
    command.args(["--exact", "servers::helper_opens", "--ignored", "--nocapture"]);
    let output = command.env("OUTHAUL_IT_DIR", folder.0.join("server")).output().unwrap();
    let pid = marked(&output.stdout, "opened=");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let owner = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(owner.contains(&nobody.uid.to_string()), "{owner}");
    kill(pid.parse().unwrap(), nix::sys::signal::Signal::SIGINT);
    until("the server ends", async || !runs(pid.parse().unwrap())).await;
}

fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

#[tokio::test]
async fn kill_and_restart_keeps_committed_rows_and_the_port() {
    let server = Throwaway::start_new(ThrowawayOptions::new().setting("wal_level", "logical")).await.unwrap();
    let url = server.tcp_url();
    let client = connect(&url).await;
    client.batch_execute("create table t (n int); insert into t values (1)").await.unwrap();
    // A backend that computes does not notice that its postmaster is gone: it has to be ended by force.
    let busy = connect(&url).await;
    let pid: i32 = busy.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let computing =
        tokio::spawn(async move { busy.batch_execute("do $$ begin loop end loop; end $$").await });
    server.kill().await.unwrap();
    assert_eq!(server.pid().await, None);
    assert!(!runs(pid as u32), "a backend survived the kill");
    assert!(computing.await.unwrap().is_err());
    assert!(client.batch_execute("commit").await.is_err());

    for _ in 0..2 {
        server.start().await.unwrap();
        assert_eq!(server.tcp_url(), url);
        let client = connect(&url).await;
        let row = client.query_one("select count(*), max(n) from t", &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (1, 1));
        let level = client.query_one("show wal_level", &[]).await.unwrap();
        assert_eq!(level.get::<_, &str>(0), "logical");
        server.stop_immediate().await.unwrap();
    }
    server.start().await.unwrap();
    server.stop_fast().await.unwrap();
    assert!(
        std::fs::read_to_string(server.log_path())
            .unwrap()
            .contains("database system was not properly shut down")
    );
}

#[tokio::test]
async fn durability_is_on_unless_switched_off() {
    for (durable, expected) in [(true, "on"), (false, "off")] {
        let server = Throwaway::start_new(ThrowawayOptions::new().durable(durable)).await.unwrap();
        let client = connect(&server.url()).await;
        for name in ["fsync", "full_page_writes"] {
            let row = client.query_one(&format!("show {name}"), &[]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), expected, "{name}");
        }
        let row = client.query_one("show synchronous_commit", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "on");
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let options = ThrowawayOptions::new().setting("shared_buffers", "nonsense");
    let refused = Throwaway::start_new(options).await.unwrap_err();
    assert!(refused.message().contains("invalid value for parameter \"shared_buffers\""), "{refused}");
}

#[tokio::test]
async fn dropping_a_throwaway_leaves_nothing() {
    let server = Throwaway::start_new(ThrowawayOptions::new().tcp(false)).await.unwrap();
    let (pid, folder) = (server.pid().await.unwrap(), server.socket_dir().to_owned());
    drop(server);
    assert!(!folder.exists());
    assert!(!runs(pid));
}

#[tokio::test]
#[ignore = "helper process of other tests"]
async fn helper_starts_a_throwaway_and_waits() {
    let server = Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
    let pooler = match Pooler::find() {
        Some(_) => Some(Pooler::start(&server.url(), PoolMode::Session, 1).await.unwrap()),
        None => None,
    };
    let pooler = pooler.as_ref().map_or(0, Pooler::pid);
    println!("started={} {pooler} {}", server.pid().await.unwrap(), server.socket_dir().display());
    std::future::pending::<()>().await;
}

/// A process that owns a throw-away server (and a pooler, where there is one).
struct Owner {
    process: Child,
    server: u32,
    pooler: u32,
    folder: PathBuf,
}

impl Owner {
    async fn start() -> Owner {
        let command = helper("servers::helper_starts_a_throwaway_and_waits", Path::new("/"));
        let mut process = Child::spawn(command, ChildOptions::new()).unwrap();
        let line = process.line_with("started=", 4 * PATIENCE).await.unwrap();
        let words: Vec<&str> = line.split_once("started=").unwrap().1.split(' ').collect();
        let (server, pooler) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        Owner { process, server, pooler, folder: words[2].into() }
    }

    fn nothing_is_left(&self) -> bool {
        !runs(self.server) && !runs(self.pooler) && !self.folder.exists()
    }

    /// Its watchdogs: the shells that wait for its end.
    fn watchdogs(&self) -> Vec<i32> {
        let parent = format!("PPid:\t{}\n", self.process.pid());
        let is_one = |pid: &i32| {
            let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            read("status").contains(&parent) && read("cmdline").contains("outhaul-watchdog")
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect()
    }
}

#[tokio::test]
async fn a_throwaway_vanishes_with_an_owner_that_was_killed() {
    let mut owner = Owner::start().await;
    assert!(runs(owner.server) && owner.folder.join("data/PG_VERSION").exists());
    owner.process.kill().await.unwrap();
    until("nothing is left", async || owner.nothing_is_left()).await;
}

#[tokio::test]
async fn what_even_the_watchdog_missed_is_removed_by_the_next_start() {
    let mut owner = Owner::start().await;
    let watchdogs = owner.watchdogs();
    assert!(!watchdogs.is_empty());
    watchdogs.into_iter().for_each(|pid| kill(pid, nix::sys::signal::Signal::SIGKILL));
    owner.process.kill().await.unwrap();
    assert!(runs(owner.server), "nobody was left to end it");
    // Another test's start may be sweeping at the moment, with an older list.
    until("nothing is left", async || {
        Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
        owner.nothing_is_left()
    })
    .await;
}

/// The numbers in `t`.
async fn rows(server: &Throwaway) -> Vec<i32> {
    let rows = connect(&server.tcp_url()).await.query("select n from t order by n", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_was_committed_is_on_a_promoted_standby() {
    let primary = Throwaway::start_new(ThrowawayOptions::new().setting("work_mem", "5MB")).await.unwrap();
    let client = connect(&primary.tcp_url()).await;
    client.batch_execute("create table t (n int); insert into t values (1)").await.unwrap();
    let standby = primary.start_standby().await.unwrap();
    assert_ne!(primary.port(), standby.port());
    let reader = connect(&standby.tcp_url()).await;
    let row = reader.query_one("select current_setting('work_mem')", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "5MB", "it has the settings of its primary");
    let refused = reader.batch_execute("insert into t values (0)").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "25006");

    client.batch_execute("insert into t values (2)").await.unwrap();
    primary.kill().await.unwrap();
    standby.promote().await.unwrap();
    connect(&standby.tcp_url()).await.batch_execute("insert into t values (3)").await.unwrap();
    assert_eq!(rows(&standby).await, [1, 2, 3]);
    standby.kill().await.unwrap();
    standby.start().await.unwrap();
    connect(&standby.tcp_url()).await.batch_execute("insert into t values (4)").await.unwrap();
    assert_eq!(rows(&standby).await, [1, 2, 3, 4], "it stays what it was promoted to");
    let refused = standby.promote().await.unwrap_err();
    assert!(refused.message().contains("recovery is not in progress"), "{refused}");
}

#[tokio::test]
async fn a_commit_waits_while_the_standby_is_gone_and_a_standby_comes_back_as_one() {
    let primary = Throwaway::start_new(ThrowawayOptions::new().tcp(false)).await.unwrap();
    let standby = primary.start_standby().await.unwrap();
    let client = connect(&primary.url()).await;
    client.batch_execute("create table t (n int)").await.unwrap();
    standby.kill().await.unwrap();
    let commit = tokio::spawn(async move { client.batch_execute("insert into t values (1)").await });
    let other = connect(&primary.url()).await;
    until("the commit waits", async || {
        let sql = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
        other.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    standby.start().await.unwrap();
    commit.await.unwrap().unwrap();
    let reader = connect(&standby.url()).await;
    let row = reader.query_one("select pg_is_in_recovery()", &[]).await.unwrap();
    assert!(row.get::<_, bool>(0));
    until("it is replayed", async || {
        reader.query_one("select count(*) from t", &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
}

#[tokio::test]
async fn one_standby_and_then_one_of_the_promoted_one() {
    let first = Throwaway::start_new(ThrowawayOptions::new()).await.unwrap();
    let second = first.start_standby().await.unwrap();
    for refused in [first.start_standby().await.unwrap_err(), second.start_standby().await.unwrap_err()] {
        assert!(refused.hint().unwrap().contains("promote a standby"), "{refused}");
    }
    first.kill().await.unwrap();
    second.promote().await.unwrap();
    let third = second.start_standby().await.unwrap();
    connect(&second.tcp_url()).await.batch_execute("create table t (n int)").await.unwrap();
    second.kill().await.unwrap();
    third.promote().await.unwrap();
    assert!(rows(&third).await.is_empty());
}

#[tokio::test]
async fn dropping_a_primary_and_its_standby_leaves_nothing() {
    for primary_first in [true, false] {
        let primary = Throwaway::start_new(ThrowawayOptions::new().tcp(false)).await.unwrap();
        let standby = primary.start_standby().await.unwrap();
        let pids = [primary.pid().await.unwrap(), standby.pid().await.unwrap()];
        let folders = [primary.socket_dir().to_owned(), standby.socket_dir().to_owned()];
        if primary_first {
            drop((primary, standby))
        } else {
            drop((standby, primary))
        }
        assert!(folders.iter().all(|folder| !folder.exists()));
        assert!(pids.iter().all(|pid| !runs(*pid)));
    }
}
