//! Rules: where in the protocol, on which connections, how often, and what then.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::session::Statement;
use crate::error::{Error, Result};

/// A point in the life of a connection or statement at which a [`Rule`] can fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A client has connected and told who it is; the server knows nothing of it yet.
    Connect,
    /// The client has sent the statement's Execute (or Query), and the server has not got it.
    ///
    /// A Parse or Bind that the client flushed earlier may have arrived.
    BeforeForward,
    /// The statement has been written to the server together with the Sync that ends its group, and no
    /// answer to it is passed on. With [`Action::Cut`] the server side is closed in order, so that
    /// everything written still arrives and is executed; only the client's side is reset.
    AfterForward,
    /// The server has answered ReadyForQuery with status *idle* after the statement, without an error or
    /// a rollback in between: it is committed. The client has been told nothing of that answer.
    ///
    /// Nothing is proved, and no rule fires, when the transaction went through ROLLBACK TO SAVEPOINT,
    /// COMMIT AND CHAIN or PREPARE TRANSACTION after the statement.
    AfterCommitted,
    /// The client's own COMMIT was executed by the server, and the client has been told nothing of it.
    /// A tag in the match then means: a statement of that transaction.
    OnCommit,
    /// The server has sent a NotificationResponse that has not been passed on.
    Notification,
}

/// What a [`Rule`] does when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Resets the connection on both sides (RST, zero linger), losing what was not yet passed on.
    Cut,
    /// Stops passing bytes both ways and keeps both sockets open, until [`Proxy::pass`](super::Proxy::pass).
    ///
    /// The kernels of this machine still acknowledge what is sent, so keepalives and `tcp_user_timeout`
    /// see nothing: only a deadline of the client's own ends the wait.
    Blackhole,
    /// Waits, then goes on. On a notification, what follows it is not delayed.
    Delay(Duration),
    /// Waits until [`RuleHandle::release`], then goes on.
    Hold,
    /// Swallows the notification.
    DropNotifications,
    /// Passes the notification on twice.
    DoubleNotifications,
    /// Resets the new connection before the server hears of it.
    Refuse,
}

/// Which connections and statements a [`Rule`] is about.
#[derive(Clone, Debug)]
pub struct Match {
    phase: Phase,
    tag: Option<String>,
    role: Option<String>,
    statement: Option<String>,
    channel: Option<String>,
}

impl Match {
    /// Everything at this phase.
    pub fn at(phase: Phase) -> Match {
        Match { phase, tag: None, role: None, statement: None, channel: None }
    }

    /// Only statements whose text has the comment `/* outhaul:TAG */`.
    pub fn tag(mut self, tag: impl Into<String>) -> Match {
        self.tag = Some(tag.into());
        self
    }

    /// Only connections whose `application_name` is `role` or ends with it.
    pub fn role(mut self, role: impl Into<String>) -> Match {
        self.role = Some(role.into());
        self
    }

    /// Only statements that begin with this text, leading comments, blanks and case aside: `listen`, say.
    pub fn statement(mut self, beginning: impl Into<String>) -> Match {
        self.statement = Some(beginning.into());
        self
    }

    /// Only notifications of this channel.
    pub fn channel(mut self, channel: impl Into<String>) -> Match {
        self.channel = Some(channel.into());
        self
    }

    fn speaks_of(&self, statement: &Statement) -> bool {
        let tag = self.tag.as_deref().is_none_or(|tag| statement.tag.as_deref() == Some(tag));
        tag && self.statement.as_deref().is_none_or(|beginning| statement.begins_with(beginning))
    }

    fn wants_statement(&self) -> bool {
        self.tag.is_some() || self.statement.is_some()
    }
}

/// A fault to be injected at a proven point.
///
/// `Rule::on(Match::at(Phase::AfterCommitted).tag("claim")).then(Action::Cut)` cuts the connection once,
/// after the server has committed the first claim and before its client knows.
#[derive(Clone, Debug)]
pub struct Rule {
    matcher: Match,
    skip: u64,
    times: u64,
    action: Action,
}

impl Rule {
    /// Begins a rule that fires once, at the first match.
    pub fn on(matcher: Match) -> RuleBuilder {
        RuleBuilder { matcher, skip: 0, times: 1 }
    }

    fn check(&self) {
        let fits = match self.action {
            Action::DropNotifications | Action::DoubleNotifications => {
                self.matcher.phase == Phase::Notification
            }
            Action::Refuse => self.matcher.phase == Phase::Connect,
            _ => true,
        };
        assert!(fits, "{:?} does not fit {:?}", self.action, self.matcher.phase);
    }
}

/// A [`Rule`] without its action; made by [`Rule::on`].
#[derive(Clone, Debug)]
pub struct RuleBuilder {
    matcher: Match,
    skip: u64,
    times: u64,
}

impl RuleBuilder {
    /// Lets the first `count` matches pass.
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Fires at most this often. Default 1.
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Fires at every match until the rule is removed.
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Finishes the rule.
    ///
    /// # Panics
    /// When the action does not fit the phase, such as dropping notifications after a commit.
    pub fn then(self, action: Action) -> Rule {
        let rule = Rule { matcher: self.matcher, skip: self.skip, times: self.times, action };
        rule.check();
        rule
    }
}

/// What a rule did, and what was proved when it did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Monotonic time.
    pub at: Instant,
    /// Number of the connection, counted from 1 in the order of arrival.
    pub connection: u64,
    /// The connection's `application_name`.
    pub role: String,
    /// Process id of the backend, as the server told the client; none before it did.
    pub pid: Option<i32>,
    /// The phase of the rule.
    pub phase: Phase,
    /// What was done.
    pub action: Action,
    /// Tag of the statement that matched.
    pub tag: Option<String>,
    /// What is certain about it.
    pub proof: Proof,
}

/// What an [`Event`] proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The server had not got the statement, or the new connection.
    NotForwarded,
    /// The statement was written to the server.
    Forwarded,
    /// The server had committed (ReadyForQuery *idle* with neither error nor rollback).
    Committed,
    /// The server had sent the notification.
    Notified,
    /// The answer was too large to be kept from the client (over 4 MiB): the rule did **not** act, and a
    /// study must call its case inconclusive.
    NotReached,
}

/// One rule in force: waits for it, releases what it holds, removes it.
///
/// Dropping the handle leaves the rule in force.
#[derive(Clone)]
pub struct RuleHandle {
    armed: Arc<Armed>,
}

impl RuleHandle {
    /// Waits until the rule has fired once and returns what happened then.
    ///
    /// Fails when it has not within `limit`, and when it met an answer too large to be kept back.
    pub async fn fired(&self, limit: Duration) -> Result<Event> {
        self.fired_times(1, limit).await
    }

    /// Waits until the rule has fired `times` times and returns what happened at the last of them.
    pub async fn fired_times(&self, times: usize, limit: Duration) -> Result<Event> {
        let mut fired = self.armed.fired.subscribe();
        let enough = |events: &Vec<Event>| events.len() >= times.max(1);
        let Ok(Ok(events)) = tokio::time::timeout(limit, fired.wait_for(enough)).await else {
            let text = format!(
                "the proxy rule fired {} of {times} times within {limit:?}: {:?}",
                self.count(),
                self.armed.rule
            );
            return Err(Error::new(text));
        };
        let event = events[times.max(1) - 1].clone();
        match event.proof {
            Proof::NotReached => Err(Error::new("the answer was too large to be kept from the client")),
            _ => Ok(event),
        }
    }

    /// How often the rule has fired.
    pub fn count(&self) -> usize {
        self.armed.fired.borrow().len()
    }

    /// Every firing so far.
    pub fn events(&self) -> Vec<Event> {
        self.armed.fired.borrow().clone()
    }

    /// Lets go what [`Action::Hold`] holds, now and later.
    pub fn release(&self) {
        self.armed.released.send_replace(true);
    }

    /// Takes the rule out of force and lets go what it holds.
    pub fn remove(&self) {
        self.armed.removed.store(true, Ordering::SeqCst);
        self.release();
    }
}

impl fmt::Debug for RuleHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleHandle").field("rule", &self.armed.rule).field("fired", &self.count()).finish()
    }
}

/// A rule with its counters.
pub(super) struct Armed {
    rule: Rule,
    left: Mutex<Left>,
    removed: AtomicBool,
    fired: watch::Sender<Vec<Event>>,
    released: watch::Sender<bool>,
}

struct Left {
    skip: u64,
    times: u64,
}

impl Armed {
    pub(super) fn action(&self) -> Action {
        self.rule.action
    }

    pub(super) fn phase(&self) -> Phase {
        self.rule.matcher.phase
    }

    pub(super) fn record(&self, event: Event) {
        self.fired.send_modify(|events| events.push(event));
    }

    pub(super) async fn until_released(&self) {
        // The sender is part of `self`, so the wait cannot fail.
        let _ = self.released.subscribe().wait_for(|released| *released).await;
    }

    fn concerns(&self, phase: Phase, role: &str) -> bool {
        let role_fits = self.rule.matcher.role.as_deref().is_none_or(|wanted| role_matches(role, wanted));
        self.phase() == phase && role_fits && !self.removed.load(Ordering::SeqCst) && self.left().times > 0
    }

    /// Counts one match; true when the rule fires at it.
    fn count(&self) -> bool {
        let mut left = self.left();
        match &mut *left {
            Left { skip: 0, times: 0 } => false,
            Left { skip: 0, times } => {
                *times -= 1;
                true
            }
            Left { skip, .. } => {
                *skip -= 1;
                false
            }
        }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All rules of a proxy, in the order in which they were added; the first that fires wins.
#[derive(Default)]
pub(super) struct Rules {
    list: Mutex<Vec<Arc<Armed>>>,
}

/// A rule that has just fired, and the tag it fired on.
pub(super) struct Firing {
    pub(super) rule: Arc<Armed>,
    pub(super) tag: Option<String>,
}

impl Rules {
    pub(super) fn add(&self, rule: Rule) -> RuleHandle {
        let left = Mutex::new(Left { skip: rule.skip, times: rule.times });
        let (fired, released) = (watch::Sender::new(Vec::new()), watch::Sender::new(false));
        let armed = Arc::new(Armed { rule, left, removed: AtomicBool::new(false), fired, released });
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|armed| !armed.removed.load(Ordering::SeqCst));
        list.push(armed.clone());
        RuleHandle { armed }
    }

    /// Takes every rule out of force.
    pub(super) fn clear(&self) {
        for armed in self.snapshot() {
            RuleHandle { armed }.remove();
        }
    }

    /// Whether a rule may fire on one of these statements; counts nothing.
    pub(super) fn waits_for(&self, phase: Phase, role: &str, statements: &[Statement]) -> bool {
        let concerned = |armed: &Arc<Armed>| armed.concerns(phase, role);
        self.snapshot()
            .iter()
            .filter(|armed| concerned(armed))
            .any(|armed| matching(armed, statements).is_some())
    }

    /// Counts a match of these statements, one per rule, and returns the rule that fires.
    pub(super) fn fire(&self, phase: Phase, role: &str, statements: &[Statement]) -> Option<Firing> {
        for armed in self.snapshot().into_iter().filter(|armed| armed.concerns(phase, role)) {
            let Some(tag) = matching(&armed, statements) else { continue };
            if armed.count() {
                return Some(Firing { rule: armed, tag });
            }
        }
        None
    }

    pub(super) fn fire_notification(&self, role: &str, channel: &str) -> Option<Firing> {
        let wanted = |armed: &Arc<Armed>| {
            let channel_fits = armed.rule.matcher.channel.as_deref().is_none_or(|wanted| wanted == channel);
            channel_fits && armed.concerns(Phase::Notification, role)
        };
        let rule = self.snapshot().into_iter().filter(wanted).find(|armed| armed.count())?;
        Some(Firing { rule, tag: None })
    }

    fn snapshot(&self) -> Vec<Arc<Armed>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The tag of the first statement the rule speaks of; a rule without conditions speaks of all.
fn matching(armed: &Armed, statements: &[Statement]) -> Option<Option<String>> {
    let matcher = &armed.rule.matcher;
    let found = statements.iter().find(|statement| matcher.speaks_of(statement));
    match found {
        Some(statement) => Some(statement.tag.as_deref().map(str::to_owned)),
        // A bare COMMIT in a transaction whose statements carry no tag, or a new connection.
        None if !matcher.wants_statement() => Some(None),
        None => None,
    }
}

/// `outhaul/work` is matched by itself and by every ending of it.
pub(super) fn role_matches(application_name: &str, role: &str) -> bool {
    application_name.ends_with(role)
}
