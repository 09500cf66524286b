//! The plain-SQL worker: a thin table, claims with SKIP LOCKED, DELETE when done.
//!
//! It keeps what a queue cannot do without (a due time, and a lease that another worker can see) and nothing else: no
//! fence, no attempts, no priorities, no history, no idempotency.

use anyhow::Result;
use tokio_postgres::{Client, Statement};

use super::driver::Verbs;
use super::{Column, Design, Schema};
use crate::worker::Kind;

pub(crate) const PLAIN: Design = Design {
    name: "plain",
    worker: Kind::Plain,
    schema: Schema::Statements(
        "
        create table jobs (
            id bigint generated always as identity primary key,
            run_at timestamptz not null default now(),
            leased_until timestamptz,
            payload jsonb not null
        );
        create index jobs_pending on jobs (run_at, id) where leased_until is null;",
    ),
    channel: "bench_jobs",
    silent: "insert into jobs (payload) values ($1::text::jsonb)",
    notifying: "
        with job as (insert into jobs (payload) values ($1::text::jsonb) returning id)
        select pg_notify('bench_jobs', '') from job",
    many: "insert into jobs (payload) select p::jsonb from unnest($1::text[]) p",
    keyed: None,
    many_keyed: None,
    columns: &[Column::Payload],
    build: "insert into jobs (payload) select jsonb_build_object('seq', n) from generate_series(1, $1::bigint) n",
};

/// The row is locked when the update reaches it, so its place cannot change: 8 % faster than looking it up by id again.
const CLAIM: &str = "
    with due as materialized (
        select ctid as place from jobs where leased_until is null and run_at <= now()
        order by run_at, id limit $1 for update skip locked
    )
    update jobs j set leased_until = now() + interval '60 s' from due where j.ctid = due.place
    returning j.id, j.payload::text";

const DELETE: &str = "delete from jobs where id = any($1)";

pub(super) struct PlainWorker {
    claimer: Client,
    settler: Client,
    claim: Statement,
    delete: Statement,
}

impl Verbs for PlainWorker {
    type Held = i64;

    async fn connect(claimer: Client, settler: Client) -> Result<Self> {
        let claim = claimer.prepare(CLAIM).await?;
        let delete = settler.prepare(DELETE).await?;
        Ok(Self { claimer, settler, claim, delete })
    }

    async fn claim(&self, limit: i64) -> Result<Vec<(i64, String)>> {
        let rows = self.claimer.query(&self.claim, &[&limit]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn settle(&self, held: Vec<i64>) -> Result<u64> {
        Ok(self.settler.execute(&self.delete, &[&held]).await?)
    }
}
