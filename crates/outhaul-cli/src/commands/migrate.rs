//! `outhaul migrate [status|up|sql|check]`.

use std::time::Instant;

use outhaul::{MigrateOptions, SchemaStatus, migrate, migration_sql, migration_status};
use serde_json::json;

use crate::cli::{Migrate, MigrateUp, MigrateWhat};
use crate::exit::{Exit, Problem};
use crate::output::Global;

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
    let done = migrate(&dsn, &options).await?;
    let took = started.elapsed();
    if global.json {
        global.print_json(
            &json!({ "schema": options.schema.as_str(), "migrated": done, "ms": took.as_millis() }),
        )?;
        return Ok(Exit::Ok);
    }
    let what = match (done.steps.len(), done.functions.len()) {
        (0, 0) => "nothing to do".to_owned(),
        (steps, functions) => format!("{steps} steps, {functions} functions"),
    };
    global.print(format_args!(
        "schema {}: {} -> {}, {what}, {:.1} s",
        options.schema,
        done.from,
        done.to,
        took.as_secs_f64()
    ))?;
    global.say("next: outhaul enqueue demo.hello");
    Ok(Exit::Ok)
}

async fn status(global: &Global) -> anyhow::Result<Exit> {
    let status = migration_status(&global.config.require_database()?, &global.config.schema()?).await?;
    print(&status, global)?;
    Ok(Exit::Ok)
}

async fn check(global: &Global) -> anyhow::Result<Exit> {
    let status = migration_status(&global.config.require_database()?, &global.config.schema()?).await?;
    print(&status, global)?;
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
