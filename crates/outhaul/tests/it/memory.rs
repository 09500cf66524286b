//! What is left behind: nothing of jobs that have ended, nothing of callers that gave up.

use std::time::Duration;

use outhaul::Producer;
use outhaul_local::{Action, Child, Match, Phase, Proxy, Rule};
use tokio_postgres::Client;

use crate::fault::{Act, EffectLog, Post, enqueue_all};
use crate::support::{Counter, Db, PATIENCE, Running, connect, until};

/// Resident memory of a process in KiB.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_of_jobs_that_have_ended() {
    let mut db = Db::new().await;
    let log = EffectLog::new().await;
    let worker = Post { concurrency: 100, ..Post::new("w", &db.url(), &log) }.start().await;
    let mut sizes = Vec::new();
    let mut done = 0;
    for _ in 0..8 {
        enqueue_all(&mut db.client, &vec![Act::Silent.job(); 5_000]).await;
        done += 5_000;
        db.until("the round", &format!("select count(*) = {done} from outhaul.jobs_finished")).await;
        sizes.push(resident(&worker));
    }
    let grown = sizes[7].saturating_sub(sizes[2]);
    assert!(grown < sizes[2] / 10 + 1_024, "{sizes:?} KiB after each round");
    // It says itself how many it holds, every five seconds.
    db.until("none is held", "select running = 0 from outhaul.workers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_bounded_while_reports_do_not_get_through() {
    let mut db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    let held =
        proxy.add(Rule::on(Match::at(Phase::BeforeForward).tag("complete")).always().then(Action::Hold));
    let counter = Counter::default();
    let count = counter.clone();
    let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
        .options(crate::support::quick())
        .with(|o| o.lease = Duration::from_secs(60))
        .handle(move |_: Act, _| {
            count.begin();
            std::future::ready(Ok(()))
        });
    let worker = Running::start(builder).await;
    enqueue_all(&mut db.client, &vec![Act::Silent.job(); 10_000]).await;
    held.fired(PATIENCE).await.unwrap();
    until("it has claimed ahead", || async { counter.begun() >= 2_000 }).await;
    // It has every chance to claim more.
    let leased = "select count(*) from outhaul.jobs where status = 'leased'";
    for _ in 0..50 {
        let leased = db.count(leased).await;
        assert!(leased <= 4_100, "{leased} jobs held, none of them reported");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held.remove();
    db.until("all completed", "select count(*) = 10000 from outhaul.jobs_finished").await;
    worker.stop().await;
    assert_eq!(counter.begun(), 10_000);
}

const IDLE_IN_TRANSACTION: &str = "select count(*) from pg_stat_activity where datname = current_database() \
    and application_name = 'caller' and state like 'idle in transaction%'";

/// Gives a client back when its borrower is gone, however that ended.
struct Pool(tokio::sync::Mutex<Vec<Client>>);

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_give_up_at_any_moment_leave_no_transaction_open() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let db = Db::new().await;
    db.client.batch_execute("create table orders (job uuid)").await.unwrap();
    let url =
        format!("{}{}application_name=caller", db.url(), if db.url().contains('?') { "&" } else { "?" });
    let pool = Pool(tokio::sync::Mutex::new(vec![connect(&url).await, connect(&url).await]));
    let mut kept = 0;
    for n in 0..300 {
        let mut client = pool.0.lock().await.pop().unwrap();
        let order = async {
            let mut tx = client.transaction().await.unwrap();
            let key = format!("k-{n}");
            let job = Act::Nothing.job().idempotency_key(key);
            let id = Producer::default().enqueue(&mut tx, &job).await.unwrap().id().0;
            tx.execute("insert into orders values ($1)", &[&id]).await.unwrap();
            tx.commit().await.unwrap();
        };
        let patience = Duration::from_micros(random.u64(0..6_000));
        kept += i32::from(tokio::time::timeout(patience, order).await.is_ok());
        // The next borrower works outside of whatever was left.
        let row = client.query_one("select 1 as one", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 1, "seed {seed}, caller {n}");
        pool.0.lock().await.push(client);
    }
    db.until("no transaction is left open", &format!("select ({IDLE_IN_TRANSACTION}) = 0")).await;
    println!("{kept} of 300 were not given up");
    let orders = "select count(*) from orders full join outhaul.jobs j on j.id = job where job is null or j.id is null";
    assert_eq!(db.count(orders).await, 0, "seed {seed}: a job without its order, or the other way round");
    assert!(db.count("select count(*) from orders").await >= i64::from(kept));
}

#[cfg(feature = "sqlx-0_9")]
#[tokio::test(flavor = "multi_thread")]
async fn callers_of_a_pool_of_two_that_give_up_leave_no_transaction_open() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let db = Db::new().await;
    db.client.batch_execute("create table orders (job uuid)").await.unwrap();
    let url = format!(
        "{}{}application_name=caller",
        db.database.tcp_url(),
        if db.database.tcp_url().contains('?') { "&" } else { "?" }
    );
    let pool = sqlx_0_9::postgres::PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
    for n in 0..300 {
        let order = async {
            let mut tx = pool.begin().await.unwrap();
            let job = Act::Nothing.job().idempotency_key(format!("k-{n}"));
            let id = outhaul::enqueue(&mut tx, &job).await.unwrap().id();
            sqlx_0_9::query("insert into orders select $1::uuid")
                .bind(id.to_string())
                .execute(&mut *tx)
                .await
                .unwrap();
            tx.commit().await.unwrap();
        };
        let patience = Duration::from_micros(random.u64(0..8_000));
        let _ = tokio::time::timeout(patience, order).await;
    }
    db.until("no transaction is left open", &format!("select ({IDLE_IN_TRANSACTION}) = 0")).await;
    let orders = "select count(*) from orders full join outhaul.jobs j on j.id = job where job is null or j.id is null";
    assert_eq!(db.count(orders).await, 0, "seed {seed}: a job without its order, or the other way round");
    // The pool is whole: both of its connections can be had at once.
    let (one, other) = tokio::join!(pool.begin(), pool.begin());
    drop((one.unwrap(), other.unwrap()));
}
