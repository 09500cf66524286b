//! Carrying out the steps for ranged tables, on a connection of the owner.
//!
//! Everything here is safe beside writers and can die at any point: a concurrent detach cannot run inside
//! a transaction, so no step relies on the one before having been finished. DDL that waits makes everybody
//! else wait behind it; with a short `lock_timeout` it gives way and the next turn tries again.
//!
//! Events and their places in the feed go only when they are proven not to be needed. The proof must hold until
//! the partition is gone, and a concurrent detach cannot hold a lock that long: so a partition is first retired.
//! Under a lock that no writer shares, open and prepared ones included, the edge is asked again in a statement
//! of its own, and a constraint then refuses every later change.

use std::collections::HashSet;

use jiff::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::statement::RANGES;
use crate::decide::ranges::{Part, Rules, Step, is_past, next_step};
use crate::error::{Error, Kind, Result};
use crate::model::SchemaName;

/// What one turn did, for people.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct RangesDone {
    pub(crate) created: Vec<String>,
    pub(crate) dropped: Vec<String>,
    /// Rows were in the tail: upkeep had been away longer than the lead, or a clock was ahead.
    pub(crate) late_tails: Vec<String>,
    /// Partitions past their time that an open or prepared transaction holds; the next turn tries again.
    pub(crate) held: Vec<String>,
}

/// Brings every ranged table to its rules. `limit` bounds the steps of one turn. A table whose step fails is left for
/// the next turn, and does not keep the others waiting.
///
/// # Errors
/// The first failure, when all tables have been seen to.
pub(crate) async fn keep(client: &Client, schema: &SchemaName, limit: usize) -> Result<RangesDone> {
    client
        .batch_execute("/* outhaul:ranges */ set lock_timeout = '1s'; set statement_timeout = '60s'")
        .await?;
    let mut done = RangesDone::default();
    let mut left: HashSet<String> = HashSet::new();
    let mut failed = None;
    for _ in 0..limit {
        let tables = tables(client, schema).await?;
        let mut open = tables.into_iter().filter(|table| !left.contains(&table.name));
        let Some((step, table)) = open.find_map(|table| Some((next_step(&table.parts, table.rules)?, table)))
        else {
            break;
        };
        let cut = Cut { client, s: schema.quoted(), table: table.name, axis: table.axis };
        match cut.carry_out(step, &mut done).await {
            Ok(true) => {}
            Ok(false) => drop(left.insert(cut.table)),
            Err(error) if client.is_closed() => return Err(error),
            Err(error) => {
                left.insert(cut.table);
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(done), Err)
}

struct Table {
    name: String,
    axis: Axis,
    rules: Rules,
    parts: Vec<Part>,
}

async fn tables(client: &Client, schema: &SchemaName) -> Result<Vec<Table>> {
    let rows = client.query_typed(&RANGES.text(schema), &[]).await?;
    let mut tables: Vec<Table> = Vec::new();
    for row in &rows {
        let name: String = row.get(0);
        let axis = if row.get(2) { Axis::Time } else { Axis::Position };
        let part = Part {
            name: row.get(1),
            low: row.get(3),
            high: row.get(4),
            detach_pending: row.get(5),
            orphan: row.get(10),
            retired: row.get(11),
        };
        let step = row.get(6);
        let rules = Rules {
            step,
            ahead: row.get::<_, i32>(7).max(2) as u32,
            lead: axis.lead(step),
            now: row.get(8),
            edge: row.get(9),
        };
        match tables.iter_mut().find(|table| table.name == name) {
            Some(table) => table.parts.push(part),
            None => tables.push(Table { name, axis, rules, parts: vec![part] }),
        }
    }
    Ok(tables)
}

/// What the numbers of a table mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Axis {
    /// Microseconds since 1970.
    Time,
    /// Positions of the feed.
    Position,
}

impl Axis {
    /// Taking the tail off and putting it back takes milliseconds. The rest is for a process that dies in between:
    /// an hour for the next one to come, or for positions half a partition of them.
    fn lead(self, step: i64) -> i64 {
        match self {
            Axis::Time => 3_600_000_000,
            Axis::Position => step / 2,
        }
    }

    /// A bound as SQL.
    fn quoted(self, n: i64) -> String {
        match self {
            Axis::Time => format!("'{}'", timestamp(n)),
            Axis::Position => format!("'{n}'"),
        }
    }

    /// `jobs_finished_20261130` for a step of whole days, with the time where a step is shorter;
    /// `outbox_feed_000000000002000000` for positions.
    fn part_name(self, table: &str, from: i64) -> String {
        match self {
            Axis::Time => {
                let at = timestamp(from);
                let form = if at.as_second() % 86_400 == 0 { "%Y%m%d" } else { "%Y%m%d_%H%M%S" };
                format!("{table}_{}", at.to_zoned(jiff::tz::TimeZone::UTC).strftime(form))
            }
            Axis::Position => format!("{table}_{from:018}"),
        }
    }
}

fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// The carrying out for one table.
struct Cut<'a> {
    client: &'a Client,
    /// The schema, quoted.
    s: String,
    table: String,
    axis: Axis,
}

impl Cut<'_> {
    /// False when there is nothing more to do for this table in this turn.
    async fn carry_out(&self, step: Step, done: &mut RangesDone) -> Result<bool> {
        match step {
            Step::FinishDetach(name) => self.finish_detach(&name).await?,
            Step::DropOrphan(name) => {
                self.drop_detached(&name).await?;
                done.dropped.push(name);
            }
            Step::AttachPast { until } => self.attach_past(until).await?,
            Step::AttachTail { low } => self.attach_tail(low, done).await?,
            Step::CloseTail { tail, low, at } => {
                done.late_tails.push(self.table.clone());
                let name = self.axis.part_name(&self.table, low);
                self.close_tail(&tail, &name, low, at).await?;
                done.created.push(name);
            }
            Step::Carve { tail, ranges, low } => self.carve(&tail, &ranges, low, done).await?,
            Step::Reopen(name) => self.reopen(&name).await?,
            Step::Drop { parts } => return self.drop_parts(parts, done).await,
        }
        Ok(true)
    }

    async fn carve(&self, tail: &str, ranges: &[(i64, i64)], low: i64, done: &mut RangesDone) -> Result<()> {
        let rows = format!("exists (select from {})", self.part(tail));
        if self.holds(&rows).await? {
            return self.carve_out(tail, ranges, low, done).await;
        }
        self.detach(tail).await?;
        for (from, to) in ranges {
            let name = self.axis.part_name(&self.table, *from);
            self.attach_new(&name, &self.axis.quoted(*from), &self.axis.quoted(*to)).await?;
            done.created.push(name);
        }
        self.attach_tail(low, done).await
    }

    /// The same for a tail that rows are in: one transaction that keeps everybody out, because readers must not
    /// miss them, not even for a moment. What belongs to the new ranges moves there before those are attached, and
    /// so past the triggers, which have seen it already.
    async fn carve_out(
        &self,
        tail: &str,
        ranges: &[(i64, i64)],
        low: i64,
        done: &mut RangesDone,
    ) -> Result<()> {
        let (parent, part) = (self.parent(), self.part(tail));
        let (key, owner) = (self.key().await?, self.owner().await?);
        let late = format!("exists (select from {part} where {key} < {})", self.axis.quoted(low));
        if self.holds(&late).await? {
            done.late_tails.push(self.table.clone());
        }
        let mut sql = format!(
            "begin; lock table {parent} in access exclusive mode; alter table {parent} detach partition {part}; "
        );
        for (from, to) in ranges {
            let name = self.axis.part_name(&self.table, *from);
            let (new, from, to) = (self.part(&name), self.axis.quoted(*from), self.axis.quoted(*to));
            sql.push_str(&format!(
                "{} with late as (delete from {part} where {key} >= {from} and {key} < {to} returning *) insert into {new} select * from late; \
                 alter table {parent} attach partition {new} for values from ({from}) to ({to}); ",
                self.create(&name, &owner),
            ));
            done.created.push(name);
        }
        let low = self.axis.quoted(low);
        sql.push_str(&format!(
            "alter table {parent} attach partition {part} for values from ({low}) to (maxvalue); commit"
        ));
        self.run(&sql).await
    }

    /// The ranges begin with the beginning, so that rows of a clock that was set back find a place.
    async fn attach_past(&self, until: i64) -> Result<()> {
        self.attach_new(&format!("{}_past", self.table), "minvalue", &self.axis.quoted(until)).await
    }

    /// The tail as it was carved off, or a new one if it is gone. Rows that were put into what are now ranges of
    /// their own move there; without that the tail could never be attached again.
    async fn attach_tail(&self, low: i64, done: &mut RangesDone) -> Result<()> {
        let (parent, name) = (self.parent(), format!("{}_tail", self.table));
        let (tail, low) = (self.part(&name), self.axis.quoted(low));
        let key = self.key().await?;
        let exists = format!("to_regclass('{tail}') is not null");
        let late = self.holds(&exists).await?
            && self.holds(&format!("exists (select from {tail} where {key} < {low})")).await?;
        let mut sql =
            format!("begin; {} {} ", self.create(&name, &self.owner().await?), without_checks(&tail));
        if late {
            done.late_tails.push(self.table.clone());
            let (silent, again) = self.without_triggers();
            sql.push_str(&format!(
                "{silent} with late as (delete from {tail} where {key} < {low} returning *) \
                 insert into {parent} overriding system value select * from late; {again} "
            ));
        }
        sql.push_str(&format!(
            "alter table {parent} attach partition {tail} for values from ({low}) to (maxvalue); commit"
        ));
        self.run(&sql).await
    }

    /// Around a move of rows through the parent: the trigger would take a moved event for a new one, check it again, and
    /// queue it for a second position.
    fn without_triggers(&self) -> (String, String) {
        if self.table != "outbox_events" {
            return Default::default();
        }
        let parent = self.parent();
        let turn = |word: &str| format!("alter table {parent} {word} trigger outbox_insert;");
        (turn("disable"), turn("enable"))
    }

    /// Creates a table beside the parent and attaches it. `create table … partition of` would lock the parent
    /// against writers; ATTACH does not, and an empty table needs no scan.
    async fn attach_new(&self, name: &str, from: &str, to: &str) -> Result<()> {
        let sql = format!(
            "begin; {} alter table {} attach partition {} for values from ({from}) to ({to}); commit",
            self.create(name, &self.owner().await?),
            self.parent(),
            self.part(name),
        );
        self.run(&sql).await
    }

    /// One transaction that keeps everybody out for as long as the tail's rows take to be checked.
    async fn close_tail(&self, tail: &str, name: &str, low: i64, at: i64) -> Result<()> {
        let (parent, old, closed) = (self.parent(), self.part(tail), self.part(name));
        let (key, owner) = (self.key().await?, self.owner().await?);
        let tail = format!("{}_tail", self.table);
        let sql = format!(
            "begin; lock table {parent} in access exclusive mode; \
             alter table {parent} detach partition {old}; alter table {old} rename to \"{name}\"; {create} \
             with far as (delete from {closed} where {key} >= {at} returning *) insert into {new} select * from far; \
             alter table {parent} attach partition {closed} for values from ({low}) to ({at}); \
             alter table {parent} attach partition {new} for values from ({at}) to (maxvalue); commit",
            create = self.create(&tail, &owner),
            new = self.part(&tail),
            low = self.axis.quoted(low),
            at = self.axis.quoted(at),
        );
        self.run(&sql).await
    }

    /// Detaches and drops these, from the lowest on as far as it may. False when something holds one of them.
    async fn drop_parts(&self, parts: Vec<(String, i64)>, done: &mut RangesDone) -> Result<bool> {
        let mut free = Vec::new();
        let all = parts.len();
        for (name, high) in parts {
            if self.is_proven() && !self.retire(&name, done).await? {
                break;
            }
            free.push((name, high));
        }
        if free.iter().all(|(name, _)| is_past(name)) {
            for (name, _) in &free {
                self.reopen(name).await?;
            }
            return Ok(false);
        }
        for (name, _) in &free {
            self.detach(name).await?;
        }
        let (complete, until) = (free.len() == all, free.iter().map(|(_, high)| *high).max());
        for (name, _) in free {
            self.drop_detached(&name).await?;
            done.dropped.push(name);
        }
        if let Some(until) = until {
            self.attach_past(until).await?;
        }
        Ok(complete)
    }

    /// The first half waits for everybody who has touched the table, open and prepared transactions included; the
    /// second, by itself, only for those who may still look at this partition.
    async fn detach(&self, name: &str) -> Result<()> {
        let (parent, part) = (self.parent(), self.part(name));
        match self.run(&format!("alter table {parent} detach partition {part} concurrently")).await {
            Err(error) if error.sqlstate() == Some("55P03") => self.finish_detach(name).await,
            result => result,
        }
    }

    async fn finish_detach(&self, name: &str) -> Result<()> {
        let (parent, part) = (self.parent(), self.part(name));
        self.run(&format!("alter table {parent} detach partition {part} finalize")).await
    }

    /// Whether partitions go only when they are proven not to be needed.
    fn is_proven(&self) -> bool {
        matches!(&*self.table, "outbox_events" | "outbox_feed")
    }

    /// Proves that nothing in a partition is needed, and closes it. False when it is needed, or held by somebody.
    async fn retire(&self, name: &str, done: &mut RangesDone) -> Result<bool> {
        let part = self.part(name);
        let sql = format!(
            "begin isolation level read committed; lock table {part} in share row exclusive mode; \
             do $$ begin \
             if exists (select from {s}.ranges() r where r.parent = '{table}' and r.name = '{name}' and r.high <= r.edge and not r.retired) then \
             alter table {part} add constraint retired check (false) not valid; \
             end if; end $$; commit",
            s = self.s,
            table = self.table,
        );
        match self.run(&sql).await {
            Err(error) if error.sqlstate() == Some("55P03") => {
                done.held.push(name.to_owned());
                Ok(false)
            }
            Err(error) => Err(error),
            Ok(()) => {
                let proven = "from pg_constraint k where k.conname = 'retired' and k.conrelid";
                self.holds(&format!("exists (select {proven} = '{part}'::regclass)")).await
            }
        }
    }

    async fn reopen(&self, name: &str) -> Result<()> {
        self.run(&format!("alter table {} drop constraint if exists retired", self.part(name))).await
    }

    /// Another process may have dropped it meanwhile, and attached a new one of that name.
    async fn drop_detached(&self, name: &str) -> Result<()> {
        let part = self.part(name);
        let proven = match self.is_proven() {
            true => format!(
                "and exists (select from pg_constraint where conrelid = '{part}'::regclass and conname = 'retired')"
            ),
            false => String::new(),
        };
        let sql = format!(
            "do $$ begin if to_regclass('{part}') is null then return; end if; \
             lock table {part} in access exclusive mode; \
             if not exists (select from pg_inherits where inhrelid = '{part}'::regclass) {proven} then \
             drop table {part}; end if; end $$"
        );
        self.run(&sql).await
    }

    /// The column by which the table is ranged, quoted.
    async fn key(&self) -> Result<String> {
        let sql = "/* outhaul:ranges */ select quote_ident(a.attname) from pg_partitioned_table p \
            join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0] where p.partrelid = $1::text::regclass";
        let parent = self.parent();
        let rows = self.client.query_typed(sql, &[(&parent, Type::TEXT)]).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| {
            Error::new(Kind::SchemaMissing, format!("{parent} is not a partitioned table"))
                .with_hint("Check that the schema was migrated by this version.")
        })
    }

    async fn owner(&self) -> Result<String> {
        let sql = "/* outhaul:ranges */ select quote_ident(pg_get_userbyid(relowner)) from pg_class where oid = $1::text::regclass";
        let row = self.client.query_typed(sql, &[(&self.parent(), Type::TEXT)]).await?;
        Ok(row.first().map(|row| row.get(0)).unwrap_or_else(|| "current_user".to_owned()))
    }

    async fn holds(&self, condition: &str) -> Result<bool> {
        let sql = format!("/* outhaul:ranges */ select {condition}");
        Ok(self.client.query_typed(&sql, &[]).await?.first().is_some_and(|row| row.get(0)))
    }

    async fn run(&self, sql: &str) -> Result<()> {
        let result = self.client.batch_execute(&format!("/* outhaul:ranges */ {sql}")).await;
        if result.is_err() {
            // After an error inside begin … commit the session is in a failed transaction.
            let _ = self.client.batch_execute("rollback").await;
        }
        Ok(result?)
    }

    fn create(&self, name: &str, owner: &str) -> String {
        let (part, parent) = (self.part(name), self.parent());
        format!(
            "create table if not exists {part} (like {parent} including defaults including indexes including storage); \
             alter table {part} owner to {owner};"
        )
    }

    fn parent(&self) -> String {
        format!("{}.{}", self.s, self.table)
    }

    fn part(&self, name: &str) -> String {
        format!("{}.\"{name}\"", self.s)
    }
}

/// A concurrent detach leaves the old range behind as a CHECK constraint, one more each time.
fn without_checks(table: &str) -> String {
    format!(
        "do $$ declare c name; begin \
         for c in select conname from pg_constraint where conrelid = '{table}'::regclass and contype = 'c' loop \
         execute format('alter table {table} drop constraint %I', c); end loop; end $$;"
    )
}
