//! A TCP proxy that reads the PostgreSQL protocol and injects faults at proven points.
//!
//! Clients reach it on a loopback port without TLS; it reaches its server by TCP or by socket. It knows the
//! application name of each connection (its *role*), the text of each prepared and unnamed statement (by its
//! tag, the comment `/* outhaul:NAME */`), and whether a transaction is known to be committed.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use outhaul_local::{Action, Match, Phase, Proxy, Rule};
//! # async fn example(server_url: &str) -> outhaul_local::Result<()> {
//! let proxy = Proxy::start(server_url).await?;
//! let cut = proxy.add(Rule::on(Match::at(Phase::AfterCommitted).tag("complete").role("/work")).then(Action::Cut));
//! // ... a worker connects to proxy.url_for("outhaul/work") and completes a job ...
//! let proof = cut.fired(Duration::from_secs(10)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Authentication passes through untouched. A server that wants TLS is not supported.

mod link;
mod rule;
mod session;
pub(crate) mod upstream;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use rule::{Action, Event, Match, Phase, Proof, Rule, RuleBuilder, RuleHandle};

use crate::error::{Context, Error, Result};
use crate::system::account::Account;
use crate::system::port::ReservedPort;
use rule::{Firing, Rules, role_matches};
use session::Session;
use upstream::Target;
use wire::Flow;

/// Ended connections that are still reported.
const MOST_ENDED: usize = 10_000;

/// A proxy in front of one server; dropping it closes the port and every connection.
pub struct Proxy {
    shared: Arc<Shared>,
    port: ReservedPort,
    listening: Mutex<Option<JoinHandle<()>>>,
}

/// What is known of one client connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Number in the order of arrival, from 1.
    pub id: u64,
    /// `application_name`; empty before the client has told it.
    pub role: String,
    /// The user the client gave.
    pub user: String,
    /// The database the client gave.
    pub database: String,
    /// Process id of the backend; none before the server has told it.
    pub pid: Option<i32>,
    /// `I` idle, `T` in a transaction, `E` in a failed one: the server's last word, none before the first.
    pub status: Option<char>,
    /// Notifications the server has sent.
    pub notifications_seen: u64,
    /// Notifications passed on to the client, doubled ones counted twice.
    pub notifications_passed: u64,
    /// Whether it still exists.
    pub open: bool,
}

impl Proxy {
    /// Starts a proxy on a free loopback port in front of the server of this URL (TCP or socket).
    ///
    /// The user, password and database of the URL are those of the URLs it gives out.
    pub async fn start(upstream_url: &str) -> Result<Proxy> {
        let target = Target::parse(upstream_url)?;
        let port = ReservedPort::any(&Account::for_servers()?)?;
        let proxy = Proxy { shared: Arc::new(Shared::new(target)), port, listening: Mutex::new(None) };
        proxy.open_listener().await?;
        Ok(proxy)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// URL through the proxy, without an application name.
    pub fn url(&self) -> String {
        let target = self.shared.target();
        target.url_through(self.port(), target.database(), None)
    }

    /// URL through the proxy for a connection of this role (its `application_name`).
    pub fn url_for(&self, role: &str) -> String {
        let target = self.shared.target();
        target.url_through(self.port(), target.database(), Some(role))
    }

    /// URL through the proxy to another database of the server.
    pub fn url_of(&self, database: &str) -> String {
        self.shared.target().url_through(self.port(), database, None)
    }

    /// Puts a rule in force, behind those that already are.
    pub fn add(&self, rule: Rule) -> RuleHandle {
        self.shared.rules.add(rule)
    }

    /// Takes every rule out of force and lets go what they hold; modes stay.
    pub fn clear_rules(&self) {
        self.shared.rules.clear();
    }

    /// Everything that rules have done, in order.
    pub fn events(&self) -> Vec<Event> {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends every mode: new connections are accepted again and blackholed ones go on. Rules stay.
    pub fn pass(&self) {
        self.shared.modes().clear();
        self.shared.links().values().for_each(|link| link.darken(false));
    }

    /// Stops all bytes of all connections, also of new ones; sockets stay open.
    ///
    /// See [`Action::Blackhole`] for what the client can notice.
    pub fn blackhole(&self) {
        self.set_mode(None, Mode::Blackhole);
    }

    /// The same for connections of one role.
    pub fn blackhole_role(&self, role: &str) {
        self.set_mode(Some(role), Mode::Blackhole);
    }

    /// Resets new connections; those that exist go on.
    pub fn refuse(&self) {
        self.set_mode(None, Mode::Refuse);
    }

    /// The same for connections of one role, as soon as they have told it.
    pub fn refuse_role(&self, role: &str) {
        self.set_mode(Some(role), Mode::Refuse);
    }

    /// Resets every connection that exists now.
    pub fn cut(&self) {
        self.shared.links().values().for_each(|link| link.cut());
    }

    /// Resets every connection of one role that exists now; returns how many.
    pub fn cut_role(&self, role: &str) -> usize {
        let links: Vec<_> = self.shared.links_of(Some(role));
        links.iter().for_each(|link| link.cut());
        links.len()
    }

    /// Closes the port, so that the kernel refuses new connections; those that exist go on.
    pub async fn close_listener(&self) {
        let listening = self.listening().take();
        if let Some(listening) = listening {
            listening.abort();
            // The socket is closed when the task has ended, which is what the caller relies on.
            let _ = listening.await;
        }
    }

    /// Opens the port again; nothing happens when it is open.
    pub async fn open_listener(&self) -> Result<()> {
        if self.listening().is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(("127.0.0.1", self.port())).await;
        let listener = listener.context(|| format!("the proxy cannot listen on port {}", self.port()))?;
        *self.listening() = Some(tokio::spawn(accept(self.shared.clone(), listener)));
        Ok(())
    }

    /// Leads new connections to another server, and resets those that exist when `cut` is true.
    ///
    /// URLs given out before keep working only when user and database are the same there.
    pub fn retarget(&self, upstream_url: &str, cut: bool) -> Result<()> {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = Target::parse(upstream_url)?;
        if cut {
            self.cut();
        }
        Ok(())
    }

    /// Every connection that exists, and the last 10,000 that have ended.
    pub fn connections(&self) -> Vec<Connection> {
        let mut all: Vec<_> = self.shared.ended().iter().cloned().collect();
        all.extend(self.shared.links().values().map(|link| link.describe(true)));
        all.sort_by_key(|connection| connection.id);
        all
    }

    /// The connections of one role, ended ones included.
    pub fn connections_of(&self, role: &str) -> Vec<Connection> {
        self.connections().into_iter().filter(|connection| role_matches(&connection.role, role)).collect()
    }

    /// Waits until the condition holds; it is looked at whenever something has happened in the proxy.
    ///
    /// Fails with `what` when it does not within `limit`.
    pub async fn until(&self, what: &str, limit: Duration, condition: impl Fn(&Proxy) -> bool) -> Result<()> {
        let mut changes = self.shared.changes.subscribe();
        let wait = async {
            while !condition(self) {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let waited = tokio::time::timeout(limit, wait).await;
        waited.map_err(|_| Error::new(format!("not within {limit:?} at the proxy: {what}")))
    }

    fn set_mode(&self, role: Option<&str>, mode: Mode) {
        self.shared.modes().push((role.map(str::to_owned), mode));
        if mode == Mode::Blackhole {
            self.shared.links_of(role).iter().for_each(|link| link.darken(true));
        }
    }

    fn listening(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(listening) = self.listening().take() {
            listening.abort();
        }
        self.cut();
    }
}

/// Names the port and the server's place; never a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.shared.target();
        f.debug_struct("Proxy")
            .field("port", &self.port())
            .field("server", target.place())
            .finish_non_exhaustive()
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            // Out of file descriptors, or the client has gone again: neither ends the proxy.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let mode = shared.mode_of(None);
        if mode == Some(Mode::Refuse) {
            let _ = client.set_zero_linger();
            continue;
        }
        let _ = client.set_nodelay(true);
        let link = shared.open_link();
        link.darken(mode == Some(Mode::Blackhole));
        tokio::spawn(serve(shared.clone(), link, client));
    }
}

async fn serve(shared: Arc<Shared>, link: Arc<Link>, client: TcpStream) {
    link::serve(shared.clone(), link.clone(), client).await;
    shared.close_link(&link);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Blackhole,
    Refuse,
}

/// What the proxy and its connections share.
struct Shared {
    rules: Rules,
    target: Mutex<Target>,
    modes: Mutex<Vec<(Option<String>, Mode)>>,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    ended: Mutex<VecDeque<Connection>>,
    events: Mutex<Vec<Event>>,
    changes: watch::Sender<u64>,
    next: AtomicU64,
}

impl Shared {
    fn new(target: Target) -> Shared {
        Shared {
            rules: Rules::default(),
            target: Mutex::new(target),
            modes: Mutex::default(),
            links: Mutex::default(),
            ended: Mutex::default(),
            events: Mutex::default(),
            changes: watch::Sender::new(0),
            next: AtomicU64::new(1),
        }
    }

    fn target(&self) -> Target {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn modes(&self) -> MutexGuard<'_, Vec<(Option<String>, Mode)>> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last mode set for this role, or for all.
    fn mode_of(&self, role: Option<&str>) -> Option<Mode> {
        let concerns = |wanted: &Option<String>| match (wanted, role) {
            (None, _) => true,
            (Some(wanted), Some(role)) => role_matches(role, wanted),
            (Some(_), None) => false,
        };
        self.modes().iter().rev().find(|(wanted, _)| concerns(wanted)).map(|(_, mode)| *mode)
    }

    fn links_of(&self, role: Option<&str>) -> Vec<Arc<Link>> {
        let links = self.links();
        let concerned = |link: &&Arc<Link>| role.is_none_or(|role| role_matches(&link.session().role, role));
        links.values().filter(concerned).cloned().collect()
    }

    fn open_link(&self) -> Arc<Link> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(Link::new(id));
        self.links().insert(id, link.clone());
        self.changed();
        link
    }

    fn close_link(&self, link: &Link) {
        let mut ended = self.ended();
        self.links().remove(&link.id);
        ended.push_back(link.describe(false));
        if ended.len() > MOST_ENDED {
            ended.pop_front();
        }
        drop(ended);
        self.changed();
    }

    fn record(&self, link: &Link, firing: &Firing, proof: Proof) {
        let (role, pid) = {
            let session = link.session();
            (session.role.clone(), session.pid)
        };
        let (phase, action, tag) = (firing.rule.phase(), firing.rule.action(), firing.tag.clone());
        let event = Event { at: Instant::now(), connection: link.id, role, pid, phase, action, tag, proof };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        firing.rule.record(event);
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// One client connection.
struct Link {
    id: u64,
    session: Mutex<Session>,
    flow: watch::Sender<Flow>,
    seen: AtomicU64,
    passed: AtomicU64,
}

impl Link {
    fn new(id: u64) -> Link {
        let (seen, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        Link { id, session: Mutex::default(), flow: watch::Sender::default(), seen, passed }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn darken(&self, dark: bool) {
        self.flow.send_modify(|flow| flow.dark = dark);
    }

    fn mute(&self, mute: bool) {
        self.flow.send_modify(|flow| flow.mute = mute);
    }

    fn cut(&self) {
        self.flow.send_modify(|flow| flow.cut = true);
    }

    async fn until_cut(&self) {
        // The sender is part of `self`, so the wait cannot fail.
        let _ = self.flow.subscribe().wait_for(|flow| flow.cut).await;
    }

    fn notified(&self, seen: u64, passed: u64) {
        self.seen.fetch_add(seen, Ordering::SeqCst);
        self.passed.fetch_add(passed, Ordering::SeqCst);
    }

    fn describe(&self, open: bool) -> Connection {
        let session = self.session();
        Connection {
            id: self.id,
            role: session.role.clone(),
            user: session.user.clone(),
            database: session.database.clone(),
            pid: session.pid,
            status: session.status,
            notifications_seen: self.seen.load(Ordering::SeqCst),
            notifications_passed: self.passed.load(Ordering::SeqCst),
            open,
        }
    }
}
