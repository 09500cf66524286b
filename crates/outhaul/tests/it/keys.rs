//! Idempotency keys: one job or event per key, whoever asks, whenever, at whatever door.

use std::sync::Arc;

use outhaul::{Enqueued, NewEvent, NewJob, Published, enqueue, enqueue_many, publish, publish_many};
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::calls::{claim_one, complete, fail};
use crate::doors::{Door, Fact, Offer};
use crate::support::{Db, Tick, listen};

fn keyed(n: i64, key: &str) -> NewJob {
    NewJob::new(&Tick { n }).unwrap().idempotency_key(key)
}

/// Every state that a job with a key can be in.
const STATES: [&str; 7] =
    ["pending", "scheduled", "leased", "retrying", "completed", "cancelled", "dead_letter"];

/// A job in one of these states, with a key of the same name.
async fn job_in(db: &mut Db, state: &str) -> Offer {
    keyed_job_in(db, state, state).await
}

/// A job in one of these states, with a key, and in a queue of the key's name.
async fn keyed_job_in(db: &mut Db, state: &str, key: &str) -> Offer {
    let later = (state == "scheduled").then(|| "2199-01-01T00:00:00Z".to_owned());
    let offer = Offer { queue: key.into(), run_at: later, ..Offer::keyed(key) };
    offer.at(Door::Function, &mut db.client).await.unwrap();
    if !matches!(state, "pending" | "scheduled") {
        let lease = claim_one(&db.client, key).await;
        let done = match state {
            "retrying" => fail(&db.client, &lease, "retry", 3_600_000).await,
            "completed" => complete(&db.client, &lease, "row").await,
            "cancelled" => fail(&db.client, &lease, "cancel", 0).await,
            "dead_letter" => fail(&db.client, &lease, "dead_letter", 0).await,
            _ => "leased".into(),
        };
        assert!(["settled", "completed", "leased"].contains(&&*done), "{done}");
    }
    let status = db.status(offer.id).await;
    assert_eq!(status, if state == "scheduled" { "pending" } else { state });
    offer
}

async fn jobs(db: &Db) -> i64 {
    db.count("select count(*) from outhaul.all_jobs").await
}

/// Makes all keys look as if time had passed.
async fn age_keys(db: &Db, by: &str) {
    let sql = format!("update outhaul.job_keys set expires_at = expires_at - interval '{by}'");
    db.client.execute(&sql, &[]).await.unwrap();
}

#[tokio::test]
async fn a_key_answers_with_its_job_in_every_state_and_at_every_door() {
    let mut db = Db::new().await;
    for state in STATES {
        let offer = job_in(&mut db, state).await;
        let before = jobs(&db).await;
        for door in Door::ALL {
            let answer = offer.again().at(door, &mut db.client).await;
            match door {
                Door::Insert => assert_eq!(answer.unwrap_err().sqlstate(), Some("23505"), "{state}"),
                _ => assert_eq!(answer.unwrap(), offer.id, "{state} {door:?}"),
            }
            let other = Offer { payload: r#"{"n": 2}"#.into(), ..offer.again() };
            let conflict = other.at(door, &mut db.client).await.unwrap_err();
            assert!(conflict.is_conflict(), "{state} {door:?}: {conflict:?}");
            assert_eq!(conflict.field(), (door != Door::Insert).then_some("idempotency_key"), "{door:?}");
            assert!(conflict.hint().is_some_and(|hint| hint.contains("key")), "{door:?}: {conflict:?}");
        }
        assert_eq!(jobs(&db).await, before, "{state}");
    }
}

#[tokio::test]
async fn the_library_tells_a_new_job_from_a_duplicate() {
    let mut db = Db::new().await;
    let first = keyed(1, "k");
    assert_eq!(enqueue(&mut db.client, &first).await.unwrap(), Enqueued::New(first.job_id()));
    let second = enqueue(&mut db.client, &keyed(1, "k")).await.unwrap();
    assert_eq!(second, Enqueued::Duplicate(first.job_id()));
    assert!(!second.is_new());
    let conflict = enqueue(&mut db.client, &keyed(2, "k")).await.unwrap_err();
    assert!(conflict.is_conflict() && !conflict.is_retryable(), "{conflict:?}");
    assert!(conflict.to_string().contains(&first.job_id().to_string()), "{conflict}");
    // The same request in another spelling is the same request: jsonb has one text for both.
    let spelled = NewJob::raw("ticks", "test.tick", "{ \"n\" :\n 1 }").idempotency_key("k");
    assert_eq!(enqueue(&mut db.client, &spelled).await.unwrap(), Enqueued::Duplicate(first.job_id()));
}

/// What a caller does whose COMMIT got no answer: exactly the same once more.
#[tokio::test]
async fn the_very_same_job_again_stores_nothing_whatever_has_become_of_it() {
    let mut db = Db::new().await;
    for state in STATES {
        let offer = job_in(&mut db, state).await;
        let before = jobs(&db).await;
        for door in Door::ALL {
            let answer = offer.at(door, &mut db.client).await;
            match door {
                Door::Insert => assert_eq!(answer.unwrap_err().sqlstate(), Some("23505"), "{state}"),
                _ => assert_eq!(answer.unwrap(), offer.id, "{state} {door:?}"),
            }
        }
        assert_eq!(jobs(&db).await, before, "{state}");
    }
}

#[tokio::test]
async fn a_key_belongs_to_one_organization_and_type_and_none_is_one_organization() {
    let mut db = Db::new().await;
    for door in Door::ALL {
        let none = Offer::keyed(&format!("{door:?}"));
        let one = Offer { organization: Some(Uuid::now_v7()), ..none.again() };
        let two = Offer { organization: Some(Uuid::now_v7()), ..none.again() };
        let other_type = Offer { job_type: "test.tock".into(), ..none.again() };
        for offer in [&none, &one, &two, &other_type] {
            assert_eq!(offer.at(door, &mut db.client).await.unwrap(), offer.id, "{door:?}");
        }
        for offer in [&none, &one, &two, &other_type] {
            assert_eq!(offer.again().at(Door::Function, &mut db.client).await.unwrap(), offer.id, "{door:?}");
        }
    }
}

#[tokio::test]
async fn the_nil_id_is_no_organization() {
    let mut db = Db::new().await;
    for door in Door::ALL {
        for key in [None, Some("k".to_owned())] {
            let offer = Offer { key, organization: Some(Uuid::nil()), ..Offer::default() };
            let error = offer.at(door, &mut db.client).await.unwrap_err();
            assert_eq!((error.code(), error.field()), ("invalid_input", Some("organization_id")), "{door:?}");
        }
    }
    assert_eq!(jobs(&db).await + db.count("select count(*) from outhaul.job_keys").await, 0);
}

#[tokio::test]
async fn a_key_freed_by_rollback_is_usable() {
    let mut db = Db::new().await;
    for door in Door::ALL {
        let offer = Offer::keyed(&format!("{door:?}"));
        db.client.batch_execute("begin").await.unwrap();
        offer.at(door, &mut db.client).await.unwrap();
        db.client.batch_execute("rollback").await.unwrap();
        let again = Offer { payload: r#"{"n": 2}"#.into(), ..offer.again() };
        assert_eq!(again.at(door, &mut db.client).await.unwrap(), again.id, "{door:?}");
    }
}

#[tokio::test]
async fn a_caller_waits_for_an_open_one_and_gets_the_key_when_that_gives_up() {
    let mut db = Db::new().await;
    for (end, door) in [
        ("rollback", Door::Function),
        ("commit", Door::Function),
        ("rollback", Door::FunctionMany),
        ("commit", Door::FunctionMany),
    ] {
        let offer = Offer::keyed(&format!("{end} {door:?}"));
        db.client.batch_execute("begin").await.unwrap();
        offer.at(Door::Function, &mut db.client).await.unwrap();
        let mut other = db.connect().await;
        let second = offer.again();
        let waiting = tokio::spawn({
            let second = second.clone();
            async move { second.at(door, &mut other).await }
        });
        let blocked = "select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let third = db.connect().await;
        crate::support::until("the second caller waits", || async {
            third.query_one(blocked, &[]).await.unwrap().get::<_, bool>(0)
        })
        .await;
        db.client.batch_execute(end).await.unwrap();
        let expected = if end == "commit" { offer.id } else { second.id };
        assert_eq!(waiting.await.unwrap().unwrap(), expected, "{end} {door:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_callers_with_one_key_make_one_job_and_all_learn_its_id() {
    const CALLERS: usize = 64;
    const ROUNDS: usize = 12;
    let db = Db::new().await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let (mut client, barrier) = (db.connect().await, barrier.clone());
        let door = [Door::Library, Door::LibraryMany, Door::Function, Door::FunctionMany][caller % 4];
        tasks.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            for round in 0..ROUNDS {
                barrier.wait().await;
                answers.push(Offer::keyed(&format!("round {round}")).at(door, &mut client).await.unwrap());
            }
            answers
        }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert!(answers.iter().all(|ids| *ids == answers[0]), "every caller learns the same id in each round");
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, ROUNDS as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_calls_in_opposite_orders_do_not_deadlock() {
    const CALLERS: usize = 4;
    const ROUNDS: usize = 15;
    let db = Db::new().await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let (mut client, barrier) = (db.connect().await, barrier.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                // Three types, so that a call is several statements.
                let mut jobs: Vec<NewJob> = (0..90)
                    .map(|n| {
                        NewJob::raw("ticks", ["a", "b", "c"][n % 3], "1")
                            .idempotency_key(format!("{round}/{n}"))
                    })
                    .collect();
                if caller % 2 == 1 {
                    jobs.reverse();
                }
                barrier.wait().await;
                let answers = enqueue_many(&mut client, &jobs).await.unwrap();
                assert_eq!(answers.len(), 90);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 90 * ROUNDS as i64);
}

#[tokio::test]
async fn a_key_is_kept_for_seven_days_after_the_end_and_is_free_then() {
    let mut db = Db::new().await;
    for (state, door) in
        ["completed", "cancelled"].into_iter().flat_map(|state| Door::ALL.map(|door| (state, door)))
    {
        let offer = keyed_job_in(&mut db, state, &format!("{state}-{door:?}")).await;
        let kept = "select expires_at - interval '7 days' between clock_timestamp() - interval '1 min' and clock_timestamp() \
            from outhaul.job_keys where job_id = $1";
        assert!(db.client.query_one(kept, &[&offer.id]).await.unwrap().get::<_, bool>(0), "{state}");
        age_keys(&db, "6 days 23 hours 50 min").await;
        assert_eq!(offer.again().at(Door::Function, &mut db.client).await.unwrap(), offer.id, "{state}");
        age_keys(&db, "11 min").await;
        // Free for any payload, before upkeep has removed it; and taken again, by the next job.
        let next = Offer { payload: r#"{"n": 2}"#.into(), ..offer.again() };
        assert_eq!(next.at(door, &mut db.client).await.unwrap(), next.id, "{state} {door:?}");
        assert_eq!(
            next.again().at(Door::Function, &mut db.client).await.unwrap(),
            next.id,
            "{state} {door:?}"
        );
    }
}

#[tokio::test]
async fn a_job_that_its_producer_cancels_leaves_its_key_for_seven_days() {
    let mut db = Db::new().await;
    for state in ["pending", "leased"] {
        let offer = job_in(&mut db, state).await;
        db.client.execute("select outhaul.cancel($1)", &[&offer.id]).await.unwrap();
        assert_eq!(offer.again().at(Door::Function, &mut db.client).await.unwrap(), offer.id, "{state}");
    }
    let kept = "select count(*) from outhaul.job_keys where expires_at - interval '7 days' \
        between clock_timestamp() - interval '1 min' and clock_timestamp()";
    assert_eq!(db.count(kept).await, 2);
    // What was never leased is no attempt, and has begun with its creation.
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 1);
    let begun =
        "select count(*) from outhaul.jobs_finished where started_at between created_at and finished_at";
    assert_eq!(db.count(begun).await, 2);
    let dead = job_in(&mut db, "dead_letter").await;
    let ended = db.client.query_one("select outhaul.cancel($1)", &[&dead.id]).await.unwrap();
    assert_eq!(ended.get::<_, &str>(0), "ended");
}

#[tokio::test]
async fn a_key_past_its_time_is_taken_in_its_own_organization_and_type_only() {
    let mut db = Db::new().await;
    let mut offers = Vec::new();
    for (queue, job_type, organization) in [
        ("a", "test.tick", None),
        ("b", "test.tock", None),
        ("c", "test.tick", Some(Uuid::now_v7())),
        ("d", "test.tick", Some(Uuid::now_v7())),
    ] {
        let offer =
            Offer { queue: queue.into(), job_type: job_type.into(), organization, ..Offer::keyed("shared") };
        offer.at(Door::Function, &mut db.client).await.unwrap();
        let lease = claim_one(&db.client, queue).await;
        assert_eq!(complete(&db.client, &lease, "row").await, "completed");
        offers.push(offer);
    }
    age_keys(&db, "8 days").await;
    for offer in offers {
        let next = offer.again();
        assert_eq!(next.at(Door::Function, &mut db.client).await.unwrap(), next.id, "{offer:?}");
    }
}

#[tokio::test]
async fn a_job_of_many_that_takes_a_key_past_its_time_keeps_its_properties_and_wakes_nobody_unasked() {
    let mut db = Db::new().await;
    let (_listener, mut notified) = listen(&db.url(), "outhaul").await;
    let organization = Uuid::now_v7();
    let old = Offer { organization: Some(organization), ..Offer::keyed("k") };
    old.at(Door::Function, &mut db.client).await.unwrap();
    let lease = claim_one(&db.client, "ticks").await;
    assert_eq!(complete(&db.client, &lease, "row").await, "completed");
    age_keys(&db, "8 days").await;
    while notified.try_recv().is_ok() {}
    db.client.execute("select setval('outhaul.wake_gate', 1)", &[]).await.unwrap();
    let call = "select outhaul.enqueue_many('mail', 'test.tick', '{2}', array[$1::uuid], '{k}', array[$2::uuid], \
        '{2199-12-31 23:59:59Z}', -3, 7, '9 s', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', notify => false)";
    let id = Uuid::now_v7();
    db.client.execute(call, &[&id, &organization]).await.unwrap();
    db.client.execute("select pg_notify('outhaul', 'last')", &[]).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().payload(), "last", "nothing was sent before");
    let same = "select queue = 'mail' and payload = '2' and idempotency_key = 'k' and organization_id = $2 and priority = -3 \
        and max_attempts = 7 and timeout = interval '9 s' and run_at = '2199-12-31 23:59:59Z' \
        and traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' from outhaul.jobs where id = $1";
    assert!(db.client.query_one(same, &[&id, &organization]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn a_key_that_is_removed_while_it_is_asked_for_is_free() {
    let mut db = Db::new().await;
    job_in(&mut db, "completed").await;
    age_keys(&db, "6 days").await;
    // As upkeep does, between two statements of the call.
    let sql = "create function public.remove() returns trigger language plpgsql as \
        $$ begin delete from outhaul.job_keys where job_id <> all (array(select id from outhaul.jobs)); return null; end $$; \
        create trigger remove before update on outhaul.job_keys execute function public.remove()";
    db.client.batch_execute(sql).await.unwrap();
    let next = Offer::keyed("completed");
    assert_eq!(next.at(Door::Function, &mut db.client).await.unwrap(), next.id);
    db.client.batch_execute("drop trigger remove on outhaul.job_keys").await.unwrap();
    assert_eq!(next.again().at(Door::Function, &mut db.client).await.unwrap(), next.id);
}

#[tokio::test]
async fn keys_past_their_time_are_taken_in_one_order_whatever_the_order_of_the_call() {
    let mut db = Db::new().await;
    for key in ["a", "b"] {
        keyed_job_in(&mut db, "completed", key).await;
    }
    age_keys(&db, "8 days").await;
    let mut other = db.connect().await;
    let holder = other.transaction().await.unwrap();
    holder.execute("select from outhaul.job_keys where key = 'a' for update", &[]).await.unwrap();
    let mut caller = db.connect().await;
    let waiting = tokio::spawn(async move {
        enqueue_many(&mut caller, &[keyed(1, "b"), keyed(1, "a")]).await.map(|answers| answers.len())
    });
    let blocked = "select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    db.until("the call waits for the first key", blocked).await;
    let free = "select key from outhaul.job_keys where key = 'b' for update nowait";
    assert!(db.client.query_one(free, &[]).await.is_ok(), "it holds no later key meanwhile");
    holder.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 2);
}

#[tokio::test]
async fn the_end_of_a_job_leaves_a_key_alone_that_another_job_has() {
    let mut db = Db::new().await;
    for state in ["leased", "dead_letter"] {
        for end in ["complete", "cancel", "fail"] {
            let key = format!("{state}-{end}");
            let offer = keyed_job_in(&mut db, "pending", &key).await;
            let lease = claim_one(&db.client, &key).await;
            let given = "update outhaul.job_keys set job_id = gen_random_uuid() where key = $1";
            assert_eq!(db.client.execute(given, &[&key]).await.unwrap(), 1);
            if state == "dead_letter" {
                assert_eq!(fail(&db.client, &lease, "dead_letter", 0).await, "settled");
                let old = "update outhaul.jobs_dead set died_at = died_at - interval '31 days' where id = $1";
                db.client.execute(old, &[&offer.id]).await.unwrap();
                assert_eq!(db.count("select dead from outhaul.remove_expired(1000)").await, 1);
                continue;
            }
            match end {
                "complete" => assert_eq!(complete(&db.client, &lease, "row").await, "completed"),
                "fail" => assert_eq!(fail(&db.client, &lease, "cancel", 0).await, "settled"),
                _ => assert_eq!(
                    db.client
                        .query_one("select outhaul.cancel($1)", &[&offer.id])
                        .await
                        .unwrap()
                        .get::<_, String>(0),
                    "cancelled"
                ),
            }
        }
    }
    assert_eq!(db.count("select count(*) from outhaul.job_keys where expires_at is null").await, 6);
}

#[tokio::test]
async fn retention_removes_only_keys_past_their_time() {
    let mut db = Db::new().await;
    for state in STATES {
        job_in(&mut db, state).await;
    }
    age_keys(&db, "6 days 23 hours 59 min").await;
    let removed = "select keys from outhaul.remove_expired(1000)";
    assert_eq!(db.count(removed).await, 0);
    age_keys(&db, "2 min").await;
    assert_eq!(db.count(removed).await, 2, "of the completed and of the cancelled one");
    let mut left: Vec<String> = db
        .client
        .query("select key from outhaul.job_keys", &[])
        .await
        .unwrap()
        .iter()
        .map(|r| r.get(0))
        .collect();
    left.sort();
    assert_eq!(left, ["dead_letter", "leased", "pending", "retrying", "scheduled"]);
}

#[tokio::test]
async fn a_dead_letter_keeps_its_key_until_it_is_discarded_and_seven_days_more() {
    let mut db = Db::new().await;
    let offer = job_in(&mut db, "dead_letter").await;
    let again = || async {
        let mut other = db.connect().await;
        offer.again().at(Door::Function, &mut other).await.unwrap()
    };
    assert_eq!(again().await, offer.id);
    db.client
        .execute("update outhaul.jobs_dead set died_at = died_at - interval '29 days 23 hours'", &[])
        .await
        .unwrap();
    assert_eq!(db.count("select dead from outhaul.remove_expired(1000)").await, 0);
    db.client
        .execute("update outhaul.jobs_dead set died_at = died_at - interval '2 hours'", &[])
        .await
        .unwrap();
    assert_eq!(db.count("select dead from outhaul.remove_expired(1000)").await, 1);
    assert_eq!(db.status(offer.id).await, "none");
    assert_eq!(again().await, offer.id, "the key outlives it");
    age_keys(&db, "7 days 1 min").await;
    assert_ne!(again().await, offer.id);
}

#[tokio::test]
async fn a_replayed_dead_letter_comes_back_with_its_key() {
    let mut db = Db::new().await;
    let offer = job_in(&mut db, "dead_letter").await;
    let retried = db.operator().await.retry(outhaul::JobId(offer.id), None).await.unwrap();
    assert_eq!(retried, outhaul::Retried::Replayed);
    assert_eq!(offer.again().at(Door::Function, &mut db.client).await.unwrap(), offer.id);
    let lease = claim_one(&db.client, "dead_letter").await;
    assert_eq!((lease.attempts, lease.claim_no), (1, 2), "attempts begin anew, the claim number goes on");
    assert_eq!(complete(&db.client, &lease, "none").await, "completed");
    assert_eq!(db.count("select count(*) from outhaul.job_keys where expires_at is not null").await, 1);
    assert_eq!(offer.again().at(Door::Function, &mut db.client).await.unwrap(), offer.id);
}

#[tokio::test]
async fn a_plain_insert_with_a_key_in_use_raises_unique_violation_and_on_conflict_does_not_hide_it() {
    let mut db = Db::new().await;
    let offer = Offer::keyed("k");
    offer.at(Door::Insert, &mut db.client).await.unwrap();
    for clause in ["", " on conflict do nothing", " on conflict (id) do nothing"] {
        let sql = format!(
            "insert into outhaul.jobs (queue, job_type, payload, idempotency_key) values ('ticks', 'test.tick', '{{\"n\": 1}}', 'k'){clause}"
        );
        let error = db.client.execute(&sql, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(
            (error.code().code(), error.constraint(), error.table()),
            ("23505", Some("job_keys_pkey"), Some("jobs"))
        );
        assert!(error.message().contains(&offer.id.to_string()), "{error:?}");
        assert!(error.hint().unwrap().contains("enqueue("), "{error:?}");
    }
    assert_eq!(jobs(&db).await, 1);
}

async fn events(db: &Db) -> i64 {
    db.count("select count(*) from outhaul.outbox_events").await
}

#[tokio::test]
async fn a_key_answers_with_its_event_at_every_door_and_refuses_another_payload() {
    let mut db = Db::new().await;
    for first in Fact::KEYED {
        let fact = Fact::keyed(&format!("{first:?}"));
        assert_eq!(fact.at(first, &mut db.client).await.unwrap(), fact.id, "{first:?}");
        for door in Fact::KEYED {
            assert_eq!(fact.again().at(door, &mut db.client).await.unwrap(), fact.id, "{first:?} {door:?}");
            // What a caller does whose COMMIT got no answer: exactly the same once more.
            assert_eq!(fact.at(door, &mut db.client).await.unwrap(), fact.id, "{first:?} {door:?}");
            let other = Fact { payload: "2".into(), ..fact.again() };
            let conflict = other.at(door, &mut db.client).await.unwrap_err();
            assert!(conflict.is_conflict() && !conflict.is_retryable(), "{door:?}: {conflict:?}");
            assert_eq!(conflict.field(), Some("idempotency_key"), "{door:?}");
            assert_eq!(
                conflict.to_string(),
                format!("idempotency key is in use by event {} with another payload", fact.id)
            );
            assert!(conflict.hint().is_some_and(|hint| hint.contains("key")), "{conflict:?}");
        }
    }
    assert_eq!(events(&db).await, 4);
    assert_eq!(db.count("select count(*) from outhaul.outbox_unsequenced").await, 4);
}

#[tokio::test]
async fn the_library_tells_a_new_event_from_a_duplicate() {
    let mut db = Db::new().await;
    let keyed = || NewEvent::raw("order.paid", "order", Uuid::now_v7(), r#"{"n":1}"#).idempotency_key("k");
    let first = keyed();
    assert_eq!(publish(&mut db.client, &first).await.unwrap(), Published::New(first.event_id()));
    assert_eq!(publish(&mut db.client, &first).await.unwrap(), Published::New(first.event_id()));
    let second = publish(&mut db.client, &keyed()).await.unwrap();
    assert_eq!((second, second.is_new()), (Published::Duplicate(first.event_id()), false));
    // The same payload in another spelling is the same: jsonb has one text for both.
    let spelled =
        NewEvent::raw("order.paid", "order", Uuid::now_v7(), "{ \"n\" :\n 1 }").idempotency_key("k");
    assert_eq!(publish(&mut db.client, &spelled).await.unwrap(), Published::Duplicate(first.event_id()));
    assert_eq!(events(&db).await, 1);
}

#[tokio::test]
async fn an_events_key_belongs_to_one_organization_and_type_and_none_is_one_organization() {
    let mut db = Db::new().await;
    for door in Fact::KEYED {
        let none = Fact::keyed(&format!("{door:?}"));
        let one = Fact { organization: Some(Uuid::now_v7()), ..none.again() };
        let two = Fact { organization: Some(Uuid::now_v7()), ..none.again() };
        let other_type = Fact { event_type: "order.refunded".into(), ..none.again() };
        for fact in [&none, &one, &two, &other_type] {
            assert_eq!(fact.at(door, &mut db.client).await.unwrap(), fact.id, "{door:?}");
        }
        for fact in [&none, &one, &two, &other_type] {
            assert_eq!(fact.again().at(door, &mut db.client).await.unwrap(), fact.id, "{door:?}");
        }
    }
    assert_eq!(events(&db).await, 16);
}

#[tokio::test]
async fn keys_of_jobs_and_of_events_never_meet() {
    let mut db = Db::new().await;
    for (n, door) in Fact::KEYED.into_iter().enumerate() {
        let key = format!("{door:?}");
        let job = Offer { job_type: "same.name".into(), payload: "1".into(), ..Offer::keyed(&key) };
        let fact = Fact { event_type: "same.name".into(), payload: "2".into(), ..Fact::keyed(&key) };
        // The one that comes second has nothing of the first's, whichever that is.
        if n % 2 == 0 {
            assert_eq!(job.at(door, &mut db.client).await.unwrap(), job.id);
            assert_eq!(fact.at(door, &mut db.client).await.unwrap(), fact.id);
        } else {
            assert_eq!(fact.at(door, &mut db.client).await.unwrap(), fact.id);
            assert_eq!(job.at(door, &mut db.client).await.unwrap(), job.id);
        }
        assert_eq!(job.again().at(door, &mut db.client).await.unwrap(), job.id);
        assert_eq!(fact.again().at(door, &mut db.client).await.unwrap(), fact.id);
    }
    // No job type can be made to look like an event's.
    let disguised = Offer { job_type: "@same.name".into(), ..Offer::keyed("Library") };
    for door in Door::ALL {
        assert_eq!(disguised.at(door, &mut db.client).await.unwrap_err().field(), Some("job_type"));
    }
    assert_eq!((jobs(&db).await, events(&db).await), (4, 4));
}

#[tokio::test]
async fn an_events_key_is_freed_by_rollback_and_seven_days_after_its_publish() {
    let mut db = Db::new().await;
    for door in Fact::KEYED {
        let fact = Fact::keyed(&format!("{door:?}"));
        db.client.batch_execute("begin").await.unwrap();
        fact.at(door, &mut db.client).await.unwrap();
        db.client.batch_execute("rollback").await.unwrap();
        let next = Fact { payload: "2".into(), ..fact.again() };
        assert_eq!(next.at(door, &mut db.client).await.unwrap(), next.id, "{door:?}");
        age_keys(&db, "6 days 23 hours 50 min").await;
        assert_eq!(next.again().at(door, &mut db.client).await.unwrap(), next.id, "{door:?}");
        age_keys(&db, "11 min").await;
        // Free for any payload, before upkeep has removed it; taken again by the next event, for seven days more.
        let third = Fact { payload: "3".into(), ..fact.again() };
        assert_eq!(third.at(door, &mut db.client).await.unwrap(), third.id, "{door:?}");
        age_keys(&db, "6 days 23 hours 50 min").await;
        assert_eq!(third.again().at(door, &mut db.client).await.unwrap(), third.id, "{door:?}");
        age_keys(&db, "11 min").await;
        assert_eq!(db.count("select keys from outhaul.remove_expired(1000)").await, 1, "{door:?}");
    }
    assert_eq!(events(&db).await, 8, "the facts stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_callers_with_one_key_make_one_event_and_all_learn_its_id() {
    const CALLERS: usize = 64;
    const ROUNDS: usize = 6;
    let db = Db::new().await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let (mut client, barrier) = (db.connect().await, barrier.clone());
        let door = Fact::KEYED[caller % 4];
        tasks.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            for round in 0..ROUNDS {
                barrier.wait().await;
                answers.push(Fact::keyed(&format!("round {round}")).at(door, &mut client).await.unwrap());
            }
            answers
        }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert!(answers.iter().all(|ids| *ids == answers[0]), "every caller learns the same id in each round");
    assert_eq!(events(&db).await, ROUNDS as i64);
    assert_eq!(db.count("select count(*) from outhaul.outbox_unsequenced").await, ROUNDS as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_calls_of_publish_many_in_opposite_orders_do_not_deadlock() {
    const CALLERS: usize = 4;
    const ROUNDS: usize = 8;
    let db = Db::new().await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let (mut client, barrier) = (db.connect().await, barrier.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let keyed = |n: usize| {
                    NewEvent::raw(["a", "b", "c"][n % 3], "thing", Uuid::now_v7(), "1")
                        .idempotency_key(format!("{round}/{n}"))
                };
                let mut batch: Vec<NewEvent> = (0..90).map(keyed).collect();
                if caller % 2 == 1 {
                    batch.reverse();
                }
                barrier.wait().await;
                assert_eq!(publish_many(&mut client, &batch).await.unwrap().len(), 90);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(events(&db).await, 90 * ROUNDS as i64);
}

#[tokio::test]
async fn an_event_that_waited_for_its_key_is_as_old_as_its_row_and_no_older() {
    let db = Db::new().await;
    for many in [false, true] {
        let (holder, waiter) = (db.connect().await, db.connect().await);
        holder.batch_execute("begin").await.unwrap();
        let hold = "select outhaul.publish('a.b', 'a', gen_random_uuid(), '1', idempotency_key => 'k')";
        holder.query(hold, &[]).await.unwrap();
        let waits = match many {
            false => "select outhaul.publish('a.b', 'a', gen_random_uuid(), '1', idempotency_key => 'k')",
            true => {
                "select outhaul.publish_many('{a.b}', '{a}', array[gen_random_uuid()], '{1}', array[gen_random_uuid()], \
                 idempotency_keys => '{k}')"
            }
        };
        let publishing = tokio::spawn(async move { waiter.query(waits, &[]).await });
        let blocked = "select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        db.until("it waits for the key", blocked).await;
        let released: jiff::Timestamp =
            db.client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
        holder.batch_execute("rollback").await.unwrap();
        publishing.await.unwrap().unwrap();
        let sql = "select count(*) from outhaul.outbox_events where at >= $1 and occurred_at >= $1";
        let later: i64 = db.client.query_one(sql, &[&released]).await.unwrap().get(0);
        assert_eq!(later, 1, "many: {many}");
        db.client.batch_execute("delete from outhaul.job_keys").await.unwrap();
    }
}
