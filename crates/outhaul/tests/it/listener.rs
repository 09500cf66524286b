//! The listener in trouble: work goes on by polling, the state says so, and the wake-up comes back.

use std::sync::Arc;
use std::time::Duration;

use outhaul::{ListenerState, WorkerBuilder};
use outhaul_local::{Action, Match, Phase, PoolMode, Pooler, Proxy, Rule};

use crate::fault::{Act, EffectLog, enqueue_all};
use crate::support::{Db, PATIENCE, Running, until};

const LISTEN: &str = "outhaul/listen";

/// So rare that nothing in a test can be found by it.
const NEVER: Duration = Duration::from_secs(3600);

/// A worker whose listener goes through a proxy.
struct Bench {
    db: Db,
    log: EffectLog,
    proxy: Proxy,
    state: Arc<dyn Fn() -> ListenerState + Send + Sync>,
    worker: Running,
    done: i64,
}

impl Bench {
    async fn new(change: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Bench {
        let db = Db::new().await;
        let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
        Bench::behind(db, proxy, change).await
    }

    async fn behind(db: Db, proxy: Proxy, change: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Bench {
        let log = EffectLog::new().await;
        let builder = db.worker().listen_dsn(proxy.url().parse().unwrap()).handle(log.actor("w"));
        let builder = builder.with(|o| {
            (o.probe, o.canary) = (Duration::from_millis(200), Duration::from_millis(300));
        });
        let worker = change(builder).build().await.unwrap();
        let state = Arc::new(worker.listener());
        Bench { db, log, proxy, state, worker: Running::of(worker), done: 0 }
    }

    async fn until_state(&self, what: &str, condition: impl Fn(ListenerState) -> bool) {
        until(&format!("{what}, and not {}", (self.state)().as_str()), || async {
            condition((self.state)())
        })
        .await;
    }

    async fn until_proven(&self) {
        self.until_state("the listener is proven", |state| state == ListenerState::Proven).await;
    }

    /// Enqueues some jobs and waits until they have run.
    async fn work(&mut self) {
        enqueue_all(&mut self.db.client, &vec![Act::Nothing.job(); 5]).await;
        self.done += 5;
        self.log.until("end", self.done).await;
    }

    async fn stop(self) {
        assert!(!self.worker.has_ended());
        self.worker.stop().await;
        assert_eq!(self.log.count("begin").await, self.done, "nothing ran twice");
        assert_eq!(self.db.count("select count(*) from outhaul.jobs").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_cut_off_comes_back_and_finds_what_it_missed() {
    let mut bench = Bench::new(|builder| builder.with(|o| o.poll = NEVER)).await;
    for round in 0..6 {
        bench.until_proven().await;
        bench.work().await;
        let before = bench.proxy.connections_of(LISTEN).len();
        if round % 2 == 0 {
            assert_eq!(bench.proxy.cut_role(LISTEN), 1);
        } else {
            let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                where application_name = 'outhaul/listen' and datname = current_database()";
            assert_eq!(bench.db.count(end).await, 1);
        }
        // Enqueued while nobody listens, or just before: found by the look after the next LISTEN.
        bench.work().await;
        bench
            .proxy
            .until("a new listener", PATIENCE, |proxy| proxy.connections_of(LISTEN).len() > before)
            .await
            .unwrap();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_listener_is_found_and_work_goes_on_by_polling() {
    let mut bench = Bench::new(|builder| builder).await;
    bench.until_proven().await;
    bench.proxy.blackhole_role(LISTEN);
    bench.work().await;
    bench.until_state("it is known not to hear", |state| state == ListenerState::Polling).await;
    bench.work().await;
    bench.proxy.pass();
    bench.until_proven().await;
    bench.work().await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_refused_is_not_called_listening() {
    let mut bench = Bench::new(|builder| builder).await;
    bench.until_proven().await;
    bench.proxy.refuse_role(LISTEN);
    bench.proxy.cut_role(LISTEN);
    let deaf = |state| matches!(state, ListenerState::Connecting | ListenerState::Polling);
    bench.until_state("it does not listen", deaf).await;
    bench.work().await;
    assert!(deaf((bench.state)()), "{:?}", (bench.state)());
    let told = "select count(*) from outhaul.workers where listener_state in ('connecting', 'polling')";
    until("people are told", || async { bench.db.count(told).await == 1 }).await;
    bench.proxy.pass();
    bench.until_proven().await;
    bench.work().await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_notifications_lost_everything_completes_and_the_state_says_so() {
    let mut bench = Bench::new(|builder| builder).await;
    bench.until_proven().await;
    let lost = Rule::on(Match::at(Phase::Notification).role(LISTEN)).always().then(Action::DropNotifications);
    let lost = bench.proxy.add(lost);
    bench.work().await;
    bench.until_state("it is known not to hear", |state| state == ListenerState::Polling).await;
    bench.work().await;
    lost.remove();
    bench.until_proven().await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_notifications_of_jobs_lost_everything_completes() {
    let mut bench = Bench::new(|builder| builder).await;
    bench.until_proven().await;
    // The canary arrives, so nothing looks wrong.
    let lost = Match::at(Phase::Notification).role(LISTEN).channel("outhaul");
    bench.proxy.add(Rule::on(lost).always().then(Action::DropNotifications));
    for _ in 0..3 {
        bench.work().await;
    }
    assert_eq!((bench.state)(), ListenerState::Proven);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listen_that_fails_means_polling_until_it_works() {
    let db = Db::new().await;
    let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
    let fails = Rule::on(Match::at(Phase::BeforeForward).tag("listen")).always().then(Action::Cut);
    let fails = proxy.add(fails);
    let mut bench = Bench::behind(db, proxy, |builder| builder).await;
    bench.until_state("it polls", |state| state == ListenerState::Polling).await;
    bench.work().await;
    fails.remove();
    bench.until_proven().await;
    bench.work().await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_listening_everything_completes() {
    let mut bench = Bench::new(|builder| builder.with(|o| o.listen = false)).await;
    for _ in 0..3 {
        bench.work().await;
    }
    assert_eq!(bench.proxy.connections().len(), 0, "and nothing listens");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_while_listen_is_under_way_is_found() {
    for phase in [Phase::BeforeForward, Phase::AfterCommitted] {
        let mut db = Db::new().await;
        let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
        let held = proxy.add(Rule::on(Match::at(phase).tag("listen")).then(Action::Hold));
        Act::Nothing.enqueue(&mut db.client).await;
        // No canary wakes it, and it does not poll.
        let mut bench = Bench::behind(db, proxy, |builder| {
            builder.with(|o| (o.poll, o.canary, o.probe) = (NEVER, NEVER, NEVER))
        })
        .await;
        // What was there before is found by the first look, after which the worker sleeps.
        bench.log.until("end", 1).await;
        bench.done = 1;
        held.fired(PATIENCE).await.unwrap();
        enqueue_all(&mut bench.db.client, &[Act::Nothing.job()]).await;
        held.release();
        bench.done += 1;
        bench.log.until("end", bench.done).await;
        bench.stop().await;
    }
}

fn pooler_is_missing() -> bool {
    let missing = Pooler::find().is_none();
    if missing {
        println!("skipped: PgBouncer is not installed (`{}`)", Pooler::install_command());
    }
    missing
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_transaction_pooler_it_polls_and_says_so_and_a_direct_listener_hears() {
    if pooler_is_missing() {
        return;
    }
    for size in [1, 4] {
        let db = Db::new().await;
        let pooler = Pooler::start(&db.database.tcp_url(), PoolMode::Transaction, size).await.unwrap();
        let log = EffectLog::new().await;
        for direct in [false, true] {
            let mut builder = outhaul::Worker::builder(pooler.url().parse().unwrap())
                .options(crate::support::quick())
                .handle(log.actor("w"))
                .with(|o| (o.probe, o.canary) = (Duration::from_millis(200), Duration::from_millis(300)));
            if direct {
                builder = builder.listen_dsn(db.dsn());
            }
            let worker = builder.build().await.unwrap();
            let state = worker.listener();
            let worker = Running::of(worker);
            let expected = if direct { ListenerState::Proven } else { ListenerState::Polling };
            until(&format!("{expected:?} behind {size} backends"), || async { state() == expected }).await;
            let mut caller = db.connect().await;
            let before = log.count("end").await;
            for _ in 0..10 {
                enqueue_all(&mut caller, &vec![Act::Nothing.job(); 20]).await;
            }
            log.until("end", before + 200).await;
            worker.stop().await;
        }
        assert_eq!((log.count("begin").await, log.jobs("begin").await), (400, 400));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_restarts_costs_time_and_no_job() {
    if pooler_is_missing() {
        return;
    }
    let mut db = Db::new().await;
    let pool = async || Pooler::start(&db.database.tcp_url(), PoolMode::Transaction, 4).await.unwrap();
    let mut pooler = pool().await;
    let proxy = Proxy::start(&pooler.url()).await.unwrap();
    let log = EffectLog::new().await;
    let mut workers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let builder = outhaul::Worker::builder(proxy.url().parse().unwrap())
            .options(crate::support::quick())
            .handle(log.actor(name));
        workers.push(Running::start(builder).await);
    }
    for restart in 0..3 {
        enqueue_all(&mut db.client, &vec![Act::Sleep(20).job(); 200]).await;
        log.until("begin", restart * 200 + 50).await;
        if restart < 2 {
            drop(pooler);
            pooler = Pooler::start(&db.database.tcp_url(), PoolMode::Transaction, 4).await.unwrap();
            proxy.retarget(&pooler.url(), true).unwrap();
        }
    }
    db.until("all completed", "select count(*) = 600 from outhaul.jobs_finished where status = 'completed'")
        .await;
    for worker in workers {
        assert!(!worker.has_ended());
        worker.stop().await;
    }
    assert_eq!(log.jobs("end").await, 600);
}
