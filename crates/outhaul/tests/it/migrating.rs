//! Migrations: any number of processes, any role that may, beside whoever works; and refusals in plain words.

use std::process::Command;
use std::time::{Duration, Instant};

use outhaul::{
    Dsn, Error, Failure, JobId, MigrateOptions, NewJob, Observer, Retried, SCHEMA_VERSION, SchemaName,
    Worker, enqueue, migrate, migration_sql, migration_status,
};
use outhaul_local::{
    Child, ChildOptions, Installation, TestDatabase, TestServer, Throwaway, ThrowawayOptions,
};
use tokio_postgres::Client;

use crate::calls::{claim_one, complete, fail};
use crate::doors::{Door, Offer};
use crate::support::{Counter, Db, PATIENCE, Running, Tick, connect, quick, until};

/// How many steps an empty database is away from the schema of this version.
const STEPS: usize = SCHEMA_VERSION as usize;

async fn empty() -> (TestDatabase, Client) {
    let database = TestServer::shared().await.unwrap().empty_database().await.unwrap();
    let client = connect(&database.url()).await;
    (database, client)
}

fn dsn(url: &str) -> Dsn {
    url.parse().unwrap()
}

fn named(schema: &str) -> MigrateOptions {
    MigrateOptions { schema: SchemaName::new(schema).unwrap(), ..MigrateOptions::default() }
}

fn without_roles() -> MigrateOptions {
    MigrateOptions { roles: false, ..MigrateOptions::default() }
}

/// The URL of another role of the same server.
fn as_role(url: &str, role: &str) -> String {
    let (place, _) = url.rsplit_once("user=").expect("a URL of the test server names its user");
    format!("{place}user={role}")
}

/// A role that may log in and nothing else; made once for all tests.
async fn plain_role(client: &Client, name: &str) {
    let sql = format!(
        "do $$ begin create role {name} login; exception when duplicate_object or unique_violation then null; end $$"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// Everything that a schema consists of, one line each: what two equal schemas have in common.
async fn catalogue(client: &Client, schema: &str) -> Vec<String> {
    let sql = "with ns as (select $1::text::regnamespace as oid), c as (select c.* from pg_class c, ns where c.relnamespace = ns.oid \
          and not exists (select from pg_inherits i where i.inhrelid = c.oid)) \
        select format('function %s %s %s', pg_get_functiondef(p.oid), p.proacl, p.proowner::regrole) from pg_proc p, ns where p.pronamespace = ns.oid \
        union all select format('relation %s %s %s %s %s', c.relname, c.relkind, c.reloptions, c.relacl, c.relowner::regrole) from c \
        union all select format('column %s.%s %s %s %s %s %s %s', c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
            a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid), a.attacl) \
          from c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum \
        union all select format('index %s', pg_get_indexdef(c.oid)) from c where c.relkind in ('i', 'I') \
        union all select format('constraint %s %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid)) from c join pg_constraint k on k.conrelid = c.oid \
        union all select format('trigger %s', pg_get_triggerdef(t.oid)) from c join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal \
        union all select format('view %s %s', c.relname, pg_get_viewdef(c.oid)) from c where c.relkind = 'v' \
        union all select format('type %s %s %s %s', t.typname, t.typacl, t.typowner::regrole, array(select e.enumlabel from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder)) \
          from pg_type t, ns where t.typnamespace = ns.oid and t.typtype = 'e' \
        union all select format('comment %s %s %s', c.relname, d.objsubid, d.description) from c join pg_description d on d.objoid = c.oid and d.classoid = 'pg_class'::regclass \
        union all select format('schema %s %s', n.nspacl, n.nspowner::regrole) from pg_namespace n, ns where n.oid = ns.oid \
        order by 1";
    let rows = client.query(sql, &[&schema]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// When each object was written last: a transaction that changes nothing leaves it.
async fn versions(client: &Client) -> Vec<String> {
    let sql = "select p.oid || ' ' || p.xmin from pg_proc p where pronamespace = 'outhaul'::regnamespace \
        union all select c.oid || ' ' || c.xmin from pg_class c where relnamespace = 'outhaul'::regnamespace and relkind in ('r', 'p', 'v', 'S') \
        union all select name || applied_at from outhaul.schema_functions order by 1";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

const CHILD: &str = "OUTHAUL_TEST_MIGRATE";

/// The body of the processes of the next test: this same binary, started once more.
#[tokio::test]
#[ignore = "the body of processes that another test starts"]
async fn child_process() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let done = migrate(&dsn(&url), &MigrateOptions::default()).await.unwrap();
    println!("migrated {} steps, {} functions", done.steps.len(), done.functions.len());
}

#[tokio::test]
async fn twelve_processes_at_once_on_an_empty_database_make_one_schema() {
    let (database, client) = empty().await;
    let mut children = Vec::new();
    for _ in 0..12 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["migrating::child_process", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, database.url());
        children.push(Child::spawn(command, ChildOptions::new()).unwrap());
    }
    let mut migrated = Vec::new();
    for child in &mut children {
        migrated.push(child.line_with("migrated ", PATIENCE).await.unwrap());
        assert!(child.wait(PATIENCE).await.unwrap().success());
    }
    // Each step is a transaction of its own, so two processes may share them; the functions follow in one.
    let numbers = |line: &String| -> Vec<usize> {
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let done: Vec<Vec<usize>> = migrated.iter().map(numbers).collect();
    assert_eq!(done.iter().map(|of| of[0]).sum::<usize>(), STEPS, "each step is done once: {migrated:?}");
    assert_eq!(
        done.iter().filter(|of| of[1] > 0).count(),
        1,
        "one of them applies the functions: {migrated:?}"
    );
    let count: i64 =
        client.query_one("select count(*) from outhaul.schema_migrations", &[]).await.unwrap().get(0);
    assert_eq!(count, i64::from(SCHEMA_VERSION));
    let model = Db::new().await;
    assert_eq!(catalogue(&client, "outhaul").await, catalogue(&model.client, "outhaul").await);
    // Nobody's lock or half-made partition is left behind.
    let sql = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())";
    until("no lock", || async { client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 }).await;
    until("all partitions", || async {
        migrate(&dsn(&database.url()), &MigrateOptions::default()).await.unwrap();
        client.query_one("select count(*) >= 28 from pg_inherits where inhparent in ('outhaul.jobs_finished'::regclass, 'outhaul.job_attempts'::regclass)", &[]).await.unwrap().get(0)
    })
    .await;
}

#[tokio::test]
async fn migrating_again_changes_nothing() {
    let db = Db::new().await;
    let before = versions(&db.client).await;
    for _ in 0..2 {
        let done = migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
        assert_eq!((done.from, done.to, done.retries), (SCHEMA_VERSION, SCHEMA_VERSION, 0));
        assert!(done.steps.is_empty() && done.functions.is_empty(), "{done:?}");
    }
    assert_eq!(versions(&db.client).await, before);
    let status = migration_status(&db.dsn(), &SchemaName::default()).await.unwrap();
    // Binaries of the first version still work on it.
    assert_eq!((status.is_current(), status.version, status.serves_from), (true, SCHEMA_VERSION, 1));
}

#[tokio::test]
async fn a_schema_that_is_not_there_is_told_with_what_to_do() {
    let (database, _client) = empty().await;
    let status = migration_status(&dsn(&database.url()), &SchemaName::default()).await.unwrap();
    assert_eq!((status.version, status.pending.len(), status.is_current()), (0, STEPS, false));
    let error = Observer::connect(&dsn(&database.url()), &SchemaName::default()).await.err().unwrap();
    assert!(error.is_schema_mismatch() && error.hint().unwrap().contains("outhaul migrate"), "{error:?}");
    let error = enqueue(&mut connect(&database.url()).await, &NewJob::raw("q", "t", "1")).await.unwrap_err();
    assert!(error.is_schema_mismatch() && error.hint().unwrap().contains("outhaul migrate"), "{error:?}");
    // A database of somebody else's with a schema of this name is not taken for ours.
    let (database, client) = empty().await;
    client.batch_execute("create schema outhaul; create table outhaul.jobs (n int)").await.unwrap();
    let error = Observer::connect(&dsn(&database.url()), &SchemaName::default()).await.err().unwrap();
    assert!(error.is_schema_mismatch(), "{error:?}");
}

#[tokio::test]
async fn two_schemas_of_one_database_differ_in_nothing_but_their_name() {
    let db = Db::new().await;
    migrate(&db.dsn(), &named("select")).await.unwrap();
    let other = catalogue(&db.client, "\"select\"").await;
    let ours: Vec<String> = catalogue(&db.client, "outhaul").await;
    assert_eq!(other.len(), ours.len());
    // The tags of the bodies keep the product's name, everything that is looked up goes to the new one.
    let leaks: Vec<&String> = other
        .iter()
        .filter(|line| line.replace("outhaul.notify", "").contains("outhaul.") || line.contains("'outhaul'"))
        .collect();
    assert!(leaks.is_empty(), "{leaks:?}");
    let status = migration_status(&db.dsn(), &SchemaName::new("select").unwrap()).await.unwrap();
    assert!(status.is_current(), "{status:?}");
}

#[tokio::test]
async fn a_binary_works_on_its_version_and_the_next_and_refuses_all_others() {
    let db = Db::new().await;
    let connects = || async { Observer::connect(&db.dsn(), &SchemaName::default()).await.map(drop) };
    let forge = |version: i32, serves_from: i32| {
        let client = &db.client;
        async move {
            client.batch_execute("delete from outhaul.schema_migrations").await.unwrap();
            let sql = "insert into outhaul.schema_migrations (version, name, digest, serves_from) values ($1, 'forged', 'x', $2)";
            client.execute(sql, &[&version, &serves_from]).await.unwrap();
        }
    };
    connects().await.unwrap();
    // The next version, as its migration leaves it: this binary goes on, and does not turn its functions back.
    let next = SCHEMA_VERSION + 1;
    forge(next, SCHEMA_VERSION).await;
    db.client
        .batch_execute("update outhaul.schema_functions set digest = 'of the next version'")
        .await
        .unwrap();
    let before = versions(&db.client).await;
    connects().await.unwrap();
    let worker = db.worker().handle(Counter::default().handler()).build().await;
    assert!(worker.is_ok());
    let done = migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
    assert_eq!((done.from, done.to, done.functions.len()), (next, next, 0));
    assert_eq!(versions(&db.client).await, before);
    assert!(migration_status(&db.dsn(), &SchemaName::default()).await.unwrap().is_current());
    // One that no longer serves it.
    for version in [next, next + 5] {
        forge(version, next).await;
        for error in
            [connects().await.unwrap_err(), migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap_err()]
        {
            assert!(error.is_schema_mismatch() && error.code() == "schema_too_new", "{error:?}");
            assert!(error.to_string().contains(&format!("version {version}")), "{error}");
            assert!(error.hint().unwrap().contains("newer version of outhaul"), "{error:?}");
        }
        assert_eq!(versions(&db.client).await, before);
    }
    // One that is older than what it needs.
    forge(0, 0).await;
    let error = connects().await.unwrap_err();
    assert!(error.is_schema_mismatch() && error.code() == "schema_too_old", "{error:?}");
    assert!(error.hint().unwrap().contains("outhaul migrate"), "{error:?}");
    let error = db.worker().handle(Counter::default().handler()).build().await.err().unwrap();
    assert_eq!(error.code(), "schema_too_old");
}

#[tokio::test]
async fn a_function_whose_text_has_changed_is_applied_again_and_keeps_its_rights() {
    let db = Db::new().await;
    let whole = catalogue(&db.client, "outhaul").await;
    let older = "update outhaul.schema_functions set digest = 'older' where name = 'claim/next_due'; \
        delete from outhaul.schema_functions where name = 'act/audit_hash'; set role outhaul_owner; \
        create or replace function outhaul.next_due(queue text, priorities smallint[] default null, shares integer[] default null) returns bigint language sql security definer as 'select 1::bigint'; \
        drop function outhaul.audit_hash(bytea, bigint, timestamptz, text, text, text, jsonb, text); \
        grant execute on function outhaul.next_due(text, smallint[], integer[]) to public; reset role";
    db.client.batch_execute(older).await.unwrap();
    let status = migration_status(&db.dsn(), &SchemaName::default()).await.unwrap();
    assert_eq!(status.stale_functions, ["claim/next_due", "act/audit_hash"]);
    assert!(!status.is_current());
    let done = migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
    assert_eq!(done.functions, ["claim/next_due", "act/audit_hash", "keep/grants"]);
    assert_eq!(catalogue(&db.client, "outhaul").await, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_are_replaced_under_running_workers() {
    const JOBS: usize = 300;
    let mut db = Db::new().await;
    let counter = Counter::default();
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(Running::start(db.worker().handle(counter.handler())).await);
    }
    for round in 0..10 {
        for n in 0..JOBS / 10 {
            enqueue(&mut db.client, &NewJob::new(&Tick { n: (round * 100 + n) as i64 }).unwrap())
                .await
                .unwrap();
        }
        db.client.batch_execute("update outhaul.schema_functions set digest = 'older'").await.unwrap();
        let done = migrate(&db.dsn(), &MigrateOptions::default()).await.unwrap();
        assert!(done.functions.len() > 40);
    }
    db.until(
        "all jobs",
        &format!("select count(*) = {JOBS} from outhaul.jobs_finished where status = 'completed'"),
    )
    .await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(counter.begun(), JOBS, "each began once");
    assert_eq!(db.count("select count(*) from outhaul.job_attempts").await, 0);
}

/// Waits until a migration of this database waits for a lock, and returns when its transaction began.
async fn blocked_since(client: &Client) -> String {
    let sql = "select xact_start::text from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
        and application_name like 'outhaul%'";
    let started = Instant::now();
    loop {
        if let Some(row) = client.query_opt(sql, &[]).await.unwrap() {
            return row.get(0);
        }
        assert!(started.elapsed() < PATIENCE, "no migration waits for a lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes the next migration need a lock on `jobs` that an open writer does not let it have.
async fn trigger_is_stale(client: &Client) {
    let sql = "update outhaul.schema_functions set digest = 'older' where name = 'call/job_insert_trigger'";
    client.execute(sql, &[]).await.unwrap();
}

#[tokio::test]
async fn a_migration_gives_way_to_an_open_writer_and_goes_on_when_that_has_ended() {
    let mut db = Db::new().await;
    trigger_is_stale(&db.client).await;
    let (watcher, mut producer) = (db.connect().await, db.connect().await);
    let mut writer = db.client.transaction().await.unwrap();
    enqueue(&mut writer, &NewJob::raw("q", "t", "1")).await.unwrap();
    let options = MigrateOptions { lock_timeout: Duration::from_millis(100), ..MigrateOptions::default() };
    let dsn: Dsn = db.database.url().parse().unwrap();
    let migration = tokio::spawn(async move { migrate(&dsn, &options).await });
    let first = blocked_since(&watcher).await;
    // Others go on writing all the time: what waits for a lock makes newcomers wait, so it may not wait long.
    until("a second try", || async {
        enqueue(&mut connect(&db.database.url()).await, &NewJob::raw("q", "t", "1")).await.unwrap();
        blocked_since(&watcher).await != first
    })
    .await;
    enqueue(&mut producer, &NewJob::raw("q", "t", "1")).await.unwrap();
    writer.commit().await.unwrap();
    let done = migration.await.unwrap().unwrap();
    assert!(done.retries > 0, "{done:?}");
    assert_eq!(done.functions, ["call/job_insert_trigger", "keep/grants"]);
}

#[tokio::test]
async fn a_migration_that_gets_no_lock_gives_up_with_a_plain_error_and_leaves_nothing() {
    let mut db = Db::new().await;
    trigger_is_stale(&db.client).await;
    let watcher = db.connect().await;
    let before = versions(&watcher).await;
    let dsn = db.dsn();
    let mut writer = db.client.transaction().await.unwrap();
    enqueue(&mut writer, &NewJob::raw("q", "t", "1")).await.unwrap();
    let options = MigrateOptions {
        lock_timeout: Duration::from_millis(20),
        give_up_after: Duration::from_millis(200),
        ..MigrateOptions::default()
    };
    let error = migrate(&dsn, &options).await.unwrap_err();
    assert!(error.is_retryable() && error.sqlstate() == Some("55P03"), "{error:?}");
    assert!(error.to_string().starts_with("migrating schema outhaul, tried "), "{error}");
    assert!(error.hint().unwrap().contains("lock"), "{error:?}");
    writer.commit().await.unwrap();
    assert_eq!(versions(&watcher).await, before);
    // And likewise behind another migration, which holds the lock of migrations.
    let mut other = watcher;
    let tx = other.transaction().await.unwrap();
    tx.execute("select pg_advisory_xact_lock(hashtextextended('outhaul migrate outhaul', 0))", &[])
        .await
        .unwrap();
    let error = migrate(&dsn, &options).await.unwrap_err();
    assert!(error.is_retryable() && error.hint().unwrap().contains("other migrations"), "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(migrate(&dsn, &options).await.unwrap().functions.len(), 2);
}

#[tokio::test]
async fn a_migration_needs_one_connection() {
    let (database, client) = empty().await;
    plain_role(&client, "outhaul_test_single").await;
    client
        .batch_execute(&format!("alter role outhaul_test_single connection limit 1; grant create on database \"{}\" to outhaul_test_single", database.name()))
        .await
        .unwrap();
    let url = as_role(&database.url(), "outhaul_test_single");
    until("the role's one connection", || async { migrate(&dsn(&url), &without_roles()).await.is_ok() })
        .await;
    let rows = client.query("select from outhaul.ranged_tables", &[]).await.unwrap();
    assert_eq!(rows.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roles_everything_works_for_whoever_migrated() {
    let (database, client) = empty().await;
    plain_role(&client, "outhaul_test_plain").await;
    client
        .batch_execute(&format!("grant create on database \"{}\" to outhaul_test_plain", database.name()))
        .await
        .unwrap();
    let url = as_role(&database.url(), "outhaul_test_plain");
    let done = migrate(&dsn(&url), &without_roles()).await.unwrap();
    assert_eq!(done.steps.len(), STEPS);
    // The default asks for roles, but that was decided when the schema was made.
    assert!(migrate(&dsn(&url), &MigrateOptions::default()).await.unwrap().steps.is_empty());
    let owners = "select count(*) from pg_class where relnamespace = 'outhaul'::regnamespace and relowner <> 'outhaul_test_plain'::regrole";
    assert_eq!(client.query_one(owners, &[]).await.unwrap().get::<_, i64>(0), 0);

    let mut client = connect(&url).await;
    for door in Door::ALL {
        let offer = Offer { queue: "kept".into(), ..Offer::keyed(&format!("{door:?}")) };
        assert_eq!(
            offer.at(door, &mut client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}")),
            offer.id
        );
        assert!(offer.again().at(Door::Insert, &mut client).await.unwrap_err().is_conflict(), "{door:?}");
        assert_eq!(offer.again().at(Door::Function, &mut client).await.unwrap(), offer.id, "{door:?}");
        let bad = Offer { priority: 11, ..Offer::default() };
        assert_eq!(bad.at(door, &mut client).await.unwrap_err().field(), Some("priority"), "{door:?}");
    }
    // The trigger takes no part in what the functions do: a dead letter comes back with its key.
    let offer = Offer { queue: "dead".into(), ..Offer::keyed("dead") };
    offer.at(Door::Insert, &mut client).await.unwrap();
    let lease = claim_one(&client, "dead").await;
    assert_eq!(fail(&client, &lease, "dead_letter", 0).await, "settled");
    assert!(offer.at(Door::Insert, &mut client).await.unwrap_err().is_conflict(), "the very same again");
    let operator = outhaul::Operator::connect(&dsn(&url), &SchemaName::default()).await.unwrap();
    assert_eq!(operator.retry(JobId(offer.id), None).await.unwrap(), Retried::Replayed);
    let lease = claim_one(&client, "dead").await;
    assert_eq!(complete(&client, &lease, "none").await, "completed");
    assert!(
        offer.at(Door::Insert, &mut client).await.unwrap_err().is_conflict(),
        "the very same after its end"
    );
    assert_eq!(offer.at(Door::Function, &mut client).await.unwrap(), offer.id);

    let worker = Worker::builder(dsn(&url)).options(quick());
    let worker = worker.handle_raw("kept", "test.tick", |_| async { Ok::<(), Failure>(()) });
    let worker = Running::start(worker).await;
    until("all five", || async {
        client
            .query_one("select count(*) = 5 from outhaul.jobs_finished where queue = 'kept'", &[])
            .await
            .unwrap()
            .get(0)
    })
    .await;
    worker.stop().await;
    let open = "select count(*) from pg_proc where pronamespace = 'outhaul'::regnamespace and has_function_privilege('public', oid, 'execute')";
    assert_eq!(client.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 0, "PUBLIC may call nothing");
}

#[tokio::test]
async fn a_role_that_owns_only_our_schema_can_migrate_it() {
    let (database, client) = empty().await;
    plain_role(&client, "outhaul_test_tenant").await;
    client
        .batch_execute(
            "create schema secret; create table secret.jobs (n int); revoke all on schema secret from public; revoke create on schema public from public; \
             create schema outhaul authorization outhaul_test_tenant",
        )
        .await
        .unwrap();
    let url = as_role(&database.url(), "outhaul_test_tenant");
    let done = migrate(&dsn(&url), &MigrateOptions::default()).await.unwrap();
    assert_eq!(done.steps.len(), STEPS);
    let mut client = connect(&url).await;
    let job = enqueue(&mut client, &NewJob::raw("q", "t", "1")).await.unwrap();
    assert_eq!(claim_one(&client, "q").await.id, job.id().0);
    // Another schema it may not make, and is told so.
    let error = migrate(&dsn(&url), &MigrateOptions { roles: false, ..named("other") }).await.unwrap_err();
    assert!(error.is_refused() && error.hint().unwrap().contains("CREATE on the database"), "{error:?}");
    // Somebody else's it may not touch.
    let stranger = as_role(&database.url(), "outhaul_test_stranger");
    plain_role(&connect(&database.url()).await, "outhaul_test_stranger").await;
    let error = migrate(&dsn(&stranger), &MigrateOptions::default()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(error.to_string().contains("belongs to outhaul_test_tenant"), "{error}");
}

/// Roles belong to the cluster, so this needs one that has never seen ours.
#[tokio::test]
async fn roles_are_made_by_whoever_has_createrole_and_others_are_told_what_they_lack() {
    let server = Throwaway::start_new(ThrowawayOptions::new().durable(false)).await.unwrap();
    let client = connect(&server.url()).await;
    client
        .batch_execute("create role app login; create role admin login createrole; grant create on database postgres to app, admin")
        .await
        .unwrap();
    let (app, admin) = (as_role(&server.url(), "app"), as_role(&server.url(), "admin"));
    let error = migrate(&dsn(&app), &MigrateOptions::default()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    for word in ["CREATEROLE", "--no-roles", "migrate sql"] {
        assert!(error.hint().unwrap().contains(word), "{word}: {error:?}");
    }
    let left = "select (select count(*) from pg_roles where rolname like 'outhaul\\_%') + (select count(*) from pg_namespace where nspname = 'outhaul')";
    assert_eq!(
        client.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
        0,
        "nothing is left of the attempt"
    );

    let done =
        migrate(&dsn(&admin), &MigrateOptions::default()).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(done.steps.len(), STEPS);
    let model = Db::new().await;
    let (ours, theirs) = (catalogue(&client, "outhaul").await, catalogue(&model.client, "outhaul").await);
    assert_eq!(ours, theirs, "the same schema as a superuser makes");
    assert!(migrate(&dsn(&admin), &MigrateOptions::default()).await.unwrap().functions.is_empty());
    let partitions = "select count(*) from pg_inherits where inhparent = 'outhaul.jobs_finished'::regclass";
    assert!(
        client.query_one(partitions, &[]).await.unwrap().get::<_, i64>(0) > 10,
        "it can keep partitions, too"
    );

    let error = migrate(&dsn(&app), &MigrateOptions::default()).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("belongs to outhaul_owner"), "{error:?}");
    client.batch_execute("grant outhaul_owner to app; update outhaul.schema_functions set digest = 'older' where name = 'call/wake'").await.unwrap();
    let done = migrate(&dsn(&app), &MigrateOptions::default()).await.unwrap();
    assert_eq!(done.functions, ["call/wake", "keep/grants"], "a member of the owner upgrades");
    assert_eq!(catalogue(&client, "outhaul").await, theirs);
    // A second database of the same cluster finds the roles.
    server.create_database("second").await.unwrap();
    client.batch_execute("grant create on database second to admin").await.unwrap();
    let second = as_role(&server.url_of("second"), "admin");
    assert_eq!(migrate(&dsn(&second), &MigrateOptions::default()).await.unwrap().steps.len(), STEPS);
}

#[tokio::test]
async fn the_sql_for_administrators_makes_the_same_schema() {
    let model = Db::new().await;
    let expected = catalogue(&model.client, "outhaul").await;
    let (plain, plain_client) = empty().await;
    plain_client.batch_execute(&migration_sql(&MigrateOptions::default())).await.unwrap();
    assert_eq!(catalogue(&plain_client, "outhaul").await, expected);
    // After it, the binary finds nothing to do but partitions.
    let done = migrate(&dsn(&plain.url()), &MigrateOptions::default()).await.unwrap();
    assert!(done.steps.is_empty() && done.functions.is_empty(), "{done:?}");
    assert!(migration_status(&dsn(&plain.url()), &SchemaName::default()).await.unwrap().is_current());

    let (bare, bare_client) = empty().await;
    migrate(&dsn(&bare.url()), &MigrateOptions { roles: false, ..named("work") }).await.unwrap();
    let (by_hand, client) = empty().await;
    client.batch_execute(&migration_sql(&MigrateOptions { roles: false, ..named("work") })).await.unwrap();
    assert_eq!(catalogue(&client, "work").await, catalogue(&bare_client, "work").await);
    let (by_psql, client) = empty().await;
    drop(by_hand);
    let Some(psql) = Installation::find().unwrap().tool("psql") else {
        return outhaul_local::skip("psql is not installed");
    };
    let mut psql = Command::new(psql)
        .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", "-", &by_psql.url()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(
        &mut psql.stdin.take().unwrap(),
        migration_sql(&MigrateOptions::default()).as_bytes(),
    )
    .unwrap();
    assert!(psql.wait().unwrap().success());
    assert_eq!(catalogue(&client, "outhaul").await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_defaults_of_a_database_change_nothing() {
    let (database, client) = empty().await;
    client
        .batch_execute(&format!(
            "create schema evil; create table evil.jobs (n int); \
             alter database \"{0}\" set search_path = evil, public; alter database \"{0}\" set datestyle = 'SQL, DMY'; \
             alter database \"{0}\" set timezone = 'Asia/Kolkata'; alter database \"{0}\" set intervalstyle = 'sql_standard'; \
             alter database \"{0}\" set default_transaction_isolation = 'serializable'; alter database \"{0}\" set client_min_messages = 'error'; \
             alter database \"{0}\" set enable_indexscan = off; alter database \"{0}\" set jit = on; alter database \"{0}\" set extra_float_digits = -15; \
             alter database \"{0}\" set bytea_output = 'escape'; alter database \"{0}\" set lock_timeout = '1 min'; alter database \"{0}\" set plan_cache_mode = 'force_custom_plan'",
            database.name()
        ))
        .await
        .unwrap();
    let url = database.url();
    migrate(&dsn(&url), &MigrateOptions::default()).await.unwrap();
    let model = Db::new().await;
    assert_eq!(catalogue(&client, "outhaul").await, catalogue(&model.client, "outhaul").await);
    // Bounds are read back as they were written: what the defaults would garble is a day, or a time zone.
    let bounds = "select string_agg(name || coalesce(low::text, '') || coalesce(high::text, ''), ' ' order by name) from outhaul.partitions()";
    let hostile = connect(&url).await;
    hostile.batch_execute("set timezone = 'Asia/Kolkata'; set datestyle = 'SQL, DMY'").await.unwrap();
    let sane = connect(&url).await;
    sane.batch_execute("set timezone = 'UTC'; set datestyle = 'ISO'").await.unwrap();
    let same = "select count(*) from outhaul.partitions() where low <> date_trunc('day', low at time zone 'UTC') at time zone 'UTC' or high <> date_trunc('day', high at time zone 'UTC') at time zone 'UTC'";
    for client in [&hostile, &sane] {
        assert_eq!(client.query_one(same, &[]).await.unwrap().get::<_, i64>(0), 0);
        assert!(!client.query_one(bounds, &[]).await.unwrap().get::<_, String>(0).is_empty());
    }
    let before = versions(&client).await;
    migrate(&dsn(&url), &MigrateOptions::default()).await.unwrap();
    assert_eq!(versions(&client).await, before, "partitions are found as they are");
    let mut client = connect(&url).await;
    for door in Door::ALL {
        let offer = Offer {
            run_at: Some("2031-02-03T04:05:06Z".into()),
            timeout: Some(90_500),
            ..Offer::keyed(&format!("{door:?}"))
        };
        offer.at(door, &mut client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}"));
        let sql = "select run_at = timestamptz '2031-02-03 04:05:06+00' and timeout = interval '90.5 s' from outhaul.jobs where id = $1";
        assert!(client.query_one(sql, &[&offer.id]).await.unwrap().get::<_, bool>(0), "{door:?}");
    }
    let job = enqueue(&mut client, &NewJob::raw("q", "t", "1")).await.unwrap().id();
    let worker =
        Worker::builder(dsn(&url)).options(quick()).handle_raw("q", "t", |_| async { Ok::<(), Failure>(()) });
    let worker = Running::start(worker).await;
    until("completion", || async {
        client.query_one("select count(*) = 1 from outhaul.jobs_finished", &[]).await.unwrap().get(0)
    })
    .await;
    worker.stop().await;
    let observer = Observer::connect(&dsn(&url), &SchemaName::default()).await.unwrap();
    assert_eq!(observer.job(job).await.unwrap().unwrap().job.status, outhaul::JobStatus::Completed);
    let operator = outhaul::Operator::connect(&dsn(&url), &SchemaName::default()).await.unwrap();
    operator.pause("q", Some("reason")).await.unwrap();
    assert!(observer.verify_audit().await.unwrap().is_empty());
    let refused: Error = operator.pause("", None).await.unwrap_err();
    assert!(refused.is_invalid_input());
}

/// A schema as version 1 left it, with jobs in it.
async fn of_version_one(client: &Client) {
    let prelude = "set role outhaul_owner; set search_path = outhaul, pg_catalog, pg_temp";
    client.batch_execute("create schema outhaul authorization outhaul_owner").await.unwrap();
    client.batch_execute(prelude).await.unwrap();
    client.batch_execute(include_str!("../../sql/keep/bootstrap.sql")).await.unwrap();
    let step = include_str!("../../migrations/0001_jobs.sql");
    client.batch_execute(step).await.unwrap();
    let record = "insert into schema_migrations (version, name, digest, serves_from) \
        values (1, 'jobs', encode(sha256(convert_to($1, 'UTF8')), 'hex'), 1)";
    client.execute(record, &[&step]).await.unwrap();
    let jobs = "insert into jobs (id, queue, job_type, payload, idempotency_key) \
          select gen_random_uuid(), 'ticks', 'test.tick', jsonb_build_object('n', n), 'k' || n from generate_series(1, 50) n; \
        insert into job_keys (scope, kind, key, job_id, digest) \
          select '00000000-0000-0000-0000-000000000000', job_type, idempotency_key, id, hashtextextended(payload::text, 0) from jobs; \
        insert into queues (name, paused_at) values ('other', now())";
    client.batch_execute(jobs).await.unwrap();
    client.batch_execute("reset role; reset search_path").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filled_schema_of_version_one_becomes_this_version_and_loses_nothing() {
    // The cluster has the roles once any database of it was migrated.
    let model = Db::new().await;
    let (database, mut client) = empty().await;
    of_version_one(&client).await;
    let before = migration_status(&dsn(&database.url()), &SchemaName::default()).await.unwrap();
    assert_eq!((before.version, before.changed.len(), before.pending.len()), (1, 0, STEPS - 1));
    let done = migrate(&dsn(&database.url()), &MigrateOptions::default()).await.unwrap();
    assert_eq!((done.from, done.to, done.steps.len()), (1, SCHEMA_VERSION, STEPS - 1));
    assert_eq!(catalogue(&client, "outhaul").await, catalogue(&model.client, "outhaul").await);
    let again = NewJob::new(&Tick { n: 7 }).unwrap().idempotency_key("k7");
    assert!(!enqueue(&mut client, &again).await.unwrap().is_new(), "keys are kept");
    client.batch_execute("select outhaul.publish('a.b', 'a', gen_random_uuid())").await.unwrap();
    let counter = Counter::default();
    let read =
        |_: outhaul::RecordedEvent, _: outhaul::EventContext| std::future::ready(Ok::<(), Failure>(()));
    let subscription = outhaul::Subscription::new("s").start(outhaul::Start::Beginning);
    let builder = Worker::builder(dsn(&database.url())).options(quick()).handle(counter.handler());
    let running = Running::start(builder.subscribe(subscription, read)).await;
    counter.until_ended(50).await;
    until("the event is read", || async {
        client.query_one("select position = 1 from outhaul.subscriptions", &[]).await.unwrap().get(0)
    })
    .await;
    running.stop().await;
    let paused: i64 = client
        .query_one("select count(*) from outhaul.queues where name = 'other' and paused_at is not null", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!((paused, counter.begun()), (1, 50));
}
