//! What the kinds of leased work do not share: the functions that renew, settle and sweep their leases.
//!
//! Everything about *when* these are called, and what their answers mean, is said once, in pulse, settle and lead.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::held::{History, Lease, Plane, event_key, event_seq};
use super::link::Db;
use super::settle::sql_verdict;
use crate::decide::verdict::{Attempt, Verdict};
use crate::error::Result;
use crate::store::statement::{
    CHECKPOINT, COMPLETE, COMPLETE_EVENTS, EXPIRED_EVENTS, EXPIRED_SUBSCRIPTIONS, FAIL, FAIL_EVENTS, HOLD,
    RENEW, RENEW_EVENTS, RENEW_SUBSCRIPTIONS,
};

/// The state of what a call did not change, by lease id: `lost`, `cancelled`, `locked` or `done`.
pub(crate) type Missing = HashMap<Uuid, String>;

/// How far a batch of events got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) handled: Option<i64>,
    /// The event that failed, or was given back and is handled now.
    pub(crate) at: Option<i64>,
    pub(crate) unparked: bool,
    pub(crate) committed: Option<i64>,
}

/// What is said about a lease that did not end in completion.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    pub(crate) verdict: Verdict,
    pub(crate) class: Option<&'static str>,
    pub(crate) code: Option<String>,
    pub(crate) summary: Option<String>,
    pub(crate) progress: Progress,
}

/// A lease that has run out.
pub(crate) struct Expired {
    pub(crate) lease: Lease,
    pub(crate) attempt: Attempt,
    /// Whether the cursor waits at an event that fails for good.
    pub(crate) blocks: bool,
    /// What it was, for the log.
    pub(crate) what: String,
    pub(crate) holder: String,
    pub(crate) overdue_ms: i64,
}

/// Leases as the parallel arrays that the functions take.
struct Names {
    ids: Vec<Uuid>,
    tokens: Vec<Uuid>,
    claims: Vec<i32>,
    seqs: Vec<i64>,
    ats: Vec<Timestamp>,
}

impl Names {
    fn of(leases: &[Lease]) -> Names {
        Names {
            ids: leases.iter().map(|lease| lease.id).collect(),
            tokens: leases.iter().map(|lease| lease.token).collect(),
            claims: leases.iter().map(|lease| lease.claim_no).collect(),
            seqs: leases.iter().map(|lease| event_seq(lease.id)).collect(),
            ats: leases.iter().map(|lease| lease.at).collect(),
        }
    }
}

/// Prolongs leases; returns those that were not.
pub(crate) async fn renew(
    db: &Db,
    plane: Plane,
    leases: &[Lease],
    lease: Duration,
    patience: Duration,
) -> Result<Missing> {
    let n = Names::of(leases);
    let ms = lease.as_millis() as i64;
    let rows = match plane {
        Plane::Jobs => {
            let rows = db.rows_within(&RENEW, &[&n.ids, &n.tokens, &ms], patience).await?;
            let state = |row: &Row| match row.get(2) {
                true => "cancelled".to_owned(),
                false => row.get(1),
            };
            return Ok(rows.iter().map(|row| (row.get(0), state(row))).collect());
        }
        Plane::Relay => db.rows_within(&RENEW_EVENTS, &[&n.seqs, &n.ats, &n.tokens, &ms], patience).await?,
        Plane::Subscriptions => {
            db.rows_within(&RENEW_SUBSCRIPTIONS, &[&n.ids, &n.tokens, &ms], patience).await?
        }
    };
    Ok(missing(plane, &rows))
}

/// Ends leases whose work is done; returns those that were not ended.
pub(crate) async fn complete(
    db: &Db,
    plane: Plane,
    leases: &[Lease],
    history: History,
    progress: &[Progress],
) -> Result<Missing> {
    let n = Names::of(leases);
    let rows = match plane {
        Plane::Jobs => db.rows(&COMPLETE, &[&n.ids, &n.tokens, &n.claims, &history.as_str()]).await?,
        Plane::Relay => db.rows(&COMPLETE_EVENTS, &[&n.seqs, &n.ats, &n.tokens, &n.claims]).await?,
        Plane::Subscriptions => {
            let positions: Vec<i64> = progress.iter().map(|p| p.handled.unwrap_or(0)).collect();
            let unparked: Vec<Option<i64>> = progress.iter().map(|p| p.at.filter(|_| p.unparked)).collect();
            let committed: Vec<Option<i64>> =
                progress.iter().map(|p| p.committed.filter(|_| !p.unparked)).collect();
            let params: [&(dyn ToSql + Sync); 6] =
                [&n.ids, &n.tokens, &n.claims, &positions, &unparked, &committed];
            db.rows(&CHECKPOINT, &params).await?
        }
    };
    Ok(missing(plane, &rows))
}

/// Ends leases by verdicts; returns those that were not ended.
pub(crate) async fn fail(
    db: &Db,
    plane: Plane,
    leases: &[Lease],
    reports: &[Reported],
    expired_only: bool,
) -> Result<Missing> {
    let n = Names::of(leases);
    let (verdicts, delays): (Vec<&str>, Vec<i64>) =
        reports.iter().map(|report| sql_verdict(report.verdict)).unzip();
    let classes: Vec<Option<&str>> = reports.iter().map(|report| report.class).collect();
    let codes: Vec<Option<&str>> = reports.iter().map(|report| report.code.as_deref()).collect();
    let summaries: Vec<Option<&str>> = reports.iter().map(|report| report.summary.as_deref()).collect();
    let mut params: Vec<&(dyn ToSql + Sync)> = match plane {
        Plane::Jobs | Plane::Subscriptions => vec![&n.ids, &n.tokens, &n.claims],
        Plane::Relay => vec![&n.seqs, &n.ats, &n.tokens, &n.claims],
    };
    let words: [&(dyn ToSql + Sync); 5] = [&verdicts, &delays, &classes, &codes, &summaries];
    params.extend(words);
    let handled: Vec<Option<i64>> = reports.iter().map(|report| report.progress.handled).collect();
    let failed: Vec<Option<i64>> = reports.iter().map(|report| report.progress.at).collect();
    let unparked: Vec<bool> = reports.iter().map(|report| report.progress.unparked).collect();
    let statement = match plane {
        Plane::Jobs => &FAIL,
        Plane::Relay => &FAIL_EVENTS,
        Plane::Subscriptions => {
            let progress: [&(dyn ToSql + Sync); 3] = [&handled, &failed, &unparked];
            params.extend(progress);
            &HOLD
        }
    };
    params.push(&expired_only);
    Ok(missing(plane, &db.rows(statement, &params).await?))
}

/// Leases of events or cursors that have run out. Those of jobs are looked for by queue.
pub(crate) async fn expired_events(db: &Db, n: i32) -> Result<Vec<Expired>> {
    let rows = db.rows(&EXPIRED_EVENTS, &[&n]).await?;
    let expired = |row: &Row| Expired {
        lease: Lease { id: event_key(row.get(0)), at: row.get(1), token: row.get(2), claim_no: row.get(3) },
        attempt: attempt(row.get(3), row.get(4), row.get(5)),
        blocks: false,
        what: row.get(6),
        holder: row.get::<_, Option<String>>(7).unwrap_or_default(),
        overdue_ms: row.get(8),
    };
    Ok(rows.iter().map(expired).collect())
}

/// See [`expired_events`].
pub(crate) async fn expired_subscriptions(db: &Db, n: i32) -> Result<Vec<Expired>> {
    let rows = db.rows(&EXPIRED_SUBSCRIPTIONS, &[&n]).await?;
    let expired = |row: &Row| Expired {
        lease: Lease { id: row.get(0), token: row.get(1), claim_no: row.get(2), at: Timestamp::UNIX_EPOCH },
        attempt: attempt(row.get(2), row.get(3), row.get(4)),
        blocks: row.get::<_, &str>(5) == "block",
        what: row.get(6),
        holder: row.get::<_, Uuid>(7).to_string(),
        overdue_ms: row.get(8),
    };
    Ok(rows.iter().map(expired).collect())
}

/// The counters of a claim as rows have them.
pub(crate) fn attempt(claim_no: i32, attempts: i32, max_attempts: i32) -> Attempt {
    let count = |n: i32| n.max(0) as u32;
    Attempt { claim_no: count(claim_no), attempts: count(attempts), max_attempts: count(max_attempts) }
}

fn missing(plane: Plane, rows: &[Row]) -> Missing {
    let id = |row: &Row| match plane {
        Plane::Relay => event_key(row.get(0)),
        Plane::Jobs | Plane::Subscriptions => row.get(0),
    };
    rows.iter().map(|row| (id(row), row.get(1))).collect()
}
