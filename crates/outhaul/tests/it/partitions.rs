//! Ranged tables: partitions ahead of time, beside whoever works, and nothing that fails because upkeep was away.

use outhaul::{Failure, MigrateOptions, Producer, UpkeepView, enqueue, migrate};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::calls::{Lease, claim_one, complete, fail};
use crate::support::{Db, Running, Tick, until};

/// Midnight of so many days from today, UTC, as SQL.
fn day(n: i64) -> String {
    format!("(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' + interval '{n} days')")
}

/// Gives `jobs_finished` these partitions and no others: name, first day, day after the last; `None` is without end.
async fn ranges(client: &Client, parts: &[(&str, Option<i64>, Option<i64>)]) {
    let mut sql = String::from(
        "set role outhaul_owner; do $do$ declare r record; begin \
         for r in select c.oid::regclass as t from pg_class c where relnamespace = 'outhaul'::regnamespace and relkind = 'r' and relname ~ '^jobs_finished_' loop \
           execute format('drop table %s', r.t); end loop; ",
    );
    for (name, low, high) in parts {
        let bound = |end: &Option<i64>, open: &str| match end {
            Some(n) => format!("quote_literal({})", day(*n)),
            None => format!("'{open}'"),
        };
        sql.push_str(&format!(
            "execute format('create table outhaul.%I partition of outhaul.jobs_finished for values from (%s) to (%s)', 'jobs_finished_{name}', {}, {}); ",
            bound(low, "minvalue"),
            bound(high, "maxvalue")
        ));
    }
    sql.push_str("end $do$; reset role");
    client.batch_execute(&sql).await.unwrap();
}

/// What upkeep does, once.
async fn keep(db: &Db) {
    migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
}

/// The same, done by a worker at its start; what it says about it.
async fn kept_by_a_worker(db: &Db) -> UpkeepView {
    let worker = db.worker().handle(|_: Tick, _| async { Ok::<(), Failure>(()) });
    let worker = Running::start(worker).await;
    db.until(
        "upkeep of partitions",
        "select count(*) = 1 from outhaul.upkeep where task = 'partitions' and duration_ms is not null",
    )
    .await;
    worker.stop().await;
    let upkeep = db.observer().await.upkeep().await.unwrap();
    upkeep.into_iter().find(|task| task.task == "partitions").unwrap()
}

/// Everything that is wrong with the ranges of a table: gaps, pending or forgotten pieces, too few ahead.
async fn wrong(client: &Client, table: &str) -> Vec<String> {
    let sql = format!(
        "with p as (select * from outhaul.partitions() where parent = '{table}'), \
         r as (select *, lag(high) over (order by low nulls first) as before, lag(name) over (order by low nulls first) as previous from p where not orphan) \
         select 'a gap or an overlap before ' || name from r where previous is not null and low is distinct from before \
         union all select 'no beginning' where (select count(*) from r where low is null) <> 1 \
         union all select 'no tail' where (select count(*) from r where high is null) <> 1 \
         union all select 'the tail is not called so' from r where high is null and name <> '{table}_tail' \
         union all select 'half detached: ' || name from p where detach_pending \
         union all select 'forgotten: ' || name from p where orphan \
         union all select 'too old: ' || name from p where high <= now() - keep_seconds * interval '1 s' and name <> '{table}_past' \
         union all select 'not far enough ahead' where (select max(high) from r) < \
             (select date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' + (ahead + 1) * step_seconds * interval '1 s' from p limit 1) \
         union all select 'a leftover constraint of ' || c.conrelid::regclass from pg_constraint c join p on c.conrelid = format('outhaul.%I', p.name)::regclass where c.contype = 'c' \
         union all select 'no index on ' || name from p where not exists (select from pg_index i where i.indrelid = format('outhaul.%I', p.name)::regclass and i.indisvalid) \
         union all select 'another owner of ' || name from p join pg_class c on c.oid = format('outhaul.%I', p.name)::regclass \
             where c.relowner <> (select relowner from pg_class where oid = 'outhaul.{table}'::regclass)"
    );
    client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn all_is_well(db: &Db) {
    for table in ["jobs_finished", "job_attempts"] {
        assert_eq!(wrong(&db.client, table).await, Vec::<String>::new(), "{table}");
    }
}

/// Ends a job as the worker functions do; its row goes where the database's clock says.
async fn end_one(client: &Client) -> Lease {
    let queue = format!("q{}", Uuid::new_v4().simple());
    client.execute("select outhaul.enqueue($1, 't')", &[&queue]).await.unwrap();
    let lease = claim_one(client, &queue).await;
    assert_eq!(complete(client, &lease, "row").await, "completed");
    lease
}

/// A finished job of another day.
async fn finished_on(client: &Client, n: i64) -> Uuid {
    let sql = format!(
        "insert into outhaul.jobs_finished (finished_at, created_at, started_at, id, attempts, claim_no, max_attempts, priority, status, queue, job_type) \
         values ({} + interval '1 hour', now(), now(), gen_random_uuid(), 1, 1, 1, 0, 'completed', 'q', 't') returning id",
        day(n)
    );
    client.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("day {n}: {error:?}")).get(0)
}

async fn part_of(client: &Client, id: Uuid) -> Option<String> {
    let sql = "select c.relname::text from outhaul.jobs_finished f join pg_class c on c.oid = f.tableoid where f.id = $1";
    client.query_opt(sql, &[&id]).await.unwrap().map(|row| row.get(0))
}

#[tokio::test]
async fn partitions_lie_ahead_and_end_in_a_tail_without_end() {
    let db = Db::new().await;
    all_is_well(&db).await;
    let ahead = "select count(*) from outhaul.partitions() where high > now() + interval '14 days'";
    assert_eq!(db.count(ahead).await, 2, "of each table the last one with an end");
    assert_eq!(
        db.count("select count(*) from pg_partitioned_table where partdefid <> 0").await,
        0,
        "no DEFAULT partition"
    );
    let lease = end_one(&db.client).await;
    assert!(!part_of(&db.client, lease.id).await.unwrap().ends_with("_tail"));
    finished_on(&db.client, -400).await;
    finished_on(&db.client, 40_000).await;
}

#[tokio::test]
async fn partitions_are_carved_beside_an_open_writer_and_an_open_reader() {
    let db = Db::new().await;
    for open in ["select from outhaul.jobs_finished", "write", "reader of a snapshot"] {
        ranges(&db.client, &[("first", None, Some(2)), ("tail", Some(2), None)]).await;
        let mut other = db.connect().await;
        let held = match open {
            "reader of a snapshot" => other
                .build_transaction()
                .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
                .start()
                .await
                .unwrap(),
            _ => other.transaction().await.unwrap(),
        };
        if open == "write" {
            let job = enqueue(&mut db.connect().await, &outhaul::NewJob::new(&Tick { n: 1 }).unwrap())
                .await
                .unwrap();
            held.execute("select outhaul.cancel($1)", &[&job.id().0]).await.unwrap();
        } else {
            held.execute("select count(*) from outhaul.all_jobs", &[]).await.unwrap();
        }
        // Upkeep gives way after its second; whoever works notices nothing of it.
        let upkeep = tokio::spawn({
            let dsn = db.dsn();
            async move { migrate(&dsn, &MigrateOptions::default()).await.map(drop) }
        });
        let mut ended = 0;
        while !upkeep.is_finished() {
            end_one(&db.client).await;
            ended += 1;
        }
        upkeep.await.unwrap().unwrap();
        assert!(ended > 0, "{open}");
        end_one(&db.client).await;
        held.commit().await.unwrap();
        until("all is well", || async {
            keep(&db).await;
            wrong(&db.client, "jobs_finished").await.is_empty()
        })
        .await;
    }
    all_is_well(&db).await;
}

#[tokio::test]
async fn carving_goes_on_from_wherever_it_was_killed() {
    let db = Db::new().await;
    let attach = |name: &str, low: i64, high: i64| {
        format!(
            "do $$ begin execute format('create table outhaul.%I (like outhaul.jobs_finished including defaults including indexes)', 'jobs_finished_{name}'); \
             execute format('alter table outhaul.jobs_finished attach partition outhaul.%I for values from (%L) to (%L)', 'jobs_finished_{name}', {}, {}); end $$;",
            day(low),
            day(high)
        )
    };
    let detached =
        "alter table outhaul.jobs_finished detach partition outhaul.jobs_finished_tail concurrently";
    let steps = [
        ("the tail is detached", vec![detached.to_owned()]),
        ("one range is attached", vec![detached.to_owned(), attach("x1", 2, 3)]),
        ("two ranges are attached", vec![detached.to_owned(), attach("x1", 2, 3), attach("x2", 3, 4)]),
        ("the tail is lost", vec![detached.to_owned(), "drop table outhaul.jobs_finished_tail".to_owned()]),
    ];
    for (what, statements) in steps {
        ranges(&db.client, &[("first", None, Some(2)), ("tail", Some(2), None)]).await;
        let row = end_one(&db.client).await;
        for statement in &statements {
            db.client.batch_execute("set role outhaul_owner").await.unwrap();
            db.client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
            db.client.batch_execute("reset role").await.unwrap();
        }
        end_one(&db.client).await;
        keep(&db).await;
        assert_eq!(wrong(&db.client, "jobs_finished").await, Vec::<String>::new(), "{what}");
        assert!(part_of(&db.client, row.id).await.is_some(), "{what}");
    }
}

#[tokio::test]
async fn a_detach_that_was_cut_off_is_finished() {
    let db = Db::new().await;
    ranges(&db.client, &[("first", None, Some(2)), ("tail", Some(2), None)]).await;
    // A reader holds the detach up in its second half, where the session that carves dies.
    let mut reader = db.connect().await;
    let reading = reader.transaction().await.unwrap();
    reading.execute("select count(*) from outhaul.jobs_finished", &[]).await.unwrap();
    let carver = db.connect().await;
    let pid: i32 = carver.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let cut = tokio::spawn(async move {
        carver
            .batch_execute(
                "alter table outhaul.jobs_finished detach partition outhaul.jobs_finished_tail concurrently",
            )
            .await
    });
    db.until("a detach under way", "select bool_or(detach_pending) from outhaul.partitions()").await;
    db.client.execute("select pg_terminate_backend($1)", &[&pid]).await.unwrap();
    assert!(cut.await.unwrap().is_err());
    end_one(&db.client).await;
    keep(&db).await;
    let waiting = wrong(&db.client, "jobs_finished").await;
    assert!(waiting.contains(&"half detached: jobs_finished_tail".to_owned()), "{waiting:?}");
    reading.commit().await.unwrap();
    keep(&db).await;
    all_is_well(&db).await;
}

#[tokio::test]
async fn retention_goes_on_from_wherever_it_was_killed() {
    let db = Db::new().await;
    let old = [
        ("past", None, Some(-9)),
        ("20010101", Some(-9), Some(-8)),
        ("20010102", Some(-8), Some(-7)),
        ("first", Some(-7), Some(2)),
        ("tail", Some(2), None),
    ];
    let owner = |sql: String| {
        let client = &db.client;
        async move {
            client.batch_execute("set role outhaul_owner").await.unwrap();
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            client.batch_execute("reset role").await.unwrap();
        }
    };
    let detach = |name: &str| {
        format!(
            "alter table outhaul.jobs_finished detach partition outhaul.jobs_finished_{name} concurrently"
        )
    };
    let steps = [
        vec![detach("past")],
        vec![detach("past"), detach("20010101")],
        vec![detach("past"), detach("20010101"), detach("20010102")],
        vec![detach("past"), "drop table outhaul.jobs_finished_past".to_owned()],
        vec![
            detach("past"),
            detach("20010101"),
            "drop table outhaul.jobs_finished_past, outhaul.jobs_finished_20010101".to_owned(),
        ],
    ];
    for statements in steps {
        ranges(&db.client, &old).await;
        let kept = finished_on(&db.client, 0).await;
        for statement in statements {
            owner(statement).await;
        }
        keep(&db).await;
        assert_eq!(wrong(&db.client, "jobs_finished").await, Vec::<String>::new());
        assert!(part_of(&db.client, kept).await.is_some());
        finished_on(&db.client, -400).await;
    }
}

#[tokio::test]
async fn retention_drops_what_is_wholly_past_its_time_and_nothing_else() {
    let db = Db::new().await;
    let names: Vec<String> = (-6..=1).map(|n| format!("2001010{}", n + 7)).collect();
    let mut parts: Vec<(&str, Option<i64>, Option<i64>)> = vec![("past", None, Some(-6))];
    parts.extend(names.iter().zip(-6..=1).map(|(name, n)| (&**name, Some(n), Some(n + 1))));
    parts.push(("tail", Some(2), None));
    ranges(&db.client, &parts).await;
    let mut rows = Vec::new();
    for n in -8..=1 {
        rows.push((n, finished_on(&db.client, n).await));
    }
    keep(&db).await;
    all_is_well(&db).await;
    for (n, id) in rows {
        // A day is kept, and a partition goes as a whole.
        assert_eq!(part_of(&db.client, id).await.is_some(), n >= -1, "day {n}");
    }
    // Nothing old is left, and what a clock that was set back writes finds a place all the same.
    for n in [-1, -2, -8, -4_000] {
        finished_on(&db.client, n).await;
    }
    keep(&db).await;
    all_is_well(&db).await;
}

#[tokio::test]
async fn nothing_fails_when_upkeep_was_away_for_longer_than_it_had_planned() {
    let mut db = Db::new().await;
    ranges(
        &db.client,
        &[("first", None, Some(-20)), ("20010101", Some(-20), Some(-10)), ("tail", Some(-10), None)],
    )
    .await;
    let completed = end_one(&db.client).await.id;
    let job = enqueue(&mut db.client, &outhaul::NewJob::new(&Tick { n: 1 }).unwrap()).await.unwrap().id();
    assert_eq!(Producer::default().cancel(&mut db.client, job).await.unwrap(), outhaul::Cancelled::Cancelled);
    let lost = finished_on(&db.client, -3).await;
    for id in [completed, job.0, lost] {
        assert_eq!(part_of(&db.client, id).await.as_deref(), Some("jobs_finished_tail"));
    }
    // A worker closes the tail where it is, begins a new one, and raises an alarm.
    let upkeep = kept_by_a_worker(&db).await;
    all_is_well(&db).await;
    for id in [completed, job.0, lost] {
        assert_ne!(part_of(&db.client, id).await.as_deref(), Some("jobs_finished_tail"));
        assert!(part_of(&db.client, id).await.is_some(), "still there");
    }
    assert_eq!(upkeep.findings["late_tails"], serde_json::json!(["jobs_finished"]), "{upkeep:?}");
}

#[tokio::test]
async fn rows_that_a_clock_ahead_put_into_the_tail_are_moved_out_with_an_alarm() {
    let db = Db::new().await;
    ranges(&db.client, &[("first", None, Some(2)), ("tail", Some(2), None)]).await;
    let soon = finished_on(&db.client, 5).await;
    let far = finished_on(&db.client, 60).await;
    let upkeep = kept_by_a_worker(&db).await;
    all_is_well(&db).await;
    assert_ne!(part_of(&db.client, soon).await.as_deref(), Some("jobs_finished_tail"));
    assert_eq!(part_of(&db.client, far).await.as_deref(), Some("jobs_finished_tail"));
    assert_eq!(
        (upkeep.error.as_deref(), &upkeep.findings["late_tails"]),
        (None, &serde_json::json!(["jobs_finished"]))
    );
    // The same where it had been killed with the tail off.
    ranges(&db.client, &[("first", None, Some(2)), ("tail", Some(2), None)]).await;
    let soon = finished_on(&db.client, 2).await;
    let cut = format!(
        "alter table outhaul.jobs_finished detach partition outhaul.jobs_finished_tail; \
         do $$ begin execute format('create table outhaul.jobs_finished_x partition of outhaul.jobs_finished for values from (%L) to (%L)', {}, {}); end $$",
        day(2),
        day(4)
    );
    db.client.batch_execute(&format!("set role outhaul_owner; {cut}; reset role")).await.unwrap();
    keep(&db).await;
    all_is_well(&db).await;
    assert_eq!(part_of(&db.client, soon).await.as_deref(), Some("jobs_finished_x"));
}

#[tokio::test]
async fn carving_again_and_again_leaves_nothing_behind() {
    let db = Db::new().await;
    for ahead in [15, 17, 20] {
        db.client.execute("update outhaul.ranged_tables set ahead = $1", &[&ahead]).await.unwrap();
        keep(&db).await;
        all_is_well(&db).await;
    }
    let before = db.count("select count(*) from pg_class where relnamespace = 'outhaul'::regnamespace").await;
    keep(&db).await;
    assert_eq!(
        db.count("select count(*) from pg_class where relnamespace = 'outhaul'::regnamespace").await,
        before
    );
    // Steps shorter than a day have the time in their names.
    db.client
        .batch_execute(
            "update outhaul.ranged_tables set step = '6 hours', ahead = 90 where positions is null",
        )
        .await
        .unwrap();
    keep(&db).await;
    all_is_well(&db).await;
    let named = "select count(*) > 2 from outhaul.partitions() where parent = 'jobs_finished' and name ~ '_[0-9]{8}_(06|12|18)0000$'";
    db.until("partitions of six hours", named).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_processes_may_keep_partitions_at_once() {
    let db = Db::new().await;
    ranges(
        &db.client,
        &[
            ("past", None, Some(-9)),
            ("20010101", Some(-9), Some(-8)),
            ("first", Some(-8), Some(2)),
            ("tail", Some(2), None),
        ],
    )
    .await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let dsn = db.dsn();
        tasks.push(tokio::spawn(async move { migrate(&dsn, &MigrateOptions::default()).await.map(drop) }));
    }
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        end_one(&db.client).await;
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    until("all is well", || async {
        keep(&db).await;
        wrong(&db.client, "jobs_finished").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn attempts_find_a_place_at_any_time_as_well() {
    let db = Db::new().await;
    let sql = "set role outhaul_owner; alter table outhaul.job_attempts detach partition outhaul.job_attempts_tail; reset role";
    db.client.batch_execute(sql).await.unwrap();
    db.client.execute("select outhaul.enqueue('q', 't')", &[]).await.unwrap();
    let lease = claim_one(&db.client, "q").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    keep(&db).await;
    all_is_well(&db).await;
}
