//! Turning the sequencer without reading.

use std::time::Duration;

use super::conn::Conn;
use super::statement::SEQUENCE;
use crate::error::Result;
use crate::model::SchemaName;

/// Events that get their positions in one call.
const TURN: i32 = 1_000;
/// Calls in a row: the turn is offered to others and whoever called looks after the rest of its work.
const TURNS: usize = 100;
/// How long one call may take before its connection is taken for dead. Each is an autocommit of its own, so what was
/// given before stays given.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives positions to committed events until few are left; returns how many got one. Where nobody reads, events
/// would otherwise stay without a position, and without one they are never removed.
///
/// # Errors
/// Those of [`Conn::query`]; the next call goes on from where this one ended.
pub(crate) async fn sequence(conn: &Conn, schema: &SchemaName) -> Result<u64> {
    let text = SEQUENCE.text(schema);
    let mut sum = 0;
    for _ in 0..TURNS {
        let rows = conn.query(&text, &[(&TURN, tokio_postgres::types::Type::INT4)], PATIENCE).await?;
        let given: i32 = rows.first().map_or(0, |row| row.get(0));
        // Below zero somebody else is at it, and then there is nothing to do.
        sum += u64::try_from(given).unwrap_or(0);
        if given < TURN {
            break;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use outhaul_local::TestServer;

    use super::*;
    use crate::store::conn::Purpose;
    use crate::store::dsn::Dsn;
    use crate::store::migrate::{self, MigrateOptions};

    #[tokio::test]
    async fn events_get_their_positions_although_nobody_reads() {
        let database = TestServer::shared().await.unwrap().empty_database().await.unwrap();
        let dsn: Dsn = database.url().parse().unwrap();
        let conn = Conn::open(&dsn, Purpose::Tool, PATIENCE).await.unwrap();
        migrate::migrate(conn.client(), &MigrateOptions::default()).await.unwrap();
        let schema = SchemaName::default();
        assert_eq!(sequence(&conn, &schema).await.unwrap(), 0);
        let publish = "select count(outhaul.publish('order.changed', 'order', gen_random_uuid())) from generate_series(1, 2500)";
        conn.query(publish, &[], PATIENCE).await.unwrap();
        let rival = Conn::open(&dsn, Purpose::Tool, PATIENCE).await.unwrap();
        rival.batch("begin", PATIENCE).await.unwrap();
        rival.query("select outhaul.sequence(10)", &[], PATIENCE).await.unwrap();
        assert_eq!(sequence(&conn, &schema).await.unwrap(), 0, "somebody else is at it");
        rival.batch("rollback", PATIENCE).await.unwrap();
        assert_eq!(sequence(&conn, &schema).await.unwrap(), 2_500);
        let left =
            conn.query("select count(*) from outhaul.outbox_unsequenced", &[], PATIENCE).await.unwrap();
        assert_eq!(left[0].get::<_, i64>(0), 0);
        let head =
            conn.query("select last_position from outhaul.outbox_feed_head", &[], PATIENCE).await.unwrap();
        assert_eq!(head[0].get::<_, i64>(0), 2_500);
    }
}
