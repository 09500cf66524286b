//! The effect log: what the handlers did to the world, told by themselves over connections of their own.
//!
//! It knows nothing of Outhaul's tables and is never written in a transaction with them, so that it can
//! contradict them. `effects` stands for the outside world that takes an idempotency key: a second request
//! under one key makes no second effect, and is written down in `repeats`.

use std::collections::{HashMap, HashSet};

use outhaul::Session;
use uuid::Uuid;

use super::task::Task;

/// Who runs which claim of which job.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) job: Uuid,
    pub(super) claim_no: i32,
    pub(super) worker: i32,
    pub(super) queue: String,
}

/// The log, over one plain connection.
pub(super) struct EffectLog {
    client: Session,
    schema: String,
}

impl EffectLog {
    pub(super) fn new(client: Session, schema: &str) -> EffectLog {
        EffectLog { client, schema: schema.to_owned() }
    }

    /// Makes the tables in the log's schema, which exists.
    pub(super) async fn create(&self) -> anyhow::Result<()> {
        let schema = &self.schema;
        // `effects` has a unique key, `runs` and `repeats` have none: nothing may refuse to be written down.
        let ddl = format!(
            "create table {schema}.runs (
               seq bigint generated always as identity, at timestamptz not null default clock_timestamp(),
               what text not null, job_id uuid not null, claim_no integer not null, operation_id uuid not null,
               queue text not null, worker integer not null, outcome text);
             create index on {schema}.runs (job_id);
             create table {schema}.effects (
               key text primary key, at timestamptz not null default clock_timestamp(),
               operation_id uuid not null, job_id uuid not null, claim_no integer not null);
             create table {schema}.repeats (
               key text not null, at timestamptz not null default clock_timestamp(),
               operation_id uuid not null, job_id uuid not null, claim_no integer not null);"
        );
        Ok(self.client.batch_execute(&ddl).await?)
    }

    /// Writes down that a handler begins.
    pub(super) async fn begin(&self, run: &Run, task: &Task) -> Result<(), tokio_postgres::Error> {
        self.note("begin", run, task, None).await
    }

    /// Writes down how a handler ended.
    pub(super) async fn end(
        &self,
        run: &Run,
        task: &Task,
        outcome: &str,
    ) -> Result<(), tokio_postgres::Error> {
        self.note("end", run, task, Some(outcome)).await
    }

    async fn note(
        &self,
        what: &str,
        run: &Run,
        task: &Task,
        outcome: Option<&str>,
    ) -> Result<(), tokio_postgres::Error> {
        let insert = format!(
            "insert into {}.runs (what, job_id, claim_no, operation_id, queue, worker, outcome) \
             values ($1, $2, $3, $4, $5, $6, $7)",
            self.schema
        );
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&what, &run.job, &run.claim_no, &task.operation, &run.queue, &run.worker, &outcome];
        self.client.execute(&insert, &values).await.map(drop)
    }

    /// Asks the outside world for the effect, under the task's key.
    pub(super) async fn effect(&self, run: &Run, task: &Task) -> Result<(), tokio_postgres::Error> {
        let schema = &self.schema;
        let insert = format!(
            "with made as (
               insert into {schema}.effects (key, operation_id, job_id, claim_no) values ($1, $2, $3, $4)
               on conflict (key) do nothing returning key)
             insert into {schema}.repeats (key, operation_id, job_id, claim_no)
             select $1, $2, $3, $4 where not exists (select from made)"
        );
        self.client.execute(&insert, &[&task.key, &task.operation, &run.job, &run.claim_no]).await.map(drop)
    }

    /// The log's clock, in seconds.
    pub(super) async fn now(&self) -> anyhow::Result<f64> {
        let row = self.client.query_one("select date_part('epoch', clock_timestamp())", &[]).await?;
        Ok(row.get(0))
    }

    /// Handlers that came to an end, by the number of their worker.
    pub(super) async fn ended_by_worker(&self) -> anyhow::Result<HashMap<i32, i64>> {
        let count =
            format!("select worker, count(*) from {}.runs where what = 'end' group by worker", self.schema);
        let rows = self.client.query(&count, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Which of these claims have begun.
    pub(super) async fn begun(&self, jobs: &[Uuid]) -> anyhow::Result<HashSet<(Uuid, i32)>> {
        let query = format!(
            "select job_id, claim_no from {}.runs where what = 'begin' and job_id = any($1)",
            self.schema
        );
        let rows = self.client.query(&query, &[&jobs]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Everything, for the reconciliation.
    pub(super) async fn read(&self) -> anyhow::Result<Told> {
        let schema = &self.schema;
        let runs = format!(
            "select what, job_id, claim_no, operation_id, date_part('epoch', at), outcome \
             from {schema}.runs order by seq"
        );
        let mut told = Told::default();
        for row in self.client.query(&runs, &[]).await? {
            let (job, claim_no): (Uuid, i32) = (row.get(1), row.get(2));
            if row.get::<_, &str>(0) == "begin" {
                told.begun.push(Begun { job, claim_no, operation: row.get(3), at: row.get(4) });
            } else if row.get::<_, Option<&str>>(5) == Some("done") {
                told.done.insert((job, claim_no));
            }
        }
        for table in ["effects", "repeats"] {
            let query = format!("select key, operation_id, job_id, claim_no from {schema}.{table}");
            for row in self.client.query(&query, &[]).await? {
                let asked =
                    Asked { key: row.get(0), operation: row.get(1), job: row.get(2), claim_no: row.get(3) };
                if table == "effects" { told.effects.push(asked) } else { told.repeats.push(asked) }
            }
        }
        Ok(told)
    }
}

/// What the log says.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) begun: Vec<Begun>,
    /// Claims whose handler ended well.
    pub(super) done: HashSet<(Uuid, i32)>,
    pub(super) effects: Vec<Asked>,
    pub(super) repeats: Vec<Asked>,
}

/// A handler that began.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) job: Uuid,
    pub(super) claim_no: i32,
    pub(super) operation: Uuid,
    /// Seconds, by the log's clock.
    pub(super) at: f64,
}

/// A request for an effect under a key.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) key: String,
    pub(super) operation: Uuid,
    pub(super) job: Uuid,
    pub(super) claim_no: i32,
}
