//! The caller's transaction as sqlx has it, in each supported version.

macro_rules! adapter {
    ($sqlx:ident) => {
        mod $sqlx {
            use std::sync::Arc;

            use outhaul::{Cancelled, Context, Enqueued, Failure, NewJob, Producer, enqueue, enqueue_many};
            use outhaul_local::{Action, Match, Phase, Proxy, Rule};
            use $sqlx::postgres::PgConnection;
            use $sqlx::{Connection, Row};

            use crate::support::{Db, Running, Tick};

            fn tick(n: i64) -> NewJob {
                NewJob::new(&Tick { n }).unwrap()
            }

            async fn connect(url: &str) -> PgConnection {
                PgConnection::connect(url).await.expect("a connection of sqlx")
            }

            #[tokio::test]
            async fn jobs_exist_if_and_only_if_their_transaction_commits() {
                let db = Db::new().await;
                let mut connection = connect(&db.url()).await;
                for commit in [false, true] {
                    let mut tx = connection.begin().await.unwrap();
                    $sqlx::query("create table if not exists orders (n int)")
                        .execute(&mut *tx)
                        .await
                        .unwrap();
                    enqueue(&mut tx, &tick(1)).await.unwrap();
                    let jobs: Vec<NewJob> = (0..5_000).map(tick).collect();
                    let answers = enqueue_many(&mut tx, &jobs).await.unwrap();
                    assert!(
                        answers.iter().zip(&jobs).all(|(answer, job)| *answer == Enqueued::New(job.job_id()))
                    );
                    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 0);
                    if commit {
                        tx.commit().await.unwrap()
                    } else {
                        tx.rollback().await.unwrap()
                    }
                    assert_eq!(
                        db.count("select count(*) from outhaul.jobs").await,
                        if commit { 5_001 } else { 0 }
                    );
                }
            }

            #[tokio::test]
            async fn answers_and_refusals_are_typed() {
                let db = Db::new().await;
                let mut connection = connect(&db.url()).await;
                let first = tick(1)
                    .idempotency_key("k")
                    .priority(-3)
                    .delay(std::time::Duration::from_secs(60))
                    .timeout(std::time::Duration::from_secs(7))
                    .organization(uuid::Uuid::now_v7());
                assert_eq!(enqueue(&mut connection, &first).await.unwrap(), Enqueued::New(first.job_id()));
                let again = first.clone().id(outhaul::JobId::new());
                assert_eq!(
                    enqueue(&mut connection, &again).await.unwrap(),
                    Enqueued::Duplicate(first.job_id())
                );
                let many = [tick(2), again.clone(), tick(3).queue("other")];
                let answers = enqueue_many(&mut connection, &many).await.unwrap();
                assert_eq!(answers[1], Enqueued::Duplicate(first.job_id()));
                assert!(answers[0].is_new() && answers[2].is_new());
                let other = NewJob::raw("ticks", "test.tick", "{\"n\": 9}").idempotency_key("x");
                enqueue(&mut connection, &other).await.unwrap();
                let conflict =
                    enqueue(&mut connection, &other.clone().id(outhaul::JobId::new())).await.unwrap();
                assert_eq!(conflict, Enqueued::Duplicate(other.job_id()));
                let conflict = NewJob::raw("ticks", "test.tick", "10").idempotency_key("x");
                let conflict = enqueue(&mut connection, &conflict).await.unwrap_err();
                assert_eq!(
                    (conflict.code(), conflict.field(), conflict.sqlstate()),
                    ("conflict", Some("idempotency_key"), Some("OH002"))
                );
                assert!(conflict.hint().is_some());
                let early = enqueue(&mut connection, &tick(4).priority(11)).await.unwrap_err();
                assert_eq!(
                    (early.code(), early.field(), early.sqlstate()),
                    ("invalid_input", Some("priority"), None)
                );
                let printed_larger = format!("[{}0]", "0,".repeat(100_000));
                let late =
                    enqueue(&mut connection, &NewJob::raw("q", "t", printed_larger)).await.unwrap_err();
                assert_eq!(
                    (late.code(), late.field(), late.sqlstate()),
                    ("invalid_input", Some("payload"), Some("OH001"))
                );
                assert_eq!(
                    Producer::default().cancel(&mut connection, first.job_id()).await.unwrap(),
                    Cancelled::Cancelled
                );
                // Nothing stays prepared on the caller's connection: behind a pooler it would be somebody else's.
                let row = $sqlx::query(
                    "select count(*) from pg_prepared_statements where statement like '%outhaul%.%(%'",
                )
                .persistent(false)
                .fetch_one(&mut connection)
                .await
                .unwrap();
                assert!(row.get::<i64, _>(0) <= 1, "the question itself at most");
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn an_enqueue_whose_answer_is_lost_is_outcome_unknown() {
                let db = Db::new().await;
                let proxy = Proxy::start(&db.database.tcp_url()).await.unwrap();
                let mut connection = connect(&proxy.url()).await;
                proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("enqueue")).then(Action::Cut));
                let job = tick(1).idempotency_key("k");
                let error = enqueue(&mut connection, &job).await.unwrap_err();
                assert!(error.is_outcome_unknown() && error.hint().is_some(), "{error:?}");
                let again = enqueue(&mut connect(&db.url()).await, &job).await.unwrap();
                assert_eq!(again.id(), job.job_id());
                assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn an_effect_and_the_completion_commit_together() {
                let db = Db::new().await;
                db.client.batch_execute("create table effects (n bigint, attempt int)").await.unwrap();
                let url: Arc<str> = db.url().into();
                let handler = move |job: Tick, cx: Context| {
                    let url = url.clone();
                    async move {
                        let mut connection = connect(&url).await;
                        let mut tx = connection.begin().await?;
                        $sqlx::query("insert into effects values ($1, $2)")
                            .bind(job.n)
                            .bind(cx.attempt())
                            .execute(&mut *tx)
                            .await?;
                        cx.complete_in(&mut tx).await?;
                        if cx.attempt() == 1 {
                            tx.rollback().await?;
                            return Err(Failure::transient("rolled back"));
                        }
                        tx.commit().await?;
                        Ok(())
                    }
                };
                let mut connection = connect(&db.url()).await;
                let job = enqueue(&mut connection, &tick(7)).await.unwrap().id();
                let worker = Running::start(db.worker().handle(handler)).await;
                db.until("a first attempt without effect", "select count(*) = 1 from outhaul.job_attempts")
                    .await;
                assert_eq!(db.count("select count(*) from effects").await, 0);
                db.operator().await.retry(job, None).await.unwrap();
                db.until("completion", "select count(*) = 1 from outhaul.jobs_finished").await;
                worker.stop().await;
                assert_eq!(db.status(job.0).await, "completed");
                assert_eq!(db.count("select count(*) from effects where attempt = 2").await, 1);
                assert_eq!(db.count("select count(*) from effects").await, 1);
            }
        }
    };
}

#[cfg(feature = "sqlx-0_8")]
adapter!(sqlx_0_8);
#[cfg(feature = "sqlx-0_9")]
adapter!(sqlx_0_9);
