//! Projections: rules make exactly one job of each event, whatever dies in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul::{
    Backoff, Failure, NewJob, Projection, RecordedEvent, Rule, Start, Subscription, WorkerBuilder,
};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::fault::{EffectLog, Post};
use crate::support::{Counter, Db, Running, Tick, listen, until};

/// Publishes one event and returns its id.
async fn publish(client: &Client, event_type: &str, n: i64) -> Uuid {
    let sql = "select outhaul.publish($1, 'order', gen_random_uuid(), jsonb_build_object('n', $2::bigint))";
    client.query_one(sql, &[&event_type, &n]).await.expect("publish").get(0)
}

fn all(name: &str) -> Projection {
    Projection::new(Subscription::new(name).start(Start::Beginning))
}

/// Makes a job of its own for each event, in a queue that nobody works.
fn copy() -> Rule {
    Rule::copy("order.placed", "made", "made.job")
}

fn worker(db: &Db) -> WorkerBuilder {
    db.worker().with(|o| {
        o.subscription_lease = Duration::from_secs(1);
        o.retry.backoff =
            Backoff { base: Duration::from_millis(5), max: Duration::from_millis(20), jitter: 0.0 };
    })
}

async fn until_at(db: &Db, name: &str, position: i64) {
    let sql = format!("select position = {position} from outhaul.subscriptions where name = '{name}'");
    db.until(&format!("{name} stands at {position}"), &sql).await;
}

/// Numbers of the events that jobs were made of, as often as they were.
async fn made(db: &Db) -> Vec<i64> {
    let sql = "select (payload->>'n')::bigint from outhaul.jobs order by 1";
    db.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_makes_one_job_of_each_event_of_its_type_with_what_the_event_says() {
    let db = Db::new().await;
    let organization = Uuid::now_v7();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), '{\"n\": 1}', organization_id => $1, \
        traceparent => $2)";
    let first: Uuid = db.client.query_one(sql, &[&organization, &trace]).await.unwrap().get(0);
    for n in [2, 3] {
        publish(&db.client, "order.placed", n).await;
    }
    publish(&db.client, "order.seen", 4).await;
    let paid = publish(&db.client, "order.paid", 5).await;
    let odd = |event: &RecordedEvent| -> Result<Option<NewJob>, Failure> {
        let n = event.read::<Tick>()?.n;
        let job = NewJob::raw("odd", "odd.job", format!("{{\"n\": {}}}", n * 10)).priority(3).max_attempts(2);
        let job = job.timeout(Duration::from_secs(7)).delay(Duration::from_secs(3600));
        Ok((n % 2 == 1).then(|| job.organization(Uuid::from_u128(9))))
    };
    let projection =
        all("p").rule(copy()).rule(Rule::new("odd", "order.placed", odd)).rule(copy_of("order.paid"));
    let running = Running::start(worker(&db).project(projection)).await;
    until_at(&db, "p", 5).await;
    running.stop().await;
    assert_eq!(made(&db).await, [1, 2, 3, 5, 10, 30]);
    let row = "select queue || ' ' || job_type || ' ' || idempotency_key from outhaul.jobs \
        where source_event_id = $1 and queue = 'made' and organization_id = $2 and traceparent = $3 and run_at <= now()";
    let row: String = db.client.query_one(row, &[&first, &organization, &trace]).await.unwrap().get(0);
    assert_eq!(row, format!("made made.job p/made.job/{first}"));
    let row = "select count(*) from outhaul.jobs where queue = 'odd' and job_type = 'odd.job' and priority = 3 \
        and max_attempts = 2 and timeout = '7 s' and run_at > now() + interval '50 min' \
        and organization_id = '00000000-0000-0000-0000-000000000009'";
    assert_eq!(db.count(row).await, 2);
    let key = "select idempotency_key from outhaul.jobs where source_event_id = $1";
    let key: String = db.client.query_one(key, &[&paid]).await.unwrap().get(0);
    assert_eq!(key, format!("p/paid/{paid}"));
}

fn copy_of(event_type: &str) -> Rule {
    Rule::copy(event_type, "made", "made.job").named("paid")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_becomes_a_job_and_runs_without_a_poll() {
    let db = Db::new().await;
    let counter = Counter::default();
    let rule = Rule::copy("order.placed", "ticks", "test.tick");
    let builder = worker(&db).project(all("p").rule(rule)).handle(counter.handler());
    let building = builder.with(|o| o.poll = Duration::from_secs(3_600)).build().await.unwrap();
    let listener = building.listener();
    let running = Running::of(building);
    until("the listener is proven", || async { listener() == outhaul::ListenerState::Proven }).await;
    for n in 1..=3 {
        publish(&db.client, "order.placed", n).await;
        counter.until_ended(n as usize).await;
    }
    running.stop().await;
    assert_eq!(counter.begun(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_committed_event_makes_one_job_through_kills() {
    let db = Db::new().await;
    let log = EffectLog::new().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut producers = Vec::new();
    for producer in 0..8 {
        let (client, stop) = (db.connect().await, stop.clone());
        producers.push(tokio::spawn(async move {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                client.batch_execute("begin").await.unwrap();
                publish(&client, "order.placed", producer * 1_000_000 + n).await;
                client.batch_execute("savepoint s").await.unwrap();
                publish(&client, "order.placed", -1).await;
                client.batch_execute("rollback to s").await.unwrap();
                client.batch_execute(if n % 5 == 4 { "rollback" } else { "commit" }).await.unwrap();
            }
        }));
    }
    let post = Post { events: Some("project".into()), ..Post::new("p", &db.url(), &log) };
    for round in 0..4 {
        let mut victim = post.start().await;
        let before = db.count("select count(*) from outhaul.jobs").await;
        db.until("jobs are made", &format!("select count(*) > {before} + 20 from outhaul.jobs")).await;
        victim.kill().await.unwrap();
        if round == 2 {
            stop.store(true, Ordering::SeqCst);
        }
    }
    for producer in producers {
        producer.await.unwrap();
    }
    let _last = post.start().await;
    let behind = "select not exists (select from outhaul.outbox_unsequenced) and position = (select last_position \
        from outhaul.outbox_feed_head) from outhaul.subscriptions";
    db.until("all is read", behind).await;
    let wrong = "select count(*) from outhaul.outbox_events e full join outhaul.jobs j on j.source_event_id = e.id \
        where e.payload is distinct from j.payload";
    assert_eq!(db.count(wrong).await, 0, "one job for each event");
    assert_eq!(db.count("select count(*) - count(distinct source_event_id) from outhaul.jobs").await, 0);
    assert!(db.count("select count(*) from outhaul.outbox_events").await > 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_makes_no_second_job_and_an_event_published_twice_is_one() {
    let db = Db::new().await;
    let twice = Uuid::now_v7();
    for _ in 0..2 {
        let sql =
            "select outhaul.publish('order.placed', 'order', gen_random_uuid(), '{\"n\": 1}', id => $1)";
        db.client.query(sql, &[&twice]).await.unwrap();
    }
    publish(&db.client, "order.placed", 2).await;
    let running = Running::start(worker(&db).project(all("p").rule(copy()))).await;
    until_at(&db, "p", 3).await;
    running.stop().await;
    assert_eq!(made(&db).await, [1, 2]);
    assert_eq!(db.count("select claim_no::bigint from outhaul.subscriptions").await, 1, "at the first go");
    db.client.query("select outhaul.operator_subscription_rewind('p', 'beginning')", &[]).await.unwrap();
    // A rule that has changed since: what it makes now is not another request under the old key.
    let changed = |_: &RecordedEvent| Ok(Some(NewJob::raw("made", "made.job", "{\"n\": 7}").priority(1)));
    let changed = all("p").rule(Rule::new("made.job", "order.placed", changed));
    let running = Running::start(worker(&db).project(changed)).await;
    until_at(&db, "p", 3).await;
    running.stop().await;
    assert_eq!(made(&db).await, [1, 2]);
    // A key past its time is free.
    db.client.batch_execute("update outhaul.job_keys set expires_at = now() - interval '1 s'").await.unwrap();
    db.client.query("select outhaul.operator_subscription_rewind('p', '2')", &[]).await.unwrap();
    let running = Running::start(worker(&db).project(all("p").rule(copy()))).await;
    until_at(&db, "p", 3).await;
    running.stop().await;
    assert_eq!(made(&db).await, [1, 2, 2]);
}

/// A job that the database refuses for its size, which only the text form of jsonb has.
fn swollen() -> NewJob {
    let numbers = vec!["1e300"; 1_000].join(",");
    let job = NewJob::raw("made", "made.job", format!("[{numbers}]"));
    assert!(job.check().is_ok());
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_become_a_job_holds_the_cursor_or_is_parked_and_nothing_else_is_lost() {
    for (parks, bad) in [(false, "rule"), (true, "rule"), (true, "job"), (true, "database"), (true, "panic")]
    {
        let db = Db::new().await;
        for n in 1..=7 {
            publish(&db.client, "order.placed", n).await;
        }
        let make = move |event: &RecordedEvent| -> Result<Option<NewJob>, Failure> {
            let n = event.read::<Tick>()?.n;
            match bad {
                _ if n != 4 => {}
                "rule" => return Err(Failure::permanent("four is not for us").code("four")),
                "job" => return Ok(Some(NewJob::raw("made", "not a name", "{}"))),
                "database" => return Ok(Some(swollen())),
                _ => panic!("four"),
            }
            Ok(Some(NewJob::raw("made", "made.job", event.payload.to_string())))
        };
        let subscription = Subscription::new("p").start(Start::Beginning);
        let subscription = if parks { subscription.park_after(1) } else { subscription };
        let projection = Projection::new(subscription).rule(Rule::new("r", "order.placed", make));
        let running = Running::start(worker(&db).project(projection)).await;
        if parks {
            until_at(&db, "p", 7).await;
        } else {
            let stuck = "select (position, blocked_position, stuck_code) is not distinct from (3::bigint, 4::bigint, 'four') from outhaul.subscriptions";
            db.until("the cursor is blocked", stuck).await;
        }
        running.stop().await;
        let expected: &[i64] = if parks { &[1, 2, 3, 5, 6, 7] } else { &[1, 2, 3] };
        assert_eq!(made(&db).await, expected, "{bad}");
        let row =
            db.client.query("select position, error_code from outhaul.show_parked('p')", &[]).await.unwrap();
        let parked: Vec<(i64, Option<&str>)> = row.iter().map(|row| (row.get(0), row.get(1))).collect();
        let code = match bad {
            "rule" => "four",
            "panic" => "panic",
            _ => "invalid_input",
        };
        assert_eq!(parked, if parks { vec![(4, Some(code))] } else { vec![] }, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_parked_and_given_back_becomes_its_job_and_moves_nothing() {
    let db = Db::new().await;
    for n in 1..=3 {
        publish(&db.client, "order.placed", n).await;
    }
    db.client.query("select outhaul.subscribe('p', 'beginning')", &[]).await.unwrap();
    db.client.query("select outhaul.sequence(10)", &[]).await.unwrap();
    for n in 1..=2i64 {
        let skip = "select outhaul.operator_subscription_skip('p', $1, 'later')";
        db.client.query(skip, &[&n]).await.unwrap();
    }
    let operator = "select outhaul.operator_subscription_unpark('p', 1)";
    db.client.query(operator, &[]).await.unwrap();
    let running = Running::start(worker(&db).project(all("p").rule(copy()))).await;
    until_at(&db, "p", 3).await;
    db.until("it is not parked any more", "select count(*) = 1 from outhaul.show_parked('p')").await;
    running.stop().await;
    assert_eq!(made(&db).await, [1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_costs_no_attempt() {
    let db = Db::new().await;
    publish(&db.client, "order.placed", 1).await;
    let blocker = db.connect().await;
    blocker.batch_execute("begin; lock table outhaul.jobs in access exclusive mode").await.unwrap();
    let subscription = Subscription::new("p").start(Start::Beginning).park_after(1);
    let running = Running::start(worker(&db).project(Projection::new(subscription).rule(copy()))).await;
    let ended = "select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity where datname = current_database() \
        and query like '/* outhaul:project */%' and wait_event_type = 'Lock'";
    db.until("the projection waits, and its session is ended", ended).await;
    blocker.batch_execute("rollback").await.unwrap();
    until_at(&db, "p", 1).await;
    running.stop().await;
    assert_eq!(made(&db).await, [1]);
    assert_eq!(db.count("select count(*) from outhaul.show_parked('p')").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_goes_out_in_parts_and_none_without_the_one_before() {
    let db = Db::new().await;
    let sql = "select outhaul.publish('order.placed', 'order', gen_random_uuid(), jsonb_build_object('n', n)) \
        from generate_series(1, 1500) n";
    db.client.query(sql, &[]).await.unwrap();
    while db.count("select outhaul.sequence(10000)::bigint").await > 0 {}
    assert_eq!(db.count("select last_position from outhaul.outbox_feed_head").await, 1_500);
    let (reached, reach) = std::sync::mpsc::channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    // It stops once, behind the first thousand.
    let make = move |event: &RecordedEvent| -> Result<Option<NewJob>, Failure> {
        if event.position == 1_001 && reached.send(()).is_ok() {
            // Tasks that are kept for this thread go to another meanwhile.
            let wait = || gate.lock().unwrap().recv_timeout(Duration::from_secs(20));
            let _ = tokio::task::block_in_place(wait);
        }
        Ok(Some(NewJob::raw("made", "made.job", event.payload.to_string())))
    };
    let subscription = Subscription::new("p").start(Start::Beginning).batch(2_000);
    let projection = Projection::new(subscription).rule(Rule::new("r", "order.placed", make));
    let running = Running::start(worker(&db).project(projection)).await;
    until("the first part was sent", || async { reach.try_recv().is_ok() }).await;
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1_000);
    assert_eq!(db.count("select position from outhaul.subscriptions").await, 1_000);
    // As after a failover to a server that lacks the first part.
    let lost = "delete from outhaul.jobs; delete from outhaul.job_keys; update outhaul.subscriptions set position = 0";
    db.client.batch_execute(lost).await.unwrap();
    drop((go, reach));
    until_at(&db, "p", 1_500).await;
    running.stop().await;
    assert!(made(&db).await == (1..=1_500).collect::<Vec<i64>>(), "{} jobs are left", made(&db).await.len());
}

/// Calls the function as a worker would, with one job.
async fn call(
    client: &Client,
    lease: (Uuid, Uuid, i32),
    position: i64,
) -> Result<i64, tokio_postgres::Error> {
    let sql = "select outhaul.project($1, $2, $3, $4::bigint, false, 0, array[gen_random_uuid()], '{made}', '{made.job}', \
        '{\"7\"}', array[$4::bigint::text], '{null}', '{0}', '{null}', '{10}', '{null}', '{null}', '{null}', '{null}', '{null}', '{null}')";
    let (id, token, claim_no) = lease;
    client.query_one(sql, &[&id, &token, &claim_no, &position]).await.map(|row| row.get(0))
}

#[tokio::test]
async fn without_the_lease_neither_the_jobs_nor_the_checkpoint_are_stored() {
    let db = Db::new().await;
    for n in 1..=3 {
        publish(&db.client, "order.placed", n).await;
    }
    db.client.query("select outhaul.subscribe('p', 'beginning')", &[]).await.unwrap();
    db.client.query("select outhaul.sequence(10)", &[]).await.unwrap();
    let sql = "select subscription_id, lease_token, claim_no from outhaul.claim_subscription('p', 10, gen_random_uuid(), '30 s')";
    let row = db.client.query(sql, &[]).await.unwrap();
    let lease = (row[0].get(0), row[0].get(1), row[0].get(2));
    let lost = call(&db.client, (lease.0, Uuid::now_v7(), lease.2), 1).await.unwrap_err();
    assert_eq!(lost.code().unwrap().code(), "OH003");
    let (_listener, heard) = listen(&db.url(), "outhaul").await;
    // As if nobody had been woken for long.
    db.client.batch_execute("select setval('outhaul.wake_gate', 1)").await.unwrap();
    assert_eq!(call(&db.client, lease, 2).await.unwrap(), 1);
    let heard = std::sync::Mutex::new(heard);
    until("the new job wakes", || async { heard.lock().unwrap().try_recv().is_ok() }).await;
    // The same report a second time, as after an answer that was lost.
    assert_eq!(call(&db.client, lease, 2).await.unwrap_err().code().unwrap().code(), "OH003");
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
    assert_eq!(db.count("select position from outhaul.subscriptions").await, 2);
    let uneven = "select outhaul.project($1, $2, $3, 3, false, 0, array[gen_random_uuid()], '{}', '{a}', '{1}', '{k}', \
        '{null}', '{0}', '{null}', '{10}', '{null}', '{null}', '{null}', '{null}', '{null}', '{null}')";
    let uneven = db.client.query(uneven, &[&lease.0, &lease.1, &lease.2]).await.unwrap_err();
    assert_eq!(uneven.code().unwrap().code(), "OH001");
    assert_eq!(db.count("select position from outhaul.subscriptions").await, 2);
}

#[tokio::test]
async fn rules_that_cannot_work_are_refused_before_anything_is_stored() {
    let db = Db::new().await;
    let refused = async |projection: Projection| {
        let error = worker(&db).project(projection).build().await.err().expect("it is refused");
        error.to_string()
    };
    assert!(refused(all("p")).await.contains("has no rules"));
    assert!(refused(all("p").rule(copy()).rule(copy())).await.contains("two rules named made.job"));
    assert_eq!(refused(all("p").rule(copy().named("a b"))).await, "rule name is not valid");
    assert!(refused(all("p").rule(Rule::copy("order.placed", "a b", "t"))).await.contains("queue"));
    assert!(refused(all("p").rule(Rule::copy("a b", "made", "t"))).await.contains("event type"));
    assert!(refused(all("a b").rule(copy())).await.contains("subscription"));
    let both = worker(&db).project(all("p").rule(copy())).project(all("p").rule(copy()));
    assert!(both.build().await.err().unwrap().to_string().contains("two handlers"));
    assert_eq!(db.count("select count(*) from outhaul.subscriptions").await, 0);
}
