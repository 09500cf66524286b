//! Who may do what, from the catalogue; and functions with the owner's rights that nobody can lead astray.

use std::collections::{BTreeMap, BTreeSet};

use outhaul::{
    Dsn, Error, Failure, JobFilter, NewJob, Observer, Operator, Producer, SchemaName, Worker, enqueue,
};
use tokio_postgres::Client;

use crate::doors::{Door, Fact, Offer};
use crate::support::{Db, Running, connect, listen, quick};

const ROLES: [&str; 4] = ["producer", "worker", "observer", "operator"];

/// Every function of the schema with the roles that may call it. One without a line here fails the test.
const FUNCTIONS: &[(&str, &[&str])] = &[
    ("enqueue", &["producer"]),
    ("enqueue_many", &["producer"]),
    ("cancel", &["producer"]),
    ("cancel_key", &["producer"]),
    ("publish", &["producer"]),
    ("publish_many", &["producer"]),
    // The default of the ids, which a plain INSERT without an id evaluates.
    ("uuid7", &["producer"]),
    ("claim", &["worker"]),
    ("canary", &["worker"]),
    ("next_due", &["worker"]),
    ("floors", &["worker"]),
    ("publish_floors", &["worker"]),
    ("complete", &["worker"]),
    ("complete_in", &["worker"]),
    ("fail", &["worker"]),
    ("snooze", &["worker"]),
    ("renew", &["worker"]),
    ("expired", &["worker"]),
    ("take_sweep", &["worker"]),
    ("promote_waiting", &["worker"]),
    ("sequence", &["worker"]),
    ("subscribe", &["worker"]),
    ("claim_subscription", &["worker"]),
    ("read", &["worker"]),
    ("checkpoint", &["worker"]),
    ("checkpoint_in", &["worker"]),
    ("project", &["worker"]),
    ("hold", &["worker"]),
    ("renew_subscriptions", &["worker"]),
    ("expired_subscriptions", &["worker"]),
    ("subscription_due", &["worker"]),
    ("events_due", &["worker"]),
    ("register_relay", &["worker"]),
    ("claim_events", &["worker"]),
    ("complete_events", &["worker"]),
    ("fail_events", &["worker"]),
    ("renew_events", &["worker"]),
    ("expired_events", &["worker"]),
    ("worker_beat", &["worker"]),
    ("worker_gone", &["worker"]),
    ("remove_expired", &["worker"]),
    ("remove_operations", &["worker"]),
    ("operation_step", &["worker", "operator"]),
    ("upkeep_due", &["worker"]),
    ("upkeep_report", &["worker"]),
    ("partitions", &["worker"]),
    ("ranges", &["worker"]),
    ("parts", &[]),
    ("outbox_kept_from", &[]),
    ("feed_edge", &[]),
    ("schema_state", &ROLES),
    ("show_queues", &["worker", "observer"]),
    ("show_isolation", &["worker", "observer"]),
    ("show_waiting", &["observer"]),
    ("show_waits", &["observer"]),
    ("show_notifications", &["worker", "observer"]),
    ("show_subscriptions", &["worker", "observer"]),
    ("show_outbox", &["worker", "observer"]),
    ("show_jobs", &["observer"]),
    ("show_job", &["observer"]),
    ("show_attempts", &["observer"]),
    ("show_workers", &["observer"]),
    ("show_upkeep", &["observer"]),
    ("show_audit", &["observer"]),
    ("audit_verify", &["observer"]),
    ("show_dispositions", &["observer"]),
    ("show_set_aside", &["observer"]),
    ("show_parked", &["observer"]),
    ("show_events", &["observer"]),
    ("show_event", &["observer"]),
    ("tail_events", &["observer"]),
    ("show_dead", &["observer"]),
    ("show_dead_groups", &["observer"]),
    ("show_operation_items", &["observer"]),
    ("show_operations", &["observer", "operator"]),
    ("reconcile_outbox", &["observer"]),
    ("show_payload", &["operator"]),
    ("show_event_payload", &["operator"]),
    ("operator_cancel", &["operator"]),
    ("operator_cancel_key", &["operator"]),
    ("operator_discard", &["operator"]),
    ("operation_create", &["operator"]),
    ("operation_switch", &["operator"]),
    ("operator_retry", &["operator"]),
    ("operator_pause", &["operator"]),
    ("operator_history", &["operator"]),
    ("operator_queue_set", &["operator"]),
    ("operator_key_limit", &["operator"]),
    ("operator_subscription_pause", &["operator"]),
    ("operator_subscription_rewind", &["operator"]),
    ("operator_subscription_skip", &["operator"]),
    ("operator_subscription_unpark", &["operator"]),
    ("operator_subscription_drop", &["operator"]),
    ("operator_relay_retry", &["operator"]),
    ("operator_rotate_history", &["operator"]),
    // Parts of the others, called with the owner's rights only.
    ("advance_lanes", &[]),
    ("cancel_jobs", &[]),
    ("discard_dead", &[]),
    ("job_filter_valid", &[]),
    ("replay_dead", &[]),
    ("select_jobs", &[]),
    ("claim_governed", &[]),
    ("cool_down", &[]),
    ("fair_lanes", &[]),
    ("free_units", &[]),
    ("govern", &[]),
    ("job_ended", &[]),
    ("lane_insert", &[]),
    ("jobs_ended", &[]),
    ("pace_keys", &[]),
    ("pair_units", &[]),
    ("queue_setting_valid", &[]),
    ("queue_settings", &[]),
    ("refill_rate", &[]),
    ("share_of", &[]),
    ("take_key_units", &[]),
    ("take_rate_slots", &[]),
    ("audit_append", &[]),
    ("audit_hash", &[]),
    ("event_valid", &[]),
    ("given_back", &[]),
    ("history_truncated", &[]),
    ("job_insert", &[]),
    ("known_subscription", &[]),
    ("lanes", &[]),
    ("next_event", &[]),
    ("outbox_edge", &[]),
    ("outbox_insert", &[]),
    ("park", &[]),
    ("setting_seconds", &[]),
    ("start_position", &[]),
    ("take_event_key", &[]),
    ("take_key", &[]),
    ("valid", &[]),
    ("wake", &[]),
];

/// What a producer may write in a plain INSERT into jobs: nothing of the lease, nothing of the status.
const INSERTABLE: [&str; 14] = [
    "id",
    "organization_id",
    "queue",
    "job_type",
    "payload",
    "idempotency_key",
    "priority",
    "run_at",
    "max_attempts",
    "timeout",
    "traceparent",
    "ordering_key",
    "limit_key",
    "rate_key",
];

/// Likewise into outbox_events: nothing of the relay's lease, and neither of the columns that decide the order.
const INSERTABLE_EVENT: [&str; 11] = [
    "id",
    "organization_id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "schema_version",
    "payload",
    "occurred_at",
    "available_at",
    "partition_key",
    "traceparent",
];

async fn strings(client: &Client, sql: &str) -> Vec<String> {
    client
        .query(sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Every right that somebody has and should not, or should and has not, on the functions.
async fn wrong_on_functions(client: &Client) -> Vec<String> {
    let expected: BTreeMap<&str, &[&str]> = FUNCTIONS.iter().copied().collect();
    let sql = "select p.proname, array_agg(r.name order by r.name) filter (where has_function_privilege(r.role, p.oid, 'execute')) \
        from pg_proc p cross join (values ('producer', 'outhaul_producer'), ('worker', 'outhaul_worker'), ('observer', 'outhaul_observer'), \
        ('operator', 'outhaul_operator'), ('public', 'public')) r(name, role) \
        where p.pronamespace = 'outhaul'::regnamespace group by p.oid, p.proname";
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in client.query(sql, &[]).await.unwrap() {
        let (name, have): (&str, Option<Vec<&str>>) = (row.get(0), row.get(1));
        let have: BTreeSet<&str> = have.unwrap_or_default().into_iter().collect();
        seen.insert(name.to_owned());
        match expected.get(name) {
            None => {
                wrong.push(format!("{name} has no line in the table of rights; it may be called by {have:?}"))
            }
            Some(roles) if roles.iter().copied().collect::<BTreeSet<_>>() != have => {
                wrong.push(format!("{name} may be called by {have:?}"));
            }
            Some(_) => {}
        }
    }
    wrong.extend(expected.keys().filter(|name| !seen.contains(**name)).map(|name| format!("{name} is gone")));
    wrong
}

/// Likewise on tables, views, sequences and their columns, on types, and on the schema itself.
async fn rights_on_relations(client: &Client) -> BTreeSet<String> {
    let roles = "(values ('outhaul_producer'), ('outhaul_worker'), ('outhaul_observer'), ('outhaul_operator'), ('public')) r(role)";
    let tables = format!(
        "select distinct r.role || ' ' || p.word || ' ' || c.relname from pg_class c cross join {roles} \
         cross join (values ('select'), ('insert'), ('update'), ('delete'), ('truncate'), ('references'), ('trigger')) p(word) \
         where c.relnamespace = 'outhaul'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') and has_table_privilege(r.role, c.oid, p.word)"
    );
    let columns = format!(
        "select r.role || ' ' || p.word || ' ' || c.relname || '.' || a.attname from pg_class c \
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped cross join {roles} \
         cross join (values ('select'), ('insert'), ('update'), ('references')) p(word) \
         where c.relnamespace = 'outhaul'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') \
           and has_column_privilege(r.role, c.oid, a.attnum, p.word) and not has_table_privilege(r.role, c.oid, p.word)"
    );
    let sequences = format!(
        "select r.role || ' ' || p.word || ' ' || c.relname from pg_class c cross join {roles} \
         cross join (values ('usage'), ('select'), ('update')) p(word) \
         where c.relnamespace = 'outhaul'::regnamespace and c.relkind = 'S' and has_sequence_privilege(r.role, c.oid, p.word)"
    );
    let types = format!(
        "select r.role || ' usage ' || t.typname from pg_type t cross join {roles} \
         where t.typnamespace = 'outhaul'::regnamespace and t.typtype in ('e', 'd') and has_type_privilege(r.role, t.oid, 'usage')"
    );
    let schema = format!(
        "select r.role || ' ' || p.word || ' schema' from {roles} cross join (values ('usage'), ('create')) p(word) \
         where has_schema_privilege(r.role, 'outhaul', p.word)"
    );
    let mut rights = BTreeSet::new();
    for sql in [tables, columns, sequences, types, schema] {
        rights.extend(strings(client, &sql).await);
    }
    rights
}

fn expected_on_relations() -> BTreeSet<String> {
    let mut rights: BTreeSet<String> =
        ROLES.iter().map(|role| format!("outhaul_{role} usage schema")).collect();
    rights.extend(INSERTABLE.iter().map(|column| format!("outhaul_producer insert jobs.{column}")));
    rights.extend(
        INSERTABLE_EVENT.iter().map(|column| format!("outhaul_producer insert outbox_events.{column}")),
    );
    rights.insert("outhaul_operator select all_jobs".into());
    for role in ["producer", "operator"] {
        for name in ["job_status", "end_status"] {
            rights.insert(format!("outhaul_{role} usage {name}"));
        }
    }
    rights
}

#[tokio::test]
async fn every_role_may_do_what_the_table_says_and_nothing_else() {
    let db = Db::new().await;
    assert_eq!(wrong_on_functions(&db.client).await, Vec::<String>::new());
    assert_eq!(rights_on_relations(&db.client).await, expected_on_relations());
}

#[tokio::test]
async fn a_new_object_without_a_line_fails() {
    let db = Db::new().await;
    db.client
        .batch_execute(
            "set role outhaul_owner; create function outhaul.backdoor() returns int language sql as 'select 1'; \
             create table outhaul.open (n int); grant select on outhaul.open to public; create sequence outhaul.numbers; \
             grant usage on sequence outhaul.numbers to outhaul_worker; grant update (payload) on outhaul.jobs to outhaul_worker; reset role",
        )
        .await
        .unwrap();
    let wrong = wrong_on_functions(&db.client).await;
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].starts_with("backdoor has no line") && wrong[0].contains("public"), "{wrong:?}");
    let rights = rights_on_relations(&db.client).await;
    let more: Vec<_> = rights.difference(&expected_on_relations()).cloned().collect();
    for right in ["public select open", "outhaul_worker usage numbers", "outhaul_worker update jobs.payload"]
    {
        assert!(more.iter().any(|more| more == right), "{right}: {more:?}");
    }
}

#[tokio::test]
async fn everything_belongs_to_an_owner_who_cannot_log_in() {
    let db = Db::new().await;
    let owner = "select rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication from pg_roles where rolname = 'outhaul_owner'";
    assert!(!db.client.query_one(owner, &[]).await.unwrap().get::<_, bool>(0));
    let strangers = "select relname::text from pg_class where relnamespace = 'outhaul'::regnamespace and relowner <> 'outhaul_owner'::regrole \
        union all select proname::text from pg_proc where pronamespace = 'outhaul'::regnamespace and proowner <> 'outhaul_owner'::regrole \
        union all select typname::text from pg_type where typnamespace = 'outhaul'::regnamespace and typowner <> 'outhaul_owner'::regrole \
        union all select nspname::text from pg_namespace where nspname = 'outhaul' and nspowner <> 'outhaul_owner'::regrole";
    assert_eq!(strings(&db.client, strangers).await, Vec::<String>::new());
    let login = "select rolname::text from pg_roles where rolname ~ '^outhaul_(owner|producer|worker|observer|operator)$' and rolcanlogin";
    assert_eq!(strings(&db.client, login).await, Vec::<String>::new());
}

#[tokio::test]
async fn every_function_with_the_owners_rights_pins_its_search_path() {
    let db = Db::new().await;
    let definer =
        "select proname::text from pg_proc where pronamespace = 'outhaul'::regnamespace and prosecdef";
    assert!(strings(&db.client, definer).await.len() > 30);
    let loose = format!(
        "{definer} and not coalesce(proconfig, '{{}}') @> '{{\"search_path=outhaul, pg_catalog, pg_temp\"}}'"
    );
    assert_eq!(strings(&db.client, &loose).await, Vec::<String>::new());
    // What a role may call has the owner's rights, but for the default of a column.
    for (name, roles) in FUNCTIONS {
        let sql = "select bool_and(prosecdef) from pg_proc where pronamespace = 'outhaul'::regnamespace and proname = $1";
        let definer: bool = db.client.query_one(sql, &[name]).await.unwrap().get(0);
        assert!(definer || roles.is_empty() || *name == "uuid7", "{name}");
    }
}

/// A role that can log in and is a member of one of ours, or of none. Roles belong to the cluster, so there is one
/// set for all tests.
async fn login(db: &Db, member_of: Option<&str>) -> String {
    let name = format!("outhaul_test_{}", member_of.unwrap_or("nobody"));
    let grant = member_of.map(|role| format!("grant outhaul_{role} to {name};")).unwrap_or_default();
    let sql = format!(
        "do $$ begin create role {name} login; exception when duplicate_object or unique_violation then null; end $$; \
         select pg_advisory_lock(4711); {grant} select pg_advisory_unlock(4711)"
    );
    db.client.batch_execute(&sql).await.unwrap();
    let url = db.url();
    let (place, _) = url.rsplit_once("user=").expect("a URL of the test server names its user");
    format!("{place}user={name}")
}

fn dsn(url: &str) -> Dsn {
    url.parse().unwrap()
}

async fn refused(client: &Client, sql: &str) {
    let error = Error::from(client.execute(sql, &[]).await.expect_err(sql));
    assert!(error.is_refused(), "{sql}: {error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("outhaul_producer")), "{error:?}");
}

#[tokio::test]
async fn a_producer_enqueues_and_cancels_and_sees_nothing() {
    let db = Db::new().await;
    let mut client = connect(&login(&db, Some("producer")).await).await;
    for door in Door::ALL {
        let offer = Offer {
            organization: Some(uuid::Uuid::now_v7()),
            timeout: Some(5),
            ..Offer::keyed(&format!("{door:?}"))
        };
        assert_eq!(
            offer.at(door, &mut client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}")),
            offer.id
        );
    }
    let job = enqueue(&mut client, &NewJob::raw("q", "t", "1")).await.unwrap().id();
    assert_eq!(Producer::default().cancel(&mut client, job).await.unwrap(), outhaul::Cancelled::Cancelled);
    client
        .execute("insert into outhaul.jobs (queue, job_type) values ('q', 't')", &[])
        .await
        .expect("defaults and all");
    let bad = client
        .execute("insert into outhaul.jobs (queue, job_type, priority) values ('q', 't', 11)", &[])
        .await;
    assert_eq!(Error::from(bad.unwrap_err()).field(), Some("priority"), "the trigger checks");
    let columns = "select a.attname::text from pg_attribute a where attrelid = 'outhaul.jobs'::regclass and attnum > 0 and not attisdropped";
    for column in strings(&db.client, columns).await {
        if !INSERTABLE.contains(&&*column) {
            refused(
                &client,
                &format!("insert into outhaul.jobs (queue, job_type, {column}) values ('q', 't', default)"),
            )
            .await;
        }
    }
    for sql in [
        "select from outhaul.jobs",
        "select id from outhaul.jobs",
        "update outhaul.jobs set priority = 1",
        "delete from outhaul.jobs",
        "truncate outhaul.jobs",
        "insert into outhaul.jobs (queue, job_type) values ('q', 't') returning id",
        "select from outhaul.all_jobs",
        "select from outhaul.job_keys",
        "insert into outhaul.job_keys (scope, kind, key, job_id, digest) values (gen_random_uuid(), 'a', 'b', gen_random_uuid(), 1)",
        "select outhaul.claim('q', 1, gen_random_uuid(), '60 s')",
        "select outhaul.show_jobs()",
        "select outhaul.operator_pause('q', true)",
        "select outhaul.take_key(gen_random_uuid(), null, 'a', 'b', 'c')",
        "select outhaul.audit_append('a', 'b', '{}', null)",
        "select nextval('outhaul.wake_gate')",
        "create table outhaul.mine ()",
        "select from outhaul.schema_migrations",
    ] {
        refused(&client, sql).await;
    }
}

#[tokio::test]
async fn a_producer_publishes_as_the_plain_sql_of_its_application_does_and_sees_nothing() {
    let db = Db::new().await;
    let mut client = connect(&login(&db, Some("producer")).await).await;
    for door in Door::ALL {
        let fact = Fact { organization: Some(uuid::Uuid::now_v7()), ..Fact::default() };
        assert_eq!(
            fact.at(door, &mut client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}")),
            fact.id
        );
    }
    let (_listener, mut notified) = listen(&db.url(), "outbox_ready").await;
    let event = uuid::Uuid::now_v7();
    let plain = format!(
        "begin; set local search_path = outhaul; \
         INSERT INTO outbox_events (id, organization_id, aggregate_type, aggregate_id, event_type, schema_version, payload, occurred_at) \
         VALUES ('{event}', gen_random_uuid(), 'tracking_session', gen_random_uuid(), 'tracking_session.completed', 1, '{{\"points\": 12}}', now()); \
         SELECT pg_notify('outbox_ready', '{event}'); COMMIT"
    );
    client.batch_execute(&plain).await.unwrap();
    assert_eq!(notified.recv().await.unwrap().payload(), event.to_string());
    let waiting =
        "select count(*) from outhaul.outbox_unsequenced u join outhaul.outbox_events e using (seq, at)";
    assert_eq!(db.count(waiting).await, 6);
    let waits = format!("{waiting} where e.id = '{event}'");
    assert_eq!(db.count(&waits).await, 1, "it waits for a position, once");
    assert_eq!(db.count("select outhaul.sequence(100)::bigint").await, 6);

    let of = |more: &str, value: &str| {
        format!(
            "insert into outhaul.outbox_events (aggregate_type, aggregate_id, event_type{more}) values ('a', gen_random_uuid(), 'a.b'{value})"
        )
    };
    client.execute(&of("", ""), &[]).await.expect("defaults and all");
    let bad = client.execute(&of(", schema_version", ", 0"), &[]).await;
    assert_eq!(Error::from(bad.unwrap_err()).field(), Some("schema_version"), "the trigger checks");
    let columns = "select a.attname::text from pg_attribute a where attrelid = 'outhaul.outbox_events'::regclass and attnum > 0 and not attisdropped";
    for column in strings(&db.client, columns).await {
        if !INSERTABLE_EVENT.contains(&&*column) {
            refused(&client, &of(&format!(", {column}"), ", default")).await;
        }
    }
    let partitions = "select 'outhaul.' || c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'outhaul.outbox_events'::regclass";
    let partitions = strings(&db.client, partitions).await;
    assert!(partitions.len() >= 2, "{partitions:?}");
    for partition in partitions {
        refused(&client, &of("", "").replace("outhaul.outbox_events", &partition)).await;
    }
    for sql in [
        "select from outhaul.outbox_events",
        "update outhaul.outbox_events set processed_at = now()",
        "delete from outhaul.outbox_events",
        "truncate outhaul.outbox_events",
        "insert into outhaul.outbox_unsequenced (seq, at) values (1, now())",
        "delete from outhaul.outbox_unsequenced",
        "insert into outhaul.outbox_feed (position, seq, at) values (1, 1, now())",
        "update outhaul.outbox_feed_head set last_position = 0",
        "select nextval('outhaul.outbox_events_seq_seq')",
        "select outhaul.sequence(1)",
        "select outhaul.read(0, 1)",
        "select outhaul.claim_events(1, gen_random_uuid(), '60 s')",
        "select outhaul.show_events()",
        "select outhaul.take_event_key(gen_random_uuid(), null, 'a', 'b', 'c')",
    ] {
        refused(&client, sql).await;
    }
    refused(&client, &format!("{} returning seq", of("", ""))).await;
}

#[tokio::test]
async fn whoever_has_no_role_can_do_nothing() {
    let db = Db::new().await;
    let url = login(&db, None).await;
    let mut client = connect(&url).await;
    for door in Door::ALL {
        let error = Offer::default().at(door, &mut client).await.unwrap_err();
        assert!(error.is_refused(), "{door:?}: {error:?}");
        let error = Fact::default().at(door, &mut client).await.unwrap_err();
        assert!(error.is_refused(), "{door:?}: {error:?}");
    }
    for (name, _) in FUNCTIONS {
        let sql = "select p.oid::regprocedure::text, pronargs from pg_proc p where pronamespace = 'outhaul'::regnamespace and proname = $1";
        let row = db.client.query_one(sql, &[name]).await.unwrap();
        let nulls = vec!["null"; row.get::<_, i16>(1) as usize].join(", ");
        refused(&client, &format!("select outhaul.{name}({nulls})")).await;
    }
    assert!(
        Observer::connect(&dsn(&url), &SchemaName::default()).await.is_err_and(|error| error.is_refused())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_an_observer_and_an_operator_need_no_more_than_their_role() {
    let mut db = Db::new().await;
    let job = Offer::of_payload("{\"secret\": 1}");
    job.at(Door::Library, &mut db.client).await.unwrap();
    let worker = Worker::builder(dsn(&login(&db, Some("worker")).await)).options(quick());
    let worker =
        Running::start(worker.handle_raw("ticks", "test.tick", |_| async { Err(Failure::permanent("no")) }))
            .await;
    db.until("a dead letter", "select count(*) = 1 from outhaul.jobs_dead").await;
    db.until("a registration", "select count(*) = 1 from outhaul.workers").await;

    let operator = login(&db, Some("operator")).await;
    let (operator, owner) =
        (Operator::connect(&dsn(&operator), &SchemaName::default()).await.unwrap(), operator);
    assert_eq!(
        operator.retry(outhaul::JobId(job.id), Some("try")).await.unwrap(),
        outhaul::Retried::Replayed
    );
    assert!(operator.pause("ticks", None).await.unwrap() && operator.resume("ticks", None).await.unwrap());
    operator.history("ticks", "payload").await.unwrap();
    db.until("a dead letter again", "select count(*) = 1 from outhaul.jobs_dead").await;
    worker.stop().await;
    let looking = Observer::connect(&dsn(&owner), &SchemaName::default()).await.unwrap();
    assert_eq!(looking.payload(outhaul::JobId(job.id)).await.unwrap().as_deref(), Some("{\"secret\": 1}"));

    let observer =
        Observer::connect(&dsn(&login(&db, Some("observer")).await), &SchemaName::default()).await.unwrap();
    assert_eq!(observer.queues().await.unwrap().len(), 8);
    assert_eq!(observer.jobs(&JobFilter::default()).await.unwrap().len(), 1);
    assert_eq!(observer.job(outhaul::JobId(job.id)).await.unwrap().unwrap().attempt_history.len(), 2);
    assert_eq!(observer.audit(None, 10).await.unwrap().len(), 4);
    assert_eq!(
        observer.audit(None, 1).await.unwrap()[0].actor,
        "outhaul_test_operator",
        "the login and not the owner"
    );
    assert!(observer.verify_audit().await.unwrap().is_empty());
    assert!(observer.workers().await.is_ok() && observer.upkeep().await.is_ok());
    observer.notification_queue_usage().await.unwrap();
    assert!(
        observer.payload(outhaul::JobId(job.id)).await.unwrap_err().is_refused(),
        "payloads are the operator's"
    );
    let words = format!("{:?}", observer.job(outhaul::JobId(job.id)).await.unwrap());
    assert!(!words.contains("secret"), "{words}");
}

/// Objects with the names of ours, in a temporary schema and in one of the caller's own, before ours in the path.
/// Each ends the statement that touches it.
async fn shadows(client: &Client, role: &str) {
    client.batch_execute(&format!("create schema evil_{role}")).await.unwrap();
    let tables = strings(client, "select relname::text from pg_class where relnamespace = 'outhaul'::regnamespace and relkind in ('r', 'p', 'v') and relname !~ '_(first|tail|[0-9]{8})$'").await;
    for schema in ["pg_temp".to_owned(), format!("evil_{role}")] {
        for table in &tables {
            client
                .batch_execute(&format!(
                    "create view {schema}.{table} as select 1 / (random() * 0)::int as shadow"
                ))
                .await
                .unwrap();
        }
        for (name, arguments) in [
            ("valid", "text, text, integer, text, integer, integer, timestamptz, interval, text, uuid"),
            (
                "event_valid",
                "text, text, uuid, integer, integer, timestamptz, timestamptz, text, text, text, uuid",
            ),
            ("take_key", "uuid, uuid, text, text, text"),
            ("take_event_key", "uuid, uuid, text, text, text"),
            ("known_subscription", "text"),
            ("start_position", "text"),
            ("next_event", "bigint, text[], text[]"),
            ("given_back", "text, timestamptz"),
            ("history_truncated", "bigint"),
            ("outbox_edge", "interval"),
            ("park", "text, bigint, integer, text, text, text, text"),
            ("wake", "timestamptz"),
            ("lanes", "text"),
            ("setting_seconds", "text"),
            ("audit_append", "text, text, jsonb, text"),
            ("audit_hash", "bytea, bigint, timestamptz, text, text, text, jsonb, text"),
            ("complete", "uuid[], uuid[], integer[], text"),
            ("fail", "uuid[], uuid[], integer[], text[], bigint[], text[], text[], text[], boolean"),
            ("cancel", "uuid, text"),
            (
                "enqueue",
                "text, text, jsonb, uuid, text, uuid, integer, timestamptz, integer, interval, text, boolean",
            ),
            ("uuid7", ""),
            ("clock_timestamp", ""),
            ("statement_timestamp", ""),
            ("gen_random_uuid", ""),
            ("octet_length", "text"),
            ("hashtextextended", "text, bigint"),
            ("pg_notify", "text, text"),
            ("date_part", "text, timestamptz"),
            ("date_part", "text, interval"),
            ("set_bit", "bytea, integer, integer"),
            ("encode", "bytea, text"),
            ("int8send", "bigint"),
            ("sha256", "bytea"),
        ] {
            let body = "begin raise exception 'a shadow was used' using errcode = 'SH001'; end";
            let sql = format!(
                "create function {schema}.{name}({arguments}) returns integer language plpgsql as '{}'",
                body.replace('\'', "''")
            );
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        for (name, left, right) in [
            ("*", "float8", "integer"),
            ("=", "uuid", "uuid"),
            ("=", "text", "text"),
            ("<", "timestamptz", "timestamptz"),
            ("-", "timestamptz", "timestamptz"),
            ("||", "text", "text"),
        ] {
            let sql = format!(
                "create or replace function {schema}.shadow_op({left}, {right}) returns boolean language plpgsql as 'begin raise exception ''a shadow was used''; end'; \
                 create operator {schema}.{name} (leftarg = {left}, rightarg = {right}, function = {schema}.shadow_op)"
            );
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }
    client
        .batch_execute(&format!("set search_path = pg_temp, evil_{role}, outhaul, pg_catalog"))
        .await
        .unwrap();
    let used = client.execute("select clock_timestamp()", &[]).await.unwrap_err();
    assert_eq!(used.code().unwrap().code(), "SH001", "the shadows are in force for the caller itself");
}

#[tokio::test]
async fn shadow_objects_are_never_used_by_any_function() {
    let db = Db::new().await;
    let name = db.database.name();
    let id = "'01a22d96-f667-741b-9170-ea2010b260f0'::uuid";
    let token = "'00000000-0000-0000-0000-000000000000'::uuid";
    let calls: [(&str, Vec<String>); 4] = [
        ("producer", vec![
            format!("outhaul.enqueue('q', 't', '1', {id}, 'k')"),
            "outhaul.enqueue('q', 't', '1', idempotency_key => 'k')".into(),
            "outhaul.enqueue_many('q', 't', '{1,2}', array['01a22d96-f667-741b-9170-ea2010b260f1', '01a22d96-f667-741b-9170-ea2010b260f2']::uuid[], '{a,b}')".into(),
            "outhaul.enqueue_many('q', 't', '{1}', array['01a22d96-f667-741b-9170-ea2010b260f3']::uuid[])".into(),
            "outhaul.cancel('01a22d96-f667-741b-9170-ea2010b260f3')".into(),
            "outhaul.enqueue('gone', 't', '1', idempotency_key => 'gone')".into(), "outhaul.cancel_key('t', 'gone')".into(),
            "outhaul.enqueue('dying', 't', '1')".into(), "outhaul.enqueue('dying', 't', '2')".into(), "outhaul.enqueue('dying', 't', '3')".into(),
            "outhaul.enqueue('void', 't', '3')".into(),
            format!("outhaul.enqueue('limits', 't', '1', organization_id => {id}, ordering_key => 'o', limit_key => 'l', rate_key => 'r')"),
            "outhaul.enqueue_many('limits', 't', '{1,2}', array['01a22d96-f667-741b-9170-ea2010b260e1', '01a22d96-f667-741b-9170-ea2010b260e2']::uuid[], ordering_keys => '{o,p}', limit_keys => '{l,l}', rate_keys => '{r,r}')".into(),
            "outhaul.schema_state()".into(),
            format!("outhaul.publish('a.b', 'a', {id}, '1', {id}, idempotency_key => 'k')"),
            format!("outhaul.publish('a.b', 'a', {id}, '1', idempotency_key => 'k')"),
            format!("outhaul.publish_many('{{a.b,a.b}}', '{{a,a}}', array[{id}, {id}], '{{1,2}}', array['01a22d96-f667-741b-9170-ea2010b260f4', '01a22d96-f667-741b-9170-ea2010b260f5']::uuid[], idempotency_keys => '{{l,null}}')"),
        ]),
        ("worker", vec![
            "outhaul.floors('q')".into(), "outhaul.next_due('q')".into(), "outhaul.canary('c')".into(),
            format!("outhaul.claim('q', 2, {id}, '60 s')"),
            format!("outhaul.claim('limits', 5, {id}, '60 s') c cross join lateral outhaul.fail(array[c.id], array[c.lease_token], array[c.claim_no], '{{retry}}', '{{5}}', '{{rate_limited}}', '{{b}}', '{{c}}')"),
            format!("outhaul.claim('limits', 5, {id}, '60 s', tell => true)"), "outhaul.promote_waiting('limits')".into(),
            "outhaul.publish_floors('q', '{0}', '{0}', '{null}', '{5}')".into(),
            format!("outhaul.renew(array[{id}], array[{token}], '60 s')"), "outhaul.expired('q', 5)".into(), "outhaul.take_sweep('q', '1 s')".into(),
            format!("outhaul.complete(array[{id}], array[{token}], '{{1}}')"),
            format!("outhaul.fail(array[{id}], array[{token}], '{{1}}', '{{retry}}', '{{0}}', '{{a}}', '{{b}}', '{{c}}')"),
            format!("outhaul.snooze({id}, {token}, 1, '1 s')"), format!("outhaul.complete_in({id}, {token}, 1)"),
            format!("outhaul.worker_beat({id}, 'h', 1, 'v', 1, '{{\"q\": 1}}', 1, 's', 0, false, 'r')"), format!("outhaul.worker_gone({id})"),
            "outhaul.remove_expired(10)".into(), "outhaul.upkeep_due('a', '1 s')".into(), "outhaul.upkeep_report('a', 1, '{}', null)".into(),
            "outhaul.partitions()".into(), "outhaul.show_queues()".into(), "outhaul.show_isolation()".into(), "outhaul.show_notifications()".into(),
            format!("outhaul.claim('dying', 5, {id}, '60 s') c cross join lateral outhaul.fail(array[c.id], array[c.lease_token], array[c.claim_no], '{{dead_letter}}', '{{0}}', '{{permanent}}', '{{b}}', '{{c}}')"),
            "outhaul.operation_step()".into(), "outhaul.remove_operations(10)".into(),
            "outhaul.ranges()".into(), "outhaul.sequence(100)".into(), "outhaul.read(0, 100, '{a.b}')".into(),
            "outhaul.subscribe('s', 'beginning', policy => 'park')".into(), "outhaul.subscribe('s')".into(), "outhaul.subscribe('u', '1')".into(),
            "outhaul.subscribe('v', '2020-01-01')".into(),
            format!("outhaul.claim_subscription('s', 2, {id}, '60 s')"),
            format!("outhaul.checkpoint(array[{id}], array[{token}], '{{1}}', '{{1}}', '{{null}}')"),
            format!("outhaul.checkpoint_in({id}, {token}, 1, 1)"), format!("outhaul.checkpoint_in({id}, {token}, 1, 1, true)"),
            format!("outhaul.project({id}, {token}, 1, 1, false, 0, array[{id}], '{{q}}', '{{t}}', '{{1}}', '{{k}}', '{{null}}', '{{0}}', '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{o}}', '{{l}}', '{{r}}')"),
            format!("outhaul.claim_subscription('v', 1, {id}, '60 s') c cross join lateral outhaul.project(c.subscription_id, c.lease_token, c.claim_no, c.through, \
                false, 0, array['01a22d96-f667-741b-9170-ea2010b260f9'::uuid], '{{q}}', '{{t}}', '{{1}}', '{{p}}', '{{null}}', '{{0}}', '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{o}}', '{{l}}', '{{r}}')"),
            format!("outhaul.hold(array[{id}], array[{token}], '{{1}}', '{{retry}}', '{{0}}', '{{a}}', '{{b}}', '{{c}}', '{{0}}', '{{1}}', '{{false}}')"),
            format!("outhaul.renew_subscriptions(array[{id}], array[{token}], '60 s')"), "outhaul.expired_subscriptions(10)".into(),
            "outhaul.register_relay('beginning')".into(), "outhaul.events_due()".into(),
            "outhaul.subscription_due('s')".into(), format!("outhaul.claim_events(2, {id}, '60 s')"),
            format!("outhaul.complete_events('{{1}}', array['2030-01-01'::timestamptz], array[{token}], '{{1}}')"),
            format!("outhaul.fail_events('{{1}}', array['2030-01-01'::timestamptz], array[{token}], '{{1}}', '{{retry}}', '{{0}}', '{{a}}', '{{b}}', '{{c}}')"),
            format!("outhaul.renew_events('{{1}}', array['2030-01-01'::timestamptz], array[{token}], '60 s')"), "outhaul.expired_events(10)".into(),
            "outhaul.show_subscriptions()".into(), "outhaul.show_outbox()".into(),
        ]),
        ("observer", vec![
            "outhaul.show_queues()".into(), "outhaul.show_jobs()".into(), format!("outhaul.show_job({id})"), format!("outhaul.show_attempts({id})"),
            "outhaul.show_isolation()".into(), "outhaul.show_waiting('limits')".into(),
            "outhaul.show_waits('01a22d96-f667-741b-9170-ea2010b260e1')".into(),
            "outhaul.show_workers()".into(), "outhaul.show_upkeep()".into(), "outhaul.show_audit()".into(), "outhaul.audit_verify()".into(),
            "outhaul.show_subscriptions()".into(), "outhaul.show_outbox()".into(), "outhaul.show_parked('s')".into(), "outhaul.show_events()".into(),
            format!("outhaul.show_event({id})"), format!("outhaul.show_dispositions({id})"), "outhaul.show_set_aside('s')".into(),
            "outhaul.reconcile_outbox()".into(),
            "outhaul.show_dead('{\"queue\": \"dying\"}')".into(), "outhaul.show_dead_groups()".into(), "outhaul.show_operations()".into(),
            "outhaul.show_operation_items('o')".into(),
            "outhaul.tail_events('beginning')".into(), "outhaul.tail_events('0', 10, '{a.b}')".into(),
        ]),
        ("operator", vec![
            "outhaul.operation_create('o', 'replay', '{\"died_before\": \"2100-01-01\", \"class\": \"permanent\"}', 2)".into(),
            "outhaul.operation_switch('o', 'start')".into(), "outhaul.operation_step('o')".into(), "outhaul.operation_switch('o', 'stop', 'r')".into(),
            "outhaul.operation_create('d', 'discard', '{\"queue\": \"dying\"}', 10000, 'r')".into(), "outhaul.operation_switch('d', 'start')".into(),
            "outhaul.operation_create('c', 'cancel', '{\"queue\": \"void\"}', 10000)".into(), "outhaul.operation_switch('c', 'start')".into(),
            "outhaul.operation_step()".into(), "outhaul.operation_step('c')".into(), "outhaul.show_operations('o')".into(),
            format!("outhaul.operator_discard({id}, 'r')"), "outhaul.operator_cancel_key('t', 'k')".into(),
            format!("outhaul.show_payload({id})"), "outhaul.operator_pause('q', true, 'r')".into(), "outhaul.operator_pause('q', false)".into(),
            "outhaul.operator_history('q', 'row')".into(), "outhaul.operator_key_limit('limits', 'l', 1)".into(),
            "outhaul.operator_queue_set('limits', '{\"max_running\": 3, \"rate\": 5, \"rate_per_seconds\": 1, \"cool_until\": null}')".into(), format!("outhaul.operator_retry({id})"), format!("outhaul.operator_cancel({id})"),
            format!("outhaul.show_event_payload({id})"), format!("outhaul.operator_relay_retry({id})"),
            "outhaul.operator_subscription_pause('u', true, 'r')".into(), "outhaul.operator_subscription_rewind('u', '0', 'r')".into(),
            "outhaul.operator_subscription_skip('u', 1, 'r')".into(), "outhaul.operator_subscription_unpark('u', 1, 'r')".into(),
            "outhaul.operator_subscription_drop('u', 'r')".into(), "outhaul.operator_rotate_history('r')".into(),
        ]),
    ];
    let mut called = BTreeSet::new();
    for (role, calls) in calls {
        let url = login(&db, Some(role)).await;
        let grant = format!("grant create, temporary on database \"{name}\" to outhaul_test_{role}");
        db.client.batch_execute(&grant).await.unwrap();
        let client = connect(&url).await;
        shadows(&client, role).await;
        for call in calls {
            called.insert(call[8..call.find('(').unwrap()].to_owned());
            let result = client.query(&format!("select * from {call}"), &[]).await;
            match result {
                Err(error)
                    if call.contains("complete_in")
                        || call.contains("checkpoint_in")
                        || call.starts_with("outhaul.project") =>
                {
                    assert_eq!(error.code().unwrap().code(), "OH003", "{error:?}")
                }
                result => drop(result.unwrap_or_else(|error| panic!("{role}: {call}: {error:?}"))),
            }
        }
        if role == "producer" {
            for key in ["null", "'insert'"] {
                let insert = format!(
                    "insert into outhaul.jobs (queue, job_type, payload, idempotency_key) values ('q', 't', '1', {key})"
                );
                client.execute(&insert, &[]).await.unwrap_or_else(|error| panic!("{insert}: {error:?}"));
            }
            let insert = "insert into outhaul.outbox_events (aggregate_type, aggregate_id, event_type) \
                values ('a', '01a22d96-f667-741b-9170-ea2010b260f0', 'a.b')";
            client.execute(insert, &[]).await.unwrap_or_else(|error| panic!("{insert}: {error:?}"));
        }
    }
    let of_roles = |(name, roles): &&(&str, &[&str])| !roles.is_empty() && *name != "uuid7";
    let callable: BTreeSet<String> =
        FUNCTIONS.iter().filter(of_roles).map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(called, callable, "every function that a role may call");
}
