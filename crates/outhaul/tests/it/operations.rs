//! Operations: a set of jobs that is fixed before anything is done to it, and then worked off by whoever comes first.

use outhaul::{JobId, NewOperation, OperationKind, OperationState, Operator, Selection, Switch, Switched};
use uuid::Uuid;

use crate::calls::{claim, claim_one, complete, fail};
use crate::fault::{Act, EffectLog, Post};
use crate::support::{Db, connect, until};

/// Dead letters without a history, and the claim that they died of.
async fn dead(db: &Db, queue: &str, n: i32) -> Vec<Uuid> {
    let sql = "insert into outhaul.jobs_dead (died_at, created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, \
        queue, job_type, payload, locked_by, last_error_class, last_error_code, last_error_summary) \
        select clock_timestamp() - make_interval(secs => $2 - g), now() - interval '1 hour', now() - interval '1 hour', outhaul.uuid7(), 3, 3, 10, 0, 0, \
        $1, 'test.act', '\"silent\"', gen_random_uuid(), 'transient', 'http_503', 'the service was away' \
        from generate_series(1, $2) g returning id";
    db.client.query(sql, &[&queue, &n]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Jobs that wait.
async fn live(db: &Db, queue: &str, n: i32) -> Vec<Uuid> {
    let sql = "select outhaul.enqueue($1, 'test.act', '\"silent\"') from generate_series(1, $2)";
    db.client.query(sql, &[&queue, &n]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

fn of_queue(queue: &str) -> Selection {
    Selection { queue: Some(queue.into()), ..Selection::default() }
}

fn operation(name: &str, kind: OperationKind, selection: Selection) -> NewOperation {
    NewOperation::new(name, kind, selection).per_second(10_000).reason("a test")
}

async fn started(operator: &Operator, new: &NewOperation) -> i64 {
    let total = operator.create_operation(new).await.unwrap();
    assert_eq!(operator.switch_operation(&new.name, Switch::Start, None).await.unwrap(), Switched::Changed);
    total
}

/// Makes steps until the operation is done.
async fn finish(operator: &Operator, name: &str) {
    until(&format!("{name} is done"), || async {
        operator.step_operation(name).await.unwrap();
        operator.operation(name).await.unwrap().unwrap().state == OperationState::Done
    })
    .await;
}

/// The counts of an operation: total, done, skipped, and each outcome.
async fn counts(operator: &Operator, name: &str) -> (i64, i64, i64, Vec<(String, i64)>) {
    let o = operator.operation(name).await.unwrap().unwrap();
    (o.total, o.done, o.skipped, o.outcomes.into_iter().collect())
}

fn outcomes(of: &[(&str, i64)]) -> Vec<(String, i64)> {
    of.iter().map(|(outcome, n)| ((*outcome).to_owned(), *n)).collect()
}

#[tokio::test]
async fn what_dies_after_the_set_was_fixed_is_not_touched_and_the_preview_is_of_that_set() {
    let db = Db::new().await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    let chosen = dead(&db, "hooks", 12).await;
    let new = operation("monday", OperationKind::Replay, of_queue("hooks"));
    assert_eq!(operator.create_operation(&new).await.unwrap(), 12);
    let later = dead(&db, "hooks", 5).await;
    let shown = observer.operation("monday").await.unwrap().unwrap();
    assert_eq!(
        (shown.state, shown.total, shown.done, shown.started_at),
        (OperationState::Ready, 12, 0, None)
    );
    assert_eq!((&shown.reason, shown.per_second), (&Some("a test".to_owned()), 10_000));
    let group = &shown.preview["groups"];
    assert_eq!(
        group[0],
        serde_json::json!({"queue": "hooks", "job_type": "test.act", "code": "http_503", "jobs": 12})
    );
    let sample = shown.preview["sample"].as_array().unwrap();
    assert_eq!((group.as_array().unwrap().len(), sample.len()), (1, 10));
    assert_eq!(sample[0]["id"], chosen[0].to_string(), "the first that died is the first");
    assert_eq!(operator.step_operation("monday").await.unwrap(), None, "nothing is done before the start");
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 17);

    operator.switch_operation("monday", Switch::Start, None).await.unwrap();
    finish(&operator, "monday").await;
    assert_eq!(counts(&operator, "monday").await, (12, 12, 0, outcomes(&[("replayed", 12)])));
    let items = observer.operation_items("monday", 0, None, 1_000).await.unwrap();
    assert_eq!(items.iter().map(|item| item.job_id.0).collect::<Vec<_>>(), chosen);
    assert!(items.iter().all(|item| item.outcome.as_deref() == Some("replayed")));
    let page = observer.operation_items("monday", 3, Some("replayed"), 2).await.unwrap();
    assert_eq!(page.iter().map(|item| item.n).collect::<Vec<_>>(), [4, 5]);
    for id in later {
        assert_eq!(db.status(id).await, "dead_letter");
    }
}

#[tokio::test]
async fn each_kind_does_to_each_job_what_the_action_on_one_does() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let (back, gone) = (dead(&db, "back", 3).await, dead(&db, "gone", 3).await);
    let waiting = live(&db, "void", 3).await;
    let held = claim(&db.client, "void", 1).await.remove(0);
    let cases = [
        (OperationKind::Replay, "back", &back, "retrying", "replayed"),
        (OperationKind::Discard, "gone", &gone, "cancelled", "discarded"),
        (OperationKind::Cancel, "void", &waiting, "cancelled", "cancelled"),
    ];
    for (kind, queue, jobs, status, outcome) in cases {
        assert_eq!(started(&operator, &operation(queue, kind, of_queue(queue))).await, 3);
        finish(&operator, queue).await;
        assert_eq!(counts(&operator, queue).await, (3, 3, 0, outcomes(&[(outcome, 3)])));
        for id in jobs {
            assert_eq!(db.status(*id).await, status, "{kind}");
        }
    }
    let replayed = claim(&db.client, "back", 10).await;
    assert!(replayed.len() == 3 && replayed.iter().all(|lease| (lease.claim_no, lease.attempts) == (4, 1)));
    let codes = "select count(*) from outhaul.jobs_finished where error_code = case queue when 'gone' then 'discarded' else 'cancelled' end";
    assert_eq!(db.count(codes).await, 6);
    // The handler of the running one is told, and its late report is no error.
    assert_eq!(crate::calls::renew(&db.client, held.id, held.token).await, "lost");
    assert_eq!(complete(&db.client, &held, "row").await, "cancelled");
}

#[tokio::test]
async fn an_item_whose_job_is_not_what_it_was_is_skipped_and_says_why() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    for kind in [OperationKind::Replay, OperationKind::Discard] {
        let queue = format!("d.{kind}");
        let jobs = dead(&db, &queue, 6).await;
        operator.create_operation(&operation(&queue, kind, of_queue(&queue))).await.unwrap();
        // In turn: replayed, replayed and running, replayed and completed, replayed and dead again, removed.
        for id in &jobs[..4] {
            operator.retry(JobId(*id), None).await.unwrap();
        }
        let leases = claim(&db.client, &queue, 10).await;
        let lease = |n: usize| leases.iter().find(|lease| lease.id == jobs[n]).unwrap();
        assert_eq!(fail(&db.client, lease(0), "release", 0).await, "settled");
        assert_eq!(complete(&db.client, lease(2), "row").await, "completed");
        assert_eq!(fail(&db.client, lease(3), "dead_letter", 0).await, "settled");
        db.client.execute("delete from outhaul.jobs_dead where id = $1", &[&jobs[4]]).await.unwrap();
        operator.switch_operation(&queue, Switch::Start, None).await.unwrap();
        finish(&operator, &queue).await;
        let acted = if kind == OperationKind::Replay { "replayed" } else { "discarded" };
        let mut expected = outcomes(&[("live", 2), ("ended", 1), ("died_again", 1), ("gone", 1), (acted, 1)]);
        expected.sort();
        assert_eq!(counts(&operator, &queue).await, (6, 1, 5, expected));
        let statuses = ["retrying", "leased", "completed", "dead_letter", "none"];
        for (id, status) in jobs.iter().zip(statuses) {
            let now = db.status(*id).await;
            assert!(now == status || (now == "pending" && status == "retrying"), "{now} for {status}");
        }
    }
    let jobs = live(&db, "c", 4).await;
    operator.create_operation(&operation("c", OperationKind::Cancel, of_queue("c"))).await.unwrap();
    for (id, verdict) in [(jobs[0], "complete"), (jobs[1], "dead_letter"), (jobs[2], "lease")] {
        let sql = "update outhaul.jobs set priority = 5 where id = $1";
        db.client.execute(sql, &[&id]).await.unwrap();
        let lease = claim(&db.client, "c", 1).await.remove(0);
        assert_eq!(lease.id, id);
        match verdict {
            "complete" => assert_eq!(complete(&db.client, &lease, "row").await, "completed"),
            "dead_letter" => assert_eq!(fail(&db.client, &lease, verdict, 0).await, "settled"),
            _ => {}
        }
    }
    outhaul::Producer::default().cancel(&mut db.client, JobId(jobs[3])).await.unwrap();
    operator.switch_operation("c", Switch::Start, None).await.unwrap();
    finish(&operator, "c").await;
    assert_eq!(
        counts(&operator, "c").await,
        (4, 1, 3, outcomes(&[("cancelled", 1), ("dead_letter", 1), ("ended", 2)]))
    );
}

#[tokio::test]
async fn every_field_of_a_selection_narrows_it() {
    let db = Db::new().await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    let organization = Uuid::now_v7();
    dead(&db, "a", 8).await;
    let change = [
        "queue = 'b'".to_owned(),
        "job_type = 'other'".into(),
        "last_error_code = 'http_404'".into(),
        "last_error_code = null".into(),
        "last_error_class = 'permanent'".into(),
        format!("organization_id = '{organization}'"),
        "died_at = '2020-01-01T00:00:00Z'".into(),
    ];
    for (n, change) in change.iter().enumerate() {
        let sql = format!(
            "update outhaul.jobs_dead set {change} where id = (select id from outhaul.jobs_dead order by id offset {n} limit 1)"
        );
        db.client.execute(&sql, &[]).await.unwrap();
    }
    let at = |text: &str| Some(text.parse().unwrap());
    let s = Selection::default;
    let cases = [
        ("queue", Selection { queue: Some("b".into()), ..s() }, 1),
        ("type", Selection { job_type: Some("other".into()), ..s() }, 1),
        ("code", Selection { code: Some("http_404".into()), ..s() }, 1),
        ("no-code", Selection { code: Some(String::new()), ..s() }, 1),
        ("class", Selection { class: Some("permanent".into()), ..s() }, 1),
        ("organization", Selection { organization: Some(organization), ..s() }, 1),
        ("before", Selection { died_before: at("2020-01-01T00:00:00.000001Z"), ..s() }, 1),
        ("after", Selection { died_after: at("2020-01-01T00:00:00.000001Z"), ..s() }, 7),
        ("since", Selection { died_after: at("2020-01-01T00:00:00Z"), ..s() }, 8),
        ("two", Selection { queue: Some("a".into()), job_type: Some("other".into()), ..s() }, 1),
        ("all", Selection { all: true, ..s() }, 8),
    ];
    for (name, selection, n) in cases {
        let new = operation(name, OperationKind::Replay, selection.clone());
        assert_eq!(operator.create_operation(&new).await.unwrap(), n, "{name}");
        assert_eq!(observer.dead(&selection, None, 100).await.unwrap().len() as i64, n, "{name}");
        let groups = observer.dead_groups(&selection, 100).await.unwrap();
        assert_eq!(groups.iter().map(|group| group.jobs).sum::<i64>(), n, "{name}");
        assert!(groups.iter().all(|group| group.sample_id.is_some()), "{name}");
    }
    let sql = format!(
        "select outhaul.enqueue('a', 't', '1'), outhaul.enqueue('b', 't', '1'), outhaul.enqueue('a', 'other', '1'), \
         outhaul.enqueue('a', 't', '1', organization_id => '{organization}'), outhaul.enqueue('a', 't', '1', ordering_key => 'o'), \
         outhaul.enqueue('a', 't', '1', limit_key => 'l')"
    );
    db.client.execute(&sql, &[]).await.unwrap();
    let first = "update outhaul.jobs set created_at = '2020-01-01', last_error_code = 'http_404' where id = (select min(id::text)::uuid from outhaul.jobs)";
    db.client.execute(first, &[]).await.unwrap();
    let cases = [
        ("l-queue", Selection { queue: Some("b".into()), ..s() }, 1),
        ("l-type", Selection { job_type: Some("other".into()), ..s() }, 1),
        ("l-code", Selection { code: Some("http_404".into()), ..s() }, 1),
        ("l-organization", Selection { organization: Some(organization), ..s() }, 1),
        ("l-lane", Selection { ordering_key: Some("o".into()), ..s() }, 1),
        ("l-limit", Selection { limit_key: Some("l".into()), ..s() }, 1),
        ("l-before", Selection { created_before: at("2021-01-01T00:00:00Z"), ..s() }, 1),
        ("l-after", Selection { created_after: at("2021-01-01T00:00:00Z"), ..s() }, 5),
        ("l-all", Selection { all: true, ..s() }, 6),
    ];
    for (name, selection, n) in cases {
        let new = operation(name, OperationKind::Cancel, selection);
        assert_eq!(operator.create_operation(&new).await.unwrap(), n, "{name}");
    }
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_and_stores_nothing() {
    let db = Db::new().await;
    let operator = db.operator().await;
    dead(&db, "q", 2).await;
    let ok = || operation("ok", OperationKind::Replay, of_queue("q"));
    let with = |selection| NewOperation { selection, ..ok() };
    let field = || Some("x".to_owned());
    let invalid = [
        ("no field", with(Selection::default())),
        ("a live field", with(Selection { ordering_key: field(), ..of_queue("q") })),
        ("a live limit", with(Selection { limit_key: field(), ..of_queue("q") })),
        (
            "a dead field",
            NewOperation {
                kind: OperationKind::Cancel,
                ..with(Selection { class: field(), ..of_queue("q") })
            },
        ),
        ("too slow", ok().per_second(0)),
        ("too fast", ok().per_second(10_001)),
        ("no name", NewOperation { name: String::new(), ..ok() }),
        ("a blank", NewOperation { name: "a b".into(), ..ok() }),
        ("a long name", NewOperation { name: "n".repeat(101), ..ok() }),
        ("no reason", NewOperation { kind: OperationKind::Discard, reason: None, ..ok() }),
        ("a blank reason", NewOperation { kind: OperationKind::Discard, reason: Some(" ".into()), ..ok() }),
    ];
    for (what, new) in invalid {
        let error = operator.create_operation(&new).await.expect_err(what);
        assert!(error.is_invalid_input() && error.hint().is_some(), "{what}: {error:?}");
    }
    let none = operator.create_operation(&with(of_queue("empty"))).await.unwrap_err();
    assert!(none.is_not_found() && none.hint().is_some(), "{none:?}");
    for filter in [
        "[]",
        "null",
        "{\"queu\": \"q\"}",
        "{\"queue\": null}",
        "{\"queue\": 1}",
        "{\"all\": false}",
        "{\"all\": \"true\"}",
    ] {
        let sql = "select outhaul.operation_create('raw', 'replay', $1::text::jsonb)";
        let error = outhaul::Error::from(db.client.query(sql, &[&filter]).await.expect_err(filter));
        assert!(error.is_invalid_input(), "{filter}: {error:?}");
    }
    for table in ["operations", "operation_items", "audit_log"] {
        assert_eq!(db.count(&format!("select count(*) from outhaul.{table}")).await, 0, "{table}");
    }
    operator.create_operation(&ok()).await.unwrap();
    let twice = operator.create_operation(&ok()).await.unwrap_err();
    assert!(twice.is_conflict() && twice.hint().is_some(), "{twice:?}");
    assert_eq!(db.count("select count(*) from outhaul.operation_items").await, 2);
}

#[tokio::test]
async fn more_than_a_million_are_refused_before_anything_is_stored() {
    let db = Db::new().await;
    // What makes filling it slow plays no part here.
    let bare = "alter table outhaul.jobs_dead drop constraint jobs_dead_pkey; \
        do $$ declare i regclass; begin for i in select indexrelid::regclass from pg_index where indrelid = 'outhaul.jobs_dead'::regclass \
        loop execute 'drop index ' || i; end loop; end $$; alter table outhaul.jobs_dead set unlogged";
    db.client.batch_execute(bare).await.unwrap();
    let fill = "insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, \
        payload, locked_by, last_error_class) \
        select now(), now(), u, 1, 1, 1, 0, 0, 'q', 't', '1', u, 'unknown' from gen_random_uuid() u, generate_series(1, 1000001)";
    db.client.batch_execute(fill).await.unwrap();
    let operator = db.operator().await;
    let error =
        operator.create_operation(&operation("all", OperationKind::Replay, of_queue("q"))).await.unwrap_err();
    assert!(
        error.is_invalid_input() && error.hint().is_some_and(|hint| hint.contains("Narrow")),
        "{error:?}"
    );
    assert_eq!(db.count("select count(*) from outhaul.operations").await, 0);
    assert_eq!(
        db.count("select pg_relation_size('outhaul.operation_items')").await,
        0,
        "not even for a moment"
    );
    db.client.execute("delete from outhaul.jobs_dead where ctid = '(0,1)'", &[]).await.unwrap();
    let new = operation("all", OperationKind::Replay, of_queue("q"));
    assert_eq!(operator.create_operation(&new).await.unwrap(), 1_000_000);
}

#[tokio::test]
async fn a_step_does_what_the_speed_allows_and_no_more() {
    let db = Db::new().await;
    let operator = db.operator().await;
    dead(&db, "q", 40).await;
    let new = operation("slow", OperationKind::Replay, of_queue("q")).per_second(5);
    started(&operator, &new).await;
    let first = operator.step_operation("slow").await.unwrap().unwrap();
    assert_eq!((first.done, first.total), (1, 40));
    assert_eq!(operator.step_operation("slow").await.unwrap(), None, "the next one has its time");
    let pass = |by: &'static str| {
        let sql = format!("update outhaul.operations set due_at = clock_timestamp() - interval '{by}'");
        let client = &db.client;
        async move { client.execute(&sql, &[]).await.unwrap() }
    };
    pass("1 second").await;
    let second = operator.step_operation("slow").await.unwrap().unwrap();
    assert!((6..=7).contains(&second.done), "{second:?}");
    // Whoever was away for long does not make up for all of it at once.
    pass("1 hour").await;
    let third = operator.step_operation("slow").await.unwrap().unwrap();
    assert_eq!(third.done - second.done, 10, "two seconds' worth");
    assert_eq!(operator.step_operation("slow").await.unwrap(), None);
}

#[tokio::test]
async fn it_stops_at_once_goes_on_where_it_was_and_says_what_it_found() {
    let db = Db::new().await;
    let operator = db.operator().await;
    dead(&db, "q", 30).await;
    let new = operation("o", OperationKind::Replay, of_queue("q")).per_second(10);
    operator.create_operation(&new).await.unwrap();
    let to = |to| {
        let operator = operator.clone();
        async move { operator.switch_operation("o", to, Some("r")).await.unwrap() }
    };
    use OperationState::{Done, Ready, Running, Stopped};
    assert_eq!(to(Switch::Stop).await, Switched::Was(Ready));
    assert_eq!(to(Switch::Resume).await, Switched::Was(Ready));
    assert_eq!(to(Switch::Start).await, Switched::Changed);
    assert_eq!(to(Switch::Start).await, Switched::Was(Running));
    assert_eq!(to(Switch::Resume).await, Switched::Was(Running));
    operator.step_operation("o").await.unwrap();
    assert_eq!(to(Switch::Stop).await, Switched::Changed);
    let before = counts(&operator, "o").await;
    db.client.execute("update outhaul.operations set due_at = '-infinity'", &[]).await.unwrap();
    assert_eq!(operator.step_operation("o").await.unwrap(), None);
    assert_eq!(counts(&operator, "o").await, before);
    assert_eq!(to(Switch::Stop).await, Switched::Was(Stopped));
    assert_eq!(to(Switch::Start).await, Switched::Was(Stopped));
    assert_eq!(to(Switch::Resume).await, Switched::Changed);
    db.client.execute("update outhaul.operations set per_second = 10000", &[]).await.unwrap();
    finish(&operator, "o").await;
    for switch in [Switch::Start, Switch::Stop, Switch::Resume] {
        assert_eq!(to(switch).await, Switched::Was(Done));
        let unknown = operator.switch_operation("never", switch, None).await.unwrap_err();
        assert!(unknown.is_not_found(), "{unknown:?}");
    }
    assert_eq!(counts(&operator, "o").await.1, 30);
    let audited = db.observer().await.audit(None, 100).await.unwrap();
    let actions: Vec<&str> = audited.iter().rev().map(|row| row.action.as_str()).collect();
    assert_eq!(actions, ["operations.create", "operations.start", "operations.stop", "operations.resume"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_act_on_every_item_once() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let jobs = dead(&db, "q", 4_000).await;
    started(&operator, &operation("o", OperationKind::Replay, of_queue("q"))).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let operator = db.operator().await;
        tasks.push(tokio::spawn(async move {
            while operator.operation("o").await.unwrap().unwrap().state != OperationState::Done {
                operator.step_operation("o").await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counts(&operator, "o").await, (4_000, 4_000, 0, outcomes(&[("replayed", 4_000)])));
    assert_eq!(db.count("select count(*) from outhaul.jobs where claim_no = 3").await, jobs.len() as i64);
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 0);
}

#[tokio::test]
async fn a_step_whose_connection_dies_has_not_been_made() {
    let db = Db::new().await;
    let operator = db.operator().await;
    dead(&db, "q", 10).await;
    started(&operator, &operation("o", OperationKind::Replay, of_queue("q"))).await;
    db.client
        .execute("update outhaul.operations set due_at = clock_timestamp() - interval '1 second'", &[])
        .await
        .unwrap();
    let mut other = db.connect().await;
    let tx = other.transaction().await.unwrap();
    let step =
        tx.query_one("select done, pg_backend_pid() from outhaul.operation_step()", &[]).await.unwrap();
    assert_eq!(step.get::<_, i64>(0), 10);
    let end = "select pg_terminate_backend($1, 10000)";
    db.client.execute(end, &[&step.get::<_, i32>(1)]).await.unwrap();
    drop(tx);
    assert_eq!(counts(&operator, "o").await, (10, 0, 0, vec![]));
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 10);
    finish(&operator, "o").await;
    assert_eq!(counts(&operator, "o").await, (10, 10, 0, outcomes(&[("replayed", 10)])));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_go_on_with_it_whichever_of_them_is_killed() {
    let db = Db::new().await;
    let (operator, log) = (db.operator().await, EffectLog::new().await);
    let fill = "insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, \
        payload, locked_by, last_error_class) select now(), now(), outhaul.uuid7(), 3, 3, 10, 0, 0, 'acts', 'test.act', '\"nothing\"', \
        gen_random_uuid(), 'unknown' from generate_series(1, 120)";
    db.client.execute(fill, &[]).await.unwrap();
    let mut victim = Post::new("victim", &db.url(), &log).start().await;
    started(&operator, &operation("o", OperationKind::Replay, of_queue("acts")).per_second(40)).await;
    db.until("it has begun", "select done > 0 from outhaul.operations").await;
    victim.kill().await.unwrap();
    let _heir = Post::new("heir", &db.url(), &log).start().await;
    db.until("it is done", "select state = 'done' from outhaul.operations").await;
    assert_eq!(counts(&operator, "o").await, (120, 120, 0, outcomes(&[("replayed", 120)])));
    db.until(
        "all have completed",
        "select count(*) = 120 from outhaul.jobs_finished where status = 'completed'",
    )
    .await;
    assert_eq!(log.jobs("begin").await, 120);
}

#[tokio::test]
async fn a_job_that_somebody_has_locked_holds_nobody_up_and_has_its_turn_later() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let (jobs, waiting) = (dead(&db, "q", 5).await, live(&db, "l", 5).await);
    started(&operator, &operation("replay", OperationKind::Replay, of_queue("q"))).await;
    started(&operator, &operation("cancel", OperationKind::Cancel, of_queue("l"))).await;
    let mut other = db.connect().await;
    let tx = other.transaction().await.unwrap();
    tx.execute("select from outhaul.jobs_dead where id = $1 for update", &[&jobs[0]]).await.unwrap();
    tx.execute("select from outhaul.jobs where id = $1 for update", &[&waiting[2]]).await.unwrap();
    for name in ["replay", "cancel"] {
        until("all but one are done", || async {
            operator.step_operation(name).await.unwrap();
            counts(&operator, name).await.1 == 4
        })
        .await;
        assert_eq!(operator.operation(name).await.unwrap().unwrap().state, OperationState::Running);
    }
    tx.rollback().await.unwrap();
    for name in ["replay", "cancel"] {
        finish(&operator, name).await;
        assert_eq!(counts(&operator, name).await.1, 5);
    }
}

#[tokio::test]
async fn a_step_that_fails_is_told_and_tried_again_while_others_go_on() {
    let db = Db::new().await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    dead(&db, "bad", 3).await;
    dead(&db, "good", 3).await;
    let trap = "create function outhaul.trap() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$; \
        create trigger trap before delete on outhaul.jobs_dead for each row when (old.queue = 'bad') execute function outhaul.trap()";
    db.client.batch_execute(trap).await.unwrap();
    started(&operator, &operation("bad", OperationKind::Discard, of_queue("bad"))).await;
    started(&operator, &operation("good", OperationKind::Discard, of_queue("good"))).await;
    until("the good one is done", || async {
        db.client.query("select outhaul.operation_step()", &[]).await.unwrap();
        counts(&operator, "good").await.1 == 3
    })
    .await;
    let bad = observer.operation("bad").await.unwrap().unwrap();
    assert_eq!((bad.state, bad.done, bad.skipped), (OperationState::Running, 0, 0));
    assert!(bad.error.is_some_and(|error| error.contains("not today")));
    db.client
        .batch_execute(
            "drop trigger trap on outhaul.jobs_dead; update outhaul.operations set due_at = '-infinity'",
        )
        .await
        .unwrap();
    finish(&operator, "bad").await;
    let bad = observer.operation("bad").await.unwrap().unwrap();
    assert_eq!((bad.done, bad.error), (3, None));
}

#[tokio::test]
async fn thirty_days_after_their_end_operations_are_removed() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let states = ["ready", "running", "stopped", "done", "young"];
    for state in states {
        dead(&db, state, 3).await;
        operator.create_operation(&operation(state, OperationKind::Replay, of_queue(state))).await.unwrap();
        let sql = "update outhaul.operations set state = $1, created_at = now() - interval '31 days', \
            finished_at = case $1 when 'done' then now() - interval '31 days' end where name = $1";
        if state != "young" {
            db.client.execute(sql, &[&state]).await.unwrap();
        }
    }
    let remove = || async { db.count("select outhaul.remove_operations(2)").await };
    until("nothing is left to remove", || async { remove().await == 0 }).await;
    let left = "select string_agg(o.name, ' ' order by o.name) from outhaul.operations o";
    let names: String = db.client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(names, "running stopped young");
    assert_eq!(db.count("select count(*) from outhaul.operation_items").await, 9);
}

#[tokio::test]
async fn the_list_and_the_groups_of_dead_letters_say_what_is_there() {
    let db = Db::new().await;
    let observer = db.observer().await;
    let (mail, hooks) = (dead(&db, "mail", 3).await, dead(&db, "hooks", 7).await);
    let all = Selection::default();
    let groups = observer.dead_groups(&all, 10).await.unwrap();
    let seen: Vec<_> =
        groups.iter().map(|group| (group.queue.as_str(), group.jobs, group.sample_id)).collect();
    assert_eq!(seen, [("hooks", 7, Some(JobId(hooks[6]))), ("mail", 3, Some(JobId(mail[2])))]);
    assert!(groups[0].oldest_at < groups[0].newest_at);
    assert_eq!(groups[0].sample_summary.as_deref(), Some("the service was away"));
    assert_eq!(observer.dead_groups(&all, 1).await.unwrap().len(), 1);
    let mut pages = Vec::new();
    let mut before = None;
    loop {
        let page = observer.dead(&of_queue("hooks"), before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some((last.died_at, last.id));
        pages.extend(page.iter().map(|dead| dead.id.0));
    }
    pages.reverse();
    assert_eq!(pages, hooks, "every one once, the last that died first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_what_an_operation_has_replayed_at_once() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let log = EffectLog::new().await;
    let mut client = connect(&db.url()).await;
    let id = Act::Nothing.enqueue(&mut client).await;
    let lease = claim_one(&db.client, "acts").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    let worker = crate::support::Running::start(db.worker().handle(log.actor("w"))).await;
    started(&operator, &operation("o", OperationKind::Replay, of_queue("acts"))).await;
    log.until("begin", 1).await;
    db.until("it has completed", "select count(*) = 1 from outhaul.jobs_finished where status = 'completed'")
        .await;
    assert_eq!(log.all("begin").await[0].job, id);
    worker.stop().await;
}
