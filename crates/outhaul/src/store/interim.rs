use super::dsn::*;
use crate::error::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio_postgres::{
    AsyncMessage, Client, NoTls, Row,
    types::{ToSql, Type},
};
use tokio_util::sync::CancellationToken;
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Purpose {
    Claim,
    Settle,
    Pulse,
    Upkeep,
    Listen,
    Tool,
}
pub(crate) struct Conn {
    client: Client,
    pid: i32,
    heard: watch::Receiver<u64>,
    closed: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}
impl Drop for Conn {
    fn drop(&mut self) {
        self.task.abort()
    }
}
impl Conn {
    pub(crate) async fn open(dsn: &Dsn, p: Purpose) -> Result<Conn> {
        let mut c = tokio_postgres::Config::new();
        c.user(&dsn.user);
        c.dbname(&dsn.database);
        c.application_name(format!("outhaul/{p:?}").to_lowercase());
        c.connect_timeout(Duration::from_secs(5));
        for h in &dsn.hosts {
            match &h.place {
                Place::Name(n) => {
                    c.host(n);
                }
                Place::Socket(p) => {
                    c.host_path(p);
                }
            }
            c.port(h.port);
        }
        if let Some(p) = dsn.password(&dsn.hosts[0]) {
            c.password(p);
        }
        let (client, mut conn) = c.connect(NoTls).await?;
        let (tx, heard) = watch::channel(0);
        let closed = CancellationToken::new();
        let cl = closed.clone();
        let task = tokio::spawn(async move {
            loop {
                match std::future::poll_fn(|cx| conn.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(_))) => tx.send_modify(|n| *n += 1),
                    Some(Ok(_)) => {}
                    _ => break,
                }
            }
            cl.cancel();
        });
        let pid = client.query_typed("select pg_backend_pid()", &[]).await?[0].get(0);
        Ok(Conn { client, pid, heard, closed, task })
    }
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }
    pub(crate) fn notifications(&self) -> watch::Receiver<u64> {
        self.heard.clone()
    }
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await
    }
    pub(crate) async fn batch(&self, sql: &str, d: Duration) -> Result<()> {
        tokio::time::timeout(d, self.client.batch_execute(sql))
            .await
            .map_err(|_| Error::new(Kind::Timeout, "timeout"))?
            .map_err(Error::from)
    }
    pub(crate) async fn query(
        &self,
        sql: &str,
        p: &[(&(dyn ToSql + Sync), Type)],
        d: Duration,
    ) -> Result<Vec<Row>> {
        tokio::time::timeout(d, self.client.query_typed(sql, p))
            .await
            .map_err(|_| Error::new(Kind::Timeout, "timeout"))?
            .map_err(Error::from)
    }
}
#[derive(Clone)]
pub(crate) struct Link(Arc<(Dsn, Purpose, Mutex<Option<Arc<Conn>>>)>);
impl Link {
    pub(crate) fn new(dsn: Dsn, p: Purpose) -> Link {
        Link(Arc::new((dsn, p, Mutex::new(None))))
    }
    pub(crate) async fn get(&self) -> Arc<Conn> {
        loop {
            let mut g = self.0.2.lock().await;
            if let Some(c) = &*g {
                if !c.client.is_closed() {
                    return c.clone();
                }
            }
            match Conn::open(&self.0.0, self.0.1).await {
                Ok(c) => {
                    let c = Arc::new(c);
                    *g = Some(c.clone());
                    return c;
                }
                Err(e) => {
                    tracing::warn!(%e, "connect");
                    tokio::time::sleep(Duration::from_millis(500)).await
                }
            }
        }
    }
    pub(crate) fn discard(&self, c: &Arc<Conn>) {
        if let Ok(mut g) = self.0.2.try_lock() {
            if g.as_ref().is_some_and(|x| Arc::ptr_eq(x, c)) {
                *g = None
            }
        }
    }
    pub(crate) async fn connect_once(&self, _d: Duration) -> Result<Arc<Conn>> {
        let c = Arc::new(Conn::open(&self.0.0, self.0.1).await?);
        *self.0.2.lock().await = Some(c.clone());
        Ok(c)
    }
}
