//! The functions of the schema as a worker in any language calls them.

use tokio_postgres::{Error, GenericClient};
use uuid::Uuid;

/// A claimed job, as far as tests look at it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: Uuid,
    pub(crate) token: Uuid,
    pub(crate) claim_no: i32,
    pub(crate) attempts: i32,
    pub(crate) history: String,
}

/// Claims from the beginning of a queue, for a worker without a memory, with a lease of 60 s.
pub(crate) async fn claim(client: &impl GenericClient, queue: &str, n: i32) -> Vec<Lease> {
    try_claim(client, queue, n).await.expect("a claim")
}

pub(crate) async fn try_claim(client: &impl GenericClient, queue: &str, n: i32) -> Result<Vec<Lease>, Error> {
    let sql = "select id, lease_token, claim_no, attempts, history \
        from outhaul.claim($1, $2, '00000000-0000-0000-0000-0000000000aa', '60 s')";
    let rows = client.query(sql, &[&queue, &n]).await?;
    let lease = |row: &tokio_postgres::Row| Lease {
        id: row.get(0),
        token: row.get(1),
        claim_no: row.get(2),
        attempts: row.get(3),
        history: row.get(4),
    };
    Ok(rows.iter().map(lease).collect())
}

/// Claims the one due job of a queue.
pub(crate) async fn claim_one(client: &impl GenericClient, queue: &str) -> Lease {
    let mut leases = claim(client, queue, 10).await;
    assert_eq!(leases.len(), 1, "one due job in {queue}");
    leases.remove(0)
}

/// Reports one completion; `completed` when it was this call that ended the job.
pub(crate) async fn complete(client: &impl GenericClient, lease: &Lease, history: &str) -> String {
    let sql = "select state from outhaul.complete(array[$1::uuid], array[$2::uuid], array[$3::int], $4)";
    let rows =
        client.query(sql, &[&lease.id, &lease.token, &lease.claim_no, &history]).await.expect("complete");
    rows.first().map_or_else(|| "completed".into(), |row| row.get(0))
}

/// Reports one failure; `settled` when it was this call that settled the claim.
pub(crate) async fn fail(client: &impl GenericClient, lease: &Lease, verdict: &str, delay_ms: i64) -> String {
    let sql = "select state from outhaul.fail(array[$1::uuid], array[$2::uuid], array[$3::int], array[$4], array[$5::bigint], \
        array['transient'], array['http_503'], array['the service was away'])";
    let rows = client.query(sql, &[&lease.id, &lease.token, &lease.claim_no, &verdict, &delay_ms]).await;
    rows.expect("fail").first().map_or_else(|| "settled".into(), |row| row.get(0))
}

/// Renews one lease by an hour; `renewed`, `locked` or `lost`.
pub(crate) async fn renew(client: &impl GenericClient, id: Uuid, token: Uuid) -> String {
    let sql = "select state from outhaul.renew(array[$1::uuid], array[$2::uuid], '1 hour')";
    let rows = client.query(sql, &[&id, &token]).await.expect("renew");
    rows.first().map_or_else(|| "renewed".into(), |row| row.get(0))
}
