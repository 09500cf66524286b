//! The read-model shows what is there, counts no further than it must, and pages without a gap.

use std::collections::BTreeMap;

use outhaul::{JobFilter, JobId, JobStatus, Observer, QueueView, Retried};
use uuid::Uuid;

use crate::calls::{claim, claim_one, complete, fail};
use crate::doors::{Door, Offer};
use crate::support::{Db, listen};

async fn by_name(observer: &Observer) -> BTreeMap<String, QueueView> {
    observer.queues().await.unwrap().into_iter().map(|queue| (queue.queue.clone(), queue)).collect()
}

/// Stores rows as they are, without the trigger.
async fn store(db: &Db, sql: &str) {
    let sql = format!("begin; set local session_replication_role = replica; {sql}; commit");
    db.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

#[tokio::test]
async fn queues_show_counts_ages_settings_and_workers() {
    let db = Db::new().await;
    store(
        &db,
        "insert into outhaul.jobs (queue, job_type, run_at, status, lease_until, priority) values \
         ('a', 't', now() - interval '50 s', 'pending', '-infinity', 0), ('a', 't', now() - interval '20 s', 'pending', '-infinity', 5), \
         ('a', 't', now() - interval '99 s', 'leased', now() + interval '1 min', 0), ('a', 't', now() - interval '99 s', 'leased', now() - interval '7 s', 0), \
         ('a', 't', now() + interval '1 h', 'pending', '-infinity', 0), ('a', 't', now() + interval '1 h', 'retrying', '-infinity', 0), \
         ('a', 't', now() - interval '1 s', 'retrying', '-infinity', -5); \
         insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, payload, locked_by, last_error_class) \
         select now(), now(), gen_random_uuid(), 1, 1, 1, 0, 0, q, 't', '1', gen_random_uuid(), 'unknown' from unnest(array['a', 'only dead', 'only dead']) q; \
         insert into outhaul.queues (name, paused_at, paused_reason, history, age_objective) values ('a', null, null, 'payload', '90 s'), ('only set', now(), 'moving', 'row', null); \
         insert into outhaul.workers (id, host, pid, version, schema_version, queues, heartbeat_at) values \
         (gen_random_uuid(), 'h', 1, 'v', 1, '{\"a\": 1, \"only worked\": 2}', now()), (gen_random_uuid(), 'h', 1, 'v', 1, '{\"a\": 1}', now() - interval '29 s'), \
         (gen_random_uuid(), 'h', 1, 'v', 1, '{\"a\": 1, \"gone\": 1}', now() - interval '31 s')",
    )
    .await;
    let mut queues = by_name(&db.observer().await).await;
    // Without those that every installation begins with.
    queues.retain(|name, _| name.starts_with("only") || name == "a");
    assert_eq!(queues.keys().collect::<Vec<_>>(), ["a", "only dead", "only set", "only worked"]);
    let a = &queues["a"];
    assert_eq!(
        (a.pending, a.scheduled, a.leased, a.retrying, a.dead_letter, a.capped),
        (2, 1, 2, 2, 1, false)
    );
    assert_eq!((a.paused, &*a.history, a.age_objective_ms, a.workers), (false, "payload", Some(90_000), 2));
    assert!(
        (50_000..80_000).contains(&a.oldest_pending_ms.unwrap()),
        "the oldest that could run, over all lanes: {a:?}"
    );
    assert!((7_000..37_000).contains(&a.oldest_expired_lease_ms.unwrap()), "{a:?}");
    let dead = &queues["only dead"];
    assert_eq!(
        (dead.dead_letter, dead.pending, dead.oldest_pending_ms, dead.oldest_expired_lease_ms),
        (2, 0, None, None)
    );
    let set = &queues["only set"];
    assert_eq!(
        (set.paused, set.paused_reason.as_deref(), &*set.history, set.workers),
        (true, Some("moving"), "row", 0)
    );
    assert_eq!((queues["only worked"].workers, &*queues["only worked"].history), (1, "row"));
}

#[tokio::test]
async fn a_pause_is_shown_and_stops_claims_until_the_queue_is_resumed() {
    let mut db = Db::new().await;
    let (operator, observer) = (db.operator().await, db.observer().await);
    Offer::default().at(Door::Library, &mut db.client).await.unwrap();
    operator.pause("ticks", Some("inventory")).await.unwrap();
    let queue = &by_name(&observer).await["ticks"];
    assert_eq!((queue.paused, queue.paused_reason.as_deref(), queue.pending), (true, Some("inventory"), 1));
    assert!(claim(&db.client, "ticks", 10).await.is_empty());
    operator.resume("ticks", None).await.unwrap();
    let queue = &by_name(&observer).await["ticks"];
    assert_eq!((queue.paused, queue.paused_reason.as_deref()), (false, None));
    assert_eq!(claim(&db.client, "ticks", 10).await.len(), 1);
}

#[tokio::test]
async fn counts_stop_at_a_cap_and_say_so() {
    let db = Db::new().await;
    store(
        &db,
        "insert into outhaul.jobs (id, queue, job_type) select gen_random_uuid(), q, 't' from unnest(array['long', 'longer']) q, generate_series(1, 10000); \
         insert into outhaul.jobs (id, queue, job_type) select gen_random_uuid(), 'longer', 't' from generate_series(1, 500); \
         insert into outhaul.jobs_dead (created_at, run_at, id, attempts, claim_no, max_attempts, priority, share, queue, job_type, payload, locked_by, last_error_class) \
         select now(), now(), gen_random_uuid(), 1, 1, 1, 0, 0, 'long', 't', '1', gen_random_uuid(), 'unknown' from generate_series(1, 10500)",
    )
    .await;
    let queues = by_name(&db.observer().await).await;
    assert_eq!(
        (queues["long"].pending, queues["long"].capped, queues["long"].dead_letter),
        (10_000, false, 10_001)
    );
    assert_eq!((queues["longer"].pending, queues["longer"].capped), (10_001, true));
}

#[tokio::test]
async fn names_that_got_in_by_other_ways_are_shown_and_break_nothing() {
    let db = Db::new().await;
    let names = [
        "'; drop table outhaul.jobs; --",
        "\"",
        "\\",
        "a\nb",
        "ä",
        "\u{1}",
        "日本",
        "",
        " ",
        "zz",
        "<img src=x>",
        "\u{10ffff}",
    ];
    let insert = "insert into outhaul.jobs (queue, job_type) values ($1, $2)";
    db.client.batch_execute("set session_replication_role = replica").await.unwrap();
    for name in names {
        for _ in 0..3 {
            db.client.execute(insert, &[&name, &name]).await.unwrap();
        }
    }
    let observer = db.observer().await;
    let queues = by_name(&observer).await;
    assert_eq!(
        queues.len(),
        names.len() + 7,
        "each name once, by the loose scan, and the queues of every installation"
    );
    for name in names {
        assert_eq!(queues[name].pending, 3, "{name:?}");
        let filter =
            JobFilter { queue: Some(name.into()), job_type: Some(name.into()), ..JobFilter::default() };
        assert_eq!(observer.jobs(&filter).await.unwrap().len(), 3, "{name:?}");
    }
    observer.record_gauges().await.unwrap();
}

#[tokio::test]
async fn a_registration_that_is_no_object_breaks_nothing() {
    let db = Db::new().await;
    for queues in ["[]", "\"q\"", "1", "null", "{\"q\": 1}"] {
        let beat = "select outhaul.worker_beat(gen_random_uuid(), 'h', 1, 'v', 1, $1::text::jsonb, null, 'polling', 0, false)";
        db.client.execute(beat, &[&queues]).await.unwrap();
    }
    let observer = db.observer().await;
    assert_eq!(by_name(&observer).await["q"].workers, 1);
    assert_eq!(observer.workers().await.unwrap().len(), 5);
    observer.record_gauges().await.unwrap();
}

/// Jobs in every table: live, finished and dead. Returns their ids, newest first.
async fn jobs_everywhere(db: &mut Db, n: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for place in 0..n {
        let (queue, job_type) = (["even", "odd"][place % 2], ["a", "b", "c"][place % 3]);
        let offer = Offer { queue: queue.into(), job_type: job_type.into(), ..Offer::default() };
        ids.push(JobId(offer.at(Door::Function, &mut db.client).await.unwrap()));
        if place % 4 < 3 {
            let lease = claim_one(&db.client, queue).await;
            match place % 4 {
                0 => assert_eq!(complete(&db.client, &lease, "row").await, "completed"),
                1 => assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled"),
                _ => assert_eq!(fail(&db.client, &lease, "retry", 3_600_000).await, "settled"),
            }
        } else {
            db.client
                .execute(
                    "update outhaul.jobs set run_at = now() + interval '1 h' where id = $1",
                    &[&offer.id],
                )
                .await
                .unwrap();
        }
    }
    ids.sort();
    ids.reverse();
    ids
}

#[tokio::test]
async fn pages_show_every_job_once_newest_first_while_others_come_and_end() {
    let mut db = Db::new().await;
    let ids = jobs_everywhere(&mut db, 120).await;
    let observer = db.observer().await;
    let mut filter = JobFilter { limit: 17, ..JobFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = observer.jobs(&filter).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.before = Some(last.id);
        seen.extend(page.iter().map(|job| job.id));
        Offer::default().at(Door::Function, &mut db.client).await.unwrap();
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn filters_select_and_limits_are_kept() {
    let mut db = Db::new().await;
    let ids = jobs_everywhere(&mut db, 60).await;
    let observer = db.observer().await;
    let list = |filter: JobFilter| {
        let observer = observer.clone();
        async move { observer.jobs(&filter).await.unwrap() }
    };
    let of = |statuses: &[JobStatus]| JobFilter {
        statuses: statuses.to_vec(),
        limit: 100,
        ..JobFilter::default()
    };
    for (status, n) in [
        (JobStatus::Completed, 15),
        (JobStatus::DeadLetter, 15),
        (JobStatus::Retrying, 15),
        (JobStatus::Pending, 15),
        (JobStatus::Leased, 0),
        (JobStatus::Cancelled, 0),
    ] {
        let jobs = list(of(&[status])).await;
        assert!(jobs.len() == n && jobs.iter().all(|job| job.status == status), "{status}");
        assert!(jobs.windows(2).all(|pair| pair[0].id > pair[1].id));
    }
    assert_eq!(list(of(&[JobStatus::Completed, JobStatus::Pending])).await.len(), 30);
    let both = JobFilter {
        queue: Some("odd".into()),
        job_type: Some("b".into()),
        limit: 100,
        ..JobFilter::default()
    };
    assert_eq!(list(both).await.len(), 10);
    assert_eq!(list(JobFilter::default()).await.len(), 50, "the default page");
    assert_eq!(list(JobFilter { limit: -3, ..JobFilter::default() }).await.len(), 1);
    let last = Some(*ids.last().unwrap());
    assert!(list(JobFilter { before: last, ..JobFilter::default() }).await.is_empty());
    store(&db, "insert into outhaul.jobs (id, queue, job_type) select gen_random_uuid(), 'q', 't' from generate_series(1, 1100)").await;
    assert_eq!(list(JobFilter { limit: i32::MAX, ..JobFilter::default() }).await.len(), 1_000);
}

#[tokio::test]
async fn one_job_is_shown_with_what_its_table_knows() {
    let mut db = Db::new().await;
    let observer = db.observer().await;
    let offer = Offer {
        organization: Some(Uuid::now_v7()),
        priority: 3,
        max_attempts: 4,
        timeout: Some(1_500),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..Offer::keyed("k")
    };
    let id = JobId(offer.at(Door::Function, &mut db.client).await.unwrap());
    let pending = observer.job(id).await.unwrap().unwrap();
    assert_eq!(
        (pending.job.status, pending.job.attempts, pending.claim_no, pending.lease_until),
        (JobStatus::Pending, 0, Some(0), None)
    );
    assert_eq!(
        (pending.job.organization_id, pending.job.priority, pending.job.max_attempts),
        (offer.organization, 3, 4)
    );
    assert_eq!(
        (pending.idempotency_key.as_deref(), pending.timeout_ms, pending.traceparent),
        (Some("k"), Some(1_500), offer.traceparent.clone())
    );
    assert!(
        pending.attempt_history.is_empty() && pending.job.run_at.is_some() && pending.job.ended_at.is_none()
    );

    let lease = claim_one(&db.client, "ticks").await;
    let leased = observer.job(id).await.unwrap().unwrap();
    assert_eq!((leased.job.status, leased.job.attempts, leased.claim_no), (JobStatus::Leased, 1, Some(1)));
    assert_eq!(leased.job.locked_by.as_deref(), Some("00000000-0000-0000-0000-0000000000aa"));
    assert!(leased.lease_until.is_some() && leased.job.locked_at.is_some());
    fail(&db.client, &lease, "retry", 0).await;
    let lease = claim_one(&db.client, "ticks").await;
    fail(&db.client, &lease, "dead_letter", 0).await;
    let dead = observer.job(id).await.unwrap().unwrap();
    assert_eq!(
        (dead.job.status, dead.job.attempts, dead.claim_no, dead.idempotency_key.as_deref()),
        (JobStatus::DeadLetter, 2, Some(2), Some("k"))
    );
    assert_eq!(
        (dead.job.last_error_code.as_deref(), dead.job.last_error_summary.as_deref()),
        (Some("http_503"), Some("the service was away"))
    );
    let outcomes: Vec<(i32, i32, &str, &str)> =
        dead.attempt_history.iter().map(|a| (a.claim_no, a.attempt, &*a.outcome, &*a.error_class)).collect();
    assert_eq!(outcomes, [(1, 1, "retry", "transient"), (2, 2, "dead_letter", "transient")]);
    assert_eq!(observer.payload(id).await.unwrap().as_deref(), Some(r#"{"n": 1}"#));

    db.operator().await.retry(id, None).await.unwrap();
    let lease = claim_one(&db.client, "ticks").await;
    complete(&db.client, &lease, "row").await;
    let completed = observer.job(id).await.unwrap().unwrap();
    assert_eq!(
        (completed.job.status, completed.job.attempts, completed.claim_no),
        (JobStatus::Completed, 1, Some(3))
    );
    assert!(completed.job.ended_at.is_some() && completed.attempt_history.len() == 2);
    assert_eq!(observer.payload(id).await.unwrap(), None, "this queue keeps rows without payloads");
    assert!(observer.job(JobId::new()).await.unwrap().is_none());
    assert_eq!(observer.payload(JobId::new()).await.unwrap(), None);
}

#[tokio::test]
async fn a_retry_by_hand_makes_a_waiting_job_due_and_never_moves_one_back() {
    let db = Db::new().await;
    store(
        &db,
        "insert into outhaul.jobs (id, queue, job_type, run_at) values ('01a22d96-f667-741b-9170-ea2010b260f0', 'q', 't', now() + interval '1 h'), \
         ('01a22d96-f667-741b-9170-ea2010b260f1', 'q', 't', now() - interval '1 h')",
    )
    .await;
    let operator = db.operator().await;
    for (id, due) in [
        ("01a22d96-f667-741b-9170-ea2010b260f0", "between now() - interval '1 min' and now()"),
        ("01a22d96-f667-741b-9170-ea2010b260f1", "< now() - interval '59 min'"),
    ] {
        assert_eq!(operator.retry(id.parse().unwrap(), None).await.unwrap(), outhaul::Retried::Due);
        assert_eq!(
            db.count(&format!("select count(*) from outhaul.jobs where id = '{id}' and run_at {due}")).await,
            1,
            "{id}"
        );
    }
}

#[tokio::test]
async fn a_dead_letter_comes_back_as_it_was_but_for_its_attempts() {
    let mut db = Db::new().await;
    let offer = Offer {
        payload: r#"{"n": 7}"#.into(),
        organization: Some(Uuid::now_v7()),
        priority: 4,
        max_attempts: 6,
        timeout: Some(9_000),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..Offer::keyed("k")
    };
    offer.at(Door::Function, &mut db.client).await.unwrap();
    let row = "select (to_jsonb(j) - array['attempts', 'claim_no', 'status', 'run_at', 'last_error_code', 'last_error_summary'])::text \
        from outhaul.jobs j";
    let before: String = db.client.query_one(row, &[]).await.unwrap().get(0);
    let lease = claim_one(&db.client, "ticks").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    db.operator().await.retry(JobId(offer.id), None).await.unwrap();
    assert_eq!(db.client.query_one(row, &[]).await.unwrap().get::<_, String>(0), before);
    let anew = "select count(*) from outhaul.jobs where attempts = 0 and claim_no = 1 and status = 'retrying' \
        and last_error_code = 'http_503' and last_error_summary = 'the service was away' \
        and run_at between clock_timestamp() - interval '1 min' and clock_timestamp()";
    assert_eq!(db.count(anew).await, 1);
    assert_eq!(db.count("select count(*) from outhaul.jobs_dead").await, 0);
}

#[tokio::test]
async fn actions_that_give_workers_something_to_do_wake_them() {
    let mut db = Db::new().await;
    let operator = db.operator().await;
    let later = Offer { run_at: Some("2199-01-01T00:00:00Z".into()), ..Offer::default() };
    later.at(Door::Function, &mut db.client).await.unwrap();
    let dead = Offer { queue: "dead".into(), ..Offer::default() };
    dead.at(Door::Function, &mut db.client).await.unwrap();
    let lease = claim_one(&db.client, "dead").await;
    assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
    operator.pause("ticks", None).await.unwrap();
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    for act in ["resume", "retry", "replay"] {
        db.client.execute("select setval('outhaul.wake_gate', 1)", &[]).await.unwrap();
        match act {
            "resume" => assert!(operator.resume("ticks", None).await.unwrap()),
            "retry" => assert_eq!(operator.retry(JobId(later.id), None).await.unwrap(), Retried::Due),
            _ => assert_eq!(operator.retry(JobId(dead.id), None).await.unwrap(), Retried::Replayed),
        }
        db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
        assert_eq!(notified.recv().await.unwrap().payload(), "", "{act}");
        assert_eq!(notified.recv().await.unwrap().payload(), "last", "{act}");
    }
}

#[tokio::test]
async fn notification_queue_and_upkeep_are_shown() {
    let db = Db::new().await;
    let observer = db.observer().await;
    let usage = observer.notification_queue_usage().await.unwrap();
    assert!((0.0..=1.0).contains(&usage));
    db.client.execute("select outhaul.upkeep_report('retention', 12, '{\"keys\": 3}', null), outhaul.upkeep_report('partitions', 7, null, 'no lock')", &[]).await.unwrap();
    let upkeep = observer.upkeep().await.unwrap();
    assert_eq!(upkeep.len(), 2);
    assert_eq!(
        (&*upkeep[0].task, upkeep[0].error.as_deref(), upkeep[0].duration_ms),
        ("partitions", Some("no lock"), Some(7))
    );
    assert_eq!((&*upkeep[1].task, &upkeep[1].findings["keys"]), ("retention", &serde_json::json!(3)));
    // A turn is taken by one, and at once when the clock was set back.
    let due = "select outhaul.upkeep_due('retention', '1 hour')";
    assert!(!db.client.query_one(due, &[]).await.unwrap().get::<_, bool>(0));
    db.client
        .execute("update outhaul.upkeep set last_run_at = last_run_at + interval '1 day'", &[])
        .await
        .unwrap();
    assert!(db.client.query_one(due, &[]).await.unwrap().get::<_, bool>(0));
    assert!(!db.client.query_one(due, &[]).await.unwrap().get::<_, bool>(0));
}
