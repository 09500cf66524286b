//! `[roles.NAME]`: what one process does, so that it keeps others from nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value as Toml};

use super::file::{numbers, refuse_unknown, value_in};
use super::settings::{SETTINGS, Setting};
use super::{Origin, Value, suggest};
use crate::exit::{Exit, Problem};

/// What one process works.
#[derive(Clone)]
pub(crate) struct Role {
    /// Its queues with their handlers at once.
    pub(crate) queues: BTreeMap<String, usize>,
    /// The projections that it runs.
    pub(crate) projections: Vec<String>,
    /// Settings that go before those of the same name.
    pub(super) settings: BTreeMap<&'static str, Value>,
    /// The file that says so.
    pub(crate) path: PathBuf,
}

/// Settings that may differ from process to process. Where the schema is and how a log looks is the same for all.
const OWN: [&str; 11] = [
    "database_url",
    "listen_url",
    "owner_url",
    "max_connections",
    "lease",
    "poll",
    "timeout",
    "drain",
    "grace",
    "listen",
    "metrics_addr",
];

const HINT: &str = "Write: [roles.alerts], then queues = { critical_alerts = 8, notifications = 4 }";

fn own() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| OWN.contains(&setting.key))
}

/// Reads the roles of a file.
pub(super) fn read(path: &Path, table: &Table) -> Result<BTreeMap<String, Role>, Problem> {
    let Some(value) = table.get("roles") else { return Ok(BTreeMap::new()) };
    let bad = |what: String| Problem::config(format!("{}: {what}", path.display())).hint(HINT);
    let table = value.as_table().ok_or_else(|| bad("roles must be a table".into()))?;
    let secrets = own().filter(|setting| setting.secret).map(|setting| format!("{}_file", setting.key));
    let known: Vec<String> =
        ["queues", "projections"].into_iter().chain(OWN).map(str::to_owned).chain(secrets).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let entry = |(name, value): (&String, &Toml)| {
        let within = format!("roles.{name}");
        let table = value.as_table().ok_or_else(|| bad(format!("{within} must be a table")))?;
        refuse_unknown(path, &within, table, &known)?;
        let queues = match table.get("queues") {
            Some(queues) => numbers(path, queues, &format!("queues in [{within}]"), HINT)?,
            None => BTreeMap::new(),
        };
        let projections = match table.get("projections") {
            Some(names) => names
                .as_array()
                .and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect())
                .ok_or_else(|| bad(format!("projections in [{within}] must be a list of names")))?,
            None => Vec::new(),
        };
        if queues.is_empty() && projections.is_empty() {
            return Err(bad(format!("[{within}] names neither queues nor projections")));
        }
        let mut settings = BTreeMap::new();
        for setting in own() {
            let origin = Origin::Role(name.clone(), path.to_owned());
            if let Some(value) = value_in(path, table, &within, setting, origin)? {
                settings.insert(setting.key, value);
            }
        }
        Ok((name.clone(), Role { queues, projections, settings, path: path.to_owned() }))
    };
    table.iter().map(entry).collect()
}

/// The role of a name.
pub(super) fn find<'a>(roles: &'a BTreeMap<String, Role>, name: &str) -> Result<&'a Role, Problem> {
    roles.get(name).ok_or_else(|| {
        let problem = Problem::new(Exit::Usage, "unknown_role", format!("there is no role {name:?}"));
        if roles.is_empty() {
            return problem.hint(format!("Roles are declared in outhaul.toml. {HINT}"));
        }
        let all = roles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match suggest::closest(name, roles.keys().map(String::as_str)) {
            Some(meant) => problem.hint(format!("Did you mean {meant:?}? Roles are: {all}.")),
            None => problem.hint(format!("Roles are: {all}.")),
        }
    })
}

/// Its queues and projections; what else it sets is shown by `shown`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = self.queues.iter().map(|(name, n)| format!("{name}={n}"));
        let projections = self.projections.iter().map(|name| format!("projection {name}"));
        f.write_str(&queues.chain(projections).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<BTreeMap<String, Role>, Problem> {
        read(Path::new("/etc/outhaul.toml"), &text.parse().unwrap())
    }

    #[test]
    fn what_is_wrong_in_a_role_is_said_with_its_place() {
        for (text, word) in [
            ("roles = 1", "roles must be a table"),
            ("[roles.a]", "neither queues nor projections"),
            ("[roles.a]\nqueues = { x = 0 }", "queue \"x\" must be a number of handlers"),
            ("[roles.a]\nqueues = [\"x\"]", "queues in [roles.a] must be a table"),
            ("[roles.a]\nprojections = \"x\"", "must be a list of names"),
            ("[roles.a]\nqueues = { x = 1 }\nlaese = \"1s\"", "unknown key \"laese\" in [roles.a]"),
            ("[roles.a]\nqueues = { x = 1 }\nschema = \"s\"", "unknown key \"schema\""),
            ("[roles.a]\nqueues = { x = 1 }\nlease = [1]", "lease in [roles.a] must be text"),
        ] {
            let problem = file(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(problem.message.contains(word) && problem.hint.is_some(), "{}", problem.message);
        }
    }

    #[test]
    fn a_role_that_is_not_there_is_answered_with_those_that_are() {
        let roles = file("[roles.alerts]\nqueues = { a = 1 }\n[roles.reports]\nqueues = { b = 1 }").unwrap();
        let hint = |name: &str| find(&roles, name).err().unwrap().hint.unwrap();
        assert_eq!(hint("alrets"), "Did you mean \"alerts\"? Roles are: alerts, reports.");
        assert_eq!(hint("x"), "Roles are: alerts, reports.");
        assert!(find(&BTreeMap::new(), "x").err().unwrap().hint.unwrap().contains("[roles.alerts]"));
    }
}
