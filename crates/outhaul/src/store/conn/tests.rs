//! What is promised about connections, on real servers: every wait ends, the outcome of a lost statement is
//! unknown and never "not done", no notification is missed, and TLS checks what its mode says.

use std::path::Path;
use std::process::Command;

use outhaul_local::{Action, Match, Phase, PoolMode, Pooler, Proxy, Rule, TestDatabase, TestServer};
use outhaul_local::{Throwaway, ThrowawayOptions};

use tokio::time::Instant;

use super::link::ATTEMPT_EVERY;
use super::*;

const SOON: Duration = Duration::from_secs(20);

async fn database() -> TestDatabase {
    TestServer::shared().await.unwrap().empty_database().await.unwrap()
}

async fn throwaway() -> Throwaway {
    Throwaway::start_new(ThrowawayOptions::new().durable(false)).await.unwrap()
}

fn dsn(text: &str) -> Dsn {
    text.parse().unwrap()
}

async fn open(url: &str, purpose: Purpose) -> Result<Conn> {
    Conn::open(&dsn(url), purpose, SOON).await
}

async fn text(conn: &Conn, sql: &str) -> String {
    conn.query(sql, &[], SOON).await.unwrap()[0].get(0)
}

async fn int(conn: &Conn, sql: &str) -> i32 {
    conn.query(sql, &[], SOON).await.unwrap()[0].get(0)
}

/// Waits until a query that returns a boolean says true.
async fn until(conn: &Conn, what: &str, sql: &str) {
    let started = Instant::now();
    while !conn.query(sql, &[], SOON).await.unwrap()[0].get::<_, bool>(0) {
        assert!(started.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_gone(pid: i32) -> String {
    format!("select not exists (select from pg_stat_activity where pid = {pid})")
}

#[tokio::test]
async fn a_session_says_what_it_is_for() {
    let database = database().await;
    let conn = open(&database.tcp_url(), Purpose::Claim).await.unwrap();
    assert_eq!(text(&conn, "show application_name").await, "outhaul/claim");
    assert_eq!(int(&conn, "select pg_backend_pid()").await, conn.pid());
    let named = dsn(&database.url()).with_application_name("shop ü".repeat(20));
    let conn = Conn::open(&named, Purpose::Listen, SOON).await.unwrap();
    let name = text(&conn, "show application_name").await;
    assert!(name.starts_with("outhaul/listen shop ") && name.len() <= 63 * 4, "{name}");
}

#[tokio::test]
async fn a_raised_default_isolation_is_lowered_for_the_session() {
    let database = database().await;
    let admin = open(&database.url(), Purpose::Tool).await.unwrap();
    let raise =
        format!("alter database \"{}\" set default_transaction_isolation = 'serializable'", database.name());
    admin.batch(&raise, SOON).await.unwrap();
    let conn = open(&database.url(), Purpose::Claim).await.unwrap();
    assert_eq!(text(&conn, "show transaction_isolation").await, "read committed");
}

#[tokio::test]
async fn a_statement_leaves_nothing_on_the_server() {
    let conn = open(&database().await.url(), Purpose::Claim).await.unwrap();
    let rows = conn.query("select $1::int + 1", &[(&41, Type::INT4)], SOON).await.unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 42);
    assert_eq!(int(&conn, "select count(*)::int from pg_prepared_statements").await, 0);
}

#[tokio::test]
async fn parameters_that_do_not_fit_are_not_sent_and_break_nothing() {
    let conn = open(&database().await.url(), Purpose::Claim).await.unwrap();
    let error = conn.query("/* outhaul:x */ select $1", &[(&"text", Type::INT4)], SOON).await.unwrap_err();
    assert_eq!(error.code(), "database");
    assert!(error.to_string().starts_with("x cannot be sent: "), "{error}");
    assert_eq!(int(&conn, "select 1").await, 1);
}

#[tokio::test]
async fn an_error_of_the_server_names_the_statement_and_leaves_the_session_usable() {
    let conn = open(&database().await.url(), Purpose::Claim).await.unwrap();
    let error = conn.query("/* outhaul:x */ select 1/0", &[], SOON).await.unwrap_err();
    assert_eq!(error.to_string(), "x: the database refused a statement (SQLSTATE 22012)");
    assert!(!error.is_outcome_unknown());
    assert_eq!(int(&conn, "select 1").await, 1);
}

#[tokio::test]
async fn an_overdue_statement_has_an_unknown_outcome_and_is_cancelled() {
    let database = database().await;
    let conn = open(&database.url(), Purpose::Settle).await.unwrap();
    let witness = open(&database.url(), Purpose::Tool).await.unwrap();
    let waiting = Duration::from_millis(50);
    let error = conn.query("/* outhaul:settle */ select pg_sleep(600)", &[], waiting).await.unwrap_err();
    assert!(error.is_timeout() && error.is_outcome_unknown(), "{error:?}");
    assert_eq!(error.to_string(), format!("no answer to settle within 50ms from {}", conn.target));
    until(&witness, "the backend ends", &is_gone(conn.pid())).await;
    let error = conn.query("select 1", &[], SOON).await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_outcome_unknown(), "nothing was sent: {error:?}");
    timeout(SOON, conn.closed()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_falls_silent_is_noticed_by_the_deadline() {
    let database = database().await;
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let conn = open(&proxy.url(), Purpose::Pulse).await.unwrap();
    proxy.blackhole();
    let error = conn.query("select 1", &[], Duration::from_millis(100)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
}

#[tokio::test]
async fn a_lost_answer_is_never_reported_as_not_done() {
    let database = database().await;
    let witness = open(&database.url(), Purpose::Tool).await.unwrap();
    witness.batch("create table done (n int)", SOON).await.unwrap();
    let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
    let conn = open(&proxy.url(), Purpose::Settle).await.unwrap();
    let cut = proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("put")).then(Action::Cut));
    let error = conn.query("/* outhaul:put */ insert into done values (1)", &[], SOON).await.unwrap_err();
    cut.fired(SOON).await.unwrap();
    assert!(error.is_outcome_unknown() && !error.is_timeout(), "{error:?}");
    assert!(error.to_string().contains("was lost during put ("), "{error}");
    assert_eq!(int(&witness, "select count(*)::int from done").await, 1);
    assert!(!conn.is_usable());
}

#[tokio::test]
async fn a_backend_that_is_ended_during_a_statement_leaves_its_outcome_unknown() {
    let database = database().await;
    let conn = open(&database.url(), Purpose::Settle).await.unwrap();
    let suicide = "/* outhaul:x */ select pg_terminate_backend(pg_backend_pid())";
    let error = conn.query(suicide, &[], SOON).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(error.to_string().contains("terminating connection due to administrator command"), "{error}");
    timeout(SOON, conn.closed()).await.unwrap();
}

#[tokio::test]
async fn a_session_that_was_ended_says_why() {
    let database = database().await;
    let conn = open(&database.url(), Purpose::Listen).await.unwrap();
    let admin = open(&database.url(), Purpose::Tool).await.unwrap();
    admin.batch(&format!("select pg_terminate_backend({})", conn.pid()), SOON).await.unwrap();
    timeout(SOON, conn.closed()).await.unwrap();
    let error = conn.query("select 1", &[], SOON).await.unwrap_err();
    assert!(error.is_unavailable() && error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
    assert!(error.to_string().ends_with("(terminating connection due to administrator command)"), "{error}");
}

#[tokio::test]
async fn dropping_a_connection_ends_its_session() {
    let database = database().await;
    let conn = open(&database.url(), Purpose::Claim).await.unwrap();
    let (pid, admin) = (conn.pid(), open(&database.url(), Purpose::Tool).await.unwrap());
    drop(conn);
    until(&admin, "the backend ends", &is_gone(pid)).await;
}

#[tokio::test]
async fn dropping_a_connection_closes_its_socket_during_a_statement() {
    let database = database().await;
    // The server looks whether its client is still there.
    let url = format!("{}?options=-c%20client_connection_check_interval%3D50", database.tcp_url());
    let conn = open(&url, Purpose::Claim).await.unwrap();
    let (pid, admin) = (conn.pid(), open(&database.url(), Purpose::Tool).await.unwrap());
    let sleep = conn.query("select pg_sleep(600)", &[], SOON);
    assert!(timeout(Duration::from_millis(50), sleep).await.is_err());
    drop(conn);
    until(&admin, "the backend ends", &is_gone(pid)).await;
}

#[tokio::test]
async fn notifications_are_counted_and_none_is_missed() {
    let database = database().await;
    let conn = open(&database.url(), Purpose::Listen).await.unwrap();
    conn.batch("listen a; listen b", SOON).await.unwrap();
    let sender = open(&database.url(), Purpose::Tool).await.unwrap();
    sender
        .batch("select pg_notify('a', n::text) from generate_series(1, 999) n; notify b", SOON)
        .await
        .unwrap();
    // A receiver that is made after they arrived still sees them.
    let started = Instant::now();
    while *conn.notifications().borrow() < 1_000 {
        assert!(started.elapsed() < SOON, "1,000 notifications arrive");
        assert_eq!(int(&conn, "select 1").await, 1);
    }
    let mut heard = conn.notifications();
    timeout(SOON, heard.changed()).await.unwrap().unwrap();
    assert_eq!(*heard.borrow_and_update(), 1_000);
    sender.batch("notify a", SOON).await.unwrap();
    timeout(SOON, heard.changed()).await.unwrap().unwrap();
    assert_eq!(*heard.borrow_and_update(), 1_001);
    sender.batch(&format!("select pg_terminate_backend({})", conn.pid()), SOON).await.unwrap();
    assert!(timeout(SOON, heard.changed()).await.unwrap().is_err(), "it closes with the session");
}

#[tokio::test]
async fn answers_are_right_through_a_transaction_pooler() {
    if Pooler::find().is_none() {
        outhaul_local::skip(&format!("no PgBouncer here; `{}`", Pooler::install_command()));
        return;
    }
    let server = throwaway().await;
    let pooler = Pooler::start(&server.tcp_url(), PoolMode::Transaction, 2).await.unwrap();
    let mut tasks = Vec::new();
    for task in 0..6 {
        let conn = open(&pooler.url(), Purpose::Claim).await.unwrap();
        tasks.push(tokio::spawn(async move {
            for n in 0..50 {
                let (sql, right) =
                    if task % 2 == 0 { ("select $1::int + 1", n + 1) } else { ("select $1::int * 2", n * 2) };
                let rows = conn.query(sql, &[(&n, Type::INT4)], SOON).await.unwrap();
                assert_eq!(rows[0].get::<_, i32>(0), right, "{sql}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// A port that accepts and never says a word.
async fn silent_port() -> (tokio::net::TcpListener, u16) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A port where nobody listens.
async fn closed_port() -> u16 {
    silent_port().await.1
}

#[tokio::test]
async fn hosts_that_do_not_answer_are_passed_over() {
    let server = throwaway().await;
    let ((_listener, silent), closed, port) = (silent_port().await, closed_port().await, server.port());
    let user = dsn(&server.url()).user().to_owned();
    let url = format!(
        "postgres://{user}@127.0.0.1:{closed},127.0.0.1:{silent},nowhere.invalid:1,127.0.0.1:{port}/postgres?connect_timeout=1"
    );
    let conn = open(&url, Purpose::Claim).await.unwrap();
    assert_eq!(conn.target, format!("{user}@127.0.0.1:{port}/postgres"));
}

#[tokio::test]
async fn connecting_ends_within_its_total_time_and_names_every_failure() {
    let ((_listener, silent), closed) = (silent_port().await, closed_port().await);
    let url =
        format!("postgres://u@127.0.0.1:{closed},127.0.0.1:{silent},127.0.0.1:{silent}/d?connect_timeout=0");
    let started = Instant::now();
    let error = Conn::open(&dsn(&url), Purpose::Claim, Duration::from_millis(300)).await.unwrap_err();
    assert!(started.elapsed() < SOON);
    assert!(error.is_unavailable() && !error.is_timeout() && !error.is_outcome_unknown(), "{error:?}");
    let shown = error.to_string();
    assert!(shown.starts_with(&format!("cannot connect to u@127.0.0.1:{closed},")), "{shown}");
    assert!(shown.contains(&format!("127.0.0.1:{silent}: no answer within ")), "{shown}");
    assert!(shown.contains("Connection refused"), "{shown}");
    assert_eq!(shown.matches("no answer").count(), 1, "no host is tried when time is up: {shown}");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let server = throwaway().await;
    let base = dsn(&server.tcp_url());
    let refused = async |dsn: &Dsn| Conn::open(dsn, Purpose::Claim, SOON).await.unwrap_err();
    let error = refused(&base.clone().with_database("absent")).await;
    assert_eq!(
        error.to_string(),
        format!(
            "cannot connect to {}: database \"absent\" does not exist (SQLSTATE 3D000)",
            base.target().replace("/postgres", "/absent")
        )
    );
    assert!(error.is_config() && error.hint().is_some());
    let admin = Conn::open(&base, Purpose::Tool, SOON).await.unwrap();
    admin.batch("create role locked login password 'right'", SOON).await.unwrap();
    rules(&server, &admin, "host all locked all scram-sha-256\nhost all all all trust\n").await;
    let url =
        |login: &str| format!("postgres://{login}@127.0.0.1:{}/postgres?sslmode=disable", server.port());
    let error = refused(&dsn(&url("locked"))).await;
    assert!(error.is_refused() && error.to_string().ends_with(": password missing"), "{error:?}");
    let error = refused(&dsn(&url("locked:wr0ng"))).await;
    assert!(error.is_refused() && error.sqlstate() == Some("28P01"), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("wr0ng"), "{error:?}");
    open(&url("locked:right"), Purpose::Claim).await.unwrap();
    let error = refused(&dsn(&url("stranger"))).await;
    assert!(
        error.is_refused() && error.to_string().contains("role \"stranger\" does not exist"),
        "{error:?}"
    );
    let error = refused(&dsn(&format!("{}?sslmode=require", server.tcp_url()))).await;
    assert!(error.is_config() && error.to_string().ends_with(": server does not support TLS"), "{error:?}");
}

/// Replaces the server's rules for hosts; the socket stays open to all, for the one who sets them.
async fn rules(server: &Throwaway, admin: &Conn, text: &str) {
    let file = server.data_dir().join("pg_hba.conf");
    std::fs::write(&file, format!("local all all trust\n{text}")).unwrap();
    let before = self::text(admin, "select pg_conf_load_time()::text").await;
    admin.batch("select pg_reload_conf()", SOON).await.unwrap();
    // The postmaster passes the signal on while it handles it, so it accepts no connection in between.
    until(admin, "the rules are read", &format!("select pg_conf_load_time()::text <> '{before}'")).await;
}

#[tokio::test]
async fn workers_pass_over_standbys_and_tools_look_at_them() {
    let (primary, standby) = (throwaway().await, throwaway().await);
    standby.stop_fast().await.unwrap();
    std::fs::write(standby.data_dir().join("standby.signal"), "").unwrap();
    standby.start().await.unwrap();
    let user = dsn(&primary.url()).user().to_owned();
    let (p, s) = (primary.port(), standby.port());
    let url = |ports: &[u16], attrs: &str| {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("postgres://{user}@{}/postgres?target_session_attrs={attrs}", hosts.join(","))
    };
    for (purpose, attrs, chosen) in [
        (Purpose::Claim, "any", p),
        (Purpose::Claim, "read-write", p),
        (Purpose::Claim, "primary", p),
        (Purpose::Claim, "prefer-standby", p),
        (Purpose::Tool, "any", p),
        (Purpose::Tool, "primary", p),
        (Purpose::Tool, "read-only", s),
        (Purpose::Tool, "standby", s),
        (Purpose::Tool, "prefer-standby", s),
    ] {
        for ports in [[s, p], [p, s]] {
            let conn = open(&url(&ports, attrs), purpose).await.unwrap();
            assert!(conn.target.ends_with(&format!(":{chosen}/postgres")), "{purpose:?} {attrs} {ports:?}");
            assert_eq!(conn.session.in_recovery, chosen == s);
        }
    }
    assert!(open(&url(&[p], "prefer-standby"), Purpose::Tool).await.is_ok());
    assert!(open(&url(&[p], "standby"), Purpose::Tool).await.unwrap_err().is_unavailable());
    assert!(open(&url(&[p, s], "standby"), Purpose::Claim).await.unwrap_err().is_config());
    let error = open(&url(&[s], "any"), Purpose::Claim).await.unwrap_err();
    assert!(error.is_read_only() && error.to_string().ends_with(": it is a standby"), "{error:?}");
    let tool = open(&url(&[s], "any"), Purpose::Tool).await.unwrap();
    let error = tool.batch("create table t ()", SOON).await.unwrap_err();
    assert!(error.is_read_only() && error.hint().is_some(), "{error:?}");
    assert!(!tool.is_usable(), "a session that cannot write is not kept");
}

#[tokio::test]
async fn a_read_only_default_is_no_place_to_work() {
    let database = database().await;
    let admin = open(&database.url(), Purpose::Tool).await.unwrap();
    let close = format!("alter database \"{}\" set default_transaction_read_only = on", database.name());
    admin.batch(&close, SOON).await.unwrap();
    let error = open(&database.url(), Purpose::Claim).await.unwrap_err();
    assert!(
        error.is_read_only() && error.hint().unwrap().contains("default_transaction_read_only"),
        "{error:?}"
    );
    assert!(open(&database.url(), Purpose::Tool).await.unwrap().session.read_only);
}

#[tokio::test]
async fn a_link_reopens_a_lost_connection_by_itself() {
    let server = throwaway().await;
    let link = Link::new(dsn(&server.url()), Purpose::Claim);
    let first = link.get().await;
    assert!(Arc::ptr_eq(&first, &link.clone().get().await), "clones share one connection");
    server.kill().await.unwrap();
    timeout(SOON, first.closed()).await.unwrap();
    let error = link.connect_once(SOON).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { link.get().await }
    });
    server.start().await.unwrap();
    let second = timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(int(&second, "select 1").await, 1);
    link.discard(&second);
    assert!(!second.is_usable());
    let third = timeout(SOON, link.get()).await.unwrap();
    assert_ne!(third.pid(), second.pid());
}

#[tokio::test]
async fn a_link_tries_at_most_once_a_second_and_stops_when_dropped() {
    let (listener, port) = silent_port().await;
    let link = Link::new(dsn(&format!("postgres://u@127.0.0.1:{port}/d?sslmode=disable")), Purpose::Pulse);
    let waiting = tokio::spawn(async move { link.get().await });
    let mut before: Option<Instant> = None;
    for _ in 0..3 {
        let (socket, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
        drop(socket);
        let interval = before.replace(Instant::now()).map(|before| before.elapsed());
        // The attempt begins somewhat before it is accepted here.
        assert!(
            interval.is_none_or(|interval| interval >= ATTEMPT_EVERY - Duration::from_millis(100)),
            "{interval:?}"
        );
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
}

/// A folder with an authority, certificates of it for the server and for `carol`, and a stranger's authority.
const CERTIFICATES: &str = r#"
set -e
authority() { openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$1" -keyout $1.key -out $1.crt; }
issue() { # name, subject, extension
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout $1.key -out $1.csr
    printf '%s\n' "$3" > $1.ext
    openssl x509 -req -in $1.csr -CA root.crt -CAkey root.key -CAcreateserial -days 2 -extfile $1.ext -out $1.crt
}
authority root; authority stranger
issue server server "subjectAltName=DNS:localhost"
issue carol carol "extendedKeyUsage=clientAuth"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=localhost" -addext "subjectAltName=DNS:localhost" -keyout own.key -out own.crt
chmod 600 *.key
"#;

fn make_certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let output = Command::new("sh").arg("-c").arg(CERTIFICATES).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}

/// Turns TLS on with a certificate out of the folder, and names the authority for clients.
async fn serve_tls(server: &Throwaway, admin: &Conn, folder: &Path, name: &str) {
    use std::os::unix::fs::{MetadataExt, chown};
    let owner = std::fs::metadata(server.data_dir()).unwrap();
    for (from, to) in [
        (format!("{name}.crt"), "server.crt"),
        (format!("{name}.key"), "server.key"),
        ("root.crt".into(), "root.crt"),
    ] {
        let to = server.data_dir().join(to);
        std::fs::copy(folder.join(from), &to).unwrap();
        chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    for set in ["ssl = on", "ssl_ca_file = 'root.crt'"] {
        admin.batch(&format!("alter system set {set}"), SOON).await.unwrap();
    }
}

struct TlsServer {
    server: Throwaway,
    admin: Conn,
    certificates: std::path::PathBuf,
}

impl TlsServer {
    async fn start(certificate: &str, hosts: &str) -> TlsServer {
        let server = throwaway().await;
        let admin = open(&server.url(), Purpose::Tool).await.unwrap();
        let certificates = server.socket_dir().join("certificates");
        make_certificates(&certificates);
        serve_tls(&server, &admin, &certificates, certificate).await;
        rules(&server, &admin, hosts).await;
        TlsServer { server, admin, certificates }
    }

    /// Connects to a host by name, as a role, and returns whether the session is encrypted.
    async fn is_tls(&self, login: &str, host: &str, parameters: &str) -> Result<bool> {
        let folder = self.certificates.to_string_lossy();
        let parameters = parameters.replace("DIR", &folder);
        let url = format!("postgres://{login}@{host}:{}/postgres?{parameters}", self.server.port());
        let conn = open(&url, Purpose::Claim).await?;
        let ssl = conn.query("select ssl from pg_stat_ssl where pid = pg_backend_pid()", &[], SOON).await?;
        Ok(ssl[0].get(0))
    }
}

#[tokio::test]
async fn each_sslmode_checks_what_it_says() {
    let bench = TlsServer::start("server", "host all all all trust\n").await;
    let user = dsn(&bench.server.url()).user().to_owned();
    let by_name = "&hostaddr=127.0.0.1";
    // (host, parameters, encrypted or the refusal)
    let table: &[(&str, &str, Result<bool, &str>)] = &[
        ("localhost", "sslmode=disable", Ok(false)),
        ("localhost", "sslmode=allow", Ok(false)),
        ("localhost", "sslmode=prefer", Ok(true)),
        ("localhost", "sslmode=require", Ok(true)),
        ("127.0.0.1", "sslmode=require", Ok(true)),
        ("localhost", "sslmode=require&ssl_min_protocol_version=TLSv1.3", Ok(true)),
        ("localhost", "sslmode=require&ssl_max_protocol_version=TLSv1.2", Ok(true)),
        ("localhost", "sslmode=require&sslrootcert=DIR/root.crt", Ok(true)),
        ("localhost", "sslmode=require&sslrootcert=DIR/stranger.crt", Err("UnknownIssuer")),
        // As in libpq, `prefer` goes on without TLS when the handshake fails.
        ("localhost", "sslmode=prefer&sslrootcert=DIR/stranger.crt", Ok(false)),
        // The system's roots do not know it, or there are none.
        ("localhost", "sslmode=verify-ca", Err("")),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/root.crt", Ok(true)),
        ("localhost", "sslmode=verify-ca&sslrootcert=DIR/stranger.crt", Err("UnknownIssuer")),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/server.crt", Ok(true)),
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/root.crt", Ok(true)),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=DIR/root.crt", Err("not valid for name")),
        ("elsewhere", "sslmode=verify-full&sslrootcert=DIR/root.crt", Err("not valid for name")),
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/server.crt", Ok(true)),
        ("localhost", "sslrootcert=system", Err("")),
    ];
    for (host, parameters, expected) in table {
        let found = bench.is_tls(&user, host, &format!("{parameters}{by_name}")).await;
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, *expected, "{host} {parameters}"),
            (Err(error), Err(expected)) => {
                assert!(error.is_config() && error.hint().is_some(), "{host} {parameters}: {error:?}");
                assert!(error.to_string().contains(expected), "{host} {parameters}: {error}");
            }
            (found, _) => panic!("{host} {parameters}: {found:?}"),
        }
    }
    // The socket never has TLS, whatever the mode says.
    assert!(open(&format!("{}&sslmode=require", bench.server.url()), Purpose::Claim).await.is_ok());
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_when_it_is_the_root_file() {
    let bench = TlsServer::start("own", "host all all all trust\n").await;
    let user = dsn(&bench.server.url()).user().to_owned();
    for mode in ["require", "verify-ca", "verify-full"] {
        let parameters = format!("hostaddr=127.0.0.1&sslmode={mode}&sslrootcert=DIR/own.crt");
        assert!(bench.is_tls(&user, "localhost", &parameters).await.unwrap(), "{mode}");
        let parameters = format!("hostaddr=127.0.0.1&sslmode={mode}&sslrootcert=DIR/root.crt");
        assert!(bench.is_tls(&user, "localhost", &parameters).await.is_err(), "{mode}");
    }
    let parameters = "hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert=DIR/own.crt";
    assert!(bench.is_tls(&user, "elsewhere", parameters).await.is_err());
}

#[tokio::test]
async fn the_rules_of_the_server_decide_between_tls_and_plain() {
    let bench = TlsServer::start("server", "hostssl all tls all trust\nhostnossl all plain all trust\nhostssl all carol all cert\nhostssl all bound all scram-sha-256\n").await;
    for role in ["tls", "plain", "carol"] {
        bench.admin.batch(&format!("create role {role} login"), SOON).await.unwrap();
    }
    bench.admin.batch("create role bound login password 'p'", SOON).await.unwrap();
    assert!(bench.is_tls("tls", "127.0.0.1", "sslmode=allow").await.unwrap());
    assert!(!bench.is_tls("plain", "127.0.0.1", "sslmode=prefer").await.unwrap());
    assert!(bench.is_tls("plain", "127.0.0.1", "sslmode=require").await.unwrap_err().is_refused());
    assert!(bench.is_tls("tls", "127.0.0.1", "sslmode=disable").await.unwrap_err().is_refused());

    let certificate = "sslmode=require&sslcert=DIR/carol.crt&sslkey=DIR/carol.key";
    assert!(bench.is_tls("carol", "127.0.0.1", certificate).await.unwrap());
    assert!(bench.is_tls("carol", "127.0.0.1", &format!("{certificate}&sslcertmode=disable")).await.is_err());
    assert!(bench.is_tls("carol", "127.0.0.1", "sslmode=require").await.unwrap_err().is_refused());
    let mixed = "sslmode=require&sslcert=DIR/carol.crt&sslkey=DIR/server.key";
    assert!(bench.is_tls("carol", "127.0.0.1", mixed).await.unwrap_err().is_config());

    assert!(bench.is_tls("bound:p", "127.0.0.1", "sslmode=require&channel_binding=require").await.unwrap());
    let unbound =
        bench.is_tls("tls", "127.0.0.1", "sslmode=require&channel_binding=require").await.unwrap_err();
    assert!(unbound.is_refused() && unbound.hint().unwrap().contains("SCRAM"), "{unbound:?}");

    let key = bench.certificates.join("carol.key");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let error = bench.is_tls("carol", "127.0.0.1", certificate).await.unwrap_err();
    assert!(error.is_config() && error.to_string().ends_with("carol.key may be read by others"), "{error:?}");
}

#[tokio::test]
async fn an_overdue_statement_is_cancelled_over_tls_too() {
    let bench = TlsServer::start("server", "hostssl all all all trust\n").await;
    let user = dsn(&bench.server.url()).user().to_owned();
    let url = format!("postgres://{user}@127.0.0.1:{}/postgres?sslmode=require", bench.server.port());
    let conn = open(&url, Purpose::Claim).await.unwrap();
    let error = conn.query("select pg_sleep(600)", &[], Duration::from_millis(50)).await.unwrap_err();
    assert!(error.is_timeout());
    until(&bench.admin, "the backend ends", &is_gone(conn.pid())).await;
}
