//! Enqueuing inside the caller's transaction, with tokio-postgres and with SQL alone.

use std::time::Duration;

use outhaul::{Enqueued, JobId, NewJob, Producer, enqueue, enqueue_many};
use uuid::Uuid;

use crate::doors::{Door, Offer};
use crate::support::{Db, Tick, listen, until};

fn tick(n: i64) -> NewJob {
    NewJob::new(&Tick { n }).unwrap()
}

#[tokio::test]
async fn jobs_exist_if_and_only_if_their_transaction_commits() {
    let mut db = Db::new().await;
    let other = db.connect().await;
    for commit in [false, true] {
        let mut tx = db.client.transaction().await.unwrap();
        enqueue(&mut tx, &tick(1)).await.unwrap();
        enqueue_many(&mut tx, &[tick(2), tick(3)]).await.unwrap();
        let seen: i64 = other.query_one("select count(*) from outhaul.jobs", &[]).await.unwrap().get(0);
        assert_eq!(seen, 0, "nothing before the commit");
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        assert_eq!(db.count("select count(*) from outhaul.jobs").await, if commit { 3 } else { 0 });
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_only_its_own_jobs() {
    let mut db = Db::new().await;
    let mut tx = db.client.transaction().await.unwrap();
    let kept = enqueue(&mut tx, &tick(1)).await.unwrap();
    let mut savepoint = tx.savepoint("s").await.unwrap();
    enqueue(&mut savepoint, &tick(2).idempotency_key("freed")).await.unwrap();
    savepoint.rollback().await.unwrap();
    let again = enqueue(&mut tx, &tick(3).idempotency_key("freed")).await.unwrap();
    tx.commit().await.unwrap();
    assert!(again.is_new());
    let mut ids: Vec<Uuid> =
        db.client.query("select id from outhaul.jobs", &[]).await.unwrap().iter().map(|r| r.get(0)).collect();
    ids.sort();
    assert_eq!(ids, [kept.id().0, again.id().0]);
}

#[tokio::test]
async fn a_hundred_thousand_jobs_in_one_call_are_stored_all_or_none() {
    const N: usize = 100_000;
    let mut db = Db::new().await;
    let other = db.connect().await;
    let jobs: Vec<NewJob> = (0..N as i64).map(tick).collect();
    let mut tx = db.client.transaction().await.unwrap();
    tx.execute("create table orders (n int)", &[]).await.unwrap();
    let answers = enqueue_many(&mut tx, &jobs).await.unwrap();
    let seen: i64 = other.query_one("select count(*) from outhaul.jobs", &[]).await.unwrap().get(0);
    assert_eq!(seen, 0, "the caller's transaction is still open");
    tx.commit().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, N as i64);
    assert!(answers.iter().zip(&jobs).all(|(answer, job)| *answer == Enqueued::New(job.job_id())));
}

#[tokio::test]
async fn one_bad_job_of_a_large_call_leaves_nothing() {
    const N: usize = 20_000;
    let mut db = Db::new().await;
    // What this machine can see is refused before anything is sent, and the place is named.
    let mut jobs: Vec<NewJob> = (0..N as i64).map(tick).collect();
    jobs[N - 2] = jobs[N - 2].clone().priority(11);
    let mut tx = db.client.transaction().await.unwrap();
    let error = enqueue_many(&mut tx, &jobs).await.unwrap_err();
    assert_eq!((error.code(), error.field()), ("invalid_input", Some("priority")));
    assert!(error.to_string().starts_with("job 19998 of 20000: "), "{error}");
    tx.execute("create table still_usable (n int)", &[]).await.unwrap();
    tx.commit().await.unwrap();
    // What only the database can see aborts the statement, and with it the caller's transaction.
    jobs[N - 2] = NewJob::raw("ticks", "test.tick", format!("[{}0]", "0,".repeat(100_000)));
    let mut tx = db.client.transaction().await.unwrap();
    let error = enqueue_many(&mut tx, &jobs).await.unwrap_err();
    assert_eq!((error.code(), error.field()), ("invalid_input", Some("payload")));
    assert!(tx.execute("select 1", &[]).await.is_err(), "the transaction is aborted");
    tx.rollback().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 0);
}

#[tokio::test]
async fn each_answer_of_many_stands_in_the_place_of_its_job() {
    let mut db = Db::new().await;
    let held = enqueue(&mut db.client, &tick(1).idempotency_key("held")).await.unwrap().id();
    let organization = Uuid::now_v7();
    // Five different groups, one key in use, and one key twice in the same call.
    let jobs = [
        tick(2).queue("b"),
        tick(1).idempotency_key("held"),
        tick(3).priority(5),
        tick(4).idempotency_key("twice"),
        tick(5).queue("b"),
        tick(4).idempotency_key("twice"),
        tick(1).idempotency_key("held").organization(organization),
        tick(6).timeout(Duration::from_secs(3)),
    ];
    let answers = enqueue_many(&mut db.client, &jobs).await.unwrap();
    let new = |place: usize| Enqueued::New(jobs[place].job_id());
    let twice = Enqueued::Duplicate(jobs[3].job_id());
    assert_eq!(answers, [new(0), Enqueued::Duplicate(held), new(2), new(3), new(4), twice, new(6), new(7)]);
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 7);
    assert_eq!(enqueue_many(&mut db.client, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn jobs_of_one_call_that_differ_in_one_property_keep_it() {
    let mut db = Db::new().await;
    let trace = |n: u8| format!("00-4bf92f3577b34da6a3ce929d0e0e473{n}-00f067aa0ba902b7-01");
    let jobs = [
        tick(0),
        tick(1).priority(5),
        tick(2).priority(-5),
        tick(3).max_attempts(7),
        tick(4).timeout(Duration::from_secs(3)),
        tick(5).timeout(Duration::from_secs(4)),
        tick(6).traceparent(trace(1)),
        tick(7).traceparent(trace(2)),
        tick(8).queue("other"),
        NewJob::raw("ticks", "test.tock", "{\"n\": 9}"),
        tick(10).organization(Uuid::from_u128(15)),
        tick(11).delay(Duration::from_millis(1_900)),
    ];
    enqueue_many(&mut db.client, &jobs).await.unwrap();
    let sql = "select string_agg(concat_ws(' ', payload ->> 'n', queue, job_type, priority, max_attempts, \
        coalesce(extract(epoch from timeout)::int, 0), coalesce(substr(traceparent, 35, 1), '-'), \
        coalesce(right(organization_id::text, 1), '-'), (run_at - created_at >= interval '1 s')::int), ',' \
        order by (payload ->> 'n')::int) from outhaul.jobs";
    let rows: String = db.client.query_one(sql, &[]).await.unwrap().get(0);
    let expected = [
        "0 ticks test.tick 0 10 0 - - 0",
        "1 ticks test.tick 5 10 0 - - 0",
        "2 ticks test.tick -5 10 0 - - 0",
        "3 ticks test.tick 0 7 0 - - 0",
        "4 ticks test.tick 0 10 3 - - 0",
        "5 ticks test.tick 0 10 4 - - 0",
        "6 ticks test.tick 0 10 0 1 - 0",
        "7 ticks test.tick 0 10 0 2 - 0",
        "8 other test.tick 0 10 0 - - 0",
        "9 ticks test.tock 0 10 0 - - 0",
        "10 ticks test.tick 0 10 0 - f 0",
        "11 ticks test.tick 0 10 0 - - 1",
    ];
    assert_eq!(rows.split(',').collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn every_property_of_a_job_reaches_its_row_through_every_door() {
    let mut db = Db::new().await;
    for door in Door::ALL {
        let offer = Offer {
            queue: "mail".into(),
            job_type: "mail.welcome:2".into(),
            payload: r#"{"user": 7}"#.into(),
            key: Some(format!("{door:?}")),
            organization: Some(Uuid::now_v7()),
            priority: -10,
            max_attempts: 1000,
            timeout: Some(86_400_000),
            run_at: Some("2199-12-31T23:59:59Z".into()),
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            ..Offer::default()
        };
        assert_eq!(offer.at(door, &mut db.client).await.unwrap(), offer.id, "{door:?}");
        let same = "select queue = 'mail' and job_type = 'mail.welcome:2' and payload::text = '{\"user\": 7}' \
            and idempotency_key = $2 and organization_id = $3 and priority = -10 and max_attempts = 1000 \
            and timeout = interval '1 day' and run_at = '2199-12-31 23:59:59Z' \
            and traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' \
            and status = 'pending' and attempts = 0 and claim_no = 0 and lease_until = '-infinity' and not held \
            and created_at between clock_timestamp() - interval '1 min' and clock_timestamp() \
            from outhaul.jobs where id = $1";
        let row = db.client.query_one(same, &[&offer.id, &offer.key, &offer.organization]).await.unwrap();
        assert!(row.get::<_, bool>(0), "{door:?}");
    }
}

#[tokio::test]
async fn a_time_in_the_past_means_now_through_every_door() {
    let mut db = Db::new().await;
    let sql = "select run_at >= created_at and run_at <= clock_timestamp() from outhaul.jobs where id = $1";
    for door in Door::ALL {
        for past in
            ["2020-02-29T12:00:00Z", "1970-01-01T00:00:00Z", "1960-06-01T00:00:00Z", "0001-01-01T00:00:00Z"]
        {
            let offer = Offer { run_at: Some(past.into()), ..Offer::default() };
            offer.at(door, &mut db.client).await.unwrap();
            let due: bool = db.client.query_one(sql, &[&offer.id]).await.unwrap().get(0);
            assert!(due, "{past} {door:?}");
        }
    }
    // Written as no year of PostgreSQL's.
    let first = || tick(1).run_at(jiff::Timestamp::MIN);
    let one = enqueue(&mut db.client, &first()).await.unwrap();
    let many = enqueue_many(&mut db.client, &[first(), first().idempotency_key("k")]).await.unwrap();
    for job in [one, many[0], many[1]] {
        assert!(db.client.query_one(sql, &[&job.id().0]).await.unwrap().get::<_, bool>(0), "{job:?}");
    }
    db.client.execute("select outhaul.enqueue('q', 't', run_at => '4713-01-01 BC')", &[]).await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs where run_at < created_at").await, 0);
}

#[tokio::test]
async fn a_delay_is_counted_by_the_clock_of_the_database() {
    let mut db = Db::new().await;
    let now = "select clock_timestamp()";
    let before: jiff::Timestamp = db.client.query_one(now, &[]).await.unwrap().get(0);
    let job = tick(1).delay(Duration::from_secs(90));
    enqueue(&mut db.client, &job).await.unwrap();
    enqueue_many(&mut db.client, &[tick(2).delay(Duration::from_secs(90)), tick(3)]).await.unwrap();
    let after: jiff::Timestamp = db.client.query_one(now, &[]).await.unwrap().get(0);
    let between = "select count(*) from outhaul.jobs where run_at - interval '90 s' between $1 and $2";
    let delayed: i64 = db.client.query_one(between, &[&before, &after]).await.unwrap().get(0);
    let due: i64 = db.count("select count(*) from outhaul.jobs where run_at <= clock_timestamp()").await;
    assert_eq!((delayed, due), (2, 1));
}

#[tokio::test]
async fn payloads_of_any_allowed_size_are_stored_and_never_notified() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    for (n, size) in [7_900usize, 8_000, 200_000].into_iter().enumerate() {
        for door in Door::ALL {
            db.client.execute("select setval('outhaul.wake_gate', 1)", &[]).await.unwrap();
            let text = format!("\"{}\"", "x".repeat(size - 2));
            let offer = Offer::of_payload(text.clone());
            offer.at(door, &mut db.client).await.unwrap();
            let stored = "select payload::text from outhaul.jobs where id = $1";
            assert_eq!(db.client.query_one(stored, &[&offer.id]).await.unwrap().get::<_, String>(0), text);
            let notification = notified.recv().await.expect("a wake-up");
            assert_eq!(notification.payload(), "", "{n} {door:?}");
        }
    }
}

#[tokio::test]
async fn a_commit_wakes_and_a_caller_may_leave_that_out() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    let open_gate = "select setval('outhaul.wake_gate', 1)";
    let quiet = Producer::default().notify(false);
    quiet.enqueue(&mut db.client, &tick(1)).await.unwrap();
    quiet.enqueue_many(&mut db.client, &[tick(2)]).await.unwrap();
    let mut tx = db.client.transaction().await.unwrap();
    tx.batch_execute("set local outhaul.notify = 'off'").await.unwrap();
    enqueue(&mut tx, &tick(3)).await.unwrap();
    enqueue_many(&mut tx, &[tick(4)]).await.unwrap();
    tx.batch_execute("insert into outhaul.jobs (queue, job_type) values ('ticks', 'test.tick')")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    // The setting ends with its transaction; what is sent now is the first that arrives.
    db.client.execute(open_gate, &[]).await.unwrap();
    enqueue(&mut db.client, &tick(5)).await.unwrap();
    db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().payload(), "");
    assert_eq!(notified.recv().await.unwrap().payload(), "last");
}

#[tokio::test]
async fn a_burst_of_transactions_sends_few_notifications() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    let started = std::time::Instant::now();
    for n in 0..300 {
        enqueue(&mut db.client, &tick(n)).await.unwrap();
    }
    let spent = started.elapsed();
    db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
    let mut wakes = 0;
    while notified.recv().await.unwrap().payload() != "last" {
        wakes += 1;
    }
    let most = spent.as_millis() / 5 + 2;
    assert!((1..=most).contains(&wakes), "{wakes} in {spent:?}");
}

#[tokio::test]
async fn a_clock_that_was_set_back_does_not_mute_the_wake_up() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    let ahead = "select setval('outhaul.wake_gate', (extract(epoch from clock_timestamp()) * 1000)::bigint + 3600000)";
    db.client.execute(ahead, &[]).await.unwrap();
    enqueue(&mut db.client, &tick(1)).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().payload(), "");
}

#[tokio::test]
async fn a_transaction_that_ends_in_prepare_can_enqueue() {
    let mut db = Db::new().await;
    let name = db.database.name().to_owned();
    let sql_doors = [
        "select outhaul.enqueue('ticks', 'test.tick', notify => false)",
        "select outhaul.enqueue_many('ticks', 'test.tick', '{1}', array[gen_random_uuid()], notify => false)",
        "set local outhaul.notify = 'off'; select outhaul.enqueue('ticks', 'test.tick')",
        "set local outhaul.notify = 'off'; insert into outhaul.jobs (queue, job_type) values ('ticks', 'test.tick')",
    ];
    for (n, sql) in sql_doors.iter().enumerate() {
        db.client
            .batch_execute(&format!("begin; {sql}; prepare transaction '{name}-{n}'"))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    db.client.batch_execute("begin").await.unwrap();
    Producer::default().notify(false).enqueue(&mut db.client, &tick(1)).await.unwrap();
    db.client.batch_execute(&format!("prepare transaction '{name}-4'")).await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 0);
    for n in 0..=sql_doors.len() {
        db.client.batch_execute(&format!("commit prepared '{name}-{n}'")).await.unwrap();
    }
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 5);
    // With the wake-up the server refuses the PREPARE; nothing is stored then.
    db.client.execute("select setval('outhaul.wake_gate', 1)", &[]).await.unwrap();
    db.client.batch_execute("begin").await.unwrap();
    enqueue(&mut db.client, &tick(2)).await.unwrap();
    let refused = db.client.batch_execute(&format!("prepare transaction '{name}-5'")).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "0A000");
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 5);
}

#[tokio::test]
async fn numbers_beyond_32_and_53_bits_are_no_limit() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    let observer = db.observer().await;
    for at in [(1i64 << 31) - 2, (1 << 53) - 2] {
        db.client.execute("select setval('outhaul.wake_gate', $1)", &[&at]).await.unwrap();
        db.client.execute("update outhaul.audit_head set last_seq = $1", &[&at]).await.unwrap();
        for n in 0..10 {
            enqueue(&mut db.client, &tick(n)).await.unwrap();
            operator.pause("ticks", None).await.unwrap();
            operator.resume("ticks", None).await.unwrap();
        }
        let newest = observer.audit(None, 1).await.unwrap();
        assert_eq!(newest[0].seq, at + 20);
        assert_eq!(observer.audit(Some(at + 20), 1).await.unwrap()[0].seq, at + 19);
    }
    // No sequence and no number of a row is narrower than 64 bits; counters of one job are the exception.
    let narrow = "select string_agg(table_name || '.' || column_name, ',' order by table_name, column_name) \
        from information_schema.columns where table_schema = 'outhaul' and data_type = 'integer' \
        and table_name not like '%\\_first' and table_name not like '%\\_tail' and table_name !~ '_[0-9]{8}$'";
    let narrow: String = db.client.query_one(narrow, &[]).await.unwrap().get(0);
    for column in narrow.split(',') {
        let name = column.split('.').nth(1).unwrap();
        let known = [
            "attempt",
            "attempts",
            "max_attempts",
            "claim_no",
            "priority",
            "share",
            "pid",
            "listener_pid",
            "running",
            "schema_version",
            "version",
            "serves_from",
            "ahead",
            "epoch",
            // Numbers of units and settings, which are bounded.
            "n",
            "per_second",
            "permit",
            "key_permit",
            "max_running",
            "max_running_per_key",
            "rate",
            "rate_burst",
            "key_rate",
            "key_rate_burst",
        ];
        assert!(known.contains(&name), "{column} has 32 bits");
    }
    assert_eq!(db.count("select count(*) from pg_sequences where schemaname = 'outhaul' and data_type <> 'bigint'::regtype").await, 0);
}

#[tokio::test]
async fn enqueuing_works_under_a_default_of_repeatable_read() {
    let db = Db::new().await;
    let name = db.database.name();
    db.client
        .batch_execute(&format!(
            "alter database \"{name}\" set default_transaction_isolation = 'repeatable read'"
        ))
        .await
        .unwrap();
    let mut client = db.connect().await;
    for door in Door::ALL {
        let offer = Offer::keyed(&format!("{door:?}"));
        offer.at(door, &mut client).await.unwrap();
        if door != Door::Insert {
            assert_eq!(offer.again().at(door, &mut client).await.unwrap(), offer.id, "{door:?}");
        }
    }
    // Against a key that was taken after the snapshot there is no answer but "run the transaction again".
    let mut tx = client.transaction().await.unwrap();
    tx.execute("select count(*) from outhaul.jobs", &[]).await.unwrap();
    let mut other = db.connect().await;
    let winner = enqueue(&mut other, &tick(1).idempotency_key("late")).await.unwrap();
    let error = enqueue(&mut tx, &tick(1).idempotency_key("late")).await.unwrap_err();
    assert_eq!((error.sqlstate(), error.is_retryable()), (Some("40001"), true), "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(
        enqueue(&mut client, &tick(1).idempotency_key("late")).await.unwrap(),
        Enqueued::Duplicate(winner.id())
    );
}

#[tokio::test]
async fn another_schema_has_jobs_of_its_own() {
    let db = Db::new().await;
    let schema = outhaul::SchemaName::new("second").unwrap();
    let options = outhaul::MigrateOptions { schema: schema.clone(), ..outhaul::MigrateOptions::default() };
    outhaul::migrate(&db.dsn(), &options).await.unwrap();
    let mut client = db.connect().await;
    let producer = Producer::in_schema(&schema);
    let (_listener, mut notified) = listen(&db.url(), "second").await;
    let job = tick(1).idempotency_key("k");
    producer.enqueue(&mut client, &job).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().channel(), "second");
    assert!(
        enqueue(&mut client, &tick(1).idempotency_key("k")).await.unwrap().is_new(),
        "keys are not shared"
    );
    assert_eq!(producer.cancel(&mut client, job.job_id()).await.unwrap(), outhaul::Cancelled::Cancelled);
    assert_eq!(db.count("select count(*) from second.jobs").await, 0);
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
}

#[tokio::test]
async fn a_cancel_ends_what_has_not_ended_in_the_callers_transaction() {
    let mut db = Db::new().await;
    let producer = Producer::default();
    let job = enqueue(&mut db.client, &tick(1)).await.unwrap().id();
    let mut tx = db.client.transaction().await.unwrap();
    assert_eq!(producer.cancel(&mut tx, job).await.unwrap(), outhaul::Cancelled::Cancelled);
    tx.rollback().await.unwrap();
    assert_eq!(db.status(job.0).await, "pending");
    assert_eq!(producer.cancel(&mut db.client, job).await.unwrap(), outhaul::Cancelled::Cancelled);
    assert_eq!(producer.cancel(&mut db.client, job).await.unwrap(), outhaul::Cancelled::Ended);
    assert_eq!(producer.cancel(&mut db.client, JobId::new()).await.unwrap(), outhaul::Cancelled::NotFound);
    assert_eq!(db.status(job.0).await, "cancelled");
}

#[tokio::test]
async fn callers_that_share_few_connections_do_not_wait_for_each_other() {
    let db = Db::new().await;
    // As many transactions as connections, all open at once: the wake-up needs no connection of its own.
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(db.connect().await);
    }
    let mut open = Vec::new();
    for client in &mut clients {
        let mut tx = client.transaction().await.unwrap();
        enqueue(&mut tx, &tick(1)).await.unwrap();
        open.push(tx);
    }
    for tx in open {
        tx.commit().await.unwrap();
    }
    until("all jobs", || async { db.count("select count(*) from outhaul.jobs").await == 8 }).await;
}
