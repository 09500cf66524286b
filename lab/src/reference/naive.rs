//! Readers of an outbox as they are usually written: a cursor on the number of insertion, and one that waits for the
//! oldest running transaction.
//!
//! The first is fast and loses what commits late; the second stands still behind any transaction that has written
//! something, and with a cursor on the number it can lose as well. They say what positions after the commit are for.

use std::time::Duration;

use anyhow::Result;
use tokio::sync::Notify;
use tokio_postgres::{Client, Statement};

use super::{Column, Design, Schema};
use crate::worker::Kind;

pub(crate) const NAIVE: Design = Design {
    name: "naive",
    worker: Kind::Plain,
    schema: Schema::Statements(
        "
        create table outbox (
            id bigint generated always as identity primary key,
            xid xid8 not null default pg_current_xact_id(),
            event_type text not null,
            aggregate_id uuid not null,
            at timestamptz not null default now(),
            payload jsonb not null
        );
        create table cursor (position bigint not null);
        insert into cursor values (0);",
    ),
    channel: "bench_events",
    silent: "insert into outbox (event_type, aggregate_id, payload) values ('order.paid', gen_random_uuid(), $1::text::jsonb)",
    notifying: "
        with event as (
            insert into outbox (event_type, aggregate_id, payload)
            values ('order.paid', gen_random_uuid(), $1::text::jsonb) returning id)
        select pg_notify('bench_events', '') from event",
    many: "
        insert into outbox (event_type, aggregate_id, payload)
        select 'order.paid', gen_random_uuid(), p::jsonb from unnest($1::text[]) p",
    keyed: None,
    many_keyed: None,
    columns: &[Column::Payload],
    build: "
        insert into outbox (event_type, aggregate_id, payload)
        select 'order.paid', gen_random_uuid(), jsonb_build_object('seq', n) from generate_series(1, $1::bigint) n",
};

/// A reader with a cursor.
pub(crate) struct NaiveReader {
    client: Client,
    read: Statement,
    move_on: Statement,
    position: i64,
}

impl NaiveReader {
    /// `waits`: reads only what was committed before the oldest transaction that still runs began to write.
    pub(crate) async fn new(client: Client, waits: bool) -> Result<NaiveReader> {
        let visible = if waits { "and xid < pg_snapshot_xmin(pg_current_snapshot())" } else { "" };
        let read = client
            .prepare(&format!(
                "select id, event_type, aggregate_id, at, payload::text from outbox where id > $1 {visible} order by id limit $2"
            ))
            .await?;
        let move_on = client.prepare("update cursor set position = $1").await?;
        Ok(NaiveReader { client, read, move_on, position: 0 })
    }

    /// Reads a batch, hands the payloads over, and moves the cursor. Returns how many there were.
    pub(crate) async fn batch(&mut self, limit: i64, handle: &mut impl FnMut(&str)) -> Result<usize> {
        let rows = self.client.query(&self.read, &[&self.position, &limit]).await?;
        let Some(last) = rows.last() else { return Ok(0) };
        rows.iter().for_each(|row| handle(row.get(4)));
        self.position = last.get(0);
        self.client.execute(&self.move_on, &[&self.position]).await?;
        Ok(rows.len())
    }

    /// Reads for ever: at once after a notification, else once a second.
    pub(crate) async fn follow(mut self, wake: &Notify, mut handle: impl FnMut(&str)) -> Result<()> {
        loop {
            if self.batch(100, &mut handle).await? == 0 {
                let _ = tokio::time::timeout(Duration::from_secs(1), wake.notified()).await;
            }
        }
    }
}
