//! The examples of the guides, run. A test compares them with what the guides show.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use outhaul::{
    Context, Event, EventContext, Failure, FailureClass, Job, NewEvent, NewJob, Outcome, Projection,
    RecordedEvent, Relay, Rule, Start, Subscription, Worker,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::scripted::{get, hinted, service, status};
use crate::support::{Db, Running, connect, quick, until};

#[derive(Serialize, Deserialize)]
struct OrderPaid {
    cents: i64,
}

impl Event for OrderPaid {
    const TYPE: &'static str = "order.paid";
    const AGGREGATE_TYPE: &'static str = "order";
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    order: Uuid,
    cents: i64,
}

impl Job for Receipt {
    const TYPE: &'static str = "mail.receipt";
    const QUEUE: &'static str = "mail";
}

type Anything = Box<dyn std::error::Error + Send + Sync>;

async fn pay(client: &mut tokio_postgres::Client, order: Uuid) -> Result<(), Anything> {
    let mut tx = client.transaction().await?;
    let paid = "update orders set status = 'paid' where id = $1 and status in ('placed', 'reserved')";
    if tx.execute(paid, &[&order]).await? == 1 {
        outhaul::publish(&mut tx, &NewEvent::new(&OrderPaid { cents: 995 }, order)?).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn orders(db: &Db) -> Uuid {
    let order = Uuid::now_v7();
    let table = "create table orders (id uuid primary key, status text not null)";
    assert!(guide("outbox-or-job").contains(&format!("`{table}`")));
    db.client.batch_execute(table).await.unwrap();
    db.client.execute("insert into orders values ($1, 'placed')", &[&order]).await.unwrap();
    order
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_change_states_one_fact_and_a_projection_makes_one_job_of_it() {
    let mut db = Db::new().await;
    let order = orders(&db).await;
    db.client.batch_execute("create table receipts (\"order\" uuid, cents bigint)").await.unwrap();
    // The second payment finds no row that is to be paid, and states nothing.
    for _ in 0..2 {
        pay(&mut db.client, order).await.unwrap();
    }
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 1);
    let url = db.url();
    let send_receipt = move |receipt: Receipt, _: Context| {
        let url = url.clone();
        async move {
            let insert = "insert into receipts values ($1, $2)";
            connect(&url).await.execute(insert, &[&receipt.order, &receipt.cents]).await?;
            Ok(())
        }
    };
    let dsn = db.dsn();
    let building = async {
        let receipts = Rule::typed("receipt", |paid: OrderPaid, event: &RecordedEvent| {
            let receipt = Receipt { order: event.aggregate_id, cents: paid.cents };
            Ok(Some(NewJob::new(&receipt)?))
        });
        let jobs = Projection::new(Subscription::new("order-jobs").start(Start::Beginning)).rule(receipts);
        let worker = Worker::builder(dsn).project(jobs).handle(send_receipt).build().await?;
        Ok::<Worker, outhaul::Error>(worker)
    };
    let running = Running::of(building.await.unwrap());
    db.until("the receipt was sent", "select count(*) = 1 from receipts where cents = 995").await;
    running.stop().await;
}

#[tokio::test]
async fn the_guarded_change_in_sql_states_one_fact() {
    let db = Db::new().await;
    let order = orders(&db).await;
    let sql = "with paid as (update orders set status = 'paid' where id = $1 and status in ('placed', 'reserved') returning id)
select outhaul.publish('order.paid', 'order', id, '{\"cents\": 995}') from paid;";
    assert!(guide("outbox-or-job").contains(sql));
    for rows in [1, 0] {
        assert_eq!(db.client.query(sql, &[&order]).await.unwrap().len(), rows);
    }
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_reads_in_order_and_relays_without() {
    let mut db = Db::new().await;
    let order = orders(&db).await;
    db.client.batch_execute("create table seen (what text, event uuid)").await.unwrap();
    pay(&mut db.client, order).await.unwrap();
    let note = |what: &'static str| {
        let url = db.url();
        move |event: RecordedEvent, _: EventContext| {
            let url = url.clone();
            async move {
                connect(&url).await.execute("insert into seen values ($1, $2)", &[&what, &event.id]).await?;
                Ok::<(), Failure>(())
            }
        }
    };
    let call_webhooks = note("webhook");
    let dsn = db.dsn();
    let building = async {
        let worker = Worker::builder(dsn)
            .subscribe(Subscription::new("stock").aggregates(["order"]).start(Start::Beginning), keep_stock)
            .relay(Relay::default().start(Start::Beginning).concurrency(20), call_webhooks)
            .build()
            .await?;
        Ok::<Worker, outhaul::Error>(worker)
    };
    let running = Running::of(building.await.unwrap());
    db.until("the webhook is called", "select count(*) = 1 from seen").await;
    db.until("the stock is kept", "select position = 1 from outhaul.subscriptions where name = 'stock'")
        .await;
    running.stop().await;
}

async fn keep_stock(event: RecordedEvent, cx: EventContext) -> Outcome {
    let paid: OrderPaid = event.decode()?;
    tracing::info!(order = %event.aggregate_id, paid.cents, attempt = cx.attempt(), "paid");
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Book {
    account: i64,
}

impl Job for Book {
    const TYPE: &'static str = "points.book";
    const QUEUE: &'static str = "points";
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_in_the_same_database_happen_once() {
    let mut db = Db::new().await;
    let order = orders(&db).await;
    let tables = "create table accounts (id bigint, points bigint); insert into accounts values (7, 0); \
        create table ledger (event uuid, cents bigint)";
    db.client.batch_execute(tables).await.unwrap();
    pay(&mut db.client, order).await.unwrap();
    outhaul::enqueue(&mut db.client, &NewJob::new(&Book { account: 7 }).unwrap()).await.unwrap();
    let (jobs, events) = (db.url(), db.url());
    let book = move |job: Book, cx: Context| {
        let url = jobs.clone();
        async move { book(&mut connect(&url).await, job, cx).await }
    };
    let enter = move |event: RecordedEvent, cx: EventContext| {
        let url = events.clone();
        async move { enter(&mut connect(&url).await, event, cx).await }
    };
    let ledger = Subscription::new("ledger").start(Start::Beginning);
    let running = Running::start(db.worker().handle(book).subscribe(ledger, enter)).await;
    db.until("the job is done", "select count(*) = 1 from outhaul.jobs_finished where status = 'completed'")
        .await;
    db.until("the event is handled", "select position = 1 from outhaul.subscriptions").await;
    running.stop().await;
    assert_eq!(db.count("select points from accounts").await, 10);
    assert_eq!(db.count("select count(*) from ledger where cents = 995").await, 1);
}

async fn book(client: &mut tokio_postgres::Client, job: Book, cx: Context) -> Outcome {
    let mut tx = client.transaction().await?;
    tx.execute("update accounts set points = points + 10 where id = $1", &[&job.account]).await?;
    cx.complete_in(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn enter(client: &mut tokio_postgres::Client, event: RecordedEvent, cx: EventContext) -> Outcome {
    let paid: OrderPaid = event.decode()?;
    let mut tx = client.transaction().await?;
    tx.execute("insert into ledger (event, cents) values ($1, $2)", &[&event.id, &paid.cents]).await?;
    cx.advance_in(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Pickup {
    courier: SocketAddr,
}

impl Job for Pickup {
    const TYPE: &'static str = "courier.pickup";
    const QUEUE: &'static str = "courier";
}

async fn call_courier(job: Pickup, _: Context) -> Outcome {
    let answer = get(job.courier).await?;
    match answer.status {
        200..=299 => Ok(()),
        402 => Err(Failure::revoked("the account is closed").code("account_closed")),
        status => Err(Failure::http(status).headers(|name| answer.header(name))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_lets_the_answer_of_a_service_say_what_follows() {
    let mut db = Db::new().await;
    let mut options = quick();
    options.retry.max_hint = Duration::from_secs(6 * 3600);
    options.retry.backoff.base = Duration::from_secs(5);
    options.retry.unknown_attempts = 1;
    let running = Running::start(db.worker().options(options).handle(call_courier)).await;
    for (step, expected) in [
        (status(200), "completed"),
        (status(402), "cancelled"),
        (status(404), "dead_letter"),
        (status(409), "dead_letter"),
        (hinted(429, "18000"), "retrying"),
    ] {
        let job = NewJob::new(&Pickup { courier: service([step.clone()]).await }).unwrap();
        let id = outhaul::enqueue(&mut db.client, &job).await.unwrap().id().0;
        until(&format!("{expected} after {step:?}"), || async { db.status(id).await == expected }).await;
    }
    let waits = "select count(*) from outhaul.jobs where run_at > clock_timestamp() + interval '17900 s'";
    assert_eq!(db.count(waits).await, 1);
    running.stop().await;
}

#[test]
fn a_handler_chooses_a_class_or_says_that_it_is_too_early() {
    fn template(path: &str) -> Result<String, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|missing| Failure::from(missing).with_class(FailureClass::Permanent))?;
        Ok(text)
    }
    let failure = template("/nowhere/mail.html").unwrap_err();
    assert_eq!(
        (failure.class(), failure.error_code()),
        (Some(FailureClass::Permanent), Some("io_not_found"))
    );

    fn deliver(the_shop_is_open: bool) -> Outcome {
        if !the_shop_is_open {
            return Err(Failure::snooze(Duration::from_secs(600)));
        }
        Ok(())
    }
    assert_eq!(deliver(false).unwrap_err().class(), None);
    assert!(deliver(true).is_ok());
}

#[derive(Serialize, Deserialize)]
struct Alert {
    text: String,
}

impl Job for Alert {
    const TYPE: &'static str = "alert.send";
    const QUEUE: &'static str = "critical_alerts";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_role_works_the_queues_it_names() {
    let mut db = Db::new().await;
    let alert = Alert { text: "the door is open".to_owned() };
    outhaul::enqueue(&mut db.client, &NewJob::new(&alert).unwrap()).await.unwrap();
    outhaul::enqueue(&mut db.client, &NewJob::new(&alert).unwrap().queue("reports")).await.unwrap();
    let dsn = db.dsn();
    let send_alert = |alert: Alert, _: Context| async move {
        assert!(!alert.text.is_empty());
        Ok::<(), Failure>(())
    };
    let building = async {
        let worker = Worker::builder(dsn)
            .role("alerts")
            .queue("critical_alerts", 8)
            .queue("notifications", 4)
            .handle(send_alert)
            .build()
            .await?;
        Ok::<Worker, outhaul::Error>(worker)
    };
    let running = Running::of(building.await.unwrap());
    db.until("the alert is sent", "select count(*) = 1 from outhaul.jobs_finished").await;
    running.stop().await;
    assert_eq!(db.count("select count(*) from outhaul.jobs where queue = 'reports'").await, 1);
}

#[derive(Serialize, Deserialize)]
struct Call {
    order: i64,
}

impl Job for Call {
    const TYPE: &'static str = "webhook.call";
    const QUEUE: &'static str = "webhooks";
}

/// The status that a partner answers with.
async fn post(call: &Call) -> u16 {
    if call.order == 41 { 429 } else { 200 }
}

async fn call_partner(call: Call, _: Context) -> Outcome {
    match post(&call).await {
        429 => Err(Failure::rate_limited("the partner asks us to slow down")),
        _ => Ok(()),
    }
}

async fn keyed(client: &mut tokio_postgres::Client, order: i64) -> Result<(), Anything> {
    let mut tx = client.transaction().await?;
    let job = NewJob::new(&Call { order })?
        .ordering_key(format!("order-{order}"))
        .limit_key("partner-7")
        .rate_key("api.example.com");
    outhaul::enqueue(&mut tx, &job).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partner_that_asks_for_patience_holds_up_its_own_calls_only() {
    let mut db = Db::new().await;
    keyed(&mut db.client, 41).await.unwrap();
    let running = Running::start(db.worker().handle(call_partner)).await;
    db.until("its host cools down", "select count(*) = 1 from outhaul.rates where cool_until > now()").await;
    let other = NewJob::new(&Call { order: 42 }).unwrap().rate_key("elsewhere");
    outhaul::enqueue(&mut db.client, &other).await.unwrap();
    db.until("another is called", "select count(*) = 1 from outhaul.jobs_finished").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_orders_the_calls_of_each_order() {
    let db = Db::new().await;
    let rule = Rule::copy("order.changed", "webhooks", "webhook.call")
        .with(|job, event| job.ordering_key(event.aggregate_id.to_string()));
    let calls = Projection::new(Subscription::new("calls").start(Start::Beginning)).rule(rule);
    let publish = "select outhaul.publish('order.changed', 'order', gen_random_uuid())";
    db.client.query(publish, &[]).await.unwrap();
    let running = Running::start(db.worker().project(calls)).await;
    let keyed = "select count(*) = 1 from outhaul.jobs j join outhaul.outbox_events e on e.id = j.source_event_id \
        where j.ordering_key = e.aggregate_id::text";
    db.until("the call has the key of its order", keyed).await;
    running.stop().await;
}

fn guide(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/guides/{name}.md"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_guides_show_what_was_run() {
    // Lines may break elsewhere in the narrower guide.
    let flat = |text: &str| text.split_whitespace().collect::<String>();
    let source = flat(include_str!("guides.rs"));
    let counts = [
        ("outbox-or-job", 2),
        ("ordered-or-leased", 2),
        ("exactly-once", 2),
        ("failure-classes", 4),
        ("isolate-a-queue", 1),
        ("limit-order-share", 3),
    ];
    for (name, examples) in counts {
        let guide = guide(name);
        let blocks: Vec<&str> =
            guide.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert_eq!(blocks.len(), examples, "{name}");
        for block in blocks {
            assert!(source.contains(&flat(block)), "{name} shows what no test runs: {block}");
        }
    }
}

/// Runs an example against a database until it says what is awaited, and interrupts it.
fn run_example(name: &str, url: &str, awaited: &str) {
    // Beside the folder of the test programs; `cargo test` and `cargo nextest run` build both.
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    let mut child = Command::new(&example)
        .env("DATABASE_URL", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} (cargo build --examples): {error}", example.display()));
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.map_while(Result::ok).take(2).collect();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(said.iter().any(|line| line.starts_with(awaited)), "{said:?}");
    assert!(child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_the_readme_do_what_it_says() {
    let readme = include_str!("../../../../README.md");
    let db = Db::new().await;
    let tables = "create table users (id bigint generated always as identity primary key); \
        create table orders (id uuid primary key, status text not null)";
    db.client.batch_execute(tables).await.unwrap();
    let programs = [
        ("welcome", include_str!("../../examples/welcome.rs"), "welcome, user 1 (attempt 1"),
        ("orders", include_str!("../../examples/orders.rs"), "a receipt over 995 cents"),
    ];
    for (name, source, awaited) in programs {
        let program = source.split_once("\n\n").unwrap().1;
        assert!(readme.contains(&format!("```rust,no_run\n{program}```")), "the README shows another {name}");
        tokio::task::block_in_place(|| run_example(name, &db.url(), awaited));
    }
}
