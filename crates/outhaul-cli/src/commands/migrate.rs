//! `outhaul migrate [status|up|sql|check]`.

use std::time::Instant;

use outhaul::{MigrateOptions, SchemaStatus, migrate, migration_sql, migration_status};
use serde_json::json;

use crate::cli::{Migrate, MigrateUp, MigrateWhat};
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global};

pub(crate) async fn run(args: Migrate, global: &Global) -> anyhow::Result<Exit> {
    match args.what.unwrap_or(MigrateWhat::Up(args.up)) {
        MigrateWhat::Up(up) => apply(up, global).await,
        MigrateWhat::Status => status(global).await,
        MigrateWhat::Check => check(global).await,
        MigrateWhat::Sql(up) => sql(up, global),
    }
}

async fn apply(up: MigrateUp, global: &Global) -> anyhow::Result<Exit> {
    let (dsn, options) = (global.config.require_database()?, options(up, global)?);
    global.say_target(&dsn, &options.schema);
    let started = Instant::now();
    let look = "Look at it: outhaul migrate status";
    let done = migrate(&dsn, &options).await.map_err(|error| exit::of_change(error, look))?;
    let took = started.elapsed();
    let what = match (done.steps.len(), done.functions.len()) {
        (0, 0) => "nothing to do".to_owned(),
        (steps, functions) => format!("{steps} steps, {functions} functions"),
    };
    let schema = options.schema.as_str();
    let printed = match global.json {
        true => global.print_json(&json!({ "schema": schema, "migrated": done, "ms": took.as_millis() })),
        false => {
            let (from, to, seconds) = (done.from, done.to, took.as_secs_f64());
            let line = format!("schema {schema}: {from} -> {to}, {what}, {seconds:.1} s");
            global.print(line).map_err(Into::into)
        }
    };
    output::told(printed, format_args!("schema {schema} is at version {} ({what})", done.to), look)?;
    global.say("next: outhaul enqueue demo.hello");
    Ok(Exit::Ok)
}

async fn status(global: &Global) -> anyhow::Result<Exit> {
    let status = read(global).await?;
    print(&status, global)?;
    Ok(Exit::Ok)
}

async fn check(global: &Global) -> anyhow::Result<Exit> {
    let status = read(global).await?;
    output::unless_closed(print(&status, global))?;
    if status.is_current() {
        return Ok(Exit::Ok);
    }
    let (schema, version, binary) = (&status.schema, status.version, status.binary);
    Err(match version > binary {
        true => {
            Problem::new(Exit::Schema, "schema_too_new", format!("schema {schema} is newer than this binary"))
                .hint(format!("It is at version {version}, this binary at {binary}: use a newer outhaul."))
        }
        false => Problem::new(
            Exit::Schema,
            "schema_too_old",
            format!("schema {schema} is not what this binary makes"),
        )
        .hint("Run `outhaul migrate`."),
    }
    .into())
}

/// Reads the record of the migrations, which is its owner's: no role that works with jobs needs it.
async fn read(global: &Global) -> anyhow::Result<SchemaStatus> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    migration_status(&dsn, &schema).await.map_err(|error| match error.sqlstate() {
        Some("42501") => {
            let who = dsn.user();
            let what = format!(
                "{who} may not read which migrations schema {schema} has had: SELECT on \
                 {schema}.schema_migrations and {schema}.schema_functions is missing ({error})"
            );
            Problem::new(Exit::Refused, "refused", what)
                .hint(
                    "Run it as the role that migrates: a member of outhaul_owner, or the schema's owner after \
                     --no-roles. No other role needs this right; every command checks the version that it needs by \
                     itself.",
                )
                .into()
        }
        _ => error.into(),
    })
}

fn print(status: &SchemaStatus, global: &Global) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(&json!({ "status": status, "current": status.is_current() }));
    }
    global.print(format_args!(
        "schema {}: version {}, this binary {}, serves binaries from {}",
        status.schema, status.version, status.binary, status.serves_from
    ))?;
    let lists =
        [("pending", &status.pending), ("changed", &status.changed), ("stale", &status.stale_functions)];
    for (word, names) in lists {
        for name in names {
            global.print(format_args!("{word}\t{name}"))?;
        }
    }
    Ok(())
}

fn sql(up: MigrateUp, global: &Global) -> anyhow::Result<Exit> {
    let options = options(up, global)?;
    let sql = migration_sql(&options);
    if global.json {
        global.print_json(&json!({ "schema": options.schema.as_str(), "sql": sql }))?;
    } else {
        global.print(sql.trim_end())?;
    }
    Ok(Exit::Ok)
}

fn options(up: MigrateUp, global: &Global) -> anyhow::Result<MigrateOptions> {
    let schema = global.config.schema()?;
    Ok(MigrateOptions { schema, roles: !up.no_roles, ..MigrateOptions::default() })
}
