//! A job, committed with a row and run by a worker: the first program of the README.

use outhaul::{Context, Dsn, Failure, Job, NewJob, Worker};

#[derive(serde::Serialize, serde::Deserialize)]
struct Welcome {
    user: i64,
}

impl Job for Welcome {
    const TYPE: &'static str = "mail.welcome";
    const QUEUE: &'static str = "notifications";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = std::env::var("DATABASE_URL")?;
    let dsn: Dsn = url.parse()?;
    outhaul::migrate(&dsn, &outhaul::MigrateOptions::default()).await?;

    // In your own transaction, with tokio-postgres or sqlx: the row and the job commit together.
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let mut tx = client.transaction().await?;
    let user: i64 = tx.query_one("insert into users default values returning id", &[]).await?.get(0);
    let job = NewJob::new(&Welcome { user })?.idempotency_key(format!("welcome-{user}"));
    outhaul::enqueue(&mut tx, &job).await?;
    tx.commit().await?;

    println!("working; Ctrl-C ends it");
    Worker::builder(dsn)
        .handle(|job: Welcome, cx: Context| async move {
            if job.user == 0 {
                return Err(Failure::permanent("there is no user 0").code("no_user"));
            }
            println!("welcome, user {} (attempt {} of job {})", job.user, cx.attempt(), cx.id());
            Ok(())
        })
        .build()
        .await?
        .run_until(async { tokio::signal::ctrl_c().await.expect("a signal handler") })
        .await?;
    Ok(())
}
