//! A standby that is promoted while workers run, and a primary that is demoted to read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use outhaul::{
    Dsn, Enqueued, Error, JobId, ListenerState, MigrateOptions, Operator, SchemaName, Worker, WorkerBuilder,
    enqueue,
};
use outhaul_local::server::SUPERUSER;
use outhaul_local::{Proxy, Throwaway, ThrowawayOptions};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::fault::{Act, EffectLog, Post, enqueue_all};
use crate::support::{PATIENCE, Running, connect, quick, until};

/// Within this time of the moment that a server accepts writes there is a claim: the wait between two attempts
/// to connect, 1.25 s at the most, then a poll and a sweep of 0.3 s together; the rest is for the work itself.
const AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// Between two attempts of one purpose to connect there is at least this.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);

/// Longer than a promotion, so that a lease is lost only to the failover itself.
const LEASE: Duration = Duration::from_secs(3);

/// So rare that nothing in a test can be found by it.
const NEVER: Duration = Duration::from_secs(3600);

const PURPOSES: [&str; 5] =
    ["outhaul/claim", "outhaul/settle", "outhaul/pulse", "outhaul/upkeep", "outhaul/listen"];

/// A migrated server that knows of orders, and its synchronous standby.
struct Pair {
    primary: Throwaway,
    standby: Throwaway,
}

impl Pair {
    async fn new() -> Pair {
        let primary =
            Throwaway::start_new(ThrowawayOptions::new()).await.expect("a server of the test's own");
        let dsn: Dsn = primary.url().parse().unwrap();
        outhaul::migrate(&dsn, &MigrateOptions::default()).await.unwrap();
        let orders = "create table orders (n int primary key, job uuid)";
        connect(&primary.url()).await.batch_execute(orders).await.unwrap();
        let standby = primary.start_standby().await.expect("a standby of it");
        Pair { primary, standby }
    }

    /// Names both.
    fn url(&self) -> String {
        both(self.primary.port(), self.standby.port())
    }

    fn worker(&self, log: &EffectLog) -> WorkerBuilder {
        worker(&self.url(), log)
    }
}

fn both(first: u16, second: u16) -> String {
    format!(
        "postgresql://{SUPERUSER}@127.0.0.1:{first},127.0.0.1:{second}/postgres?target_session_attrs=read-write"
    )
}

fn worker(url: &str, log: &EffectLog) -> WorkerBuilder {
    let builder = Worker::builder(url.parse().unwrap()).options(quick()).handle(log.actor("w"));
    builder.with(|o| o.lease = LEASE)
}

/// Takes orders until stopped, each with its job in one transaction, and again under the same key until it is told
/// that one is committed. Returns how many, and how often the outcome was unknown.
async fn take_orders(url: String, stop: Arc<AtomicBool>) -> (i32, usize) {
    let (mut n, mut unknown) = (1, 0);
    let mut client: Option<Client> = None;
    loop {
        let Some(open) = client.as_mut().filter(|client| !client.is_closed()) else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            client = tokio_postgres::connect(&url, NoTls).await.ok().map(|(client, connection)| {
                tokio::spawn(connection);
                client
            });
            continue;
        };
        match order(open, n).await {
            Ok(()) if stop.load(Ordering::SeqCst) => return (n, unknown),
            Ok(()) => n += 1,
            Err(error) => unknown += usize::from(error.is_outcome_unknown()),
        }
    }
}

async fn order(client: &mut Client, n: i32) -> Result<(), Error> {
    let mut tx = client.transaction().await?;
    let job = Act::Sleep(5).job().idempotency_key(format!("order-{n}"));
    let id = enqueue(&mut tx, &job).await?.id().0;
    tx.execute("insert into orders values ($1, $2) on conflict do nothing", &[&n, &id]).await?;
    Ok(tx.commit().await?)
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// When the first claim after an instant was made, by its own stamps.
async fn first_claim(client: &Client, after: Timestamp) -> Option<Timestamp> {
    let sql = "select least((select min(locked_at) from outhaul.jobs where locked_at > $1), \
        (select min(started_at) from outhaul.jobs_finished where started_at > $1))";
    client.query_one(sql, &[&after]).await.unwrap().get(0)
}

/// Asserts that claims have begun again in time on a server that was just promoted.
async fn assert_claims_again(client: &Client, gone: Timestamp) {
    let writable: Timestamp = client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
    until("a claim", || async { first_claim(client, gone).await.is_some() }).await;
    let first = first_claim(client, gone).await.unwrap();
    assert!(first <= writable + AGAIN, "writable at {writable}, the first claim was at {first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_name_both_servers_go_on_after_a_promotion_and_every_committed_job_completes_once() {
    let pair = Pair::new().await;
    let log = EffectLog::new().await;
    let running = Running::start(pair.worker(&log)).await;
    let post = Post { lease: LEASE.as_millis() as u64, ..Post::new("process", &pair.url(), &log) };
    let mut process = post.start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let orders = tokio::spawn(take_orders(pair.url(), stop.clone()));
    // Some run at the moment of the kill, and many wait.
    let mut client = connect(&pair.primary.url()).await;
    let longer = Act::Sleep(LEASE.as_millis() as u64 + 1_000).job();
    enqueue_all(&mut client, &vec![longer; 4]).await;
    log.until("begin", 4).await;
    enqueue_all(&mut client, &vec![Act::Sleep(20).job(); 500]).await;
    log.until("end", 100).await;

    let standing = Timestamp::now();
    pair.primary.kill().await.unwrap();
    let gone = Timestamp::now();
    pair.standby.promote().await.unwrap();
    let client = connect(&pair.standby.url()).await;
    assert_claims_again(&client, gone).await;
    let taken = count(&client, "select count(*) from orders").await;
    until("orders are taken", || async { count(&client, "select count(*) from orders").await >= taken + 20 })
        .await;
    stop.store(true, Ordering::SeqCst);
    let (n, unknown) = orders.await.unwrap();
    println!("{n} orders, {taken} of them at the promotion; {unknown} unknown outcomes");
    until("all have ended", || async { count(&client, "select count(*) from outhaul.jobs").await == 0 })
        .await;
    assert!(!running.has_ended() && process.try_wait().unwrap().is_none(), "a worker has ended");
    running.stop().await;
    process.term().unwrap();
    assert!(process.wait(PATIENCE).await.unwrap().success());

    let finished = count(&client, "select count(*) from outhaul.jobs_finished").await;
    assert_eq!(finished, 504 + i64::from(n), "one end for each job, one job for each order");
    assert_eq!(count(&client, "select count(*) from orders").await, i64::from(n));
    let jobless = "select count(*) from orders o where not exists \
        (select from outhaul.jobs_finished f where f.id = o.job and f.status = 'completed')";
    assert_eq!(count(&client, jobless).await, 0);
    assert_only_open_leases_ran_twice(&client, &log, standing, gone).await;
}

/// `standing` is before the primary was killed, and `gone` when it was.
async fn assert_only_open_leases_ran_twice(
    client: &Client,
    log: &EffectLog,
    standing: Timestamp,
    gone: Timestamp,
) {
    let rows =
        client.query("select id, claim_no, finished_at from outhaul.jobs_finished", &[]).await.unwrap();
    let finished: BTreeMap<Uuid, (i32, Timestamp)> =
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    assert_eq!(finished.len(), rows.len(), "a job has two ends");
    let ends: BTreeSet<(Uuid, i32)> =
        log.all("end").await.into_iter().map(|end| (end.job, end.claim_no)).collect();
    let mut begins: BTreeMap<Uuid, Vec<(Timestamp, i32)>> = BTreeMap::new();
    for begin in log.all("begin").await {
        begins.entry(begin.job).or_default().push((begin.at, begin.claim_no));
    }
    assert_eq!(begins.keys().collect::<Vec<_>>(), finished.keys().collect::<Vec<_>>());
    for (job, (claim_no, finished_at)) in &finished {
        assert!(ends.contains(&(*job, *claim_no)), "job {job} completed and its handler did not");
        let begins = &begins[job];
        if let [(first, one), .., (_, other)] = begins[..] {
            let open = first <= gone && *finished_at >= standing;
            assert!(open, "job {job} ran twice, {begins:?}, and completed at {finished_at}");
            assert!(
                begins.len() == 2 && one != other,
                "job {job} ran more often than its claims: {begins:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_comes_back_on_the_promoted_server_and_wakes_its_worker() {
    let pair = Pair::new().await;
    let log = EffectLog::new().await;
    // One canary at the start of each session and no more: it wakes too.
    let builder = pair.worker(&log).with(|o| (o.poll, o.canary, o.probe) = (NEVER, NEVER, NEVER));
    let worker = builder.build().await.unwrap();
    let state = worker.listener();
    let running = Running::of(worker);
    until("the listener is proven", || async { state() == ListenerState::Proven }).await;
    pair.primary.kill().await.unwrap();
    pair.standby.promote().await.unwrap();
    let mut client = connect(&pair.standby.url()).await;
    // The look after LISTEN may find the first, and the rescan after a wake the next: the others have only
    // their notifications.
    for round in 1..=6 {
        Act::Nothing.enqueue(&mut client).await;
        log.until("end", round).await;
    }
    assert_eq!(state(), ListenerState::Proven);
    let told = "select count(*) from outhaul.workers w join pg_stat_activity a on a.pid = w.listener_pid \
        where w.listener_state = 'proven' and a.application_name = 'outhaul/listen'";
    until("people are told", || async { count(&client, told).await == 1 }).await;
    running.stop().await;
    assert_eq!(log.count("begin").await, 6);
}

/// Both servers of a pair, each behind a proxy that counts.
struct Watched {
    pair: Pair,
    primary: Proxy,
    standby: Proxy,
}

impl Watched {
    async fn new() -> Watched {
        let pair = Pair::new().await;
        let primary = Proxy::start(&pair.primary.tcp_url()).await.unwrap();
        let standby = Proxy::start(&pair.standby.tcp_url()).await.unwrap();
        Watched { pair, primary, standby }
    }

    fn url(&self) -> String {
        both(self.primary.port(), self.standby.port())
    }

    /// How often each purpose has connected to either server until now.
    fn attempts(&self) -> Vec<usize> {
        let of = |purpose: &&str| [&self.primary, &self.standby].map(|to| to.connections_of(purpose).len());
        PURPOSES.iter().flat_map(of).collect()
    }

    fn still_on_the_primary(&self) -> Vec<String> {
        let all = self.primary.connections().into_iter();
        all.filter(|connection| connection.open).map(|connection| connection.role).collect()
    }
}

/// Demotes a server without ending a session.
async fn turn_read_only(server: &Throwaway) {
    let client = connect(&server.url()).await;
    client.batch_execute("alter system set default_transaction_read_only = on").await.unwrap();
    client.batch_execute("select pg_reload_conf()").await.unwrap();
    until("sessions follow", || async {
        let row = client.query_one("select current_setting('transaction_read_only')", &[]).await.unwrap();
        row.get::<_, &str>(0) == "on"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_tried_no_faster_than_configured_and_left_for_the_one_that_can_be_written_to() {
    let watched = Watched::new().await;
    let log = EffectLog::new().await;
    let builder = worker(&watched.url(), &log).with(|o| o.canary = Duration::from_millis(300));
    let worker = builder.build().await.unwrap();
    let state = worker.listener();
    let running = Running::of(worker);
    // A session that goes on writing, whatever the server's default.
    let mut writer = connect(&watched.pair.primary.url()).await;
    writer.batch_execute("set default_transaction_read_only = off").await.unwrap();
    enqueue_all(&mut writer, &vec![Act::Nothing.job(); 20]).await;
    log.until("end", 20).await;

    let (before, demoted) = (watched.attempts(), Instant::now());
    turn_read_only(&watched.pair.primary).await;
    let tried = async |times: usize| {
        until("claims have tried both servers", || async {
            watched.standby.connections_of("outhaul/claim").len() >= times
        })
        .await;
    };
    // First with nothing to do, then with jobs.
    tried(2).await;
    enqueue_all(&mut writer, &vec![Act::Nothing.job(); 20]).await;
    tried(5).await;
    let attempts: Vec<usize> = watched.attempts().iter().zip(&before).map(|(now, then)| now - then).collect();
    let most = demoted.elapsed().as_secs_f64() / ATTEMPT_EVERY.as_secs_f64() + 2.0;
    assert!(attempts.iter().all(|n| *n as f64 <= most), "{attempts:?}, at most {most}");
    assert_eq!(log.count("begin").await, 20);
    assert!(!running.has_ended());

    let gone = Timestamp::now();
    watched.pair.standby.promote().await.unwrap();
    let mut client = connect(&watched.pair.standby.url()).await;
    assert_claims_again(&client, gone).await;
    // Long enough to be renewed, which its connection must follow for.
    Act::Sleep(LEASE.as_millis() as u64).enqueue(&mut client).await;
    log.until("end", 41).await;
    until("nothing is left on the demoted server", || async { watched.still_on_the_primary().is_empty() })
        .await;
    until("the listener is proven", || async { state() == ListenerState::Proven }).await;
    assert_eq!(log.count("begin").await, 41, "nothing ran twice");
    until("all completed", || async {
        count(&client, "select count(*) from outhaul.jobs_finished").await == 41
    })
    .await;
    running.stop().await;
}

/// Waits until the commit of another session waits for the standby.
async fn until_a_commit_waits(primary: &Client) {
    let sql = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    until("the commit waits", || async { count(primary, sql).await == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_a_failover_takes_is_outcome_unknown_and_its_repetition_makes_one_job() {
    for arrived in [true, false] {
        let pair = Pair::new().await;
        let log = EffectLog::new().await;
        let job = Act::Nothing.job().idempotency_key("order-79");
        let looker = connect(&pair.primary.url()).await;
        let mut caller = connect(&pair.primary.tcp_url()).await;
        hold_commits_back(&pair, &caller, arrived).await;
        let mut tx = caller.transaction().await.unwrap();
        enqueue(&mut tx, &job).await.unwrap();
        let killed = async {
            until_a_commit_waits(&looker).await;
            if arrived {
                let sql =
                    "select count(*) from pg_stat_replication where flush_lsn >= pg_current_wal_flush_lsn()";
                until("the standby has it", || async { count(&looker, sql).await == 1 }).await;
            }
            pair.primary.kill().await.unwrap();
        };
        let (error, ()) = tokio::join!(tx.commit(), killed);
        let error = Error::from(error.unwrap_err());
        assert!(error.is_outcome_unknown() && !error.is_retryable(), "{error:?}");

        pair.standby.start().await.unwrap();
        pair.standby.promote().await.unwrap();
        let mut client = connect(&pair.standby.url()).await;
        let again = enqueue(&mut client, &job.clone().id(JobId::new())).await.unwrap();
        assert_eq!(matches!(again, Enqueued::Duplicate(_)), arrived);
        assert_eq!(count(&client, "select count(*) from outhaul.jobs").await, 1);
        let running = Running::start(pair.worker(&log)).await;
        log.until("end", 1).await;
        running.stop().await;
        assert_eq!(count(&client, "select count(*) from outhaul.jobs_finished").await, 1);
        assert_eq!(log.all("begin").await.iter().map(|begin| begin.job).collect::<Vec<_>>(), [again.id().0]);
    }
}

/// Keeps the answer of the caller's commits back: the standby has them and does not show them, or is gone.
async fn hold_commits_back(pair: &Pair, caller: &Client, arrived: bool) {
    if !arrived {
        pair.standby.kill().await.unwrap();
        return;
    }
    caller.batch_execute("set synchronous_commit = remote_apply").await.unwrap();
    let standby = connect(&pair.standby.url()).await;
    standby.batch_execute("select pg_wal_replay_pause()").await.unwrap();
    let sql = "select count(*) where pg_get_wal_replay_pause_state() = 'paused'";
    until("replay is paused", || async { count(&standby, sql).await == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_nothing_to_write_leaves_a_demoted_server_as_well() {
    let watched = Watched::new().await;
    let log = EffectLog::new().await;
    let builder = worker(&watched.url(), &log).with(|o| o.canary = Duration::from_millis(300));
    let running = Running::start(builder).await;
    let dsn: Dsn = watched.pair.primary.url().parse().unwrap();
    let operator = Operator::connect(&dsn, &SchemaName::default()).await.unwrap();
    operator.pause("acts", None).await.unwrap();
    turn_read_only(&watched.pair.primary).await;
    // A canary that was being committed just then would wait for the standby for ever.
    let primary = connect(&watched.pair.primary.url()).await;
    primary.batch_execute("set default_transaction_read_only = off").await.unwrap();
    primary.batch_execute("alter system set synchronous_standby_names = ''").await.unwrap();
    primary.batch_execute("select pg_reload_conf()").await.unwrap();
    watched.pair.standby.promote().await.unwrap();
    until("claims and wake-ups are on the promoted server", || async {
        let left = watched.still_on_the_primary();
        !["outhaul/claim", "outhaul/settle", "outhaul/listen"]
            .iter()
            .any(|role| left.iter().any(|other| other == role))
    })
    .await;
    let dsn: Dsn = watched.pair.standby.url().parse().unwrap();
    Operator::connect(&dsn, &SchemaName::default()).await.unwrap().resume("acts", None).await.unwrap();
    Act::Nothing.enqueue(&mut connect(&watched.pair.standby.url()).await).await;
    log.until("end", 1).await;
    running.stop().await;
}
