//! Carrying out the steps for ranged tables, on a connection of the owner.
//!
//! Everything here is safe beside writers and can die at any point: a concurrent detach cannot run inside
//! a transaction, so no step relies on the one before having been finished. DDL that waits makes everybody
//! else wait behind it; with a short `lock_timeout` it gives way and the next turn tries again.

use jiff::{SignedDuration, Timestamp};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::statement::PARTITIONS;
use crate::decide::ranges::{Part, Rules, Step, next_step};
use crate::error::{Error, Kind, Result};
use crate::model::SchemaName;

/// What one turn did, for people.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct RangesDone {
    pub(crate) created: Vec<String>,
    pub(crate) dropped: Vec<String>,
    /// Rows were in the tail: upkeep had been away longer than the lead, or a clock was ahead.
    pub(crate) late_tails: Vec<String>,
}

/// Brings every ranged table to its rules. `limit` bounds the steps of one turn.
pub(crate) async fn keep(client: &Client, schema: &SchemaName, limit: usize) -> Result<RangesDone> {
    client
        .batch_execute("/* outhaul:ranges */ set lock_timeout = '1s'; set statement_timeout = '60s'")
        .await?;
    let mut done = RangesDone::default();
    for _ in 0..limit {
        let tables = tables(client, schema).await?;
        let next = tables
            .into_iter()
            .find_map(|table| Some((next_step(&table.parts, table.rules, table.now)?, table)));
        let Some((step, table)) = next else { break };
        carry_out(client, schema, &table.name, step, &mut done).await?;
    }
    Ok(done)
}

struct Table {
    name: String,
    rules: Rules,
    now: Timestamp,
    parts: Vec<Part>,
}

async fn tables(client: &Client, schema: &SchemaName) -> Result<Vec<Table>> {
    let rows = client.query_typed(&PARTITIONS.text(schema), &[]).await?;
    let mut tables: Vec<Table> = Vec::new();
    for row in &rows {
        let name: String = row.get(0);
        let part = Part {
            name: row.get(1),
            low: row.get(2),
            high: row.get(3),
            detach_pending: row.get(4),
            orphan: row.get(9),
        };
        let rules = Rules {
            step: SignedDuration::from_secs(row.get(5)),
            ahead: row.get::<_, i32>(6).max(2) as u32,
            keep: SignedDuration::from_secs(row.get(7)),
        };
        match tables.iter_mut().find(|table| table.name == name) {
            Some(table) => table.parts.push(part),
            None => tables.push(Table { name, rules, now: row.get(8), parts: vec![part] }),
        }
    }
    Ok(tables)
}

async fn carry_out(
    client: &Client,
    schema: &SchemaName,
    table: &str,
    step: Step,
    done: &mut RangesDone,
) -> Result<()> {
    let s = schema.quoted();
    let parent = format!("{s}.{table}");
    match step {
        Step::FinishDetach(name) => {
            run(client, &format!("alter table {parent} detach partition {s}.\"{name}\" finalize")).await
        }
        Step::DropOrphan(name) => {
            run(client, &format!("drop table {s}.\"{name}\"")).await?;
            done.dropped.push(name);
            Ok(())
        }
        Step::AttachPast { until } => attach_past(client, &s, table, until).await,
        Step::AttachTail { low } => attach_tail(client, &s, table, low, done).await,
        Step::CloseTail { tail, low, at } => {
            done.late_tails.push(table.to_owned());
            let name = part_name(table, low);
            done.created.push(name.clone());
            close_tail(client, &s, table, &tail, &name, low, at).await
        }
        Step::Carve { tail, ranges, low } => {
            run(client, &format!("alter table {parent} detach partition {s}.\"{tail}\" concurrently"))
                .await?;
            for (from, to) in ranges {
                let name = part_name(table, from);
                attach_new(client, &s, table, &name, &quoted(from), &quoted(to)).await?;
                done.created.push(name);
            }
            attach_tail(client, &s, table, low, done).await
        }
        Step::Drop { parts, until } => {
            for name in &parts {
                run(client, &format!("alter table {parent} detach partition {s}.\"{name}\" concurrently"))
                    .await?;
            }
            for name in parts {
                run(client, &format!("drop table {s}.\"{name}\"")).await?;
                done.dropped.push(name);
            }
            attach_past(client, &s, table, until).await
        }
    }
}

/// The ranges begin with the beginning of time, so that rows of a clock that was set back find a place.
async fn attach_past(client: &Client, s: &str, table: &str, until: Timestamp) -> Result<()> {
    attach_new(client, s, table, &format!("{table}_past"), "minvalue", &quoted(until)).await
}

/// The tail as it was carved off, or a new one if it is gone. Rows that a clock ahead had put into what are now
/// ranges of their own move there; without that the tail could never be attached again.
async fn attach_tail(
    client: &Client,
    s: &str,
    table: &str,
    low: Timestamp,
    done: &mut RangesDone,
) -> Result<()> {
    let (parent, tail) = (format!("{s}.{table}"), format!("{s}.\"{table}_tail\""));
    let key = key(client, &parent).await?;
    let sql = format!(
        "begin; create table if not exists {tail} (like {parent} including defaults including indexes including storage); \
         alter table {tail} owner to {}; {} \
         with late as (delete from {tail} where {key} < {low} returning *) insert into {parent} select * from late; \
         alter table {parent} attach partition {tail} for values from ({low}) to (maxvalue); commit",
        owner(client, s, table).await?,
        without_checks(&tail),
        low = quoted(low),
    );
    if has_rows_below(client, &tail, &key, low).await? {
        done.late_tails.push(table.to_owned());
    }
    run(client, &sql).await
}

/// A concurrent detach leaves the old range behind as a CHECK constraint, one more each time.
fn without_checks(table: &str) -> String {
    format!(
        "do $$ declare c name; begin \
         for c in select conname from pg_constraint where conrelid = '{table}'::regclass and contype = 'c' loop \
         execute format('alter table {table} drop constraint %I', c); end loop; end $$;"
    )
}

/// The column by which a table is ranged, quoted.
async fn key(client: &Client, parent: &str) -> Result<String> {
    let sql = "/* outhaul:ranges */ select quote_ident(a.attname) from pg_partitioned_table p \
        join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0] where p.partrelid = $1::text::regclass";
    let rows = client.query_typed(sql, &[(&parent, Type::TEXT)]).await?;
    rows.first().map(|row| row.get(0)).ok_or_else(|| {
        Error::new(Kind::SchemaMissing, format!("{parent} is not a partitioned table"))
            .with_hint("Check that the schema was migrated by this version.")
    })
}

async fn has_rows_below(client: &Client, tail: &str, key: &str, low: Timestamp) -> Result<bool> {
    let exists = "/* outhaul:ranges */ select to_regclass($1::text) is not null";
    let rows = client.query_typed(exists, &[(&tail, Type::TEXT)]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(false);
    }
    let sql =
        format!("/* outhaul:ranges */ select exists (select from {tail} where {key} < {})", quoted(low));
    Ok(client.query_typed(&sql, &[]).await?.first().is_some_and(|row| row.get(0)))
}

/// Creates a table beside the parent and attaches it. `create table … partition of` would lock the parent
/// against writers; ATTACH does not, and an empty table needs no scan.
async fn attach_new(client: &Client, s: &str, table: &str, name: &str, from: &str, to: &str) -> Result<()> {
    let sql = format!(
        "begin; create table if not exists {s}.\"{name}\" (like {s}.{table} including defaults including indexes including storage); \
         alter table {s}.\"{name}\" owner to {}; \
         alter table {s}.{table} attach partition {s}.\"{name}\" for values from ({from}) to ({to}); commit",
        owner(client, s, table).await?
    );
    run(client, &sql).await
}

/// One transaction that keeps writers out for as long as the tail's rows take to be checked.
async fn close_tail(
    client: &Client,
    s: &str,
    table: &str,
    tail: &str,
    name: &str,
    low: Timestamp,
    at: Timestamp,
) -> Result<()> {
    let owner = owner(client, s, table).await?;
    let sql = format!(
        "begin; lock table {s}.{table} in access exclusive mode; \
         alter table {s}.{table} detach partition {s}.\"{tail}\"; \
         alter table {s}.\"{tail}\" rename to \"{name}\"; \
         alter table {s}.{table} attach partition {s}.\"{name}\" for values from ('{low}') to ('{at}'); \
         create table {s}.\"{table}_tail\" (like {s}.{table} including defaults including indexes including storage); \
         alter table {s}.\"{table}_tail\" owner to {owner}; \
         alter table {s}.{table} attach partition {s}.\"{table}_tail\" for values from ('{at}') to (maxvalue); commit"
    );
    run(client, &sql).await
}

async fn owner(client: &Client, s: &str, table: &str) -> Result<String> {
    let sql = "/* outhaul:ranges */ select quote_ident(pg_get_userbyid(relowner)) from pg_class where oid = $1::text::regclass";
    let name = format!("{s}.{table}");
    let row = client.query_typed(sql, &[(&name, Type::TEXT)]).await?;
    Ok(row.first().map(|row| row.get(0)).unwrap_or_else(|| "current_user".to_owned()))
}

async fn run(client: &Client, sql: &str) -> Result<()> {
    let result = client.batch_execute(&format!("/* outhaul:ranges */ {sql}")).await;
    if result.is_err() {
        // After an error inside begin … commit the session is in a failed transaction.
        let _ = client.batch_execute("rollback").await;
    }
    Ok(result?)
}

/// `jobs_finished_20261130` for a step of whole days, with the time where a step is shorter.
fn part_name(table: &str, from: Timestamp) -> String {
    let at = from.to_zoned(jiff::tz::TimeZone::UTC);
    let form = if from.as_second() % 86_400 == 0 { "%Y%m%d" } else { "%Y%m%d_%H%M%S" };
    format!("{table}_{}", at.strftime(form))
}

fn quoted(at: Timestamp) -> String {
    format!("'{at}'")
}
