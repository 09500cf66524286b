//! What one connection has said so far: statements by name, groups in flight, the open transaction.
//!
//! Pure bookkeeping over frames, without sockets or rules. Where the protocol leaves a doubt whether
//! something was committed, this module says that it is not known to be.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// As much of a statement's text as rules can look at.
const BEGINNING: usize = 200;

/// A statement as rules know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) tag: Option<Arc<str>>,
    /// The start of the text without leading blanks and comments, in lower case.
    beginning: Arc<str>,
}

impl Statement {
    fn new(text: &str) -> Statement {
        let beginning: String = without_leading_comments(text).chars().take(BEGINNING).collect();
        Statement { tag: tag_of(text).map(Arc::from), beginning: beginning.to_ascii_lowercase().into() }
    }

    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.beginning.starts_with(&text.to_ascii_lowercase())
    }
}

/// Messages that the server answers together, with one ReadyForQuery.
#[derive(Debug, Default)]
struct Group {
    /// The Sync, Query or FunctionCall that ends it has been sent.
    closed: bool,
    extended: bool,
    statements: Vec<Statement>,
    errored: bool,
    /// A command tag says that effects of the transaction may be gone or undecided.
    undone: bool,
    committed: bool,
}

/// What a frontend message means to rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// The server will execute this when it gets the message.
    pub(super) executes: Option<Statement>,
    /// The message ends a group.
    pub(super) closes: bool,
}

/// What a backend message means to rules.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Part of the answer to the oldest group in flight.
    Part,
    /// The command tag COMMIT: the client's own COMMIT was executed.
    Commit,
    /// ReadyForQuery.
    Ready(Ready),
    /// A notification on this channel.
    Notification(String),
    /// Belongs to no statement: authentication, parameters, notices.
    Aside,
}

/// The end of a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// Statements that are committed now and were not known to be before.
    pub(super) committed: Vec<Statement>,
    /// The group executed the client's own COMMIT.
    pub(super) own_commit: bool,
}

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) role: String,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) pid: Option<i32>,
    /// `I`, `T` or `E` of the last ReadyForQuery; none before the first.
    pub(super) status: Option<char>,
    prepared: HashMap<Vec<u8>, Statement>,
    portals: HashMap<Vec<u8>, Statement>,
    groups: VecDeque<Group>,
    /// Executed in the transaction that is still open.
    open: Vec<Statement>,
    copying: bool,
    /// The count of groups went wrong: from here on nothing is proved.
    lost: bool,
}

impl Session {
    /// A session after its startup message; the server owes it one ReadyForQuery.
    pub(super) fn started(parameters: &HashMap<String, String>) -> Session {
        let get = |name: &str| parameters.get(name).cloned().unwrap_or_default();
        let user = get("user");
        let database = parameters.get("database").cloned().unwrap_or_else(|| user.clone());
        let startup = Group { closed: true, ..Group::default() };
        let groups = VecDeque::from([startup]);
        Session { role: get("application_name"), user, database, groups, ..Session::default() }
    }

    /// Notes a message of the client; `body` may be cut short.
    pub(super) fn sent(&mut self, kind: u8, body: &[u8]) -> Sent {
        match kind {
            b'P' => {
                let (name, rest) = c_string(body);
                self.prepared.insert(name.to_vec(), Statement::new(&text(rest)));
                self.extend(None)
            }
            b'B' => {
                let (portal, rest) = c_string(body);
                // An unknown statement must not leave the portal's former one behind.
                match self.prepared.get(c_string(rest).0) {
                    Some(statement) => self.portals.insert(portal.to_vec(), statement.clone()),
                    None => self.portals.remove(portal),
                };
                self.extend(None)
            }
            b'E' => {
                let statement = self.portals.get(c_string(body).0).cloned();
                self.extend(statement)
            }
            b'C' => self.close(body),
            b'D' | b'H' => self.extend(None),
            b'Q' => self.whole(Some(Statement::new(&text(body)))),
            b'F' => self.whole(None),
            b'S' if !self.copying => self.sync(),
            b'c' | b'f' => {
                self.copying = false;
                Sent::default()
            }
            _ => Sent::default(),
        }
    }

    /// Notes a message of the server; `body` may be cut short.
    pub(super) fn received(&mut self, kind: u8, body: &[u8]) -> Answer {
        match kind {
            b'Z' => return Answer::Ready(self.ready(body.first().map_or('?', |b| *b as char))),
            b'A' => {
                return Answer::Notification(
                    text(c_string(body.get(4..).unwrap_or_default()).0).into_owned(),
                );
            }
            b'K' => self.pid = body.get(..4).map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            b'S' => self.parameter(body),
            b'R' | b'N' | b'v' => {}
            b'E' => {
                self.copying = false;
                if let Some(group) = self.groups.front_mut() {
                    group.errored = true;
                }
                return Answer::Part;
            }
            b'G' | b'W' => {
                self.copy_begins();
                return Answer::Part;
            }
            b'C' => return self.command_complete(body),
            _ => return Answer::Part,
        }
        Answer::Aside
    }

    /// Statements that the next ReadyForQuery may prove to be committed.
    pub(super) fn undecided(&self) -> Vec<Statement> {
        let current = self.groups.front().into_iter().flat_map(|group| &group.statements);
        if self.lost { Vec::new() } else { self.open.iter().chain(current).cloned().collect() }
    }

    /// Statements of the group that the client has sent last.
    pub(super) fn last_group(&self) -> Vec<Statement> {
        self.groups.back().map(|group| group.statements.clone()).unwrap_or_default()
    }

    fn extend(&mut self, statement: Option<Statement>) -> Sent {
        if !self.groups.back().is_some_and(|group| group.extended && !group.closed) {
            self.groups.push_back(Group { extended: true, ..Group::default() });
        }
        let group = self.groups.back_mut().expect("a group was just made sure of");
        group.statements.extend(statement.clone());
        Sent { executes: statement, closes: false }
    }

    fn sync(&mut self) -> Sent {
        self.extend(None);
        self.groups.back_mut().expect("made by extend").closed = true;
        Sent { executes: None, closes: true }
    }

    fn whole(&mut self, statement: Option<Statement>) -> Sent {
        let statements = statement.iter().cloned().collect();
        self.groups.push_back(Group { closed: true, statements, ..Group::default() });
        Sent { executes: statement, closes: true }
    }

    fn close(&mut self, body: &[u8]) -> Sent {
        let name = c_string(body.get(1..).unwrap_or_default()).0;
        match body.first() {
            Some(b'S') => self.prepared.remove(name),
            _ => self.portals.remove(name),
        };
        self.extend(None)
    }

    /// In copy mode the server ignores a Sync, also one that was sent before the client could know.
    fn copy_begins(&mut self) {
        self.copying = true;
        let alone = self.groups.len() == 1;
        if let Some(group) = self.groups.front_mut().filter(|group| alone && group.extended) {
            group.closed = false;
        }
    }

    fn command_complete(&mut self, body: &[u8]) -> Answer {
        let tag = text(c_string(body).0).into_owned();
        let Some(group) = self.groups.front_mut() else { return Answer::Part };
        match tag.as_str() {
            // Also the tag of ROLLBACK TO SAVEPOINT, and of COMMIT in a failed transaction.
            "ROLLBACK" | "PREPARE TRANSACTION" => group.undone = true,
            "COMMIT" => {
                group.committed = true;
                return Answer::Commit;
            }
            _ => {}
        }
        Answer::Part
    }

    fn ready(&mut self, status: char) -> Ready {
        self.status = Some(status);
        let group = self.groups.pop_front().unwrap_or_default();
        self.lost |= !group.closed;
        let sure = !self.lost && !group.errored && !group.undone;
        self.open.extend(group.statements);
        let committed = match status {
            'I' => std::mem::take(&mut self.open),
            'T' if sure && !group.committed => return Ready { committed: Vec::new(), own_commit: false },
            _ => {
                self.open.clear();
                Vec::new()
            }
        };
        let own_commit = group.committed && sure;
        Ready { committed: if sure { committed } else { Vec::new() }, own_commit }
    }

    fn parameter(&mut self, body: &[u8]) {
        let (name, rest) = c_string(body);
        if name == b"application_name" {
            self.role = text(c_string(rest).0).into_owned();
        }
    }
}

/// Everything up to the first zero, and what follows it.
pub(super) fn c_string(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|b| *b == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(c_string(bytes).0)
}

/// NAME of the first comment of the form `/* outhaul:NAME */`.
fn tag_of(text: &str) -> Option<&str> {
    text.match_indices("/*").find_map(|(at, _)| {
        let name = text[at + 2..].trim_start().strip_prefix("outhaul:")?;
        name.split(|c: char| c.is_whitespace() || c == '*').next().filter(|name| !name.is_empty())
    })
}

fn without_leading_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        let after = match () {
            () if rest.starts_with("/*") => rest.find("*/").map(|end| &rest[end + 2..]),
            () if rest.starts_with("--") => rest.find('\n').map(|end| &rest[end + 1..]),
            () => return rest,
        };
        rest = after.unwrap_or("").trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let mut session = Session::started(&HashMap::from([("user".to_owned(), "u".to_owned())]));
        session.received(b'Z', b"I");
        session
    }

    fn extended(session: &mut Session, sql: &str) {
        session.sent(b'P', format!("s\0{sql}\0\0\0").as_bytes());
        session.sent(b'B', b"\0s\0\0\0\0\0\0\0");
        session.sent(b'E', b"\0\0\0\0\0");
        assert!(session.sent(b'S', b"").closes);
    }

    fn simple(session: &mut Session, sql: &str) {
        assert!(session.sent(b'Q', format!("{sql}\0").as_bytes()).closes);
    }

    /// Feeds command tags and a ReadyForQuery; returns the tags proved committed.
    fn answered(session: &mut Session, tags: &[&str], status: &str) -> Vec<String> {
        for tag in tags {
            let kind = if *tag == "ERROR" { b'E' } else { b'C' };
            session.received(kind, format!("{tag}\0").as_bytes());
        }
        match session.received(b'Z', status.as_bytes()) {
            Answer::Ready(ready) => {
                ready.committed.iter().filter_map(|s| s.tag.as_deref().map(str::to_owned)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_tag_is_the_first_comment_of_ours() {
        assert_eq!(tag_of("/* mine */ select /* outhaul:claim */ 1 /* outhaul:other */"), Some("claim"));
        assert_eq!(tag_of("/*outhaul:claim*/ select 1"), Some("claim"));
        assert_eq!(tag_of("select 'outhaul:claim'"), None);
        assert_eq!(tag_of("/* outhaul: */"), None);
    }

    #[test]
    fn the_beginning_of_a_statement_ignores_comments_and_case() {
        let statement = Statement::new("  /* outhaul:listen */\n-- now\n LISTEN a");
        assert!(statement.begins_with("listen"));
        assert!(!statement.begins_with("notify"));
        assert!(Statement::new("/* open").begins_with(""));
    }

    #[test]
    fn an_autocommit_statement_is_committed_at_idle() {
        let mut s = session();
        extended(&mut s, "/* outhaul:a */ insert");
        assert_eq!(answered(&mut s, &["INSERT 0 1"], "I"), ["a"]);
        extended(&mut s, "/* outhaul:a */ insert");
        assert_eq!(answered(&mut s, &["ERROR"], "I"), [""; 0]);
    }

    #[test]
    fn a_transaction_is_committed_by_its_commit_only() {
        let mut s = session();
        simple(&mut s, "begin");
        assert_eq!(answered(&mut s, &["BEGIN"], "T"), [""; 0]);
        extended(&mut s, "/* outhaul:a */ insert");
        assert_eq!(answered(&mut s, &["INSERT 0 1"], "T"), [""; 0]);
        simple(&mut s, "commit");
        assert_eq!(answered(&mut s, &["COMMIT"], "I"), ["a"]);
    }

    #[test]
    fn what_may_have_been_undone_is_never_called_committed() {
        for (tag, status) in [("ROLLBACK", "T"), ("ERROR", "E"), ("COMMIT", "T")] {
            let mut s = session();
            simple(&mut s, "begin; /* outhaul:a */ insert");
            assert_eq!(answered(&mut s, &["BEGIN", "INSERT 0 1"], "T"), [""; 0]);
            simple(&mut s, "something");
            assert_eq!(answered(&mut s, &[tag], status), [""; 0]);
            simple(&mut s, "end");
            assert_eq!(answered(&mut s, &["COMMIT"], "I"), [""; 0], "{tag} {status}");
        }
        for ends in [&["ROLLBACK"][..], &["PREPARE TRANSACTION"], &["ERROR"]] {
            let mut s = session();
            simple(&mut s, "/* outhaul:a */ insert; end it");
            assert_eq!(answered(&mut s, ends, "I"), [""; 0], "{ends:?}");
        }
    }

    #[test]
    fn pipelined_groups_are_answered_in_order() {
        let mut s = session();
        extended(&mut s, "/* outhaul:a */ insert");
        extended(&mut s, "/* outhaul:b */ insert");
        assert_eq!(answered(&mut s, &["INSERT 0 1"], "I"), ["a"]);
        assert_eq!(answered(&mut s, &["INSERT 0 1"], "I"), ["b"]);
    }

    #[test]
    fn a_sync_that_copy_mode_ignores_is_not_counted() {
        let mut s = session();
        extended(&mut s, "/* outhaul:copy */ copy t from stdin");
        s.received(b'G', b"");
        s.sent(b'd', b"row");
        s.sent(b'c', b"");
        s.sent(b'S', b"");
        assert_eq!(answered(&mut s, &["COPY 1"], "I"), ["copy"]);
        extended(&mut s, "/* outhaul:a */ insert");
        assert_eq!(answered(&mut s, &["INSERT 0 1"], "I"), ["a"]);
    }

    #[test]
    fn the_role_follows_application_name() {
        let mut s = session();
        s.received(b'S', b"application_name\0outhaul/work\0");
        assert_eq!(s.role, "outhaul/work");
    }
}
