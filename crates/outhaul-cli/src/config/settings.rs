//! The table of settings, and where each is looked for.

use std::path::Path;

use super::file::File;
use super::{Flags, Origin, Value};
use crate::exit::Problem;

/// One setting.
pub(crate) struct Setting {
    /// Its key in files; `OUTHAUL_` and the key in upper case is its variable.
    pub(crate) key: &'static str,
    /// A database URL, which may hold a password: it can come from a file named by `<key>_file`, and is
    /// never shown as it is.
    pub(crate) secret: bool,
    default: Option<&'static str>,
}

const fn plain(key: &'static str, default: Option<&'static str>) -> Setting {
    Setting { key, secret: false, default }
}

const fn secret(key: &'static str) -> Setting {
    Setting { key, secret: true, default: None }
}

/// Every setting, in the order in which they are shown. A test compares the defaults with the library's.
pub(crate) const SETTINGS: &[Setting] = &[
    secret("database_url"),
    secret("listen_url"),
    secret("owner_url"),
    plain("schema", Some("outhaul")),
    plain("concurrency", Some("10")),
    plain("lease", Some("60s")),
    plain("poll", Some("1s")),
    plain("timeout", Some("5m")),
    plain("drain", Some("30s")),
    plain("grace", Some("5s")),
    plain("max_connections", None),
    plain("listen", Some("true")),
    plain("metrics_addr", None),
    plain("log", Some("info")),
    plain("log_format", Some("text")),
];

/// Variables that are ours and no settings: for finding servers and tests, and what commands of jobs are told.
const OTHER_VARIABLES: [&str; 11] = [
    "OUTHAUL_CONFIG",
    "OUTHAUL_NO_SKIP",
    "OUTHAUL_PG_BINDIR",
    "OUTHAUL_TEST_RUN",
    "OUTHAUL_JOB_ID",
    "OUTHAUL_JOB_TYPE",
    "OUTHAUL_ATTEMPT",
    "OUTHAUL_MAX_ATTEMPTS",
    "OUTHAUL_CLAIM_NO",
    "OUTHAUL_LEASE_TOKEN",
    "OUTHAUL_QUEUE",
];

pub(super) fn known_variables() -> Vec<String> {
    let settings = SETTINGS.iter().flat_map(|setting| {
        let name = variable(setting.key);
        let file = setting.secret.then(|| format!("{name}_FILE"));
        std::iter::once(name).chain(file)
    });
    settings.chain(OTHER_VARIABLES.map(str::to_owned)).collect()
}

/// The first place that has the setting.
pub(super) fn find(
    setting: &Setting,
    flags: &Flags,
    env: fn(&str) -> Option<String>,
    files: &[File],
) -> Result<Option<Value>, Problem> {
    let flag = match setting.key {
        "database_url" => flags.database_url.clone().map(|text| (text, "--database-url")),
        "schema" => flags.schema.clone().map(|text| (text, "--schema")),
        _ => None,
    };
    if let Some((text, name)) = flag {
        return Ok(Some(Value { text, origin: Origin::Flag(name) }));
    }
    if let Some(value) = own_variable(setting, env)? {
        return Ok(Some(value));
    }
    if let Some(value) = common_variable(setting, env) {
        return Ok(Some(value));
    }
    for file in files {
        if let Some(value) = file.value(setting)? {
            return Ok(Some(value));
        }
    }
    Ok(setting.default.map(|text| Value { text: text.to_owned(), origin: Origin::Default }))
}

fn variable(key: &str) -> String {
    format!("OUTHAUL_{}", key.to_uppercase())
}

fn own_variable(setting: &Setting, env: fn(&str) -> Option<String>) -> Result<Option<Value>, Problem> {
    let name = variable(setting.key);
    let plain = env(&name);
    let file_name = format!("{name}_FILE");
    match (plain, setting.secret.then(|| env(&file_name)).flatten()) {
        (Some(_), Some(_)) => {
            Err(Problem::config(format!("{name} and {file_name} are both set")).hint("Unset one of them."))
        }
        (Some(text), None) => Ok(Some(Value { text, origin: Origin::Variable(name) })),
        (None, Some(path)) => {
            let text = read_secret(&file_name, Path::new(&path))?;
            Ok(Some(Value { text, origin: Origin::Variable(file_name) }))
        }
        (None, None) => Ok(None),
    }
}

/// What everybody's tools understand. The text may stay empty: the library then reads the `PG*` variables,
/// which also fill whatever a URL leaves open.
fn common_variable(setting: &Setting, env: fn(&str) -> Option<String>) -> Option<Value> {
    if setting.key != "database_url" {
        return None;
    }
    let found = |text: String, name: &str| Some(Value { text, origin: Origin::Variable(name.to_owned()) });
    if let Some(text) = env("DATABASE_URL") {
        return found(text, "DATABASE_URL");
    }
    // A user or password alone names no database; it would be another program's.
    let name = ["PGHOST", "PGHOSTADDR", "PGDATABASE"].into_iter().find(|name| env(name).is_some())?;
    found(String::new(), name)
}

/// Reads a secret from a file, without the line break that editors put at the end.
pub(super) fn read_secret(what: &str, path: &Path) -> Result<String, Problem> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Problem::config(format!("{what} names {}, which cannot be read: {error}", path.display()))
            .hint("The file holds the URL and nothing else.")
    })?;
    Ok(text.trim().to_owned())
}

pub(super) fn bad_value(key: &str, origin: &Origin, form: &str) -> Problem {
    Problem::config(format!("{key} (from {origin}) is not {form}")).hint(format!("Set {key} to {form}."))
}

#[cfg(test)]
mod tests {
    use super::super::times;
    use super::*;

    #[test]
    fn defaults_are_those_of_the_library() {
        let library = outhaul::WorkerOptions::default();
        let text = |key| SETTINGS.iter().find(|setting| setting.key == key).and_then(|s| s.default).unwrap();
        assert_eq!(times::LEASE.parse(text("lease")), Ok(library.lease));
        assert_eq!(times::POLL.parse(text("poll")), Ok(library.poll));
        assert_eq!(times::LIMIT.parse(text("timeout")), Ok(library.timeout));
        assert_eq!(times::DRAIN.parse(text("drain")), Ok(library.drain));
        assert_eq!(times::DRAIN.parse(text("grace")), Ok(library.grace));
        assert_eq!(text("concurrency"), library.concurrency.to_string());
        assert_eq!(text("listen"), library.listen.to_string());
        assert_eq!(text("schema"), outhaul::SchemaName::default().as_str());
    }
}
