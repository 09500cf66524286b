//! A fact, stated with the change that makes it true, and the job that a rule makes of it: the second
//! program of the README.

use outhaul::{
    Context, Dsn, Event, Job, NewEvent, NewJob, Projection, RecordedEvent, Rule, Start, Subscription, Worker,
};
use uuid::Uuid;

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPaid {
    cents: i64,
}

impl Event for OrderPaid {
    const TYPE: &'static str = "order.paid";
    const AGGREGATE_TYPE: &'static str = "order";
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Receipt {
    order: Uuid,
    cents: i64,
}

impl Job for Receipt {
    const TYPE: &'static str = "mail.receipt";
    const QUEUE: &'static str = "notifications";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = std::env::var("DATABASE_URL")?;
    let dsn: Dsn = url.parse()?;
    outhaul::migrate(&dsn, &outhaul::MigrateOptions::default()).await?;

    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let order = Uuid::now_v7();
    client.execute("insert into orders (id, status) values ($1, 'placed')", &[&order]).await?;

    // The update locks the order's row first, and a second payment finds nothing to pay: it states nothing.
    let mut tx = client.transaction().await?;
    let pay = "update orders set status = 'paid' where id = $1 and status = 'placed'";
    if tx.execute(pay, &[&order]).await? == 1 {
        outhaul::publish(&mut tx, &NewEvent::new(&OrderPaid { cents: 995 }, order)?).await?;
    }
    tx.commit().await?;

    // One job for each event and rule, whatever crashes.
    let receipts = Rule::typed("receipt", |paid: OrderPaid, event: &RecordedEvent| {
        Ok(Some(NewJob::new(&Receipt { order: event.aggregate_id, cents: paid.cents })?))
    });
    println!("working; Ctrl-C ends it");
    Worker::builder(dsn)
        .project(Projection::new(Subscription::new("order-jobs").start(Start::Beginning)).rule(receipts))
        .handle(|receipt: Receipt, _: Context| async move {
            println!("a receipt over {} cents for order {}", receipt.cents, receipt.order);
            Ok(())
        })
        .build()
        .await?
        .run_until(async { tokio::signal::ctrl_c().await.expect("a signal handler") })
        .await?;
    Ok(())
}
