//! What tests stand on: a database each, a folder of their own to run the binary in, and waits that end on a
//! condition.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outhaul::{Dsn, MigrateOptions};
use outhaul_local::{Child, ChildOptions, TestDatabase, TestServer};
use serde_json::Value;
use tempfile::TempDir;

/// Nothing in a test takes longer than this unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A migrated database of one test.
pub(crate) async fn migrated() -> TestDatabase {
    let server = TestServer::shared().await.expect("a PostgreSQL server for tests");
    // With the day: a migration also keeps partitions, so a template of yesterday is not what it makes today.
    let day = jiff::Timestamp::now().strftime("%F");
    let fingerprint = format!("{day} {}", outhaul::migration_sql(&MigrateOptions::default()));
    let template = server
        .template("outhaul", &fingerprint, |url| async move {
            let dsn: Dsn = url.parse()?;
            outhaul::migrate(&dsn, &MigrateOptions::default()).await.map(drop)
        })
        .await
        .expect("a migrated template");
    server.database(&template).await.expect("a database of the test's own")
}

/// An empty database of one test.
pub(crate) async fn empty() -> TestDatabase {
    let server = TestServer::shared().await.expect("a PostgreSQL server for tests");
    server.empty_database().await.expect("a database of the test's own")
}

/// A folder in which the binary runs, with nothing of this process's environment.
pub(crate) struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Place {
    /// Nothing is configured.
    pub(crate) fn bare() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The account that servers run as must get through.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Place { folder, variables: Vec::new() }
    }

    /// `DATABASE_URL` leads to the database.
    pub(crate) fn at(database: &TestDatabase) -> Place {
        Place::bare().with("DATABASE_URL", &database.url())
    }

    /// One more variable.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Place {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A shell script, run by its absolute path.
    pub(crate) fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.write(name, &format!("#!/bin/sh\n{body}\n"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// Binds a job type to a script of that body; what the table says more comes from `more`.
    pub(crate) fn bind(&self, job_type: &str, body: &str, more: &str) {
        self.script(&format!("{job_type}.sh"), body);
        let table = format!("[jobs.{job_type:?}]\ncommand = [\"./{job_type}.sh\"]\n{more}\n");
        let before = self.read("outhaul.toml");
        self.write("outhaul.toml", &format!("{before}{table}"));
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outhaul"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", self.path("home")).env("USER", "outhaul");
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command.current_dir(self.folder.path()).args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "")
    }

    /// Runs it to its end, with a text on standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Ran {
        Ran::of(self.command(args).stdout(Stdio::piped()), input.as_bytes())
    }

    /// Runs it to its end where nothing it prints can be written.
    pub(crate) fn run_full(&self, args: &[&str]) -> Ran {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is full");
        Ran::of(self.command(args).stdout(full), b"")
    }

    /// Runs it to its end where nobody reads what it prints.
    pub(crate) fn run_closed(&self, args: &[&str]) -> Ran {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Ran::of(self.command(args).stdout(writer), b"")
    }

    /// Enqueues a job and returns its id.
    pub(crate) fn enqueue(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["enqueue", "--json"].iter().chain(args).copied().collect();
        self.run(&args).ok().json()["id"].as_str().expect("an id").to_owned()
    }

    /// What `jobs show` says.
    pub(crate) fn show(&self, id: &str) -> Value {
        self.run(&["jobs", "show", id, "--json"]).ok().json()
    }

    /// Waits until a job is in a state, and returns what `jobs show` says then.
    pub(crate) async fn until_status(&self, id: &str, status: &str) -> Value {
        let mut shown = Value::Null;
        until(&format!("job {id} is {status}"), || {
            shown = self.show(id);
            shown["status"] == status
        })
        .await;
        shown
    }

    /// Starts a worker whose log goes to `worker.log`, and waits until it has announced itself.
    pub(crate) async fn worker(&self, args: &[&str]) -> Child {
        let args: Vec<&str> = ["work", "--json", "--log-format", "json", "--poll", "200ms"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let log = self.path("worker.log");
        let mut child =
            Child::spawn(self.command(&args), ChildOptions::new().output_to(&log)).expect("a worker");
        until("the worker announces itself", || {
            let log = self.log();
            assert!(child.try_wait().unwrap().is_none(), "the worker has ended: {log}");
            log.contains("\"connections\"")
        })
        .await;
        child
    }

    /// The worker's log so far.
    pub(crate) fn log(&self) -> String {
        self.read("worker.log")
    }
}

/// A run of the binary that has ended.
pub(crate) struct Ran {
    args: String,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Runs a command to its end, with bytes on standard input.
    pub(crate) fn of(command: &mut Command, input: &[u8]) -> Ran {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let mut child =
            command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        // It may end without having read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().expect("the binary ends");
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        Ran {
            args: args.join(" "),
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// It must have ended with this code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "outhaul {}\n{}{}", self.args, self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Ran {
        self.exits(0)
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("outhaul {}: {e}: {}", self.args, self.out))
    }

    /// The problem that `--json` put on standard error.
    #[track_caller]
    pub(crate) fn problem(&self) -> Value {
        let line = self.err.lines().last().unwrap_or_default();
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("outhaul {}: {e}: {}", self.args, self.err));
        value["error"].clone()
    }
}

/// The keys of a JSON object, sorted.
pub(crate) fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_answer(what, async || condition()).await;
}

/// Polls a condition that asks somebody, until it holds.
pub(crate) async fn until_answer(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A connection to a database of a test.
pub(crate) async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// Whether a process exists that is not merely waiting to be reaped.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    match stat {
        Ok(stat) => !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) if Path::new("/proc/self").exists() => false,
        Err(_) => nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok(),
    }
}
