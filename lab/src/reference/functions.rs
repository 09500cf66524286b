//! The minimal driver of our own SQL functions: what they allow when nothing but they cost anything.
//!
//! It does of a worker's work only what a drain needs: scan floors, claims, batched completions. It does not renew,
//! expire, wake up or publish anything.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use super::driver::Verbs;
use super::{Column, Design, Schema};
use crate::worker::Kind;

pub(crate) const FUNCTIONS: Design = Design {
    name: "functions",
    worker: Kind::Functions,
    schema: Schema::Outhaul { history: "row" },
    channel: "outhaul",
    silent: "select outhaul.enqueue('bench', 'bench.noop', $2::text::jsonb, $1::uuid, notify => false)",
    notifying: "select outhaul.enqueue('bench', 'bench.noop', $2::text::jsonb, $1::uuid)",
    keyed: Some(
        "select outhaul.enqueue('bench', 'bench.noop', $2::text::jsonb, $1::uuid, idempotency_key => $1::uuid::text)",
    ),
    many: "select outhaul.enqueue_many('bench', 'bench.noop', $2::text[], $1::uuid[])",
    many_keyed: Some(
        "select outhaul.enqueue_many('bench', 'bench.noop', $2::text[], $1::uuid[], $1::uuid[]::text[])",
    ),
    columns: &[Column::Id, Column::Payload],
    // In calls of 1,000, as a loader would: each call has its own due time.
    build: "
        select count(outhaul.enqueue_many('bench', 'bench.noop', payloads, ids, notify => false))
        from generate_series(0, $1::bigint / 1000 - 1) call
        cross join lateral (
            select array_agg(format('{\"seq\":%s}', call * 1000 + n)) as payloads, array_agg(outhaul.uuid7()) as ids
            from generate_series(0, 999) n
        ) jobs",
};

/// The same with a queue that keeps nothing of completed jobs.
pub(crate) const FUNCTIONS_NO_HISTORY: Design =
    Design { name: "functions_no_history", schema: Schema::Outhaul { history: "none" }, ..FUNCTIONS };

/// The same tables for the library: its worker, and producers in this process where a cell measures enqueues.
pub(crate) const OUTHAUL: Design = Design { name: "outhaul", worker: Kind::Outhaul, ..FUNCTIONS };

pub(crate) const OUTHAUL_NO_HISTORY: Design =
    Design { name: "outhaul_no_history", worker: Kind::Outhaul, ..FUNCTIONS_NO_HISTORY };

const CLAIM: &str = "
    /* outhaul:claim */
    select id, lease_token, claim_no, payload, run_at, history
    from outhaul.claim('bench', $1::integer, $2::uuid, interval '60 s', $3::smallint[], $4::integer[],
        $5::timestamptz[], $6::bigint[])";

const COMPLETE: &str = "
    /* outhaul:complete */
    select id::text || ' is ' || state from outhaul.complete($1, $2, $3, $4)";

/// How often a claim starts from zero: it finds what was committed late.
const RESCAN: Duration = Duration::from_secs(2);
/// Where the claim after a short one starts, in milliseconds before now.
const BEHIND_MS: i64 = 500;

pub(super) struct FunctionsWorker {
    claimer: Client,
    settler: Client,
    claim: Statement,
    complete: Statement,
    id: Uuid,
    scan: Mutex<Scan>,
}

/// Where the next claim starts in the only lane, and what the queue keeps of completed jobs.
struct Scan {
    floor: Floor,
    from_zero_at: Instant,
    history: String,
}

#[derive(Clone, Copy)]
enum Floor {
    Zero,
    At(SystemTime),
    Behind,
}

/// A leased job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lease {
    id: Uuid,
    token: Uuid,
    claim_no: i32,
}

impl Verbs for FunctionsWorker {
    type Held = Lease;

    async fn connect(claimer: Client, settler: Client) -> Result<Self> {
        let claim = claimer.prepare(CLAIM).await?;
        let complete = settler.prepare(COMPLETE).await?;
        let scan = Scan { floor: Floor::Zero, from_zero_at: Instant::now(), history: String::new() };
        Ok(Self { claimer, settler, claim, complete, id: Uuid::now_v7(), scan: Mutex::new(scan) })
    }

    async fn claim(&self, limit: i64) -> Result<Vec<(Lease, String)>> {
        let (priorities, shares) = (vec![0_i16], vec![0_i32]);
        let limit = limit as i32;
        let (run_ats, behind): (Vec<Option<SystemTime>>, Vec<Option<i64>>) = match self.scan().next() {
            Floor::Zero => (Vec::new(), Vec::new()),
            Floor::At(run_at) => (vec![Some(run_at)], vec![None]),
            Floor::Behind => (vec![None], vec![Some(BEHIND_MS)]),
        };
        let all: [&(dyn ToSql + Sync); 6] = [&limit, &self.id, &priorities, &shares, &run_ats, &behind];
        let none = None::<Vec<i16>>;
        let from_zero: [&(dyn ToSql + Sync); 6] =
            [&limit, &self.id, &none, &None::<Vec<i32>>, &None::<Vec<SystemTime>>, &None::<Vec<i64>>];
        let rows =
            self.claimer.query(&self.claim, if run_ats.is_empty() { &from_zero } else { &all }).await?;
        self.scan().learn(&rows, rows.len() == limit as usize);
        let lease = |row: &Row| Lease { id: row.get(0), token: row.get(1), claim_no: row.get(2) };
        Ok(rows.iter().map(|row| (lease(row), row.get(3))).collect())
    }

    async fn settle(&self, mut held: Vec<Lease>) -> Result<u64> {
        // In one order, so that two batches never wait for each other in a circle.
        held.sort_unstable();
        let ids: Vec<Uuid> = held.iter().map(|lease| lease.id).collect();
        let tokens: Vec<Uuid> = held.iter().map(|lease| lease.token).collect();
        let claim_nos: Vec<i32> = held.iter().map(|lease| lease.claim_no).collect();
        let history = self.scan().history.clone();
        let refused = self.settler.query(&self.complete, &[&ids, &tokens, &claim_nos, &history]).await?;
        if let Some(row) = refused.first() {
            bail!("{} of {} jobs were not completed: {}", refused.len(), held.len(), row.get::<_, String>(0));
        }
        Ok(held.len() as u64)
    }
}

impl FunctionsWorker {
    fn scan(&self) -> MutexGuard<'_, Scan> {
        self.scan.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Scan {
    fn next(&mut self) -> Floor {
        if self.from_zero_at.elapsed() < RESCAN {
            return self.floor;
        }
        self.from_zero_at = Instant::now();
        Floor::Zero
    }

    /// A full claim moves the floor to its last job, a short one to a little before now.
    fn learn(&mut self, rows: &[Row], full: bool) {
        let last = rows.iter().map(|row| row.get(4)).max();
        self.floor = match last {
            Some(last) if full => Floor::At(last),
            _ => Floor::Behind,
        };
        if let Some(row) = rows.first() {
            self.history = row.get(5);
        }
    }
}
