//! The plainest correct design: one wide jobs table updated in place, with the status as text.
//!
//! Claims mark a batch as leased, completions mark it as completed; finished jobs stay in the table. Ids are UUIDv7 of
//! the client, the kindest choice for the primary key's index.

use anyhow::Result;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::driver::Verbs;
use super::{Column, Design, Schema};
use crate::worker::Kind;

pub(crate) const SEED: Design = Design {
    name: "seed",
    worker: Kind::Seed,
    schema: Schema::Statements(
        "
        create table jobs (
            id uuid primary key,
            organization_id uuid,
            queue text not null,
            job_type text not null,
            payload jsonb not null,
            idempotency_key text,
            status text not null default 'pending',
            priority integer not null default 0,
            run_at timestamptz not null default now(),
            attempts integer not null default 0,
            max_attempts integer not null default 10,
            locked_at timestamptz,
            locked_by text,
            last_error_code text,
            last_error_summary text,
            completed_at timestamptz,
            created_at timestamptz not null default now()
        );
        create unique index jobs_idempotency_uq on jobs (organization_id, job_type, idempotency_key)
            where idempotency_key is not null;
        create index jobs_claim on jobs (queue, priority desc, run_at, id) where status = 'pending';",
    ),
    channel: "bench_jobs",
    silent: "
        insert into jobs (id, queue, job_type, payload) values ($1, 'bench', 'bench.noop', $2::text::jsonb)",
    notifying: "
        with job as (
            insert into jobs (id, queue, job_type, payload) values ($1, 'bench', 'bench.noop', $2::text::jsonb)
            returning id
        )
        select pg_notify('bench_jobs', '') from job",
    many: "
        insert into jobs (id, queue, job_type, payload)
        select i, 'bench', 'bench.noop', p::jsonb from unnest($1::uuid[], $2::text[]) u(i, p)",
    keyed: None,
    many_keyed: None,
    columns: &[Column::Id, Column::Payload],
    build: "
        insert into jobs (id, queue, job_type, payload)
        select gen_random_uuid(), 'bench', 'bench.noop', jsonb_build_object('seq', n)
        from generate_series(1, $1::bigint) n",
};

const CLAIM: &str = "
    with due as materialized (
        select id from jobs where queue = 'bench' and status = 'pending' and run_at <= now()
        order by priority desc, run_at, id limit $1 for update skip locked
    )
    update jobs j set status = 'leased', locked_at = now(), locked_by = $2, attempts = attempts + 1
    from due where j.id = due.id
    returning j.id, j.payload::text";

const COMPLETE: &str = "
    update jobs set status = 'completed', completed_at = now()
    where id = any($1) and status = 'leased' and locked_by = $2";

pub(super) struct SeedWorker {
    claimer: Client,
    settler: Client,
    claim: Statement,
    complete: Statement,
    name: String,
}

impl Verbs for SeedWorker {
    type Held = Uuid;

    async fn connect(claimer: Client, settler: Client) -> Result<Self> {
        let claim = claimer.prepare(CLAIM).await?;
        let complete = settler.prepare(COMPLETE).await?;
        Ok(Self { claimer, settler, claim, complete, name: format!("bench-{}", std::process::id()) })
    }

    async fn claim(&self, limit: i64) -> Result<Vec<(Uuid, String)>> {
        let rows = self.claimer.query(&self.claim, &[&limit, &self.name]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn settle(&self, held: Vec<Uuid>) -> Result<u64> {
        Ok(self.settler.execute(&self.complete, &[&held, &self.name]).await?)
    }
}
