//! Bringing a schema to the version of this binary, and refusing to work on one that does not fit.
//!
//! Forward only. Each step is one transaction under an advisory lock, with a short `lock_timeout` and
//! retries, so that a step never makes the application queue up behind it and any number of processes
//! may try at once. The functions are part of the schema: they are applied again when their text differs.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::source::{BOOTSTRAP, FUNCTIONS, MIGRATIONS, Migration, VERSION};
use super::statement::SCHEMA_STATE;
use crate::error::{Error, Kind, Result};
use crate::model::SchemaName;

/// How a migration is carried out.
#[derive(Clone, Debug)]
pub struct MigrateOptions {
    /// The schema to create or bring up to date; `outhaul` by default.
    pub schema: SchemaName,
    /// Whether to create and use the roles `outhaul_owner`, `_producer`, `_worker`, `_observer` and `_operator`.
    /// Without them the migrating role owns everything. Decided when the schema is created; on by default.
    pub roles: bool,
    /// How long one step may wait for a lock before it gives way and tries again; 2 s by default.
    pub lock_timeout: Duration,
    /// How long to keep trying; 60 s by default.
    pub give_up_after: Duration,
}

impl Default for MigrateOptions {
    fn default() -> MigrateOptions {
        MigrateOptions {
            schema: SchemaName::default(),
            roles: true,
            lock_timeout: Duration::from_secs(2),
            give_up_after: Duration::from_secs(60),
        }
    }
}

/// What a migration did.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Migrated {
    /// The version before; 0 for an empty database.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// Steps applied by this call.
    pub steps: Vec<String>,
    /// Functions applied again because their text had changed.
    pub functions: Vec<String>,
    /// Times the migration gave way to somebody else's lock.
    pub retries: u32,
}

/// A schema as it is, compared with this binary.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SchemaStatus {
    /// The schema's name.
    pub schema: String,
    /// Its version; 0 when it does not exist.
    pub version: i32,
    /// The version this binary brings it to.
    pub binary: i32,
    /// The oldest binary version it serves.
    pub serves_from: i32,
    /// Steps not yet applied.
    pub pending: Vec<String>,
    /// Steps whose text differs from this binary's.
    pub changed: Vec<String>,
    /// Functions that are missing or whose text differs from this binary's; none for a newer schema.
    pub stale_functions: Vec<String>,
}

impl SchemaStatus {
    /// Whether a migration would do nothing.
    pub fn is_current(&self) -> bool {
        self.pending.is_empty() && self.changed.is_empty() && self.stale_functions.is_empty()
    }
}

/// Brings the schema to this binary's version.
///
/// A schema that is newer and still serves this binary is left as it is.
///
/// # Errors
/// When rights are missing, when the schema no longer serves this binary, or when locks could not be had in time.
pub(crate) async fn migrate(client: &Client, options: &MigrateOptions) -> Result<Migrated> {
    let started = Instant::now();
    let mut done = Migrated { from: 0, to: VERSION, steps: Vec::new(), functions: Vec::new(), retries: 0 };
    loop {
        match step(client, options, &mut done).await {
            Ok(true) => return Ok(done),
            Ok(false) => {}
            Err(error)
                if error.is_retryable()
                    && !client.is_closed()
                    && started.elapsed() < options.give_up_after =>
            {
                done.retries += 1;
                tracing::info!(error = %error, "migration gave way to a lock, trying again");
                tokio::time::sleep(Duration::from_millis(50 + fastrand::u64(..250))).await;
            }
            Err(error) => return Err(gave_up(error, options, done.retries)),
        }
    }
}

fn gave_up(error: Error, options: &MigrateOptions, retries: u32) -> Error {
    let doing = format!("migrating schema {}", options.schema);
    match error.sqlstate() {
        Some("55P03") => error.context(format!("{doing}, tried {} times", retries + 1)).with_hint(
            "Another session holds a lock that the migration needs: end long transactions on the schema's tables \
             and other migrations, then migrate again.",
        ),
        _ => error.context(doing),
    }
}

/// One transaction: the next step, or the functions when no step is left. True when nothing remains.
async fn step(client: &Client, options: &MigrateOptions, done: &mut Migrated) -> Result<bool> {
    client.batch_execute("/* outhaul:migrate */ begin isolation level read committed").await?;
    let mut doing = done.clone();
    match within(client, options, &mut doing).await {
        Ok(finished) => {
            client.batch_execute("/* outhaul:migrate */ commit").await?;
            *done = doing;
            Ok(finished)
        }
        Err(error) => {
            // The connection may be gone; then the server has rolled back by itself.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}

async fn within(client: &Client, options: &MigrateOptions, done: &mut Migrated) -> Result<bool> {
    let prelude = prelude(options);
    client.batch_execute(&prelude.lock).await?;
    let roles = own(client, options).await?;
    client.batch_execute(&prelude.session).await?;
    client
        .batch_execute(&format!("set local outhaul.roles = '{}'", if roles { "on" } else { "off" }))
        .await?;
    client.batch_execute(BOOTSTRAP).await?;
    let version = version(client).await?;
    if done.steps.is_empty() {
        done.from = version.0;
    }
    // A newer schema that still serves this binary is left as it is: its functions are newer, too.
    if version.0 > VERSION {
        done.to = version.0;
        return if version.1 > VERSION { Err(too_new(version.0)) } else { Ok(true) };
    }
    let mut stepped = false;
    if let Some(next) = MIGRATIONS.iter().find(|migration| migration.version > version.0) {
        client.batch_execute(next.sql).await?;
        let record =
            "insert into schema_migrations (version, name, digest, serves_from) values ($1, $2, $3, $4)";
        client.execute(record, &[&next.version, &next.name, &digest(next.sql), &next.serves_from]).await?;
        done.steps.push(step_name(next));
        stepped = true;
        // Functions follow in the transaction of the last step, so that no binary sees one without the other.
        if next.version < VERSION {
            return Ok(false);
        }
    }
    done.functions.extend(apply_functions(client, stepped).await?);
    Ok(true)
}

/// Applies every function whose text differs from what was applied last, and the grants after any change, of
/// theirs or of a step in the same transaction.
async fn apply_functions(client: &Client, stepped: bool) -> Result<Vec<String>> {
    let known = client.query("select name, digest from schema_functions", &[]).await?;
    let mut applied = Vec::new();
    for function in FUNCTIONS {
        let digest = digest(function.sql);
        let same =
            known.iter().any(|row| row.get::<_, &str>(0) == function.name && row.get::<_, &str>(1) == digest);
        let again = function.name == "keep/grants" && (stepped || !applied.is_empty());
        if same && !again {
            continue;
        }
        client.batch_execute(function.sql).await?;
        let record = "insert into schema_functions (name, digest) values ($1, $2) \
             on conflict (name) do update set digest = excluded.digest, applied_at = clock_timestamp()";
        client.execute(record, &[&function.name, &digest]).await?;
        applied.push(function.name.to_owned());
    }
    Ok(applied)
}

struct Prelude {
    lock: String,
    session: String,
}

/// The statements before everything else. `check_function_bodies` is off because the functions call one
/// another and are applied one by one.
fn prelude(options: &MigrateOptions) -> Prelude {
    let schema = &options.schema;
    Prelude {
        lock: format!(
            "set local lock_timeout = '{}ms'; select pg_advisory_xact_lock(hashtextextended('outhaul migrate {schema}', 0))",
            options.lock_timeout.as_millis().max(1),
        ),
        session: format!(
            "set local search_path = {}, pg_catalog, pg_temp; set local check_function_bodies = off; \
             set local client_min_messages = warning",
            schema.quoted()
        ),
    }
}

/// Makes the schema and its owner exist and becomes the owner. True when roles are in use.
async fn own(client: &Client, options: &MigrateOptions) -> Result<bool> {
    let schema = &options.schema;
    let owner = client
        .query_opt(
            "select r.rolname = 'outhaul_owner', pg_has_role(n.nspowner, 'usage'), r.rolname::text from pg_namespace n \
             join pg_roles r on r.oid = n.nspowner where n.nspname = $1",
            &[&schema.as_str()],
        )
        .await?;
    let roles = match &owner {
        Some(row) => {
            if !row.get::<_, bool>(1) {
                return Err(Error::new(
                    Kind::Refused,
                    format!(
                        "schema {schema} belongs to {}, of which this role is not a member",
                        row.get::<_, &str>(2)
                    ),
                )
                .with_hint("Migrate as that role, as a member of it, or choose another schema."));
            }
            row.get::<_, bool>(0)
        }
        None => options.roles,
    };
    if roles {
        create_roles(client).await?;
    }
    if owner.is_none() {
        let authorization = if roles { "authorization outhaul_owner" } else { "" };
        client.batch_execute(&format!("create schema {} {authorization}", schema.quoted())).await.map_err(|error| {
            Error::from(error).with_hint("Creating the schema needs CREATE on the database; grant it, or have an administrator run `outhaul migrate sql`.")
        })?;
    }
    if roles {
        client.batch_execute("set local role outhaul_owner").await?;
    }
    Ok(roles)
}

/// Creates the cluster-wide roles, whoever else does so at the same moment.
async fn create_roles(client: &Client) -> Result<()> {
    client.batch_execute(ROLES).await.map_err(|error| {
        let error = Error::from(error);
        if error.is_refused() {
            error.with_hint(
                "Creating roles needs CREATEROLE. Have an administrator create them (`outhaul migrate sql` prints how), \
                 or migrate with --no-roles, where the migrating role owns everything.",
            )
        } else {
            error
        }
    })
}

/// Roles are shared by the databases of a cluster, so another database may create them meanwhile.
const ROLES: &str = "do $$ /* outhaul:roles */
declare
  r text;
begin
  foreach r in array array['outhaul_owner', 'outhaul_producer', 'outhaul_worker', 'outhaul_observer', 'outhaul_operator'] loop
    if not exists (select from pg_roles where rolname = r) then
      begin
        execute format('create role %I nologin', r);
      exception when duplicate_object or unique_violation then null;
      end;
    end if;
  end loop;
  -- From PostgreSQL 16 on a role that creates another becomes its member without the right to act as it.
  if not pg_has_role('outhaul_owner', case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end) then
    execute format('grant outhaul_owner to %I', current_user);
  end if;
end $$;";

async fn version(client: &Client) -> Result<(i32, i32)> {
    let row = client
        .query_one(
            "select coalesce(max(version), 0), coalesce(max(serves_from), 0) from schema_migrations",
            &[],
        )
        .await?;
    Ok((row.get(0), row.get(1)))
}

/// Compares the schema with this binary, changing nothing.
pub(crate) async fn status(client: &Client, schema: &SchemaName) -> Result<SchemaStatus> {
    let mut status = SchemaStatus {
        schema: schema.to_string(),
        version: 0,
        binary: VERSION,
        serves_from: 0,
        pending: MIGRATIONS.iter().map(step_name).collect(),
        changed: Vec::new(),
        stale_functions: FUNCTIONS.iter().map(|function| function.name.to_owned()).collect(),
    };
    let table = format!("{}.schema_migrations", schema.quoted());
    let exists = client.query_one("select to_regclass($1) is not null", &[&table]).await?;
    if !exists.get::<_, bool>(0) {
        return Ok(status);
    }
    let steps = client
        .query(&format!("select version, digest, serves_from from {table} order by version"), &[])
        .await?;
    for row in &steps {
        status.version = row.get(0);
        status.serves_from = row.get(2);
        if let Some(known) = MIGRATIONS.iter().find(|migration| migration.version == status.version)
            && digest(known.sql) != row.get::<_, &str>(1)
        {
            status.changed.push(step_name(known));
        }
    }
    status.pending =
        MIGRATIONS.iter().filter(|known| known.version > status.version).map(step_name).collect();
    let functions =
        client.query(&format!("select name, digest from {}.schema_functions", schema.quoted()), &[]).await?;
    status.stale_functions.retain(|name| {
        let now =
            FUNCTIONS.iter().find(|function| function.name == name).map(|function| digest(function.sql));
        !functions.iter().any(|row| row.get::<_, &str>(0) == name && Some(row.get::<_, String>(1)) == now)
    });
    if status.version > VERSION {
        status.stale_functions.clear();
    }
    Ok(status)
}

/// Refuses a schema that this binary cannot work on. Binary N works on schemas from N on, as long as the
/// schema says that it serves N.
pub(crate) async fn check(client: &Client, schema: &SchemaName) -> Result<i32> {
    let row = client.query_typed(&SCHEMA_STATE.text(schema), &[]).await.map_err(|error| {
        let error = Error::from(error);
        match error.sqlstate() {
            Some("3F000" | "42883" | "42P01") => missing(schema),
            _ => error,
        }
    })?;
    let state: Option<(Option<i32>, Option<i32>)> = row.first().map(|row| (row.get(0), row.get(1)));
    let Some((Some(version), Some(serves_from))) = state else { return Err(missing(schema)) };
    if version < VERSION {
        return Err(Error::new(
            Kind::SchemaTooOld,
            format!("schema {schema} is at version {version}, this binary needs {VERSION}"),
        )
        .with_hint("Run `outhaul migrate` with this version."));
    }
    if serves_from > VERSION {
        return Err(too_new(version));
    }
    Ok(version)
}

fn missing(schema: &SchemaName) -> Error {
    Error::new(Kind::SchemaMissing, format!("there is no schema {schema} of outhaul in this database"))
        .with_hint("Run `outhaul migrate`, or check the database and the schema name.")
}

fn too_new(version: i32) -> Error {
    Error::new(
        Kind::SchemaTooNew,
        format!("the schema is at version {version}, which no longer serves this binary (version {VERSION})"),
    )
    .with_hint("Use a newer version of outhaul.")
}

/// Everything a migration of an empty database would send, for an administrator to read and run.
pub(crate) fn sql(options: &MigrateOptions) -> String {
    let prelude = prelude(options);
    let schema = options.schema.quoted();
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line("begin;");
    line(&format!("{};", prelude.lock));
    if options.roles {
        line(ROLES);
        line(&format!("create schema {schema} authorization outhaul_owner;\nset local role outhaul_owner;"));
    } else {
        line(&format!("create schema {schema};"));
    }
    line(&format!("{};", prelude.session));
    line(&format!("set local outhaul.roles = '{}';", if options.roles { "on" } else { "off" }));
    line(BOOTSTRAP);
    for migration in MIGRATIONS {
        line(migration.sql);
        line(&format!(
            "insert into schema_migrations (version, name, digest, serves_from) values ({}, '{}', '{}', {});",
            migration.version,
            migration.name,
            digest(migration.sql),
            migration.serves_from
        ));
    }
    for function in FUNCTIONS {
        line(function.sql);
        line(&format!(
            "insert into schema_functions (name, digest) values ('{}', '{}');",
            function.name,
            digest(function.sql)
        ));
    }
    line("commit;");
    out
}

fn step_name(migration: &Migration) -> String {
    format!("{:04}_{}", migration.version, migration.name)
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
