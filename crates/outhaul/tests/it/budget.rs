//! What a worker refuses to start with, and the connections it keeps to.

use std::time::Duration;

use outhaul::WorkerOptions;

use crate::support::{Counter, Db, Running, Tick};

#[tokio::test(flavor = "multi_thread")]
async fn options_that_cannot_work_are_refused() {
    let db = Db::new().await;
    let ms = Duration::from_millis;
    type Change = Box<dyn Fn(&mut WorkerOptions)>;
    let bad: Vec<(&str, Change)> = vec![
        ("lease below a second", Box::new(move |o| o.lease = ms(999))),
        ("lease over a day", Box::new(|o| o.lease = Duration::MAX)),
        ("poll of zero", Box::new(|o| o.poll = Duration::ZERO)),
        ("poll for ever", Box::new(|o| o.poll = Duration::MAX)),
        ("sweep of zero", Box::new(|o| o.sweep = Duration::ZERO)),
        ("sweep never", Box::new(|o| o.sweep = Duration::MAX)),
        ("timeout of zero", Box::new(|o| o.timeout = Duration::ZERO)),
        ("timeout for ever", Box::new(|o| o.timeout = Duration::MAX)),
        ("probe of zero", Box::new(|o| o.probe = Duration::ZERO)),
        ("canary of zero", Box::new(|o| o.canary = Duration::ZERO)),
        ("drain for ever", Box::new(|o| o.drain = Duration::MAX)),
        ("grace for ever", Box::new(|o| o.grace = Duration::MAX)),
        ("no slot", Box::new(|o| o.concurrency = 0)),
        ("too many slots", Box::new(|o| o.concurrency = 10_001)),
        ("no connection", Box::new(|o| o.max_connections = 0)),
        ("one connection", Box::new(|o| o.max_connections = 1)),
        ("two and a listener", Box::new(|o| o.max_connections = 2)),
    ];
    for (what, change) in bad {
        let result = db.worker().handle(Counter::default().handler()).with(change).build().await;
        let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(error.is_config() && error.hint().is_some(), "{what}: {error:?}");
    }
    let nothing = db.worker().build().await.err().unwrap();
    assert!(nothing.is_config(), "no handlers: {nothing:?}");
    let twice = Counter::default();
    let twice = db.worker().handle(twice.handler()).handle(twice.handler()).build().await.err().unwrap();
    assert!(twice.is_config(), "two handlers of one type: {twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_budget_of_connections_is_kept_and_enough() {
    const SESSIONS: &str = "select count(*) from pg_stat_activity \
        where application_name like 'outhaul/%' and datname = current_database()";
    for budget in 2..=5usize {
        let mut db = Db::new().await;
        let counter = Counter::default();
        let options = |o: &mut WorkerOptions| {
            (o.max_connections, o.listen) = (budget, budget > 2);
            o.retry.backoff.base = Duration::from_millis(20);
        };
        let failing = counter.clone();
        let builder = db.worker().with(options).handle(move |tick: Tick, cx: outhaul::Context| {
            failing.begin();
            async move {
                if tick.n % 10 == 0 && cx.attempt() == 1 {
                    return Err(outhaul::Failure::transient("once"));
                }
                Ok(())
            }
        });
        let worker = builder.build().await.unwrap();
        assert_eq!(worker.plan().connections.len(), budget, "{:?}", worker.plan());
        let worker = Running::of(worker);
        let jobs: Vec<_> = (0..500).map(|n| outhaul::NewJob::new(&Tick { n }).unwrap()).collect();
        outhaul::enqueue_many(&mut db.client, &jobs).await.unwrap();
        let mut most = 0;
        while db.count("select count(*) from outhaul.jobs_finished").await < 500 {
            most = most.max(db.count(SESSIONS).await);
            assert!(counter.begun() <= 550);
        }
        let all = format!("select ({SESSIONS}) = {budget}");
        db.until("all of the plan, and each for itself", &all).await;
        assert!(most <= budget as i64, "{most} of {budget}");
        worker.stop().await;
        assert_eq!(counter.begun(), 550, "with {budget} connections");
        db.until("none is left", &format!("select ({SESSIONS}) = 0")).await;
    }
}
