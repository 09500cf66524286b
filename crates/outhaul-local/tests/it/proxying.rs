//! Each rule of the proxy does what it says, seen by a real client of a real server.

use std::io::Cursor;
use std::time::Duration;

use outhaul_local::proxy::Proof;
use outhaul_local::{Action, Match, PATIENCE, Phase, Proxy, Rule, TestDatabase, until};
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::common::{connect, database};

const INSERT: &str = "/* outhaul:put */ insert into t values ($1)";

/// How long a client waits for an answer that never comes: only for proving that it hangs.
const HANG: Duration = Duration::from_millis(300);

struct Bench {
    database: TestDatabase,
    proxy: Proxy,
    /// A connection past the proxy.
    direct: Client,
}

impl Bench {
    async fn new() -> Bench {
        let database = database().await;
        let proxy = Proxy::start(&database.tcp_url()).await.unwrap();
        let direct = connect(&database.url()).await;
        direct.batch_execute("create table t (n int)").await.unwrap();
        Bench { database, proxy, direct }
    }

    async fn client(&self, role: &str) -> Client {
        connect(&self.proxy.url_for(role)).await
    }

    async fn rows(&self) -> i64 {
        self.direct.query_one("select count(*) from t", &[]).await.unwrap().get(0)
    }
}

fn rule(phase: Phase, action: Action) -> Rule {
    Rule::on(Match::at(phase).tag("put")).then(action)
}

/// A client whose notifications arrive in a channel.
async fn listener(url: &str, channel: &str) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message {
                let _ = sender.send(note.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("listen {channel}")).await.unwrap();
    (client, receiver)
}

async fn next(receiver: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, receiver.recv()).await.expect("a notification").expect("a connection")
}

#[tokio::test]
async fn everything_passes_when_nothing_is_asked_for() {
    let bench = Bench::new().await;
    let by_socket = Proxy::start(&bench.database.url()).await.unwrap();
    for proxy in [&bench.proxy, &by_socket] {
        let client = connect(&proxy.url_for("outhaul/work")).await;
        client.execute(INSERT, &[&1]).await.unwrap();
        // Larger than what the proxy looks at and than what it ever holds.
        let large = "x".repeat(9 * 1024 * 1024);
        let row = client.query_one("select $1::text", &[&large]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), large);
        let connection = proxy.connections_of("work").pop().unwrap();
        let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        assert_eq!((connection.pid, connection.status, connection.open), (Some(pid), Some('I'), true));
        assert_eq!(connection.database, bench.database.name());
        assert!(proxy.events().is_empty());
    }
    assert_eq!(bench.rows().await, 2);
}

#[tokio::test]
async fn pipelined_statements_and_copy_pass_unharmed() {
    use futures_util::SinkExt;
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let statement = client.prepare(INSERT).await.unwrap();
    let (a, b, c) = (1, 2, 3);
    let (a, b, c) = ([&a as _], [&b as _], [&c as _]);
    let many =
        (client.execute(&statement, &a), client.execute(&statement, &b), client.execute(&statement, &c));
    tokio::try_join!(many.0, many.1, many.2).unwrap();
    {
        let sink =
            client.copy_in::<_, Cursor<Vec<u8>>>("/* outhaul:copy */ copy t from stdin").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        for _ in 0..20 {
            sink.send(Cursor::new(b"7\n".repeat(10_000))).await.unwrap();
        }
        assert_eq!(sink.finish().await.unwrap(), 200_000);
    }
    // The count of answers is still right after the copy: a commit is proved for the right statement.
    let cut = bench.proxy.add(rule(Phase::AfterCommitted, Action::Cut));
    client.query_one("select 1", &[]).await.unwrap();
    assert!(client.execute(&statement, &[&4]).await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().proof, Proof::Committed);
    assert_eq!(bench.rows().await, 200_004);
}

#[tokio::test]
async fn a_cut_after_commit_leaves_the_row_and_an_error() {
    for way in ["prepared", "one-shot", "typed", "simple", "transaction"] {
        let bench = Bench::new().await;
        let mut client = bench.client("outhaul/work").await;
        let prepared = client.prepare(INSERT).await.unwrap();
        let cut = bench.proxy.add(rule(Phase::AfterCommitted, Action::Cut));
        let failed = match way {
            "prepared" => client.execute(&prepared, &[&1]).await.is_err(),
            "one-shot" => client.execute(INSERT, &[&1]).await.is_err(),
            "typed" => client.query_typed(INSERT, &[(&1, Type::INT4)]).await.is_err(),
            "simple" => client.batch_execute("/* outhaul:put */ insert into t values (1)").await.is_err(),
            _ => {
                let transaction = client.transaction().await.unwrap();
                transaction.execute(&prepared, &[&1]).await.unwrap();
                transaction.commit().await.is_err()
            }
        };
        assert!(failed, "{way}: the client was told");
        let proof = cut.fired(PATIENCE).await.unwrap();
        assert_eq!((proof.proof, proof.tag.as_deref()), (Proof::Committed, Some("put")), "{way}");
        assert_eq!(proof.role, "outhaul/work");
        assert!(proof.pid.is_some());
        assert_eq!(bench.rows().await, 1, "{way}");
        assert_eq!(bench.proxy.events(), [proof]);
        // The rule is used up: another client gets through.
        bench.client("work").await.execute(INSERT, &[&2]).await.unwrap();
    }
}

#[tokio::test]
async fn a_rollback_or_an_error_is_never_taken_for_a_commit() {
    let bench = Bench::new().await;
    bench.direct.batch_execute("create unique index on t (n)").await.unwrap();
    let mut client = bench.client("work").await;
    let cut = bench.proxy.add(rule(Phase::AfterCommitted, Action::Cut));
    let transaction = client.transaction().await.unwrap();
    transaction.execute(INSERT, &[&1]).await.unwrap();
    transaction.rollback().await.unwrap();
    bench.direct.execute("insert into t values (2)", &[]).await.unwrap();
    client.execute(INSERT, &[&2]).await.unwrap_err();
    let mut transaction = client.transaction().await.unwrap();
    let savepoint = transaction.savepoint("s").await.unwrap();
    savepoint.execute(INSERT, &[&3]).await.unwrap();
    savepoint.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(cut.count(), 0);
    assert!(cut.fired(Duration::ZERO).await.unwrap_err().message().contains("fired 0 of 1"));
}

#[tokio::test]
async fn a_cut_on_commit_acts_on_the_clients_own_commit_only() {
    let bench = Bench::new().await;
    let mut client = bench.client("work").await;
    let cut = bench.proxy.add(rule(Phase::OnCommit, Action::Cut));
    client.execute(INSERT, &[&1]).await.unwrap();
    client.batch_execute("begin; commit").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute(INSERT, &[&2]).await.unwrap();
    assert!(transaction.commit().await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().phase, Phase::OnCommit);
    assert_eq!(bench.rows().await, 2);
}

#[tokio::test]
async fn a_cut_before_forwarding_leaves_no_row() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let statement = client.prepare(INSERT).await.unwrap();
    let cut = bench.proxy.add(rule(Phase::BeforeForward, Action::Cut));
    assert!(client.execute(&statement, &[&1]).await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().proof, Proof::NotForwarded);
    // The backend has ended, so nothing of it can still come.
    until("the backend has gone", async || backends(&bench, "work").await == 0).await;
    assert_eq!(bench.rows().await, 0);
}

#[tokio::test]
async fn a_cut_after_forwarding_loses_the_answer_and_not_the_statement() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let statement = client.prepare(INSERT).await.unwrap();
    // The server cannot answer before the client is told of the cut: it waits for this lock.
    bench.direct.batch_execute("begin; lock table t").await.unwrap();
    let cut = bench.proxy.add(rule(Phase::AfterForward, Action::Cut));
    assert!(client.execute(&statement, &[&1]).await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().proof, Proof::Forwarded);
    bench.direct.batch_execute("commit").await.unwrap();
    until("the statement is executed", async || bench.rows().await == 1).await;
    until("the backend has gone", async || backends(&bench, "work").await == 0).await;
}

async fn backends(bench: &Bench, role: &str) -> i64 {
    let count =
        "select count(*) from pg_stat_activity where application_name = $1 and datname = current_database()";
    bench.direct.query_one(count, &[&role]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_hold_waits_for_its_release_at_each_phase() {
    for (phase, rows_while_held) in
        [(Phase::BeforeForward, 0), (Phase::AfterForward, 1), (Phase::AfterCommitted, 1)]
    {
        let bench = Bench::new().await;
        let client = bench.client("work").await;
        let statement = client.prepare(INSERT).await.unwrap();
        let hold = bench.proxy.add(rule(phase, Action::Hold));
        let insert = tokio::spawn(async move { client.execute(&statement, &[&1]).await });
        hold.fired(PATIENCE).await.unwrap();
        until("the row is as the phase says", async || bench.rows().await == rows_while_held).await;
        assert!(!insert.is_finished(), "{phase:?}");
        hold.release();
        assert_eq!(insert.await.unwrap().unwrap(), 1);
        assert_eq!(bench.rows().await, 1);
    }
}

#[tokio::test]
async fn a_delay_goes_on_by_itself() {
    for phase in [Phase::Connect, Phase::BeforeForward, Phase::AfterForward, Phase::AfterCommitted] {
        let bench = Bench::new().await;
        let matcher = if phase == Phase::Connect { Match::at(phase) } else { Match::at(phase).tag("put") };
        let delay = bench.proxy.add(Rule::on(matcher).then(Action::Delay(Duration::from_millis(50))));
        let started = std::time::Instant::now();
        bench.client("work").await.execute(INSERT, &[&1]).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(50), "{phase:?}");
        assert_eq!(delay.count(), 1);
    }
}

#[tokio::test]
async fn a_blackholed_client_hangs_until_its_own_deadline() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let statement = client.prepare(INSERT).await.unwrap();
    client.execute(&statement, &[&1]).await.unwrap();
    bench.proxy.blackhole();
    assert!(tokio::time::timeout(HANG, client.execute(&statement, &[&2])).await.is_err());
    assert!(!client.is_closed(), "the socket stays open");
    assert_eq!(bench.rows().await, 1);
    let url = bench.proxy.url();
    assert!(tokio::time::timeout(HANG, tokio_postgres::connect(&url, NoTls)).await.is_err());
    // Healed, the connection goes on where it stood: the statement given up by its client is executed.
    bench.proxy.pass();
    client.query_one("select 1", &[]).await.unwrap();
    assert_eq!(bench.rows().await, 2);
}

#[tokio::test]
async fn a_blackhole_after_commit_hides_the_answer() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let rule = bench.proxy.add(rule(Phase::AfterCommitted, Action::Blackhole));
    assert!(tokio::time::timeout(HANG, client.execute(INSERT, &[&1])).await.is_err());
    rule.fired(PATIENCE).await.unwrap();
    assert_eq!(bench.rows().await, 1);
    assert!(!client.is_closed());
}

#[tokio::test]
async fn roles_are_told_apart() {
    let bench = Bench::new().await;
    let (work, pulse) = (bench.client("outhaul/work").await, bench.client("outhaul/pulse").await);
    assert_eq!(bench.proxy.cut_role("pulse"), 1);
    assert!(pulse.query_one("select 1", &[]).await.is_err());
    work.query_one("select 1", &[]).await.unwrap();

    bench.proxy.refuse_role("pulse");
    assert!(tokio_postgres::connect(&bench.proxy.url_for("outhaul/pulse"), NoTls).await.is_err());
    bench.client("outhaul/work").await.query_one("select 1", &[]).await.unwrap();
    bench.proxy.pass();
    let pulse = bench.client("outhaul/pulse").await;

    bench.proxy.blackhole_role("work");
    assert!(tokio::time::timeout(HANG, work.query_one("select 1", &[])).await.is_err());
    pulse.query_one("select 1", &[]).await.unwrap();

    let matcher = Match::at(Phase::BeforeForward).tag("put").role("pulse");
    let cut = bench.proxy.add(Rule::on(matcher).skip(1).then(Action::Cut));
    bench.proxy.pass();
    work.execute(INSERT, &[&1]).await.unwrap();
    pulse.execute(INSERT, &[&2]).await.unwrap();
    assert!(pulse.execute(INSERT, &[&3]).await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().role, "outhaul/pulse");
    assert_eq!(bench.rows().await, 2);
}

#[tokio::test]
async fn a_cut_resets_every_connection_and_new_ones_pass() {
    let bench = Bench::new().await;
    let (one, other) = (bench.client("a").await, bench.client("b").await);
    bench.proxy.cut();
    assert!(one.query_one("select 1", &[]).await.is_err());
    assert!(other.query_one("select 1", &[]).await.is_err());
    bench.client("c").await.query_one("select 1", &[]).await.unwrap();
    bench
        .proxy
        .until("both have ended", PATIENCE, |p| p.connections().iter().filter(|c| !c.open).count() == 2)
        .await
        .unwrap();
}

/// The two ends are plain sockets, because a PostgreSQL client would hide how its connection ended.
#[tokio::test]
async fn a_cut_is_a_reset_on_both_sides_and_no_orderly_end() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgresql://u@127.0.0.1:{}/d", server.local_addr().unwrap().port());
    let proxy = Proxy::start(&url).await.unwrap();
    let mut client = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    client.write_all(b"\0\0\0\x11\0\x03\0\0user\0u\0\0\0").await.unwrap();
    let (mut upstream, _) = server.accept().await.unwrap();
    upstream.read_exact(&mut [0; 17]).await.unwrap();
    proxy.cut();
    for side in [&mut client, &mut upstream] {
        let error = side.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn refusing_spares_the_connections_that_exist() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let url = bench.proxy.url();
    bench.proxy.refuse();
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    bench.proxy.pass();
    connect(&url).await;

    bench.proxy.close_listener().await;
    let refused = tokio::net::TcpStream::connect(("127.0.0.1", bench.proxy.port())).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    client.query_one("select 1", &[]).await.unwrap();
    bench.proxy.open_listener().await.unwrap();
    connect(&url).await;

    let once = bench.proxy.add(Rule::on(Match::at(Phase::Connect).role("work")).then(Action::Refuse));
    connect(&url).await;
    assert!(tokio_postgres::connect(&bench.proxy.url_for("work"), NoTls).await.is_err());
    assert_eq!(once.fired(PATIENCE).await.unwrap().proof, Proof::NotForwarded);
    bench.client("work").await;
}

#[tokio::test]
async fn notifications_are_dropped_doubled_delayed_held_and_counted() {
    let bench = Bench::new().await;
    let (client, mut notes) = listener(&bench.proxy.url_for("outhaul/listen"), "a").await;
    client.batch_execute("listen b").await.unwrap();
    let at = || Match::at(Phase::Notification).role("listen");
    let dropping = bench.proxy.add(Rule::on(at().channel("a")).then(Action::DropNotifications));
    let doubling = bench.proxy.add(Rule::on(at().channel("a")).then(Action::DoubleNotifications));
    // Long enough that everything else overtakes it however slow the machine is.
    let late = Action::Delay(Duration::from_secs(3600));
    let delaying = bench.proxy.add(Rule::on(at().channel("a")).then(late));
    let holding = bench.proxy.add(Rule::on(at().channel("b")).then(Action::Hold));
    for note in ["a, 'dropped'", "a, 'doubled'", "a, 'delayed'", "a, 'plain'"] {
        let (channel, payload) = note.split_once(", ").unwrap();
        bench.direct.batch_execute(&format!("notify {channel}, {payload}")).await.unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(next(&mut notes).await);
    }
    assert_eq!(seen, ["doubled", "doubled", "plain"]);
    for rule in [&dropping, &doubling, &delaying] {
        assert_eq!(rule.fired(PATIENCE).await.unwrap().proof, Proof::Notified);
    }
    let counted = bench.proxy.connections_of("listen").pop().unwrap();
    assert_eq!((counted.notifications_seen, counted.notifications_passed), (4, 3));
    let short = Action::Delay(Duration::from_millis(20));
    bench.proxy.add(Rule::on(at().channel("a")).then(short));
    bench.direct.batch_execute("notify a, 'a little late'").await.unwrap();
    assert_eq!(next(&mut notes).await, "a little late");

    bench.direct.batch_execute("notify b, 'held'").await.unwrap();
    holding.fired(PATIENCE).await.unwrap();
    assert!(notes.try_recv().is_err());
    holding.release();
    assert_eq!(next(&mut notes).await, "held");
}

#[tokio::test]
async fn a_cut_at_a_notification_comes_before_the_client_has_it() {
    let bench = Bench::new().await;
    let (client, mut notes) = listener(&bench.proxy.url_for("listen"), "a").await;
    let cut = bench.proxy.add(Rule::on(Match::at(Phase::Notification)).then(Action::Cut));
    bench.direct.batch_execute("notify a, 'lost'").await.unwrap();
    cut.fired(PATIENCE).await.unwrap();
    let nothing = tokio::time::timeout(PATIENCE, notes.recv()).await.unwrap();
    assert_eq!(nothing, None, "the connection ends without the notification");
    assert!(client.is_closed());
}

#[tokio::test]
async fn a_statement_is_matched_by_its_beginning() {
    let bench = Bench::new().await;
    let client = bench.client("listen").await;
    let cut =
        bench.proxy.add(Rule::on(Match::at(Phase::AfterCommitted).statement("LISTEN")).then(Action::Cut));
    client.batch_execute("select 1").await.unwrap();
    assert!(client.batch_execute("/* any */ listen a").await.is_err());
    assert_eq!(cut.fired(PATIENCE).await.unwrap().tag, None);
}

#[tokio::test]
async fn an_answer_too_large_to_keep_is_passed_and_called_not_reached() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let cut = bench.proxy.add(rule(Phase::AfterCommitted, Action::Cut));
    let sql = "/* outhaul:put */ select repeat('x', 1000) from generate_series(1, 9000)";
    assert_eq!(client.query(sql, &[]).await.unwrap().len(), 9000);
    assert!(cut.fired(PATIENCE).await.unwrap_err().message().contains("too large"));
    assert_eq!(bench.proxy.events()[0].proof, Proof::NotReached);
}

#[tokio::test]
async fn a_cancel_request_passes() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let cancel = client.cancel_token();
    let sleeping = tokio::spawn(async move { client.batch_execute("select pg_sleep(1000)").await });
    let active = "select count(*) from pg_stat_activity where query = 'select pg_sleep(1000)' and datname = current_database() and wait_event = 'PgSleep'";
    until("it sleeps", async || bench.direct.query_one(active, &[]).await.unwrap().get::<_, i64>(0) == 1)
        .await;
    cancel.cancel_query(NoTls).await.unwrap();
    let error = sleeping.await.unwrap().unwrap_err();
    assert_eq!(error.code().unwrap().code(), "57014");
}

#[tokio::test]
async fn a_retargeted_proxy_leads_new_connections_to_the_other_server() {
    let bench = Bench::new().await;
    let other = database().await;
    let name = |client: Client| async move {
        client.query_one("select current_database()::text", &[]).await.map(|row| row.get::<_, String>(0))
    };
    let kept = bench.client("work").await;
    bench.proxy.retarget(&other.url(), false).unwrap();
    assert_eq!(name(bench.client("work").await).await.unwrap(), other.name());
    assert_eq!(name(kept).await.unwrap(), bench.database.name());
    let cut = bench.client("work").await;
    bench.proxy.retarget(&bench.database.url(), true).unwrap();
    assert!(name(cut).await.is_err());
    assert_eq!(name(bench.client("work").await).await.unwrap(), bench.database.name());
}

#[tokio::test]
async fn a_server_that_is_away_gives_an_error_at_once_and_a_password_is_never_shown() {
    let url = "postgresql://somebody:s3cret@127.0.0.1:1/x";
    let proxy = Proxy::start(url).await.unwrap();
    assert!(tokio_postgres::connect(&proxy.url(), NoTls).await.is_err());
    assert!(!format!("{proxy:?}").contains("s3cret"));
    let refused =
        Proxy::start("postgresql://somebody:s3cret@127.0.0.1:1/x?sslmode=require").await.unwrap_err();
    assert!(!refused.to_string().contains("s3cret") && refused.hint().is_some());
    let refused = Proxy::start("postgresql://somebody:s3cret@127.0.0.1:nonsense/x").await.unwrap_err();
    assert!(!refused.to_string().contains("s3cret"), "{refused}");
}

#[tokio::test]
async fn the_last_words_of_a_server_reach_the_client() {
    let bench = Bench::new().await;
    let client = bench.client("work").await;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let sleeping = tokio::spawn(async move { client.batch_execute("select pg_sleep(1000)").await });
    until("it is told to end", async || {
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'";
        !bench.direct.query(end, &[&pid]).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(sleeping.await.unwrap().unwrap_err().code().unwrap().code(), "57P01");
}

#[tokio::test]
#[should_panic(expected = "does not fit")]
async fn an_action_that_does_not_fit_its_phase_is_refused() {
    rule(Phase::AfterCommitted, Action::DropNotifications);
}
