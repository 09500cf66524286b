//! Configuration files: which are read, and what may stand in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value as Toml};

use super::projections::{self, Declared};
use super::roles::{self, Role};
use super::settings::{SETTINGS, Setting, read_secret};
use super::{Origin, Value, suggest, times};
use crate::exit::Problem;

/// A file that was read and whose keys all exist.
pub(super) struct File {
    pub(super) path: PathBuf,
    table: Table,
    pub(super) queues: BTreeMap<String, usize>,
    pub(super) jobs: BTreeMap<String, Binding>,
    pub(super) projections: BTreeMap<String, Declared>,
    pub(super) roles: BTreeMap<String, Role>,
}

/// A job type bound to a command.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// The program and its arguments. A relative path with a `/` counts from the file's folder.
    pub(crate) command: Vec<String>,
    /// The queue it is worked in when the worker's queues are not named.
    pub(crate) queue: String,
    /// How long one attempt may take when the job does not say.
    pub(crate) timeout: Option<Duration>,
    /// The file that says so.
    pub(crate) path: PathBuf,
}

const BINDING_KEYS: [&str; 3] = ["command", "queue", "timeout"];

/// Reads the files that exist, the one that decides first.
pub(super) fn read_all(flag: Option<&Path>, env: fn(&str) -> Option<String>) -> Result<Vec<File>, Problem> {
    let named = flag.map(Path::to_owned).or_else(|| env("OUTHAUL_CONFIG").map(PathBuf::from));
    let mut files = Vec::new();
    match named {
        Some(path) => files.push(read(&path)?.ok_or_else(|| {
            Problem::config(format!("there is no configuration file {}", path.display()))
                .hint("Check --config or OUTHAUL_CONFIG.")
        })?),
        None => files.extend(read(Path::new("outhaul.toml"))?),
    }
    let home = env("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| env("HOME").map(|home| Path::new(&home).join(".config")));
    if let Some(home) = home {
        files.extend(read(&home.join("outhaul/config.toml"))?);
    }
    files.extend(read(Path::new("/etc/outhaul/config.toml"))?);
    Ok(files)
}

fn read(path: &Path) -> Result<Option<File>, Problem> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let why = match error.kind() {
                std::io::ErrorKind::InvalidData => "it is not UTF-8".to_owned(),
                _ => error.to_string(),
            };
            let text = format!("the configuration file {} cannot be read: {why}", path.display());
            return Err(Problem::config(text)
                .hint("It is a file of TOML that this user may read; --config names another."));
        }
    };
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // The error's own text would quote the line, and the line may hold a password.
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        Problem::config(format!("{}:{line}: {}", path.display(), error.message()))
            .hint("The file is TOML; correct that line.")
    })?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    check_keys(&path, &table)?;
    let queues = queues(&path, &table)?;
    let jobs = jobs(&path, &table)?;
    let projections = projections::read(&path, &table)?;
    let roles = roles::read(&path, &table)?;
    Ok(Some(File { path, table, queues, jobs, projections, roles }))
}

impl File {
    /// The setting as this file has it.
    pub(super) fn value(&self, setting: &Setting) -> Result<Option<Value>, Problem> {
        value_in(&self.path, &self.table, "", setting, Origin::File(self.path.clone()))
    }
}

/// The setting as a table of a file has it.
pub(super) fn value_in(
    path: &Path,
    table: &Table,
    within: &str,
    setting: &Setting,
    origin: Origin,
) -> Result<Option<Value>, Problem> {
    let place = if within.is_empty() { String::new() } else { format!(" in [{within}]") };
    let bad = |what: String| {
        Problem::config(format!("{}: {what}", path.display()))
            .hint(format!("Settings are texts, numbers or truth values: {} = ...", setting.key))
    };
    let file_key = format!("{}_file", setting.key);
    let named = table.get(&file_key).filter(|_| setting.secret);
    match (table.get(setting.key), named) {
        (Some(_), Some(_)) => Err(bad(format!("{} and {file_key}{place} are both set", setting.key))),
        (Some(value), None) => {
            let text = scalar(value).ok_or_else(|| bad(format!("{}{place} must be text", setting.key)))?;
            Ok(Some(Value { text, origin }))
        }
        (None, Some(named)) => {
            let named = named.as_str().ok_or_else(|| bad(format!("{file_key}{place} must be text")))?;
            let secret = path.parent().unwrap_or(Path::new(".")).join(named);
            Ok(Some(Value { text: read_secret(&file_key, &secret)?, origin }))
        }
        (None, None) => Ok(None),
    }
}

fn scalar(value: &Toml) -> Option<String> {
    match value {
        Toml::String(text) => Some(text.clone()),
        Toml::Integer(number) => Some(number.to_string()),
        Toml::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Refuses keys that do not exist: a misspelt key would otherwise be a setting that silently does nothing.
fn check_keys(path: &Path, table: &Table) -> Result<(), Problem> {
    let secrets = SETTINGS.iter().filter(|setting| setting.secret);
    let known: Vec<String> = SETTINGS
        .iter()
        .map(|setting| setting.key.to_owned())
        .chain(secrets.map(|setting| format!("{}_file", setting.key)))
        .chain(["queues", "jobs", "projections", "roles"].map(str::to_owned))
        .collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    refuse_unknown(path, "", table, &known)
}

pub(super) fn refuse_unknown(
    path: &Path,
    within: &str,
    table: &Table,
    known: &[&str],
) -> Result<(), Problem> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let place = if within.is_empty() { String::new() } else { format!(" in [{within}]") };
    let problem = Problem::new(
        crate::exit::Exit::Usage,
        "unknown_key",
        format!("{}: unknown key {key:?}{place}", path.display()),
    );
    Err(match suggest::closest(key, known.iter().copied()) {
        Some(meant) => problem.hint(format!("Did you mean {meant:?}?")),
        None => problem.hint(format!("Known keys: {}.", known.join(", "))),
    })
}

/// `[queues]`: a name and how many handlers run at once.
fn queues(path: &Path, table: &Table) -> Result<BTreeMap<String, usize>, Problem> {
    let Some(value) = table.get("queues") else { return Ok(BTreeMap::new()) };
    numbers(path, value, "queues", "Write: mail = 5")
}

/// Queues, each with its handlers at once.
pub(super) fn numbers(
    path: &Path,
    value: &Toml,
    what: &str,
    hint: &str,
) -> Result<BTreeMap<String, usize>, Problem> {
    let bad = |what: String| Problem::config(format!("{}: {what}", path.display())).hint(hint);
    let table = value.as_table().ok_or_else(|| bad(format!("{what} must be a table")))?;
    let entry = |(name, value): (&String, &Toml)| {
        let concurrency = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let bad = || bad(format!("queue {name:?} must be a number of handlers, 1 or more"));
        Ok((name.clone(), concurrency.ok_or_else(bad)?))
    };
    table.iter().map(entry).collect()
}

/// `[jobs."mail.welcome"]`: the command of a job type.
fn jobs(path: &Path, table: &Table) -> Result<BTreeMap<String, Binding>, Problem> {
    let Some(value) = table.get("jobs") else { return Ok(BTreeMap::new()) };
    let bad = |what: String| {
        Problem::config(format!("{}: {what}", path.display()))
            .hint("Write: [jobs.\"mail.welcome\"], then command = [\"./send-mail\"]")
    };
    let table = value.as_table().ok_or_else(|| bad("jobs must be a table".into()))?;
    let entry = |(name, value): (&String, &Toml)| {
        let within = format!("jobs.{name:?}");
        let table = value.as_table().ok_or_else(|| bad(format!("{within} must be a table")))?;
        refuse_unknown(path, &within, table, &BINDING_KEYS)?;
        let command = table
            .get("command")
            .and_then(words)
            .ok_or_else(|| bad(format!("[{within}] needs a command: a list of texts, the program first")))?;
        let queue = match table.get("queue") {
            Some(queue) => queue.as_str().ok_or_else(|| bad(format!("queue in [{within}] must be text")))?,
            None => "default",
        };
        let timeout = table.get("timeout").map(|value| {
            let text = scalar(value).ok_or_else(|| "it is not a text such as \"30s\"".to_owned());
            text.and_then(|text| times::LIMIT.parse(&text)).map_err(|wrong| {
                Problem::config(format!("{}: timeout in [{within}]: {wrong}", path.display()))
                    .hint("Write: timeout = \"30s\"")
            })
        });
        let binding = Binding {
            command: from_folder(path, command),
            queue: queue.to_owned(),
            timeout: timeout.transpose()?,
            path: path.to_owned(),
        };
        Ok((name.clone(), binding))
    };
    table.iter().map(entry).collect()
}

fn words(value: &Toml) -> Option<Vec<String>> {
    let words: Option<Vec<String>> =
        value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect();
    words.filter(|words| words.first().is_some_and(|program| !program.is_empty()))
}

fn from_folder(file: &Path, mut command: Vec<String>) -> Vec<String> {
    if command[0].contains('/')
        && let Some(folder) = file.parent()
    {
        // Collected anew, which takes out the dots of `./`.
        let program: PathBuf = folder.join(&command[0]).components().collect();
        command[0] = program.to_string_lossy().into_owned();
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Option<File>, Problem> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outhaul.toml");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_broken_line_is_named_by_number_and_not_quoted() {
        let problem = file("schema = \"a\"\ndatabase_url = \"postgres://u:canary@h/d\n").err().unwrap();
        assert!(problem.message.contains(":2:"), "{}", problem.message);
        assert!(!format!("{problem:?}").contains("canary"), "{problem:?}");
    }

    #[test]
    fn unknown_keys_are_refused_with_what_was_meant() {
        for (text, hint) in [
            ("shema = \"a\"", "Did you mean \"schema\"?"),
            ("[jobs.\"a\"]\ncomand = [\"x\"]", "Did you mean \"command\"?"),
            ("database_url_fil = \"a\"", "Did you mean \"database_url_file\"?"),
        ] {
            assert_eq!(file(text).err().unwrap().hint.as_deref(), Some(hint), "{text}");
        }
    }

    #[test]
    fn a_command_with_a_path_counts_from_the_file() {
        let jobs = file("[jobs.a]\ncommand = [\"./x\", \"./y\"]\n[jobs.b]\ncommand = [\"sh\"]")
            .unwrap()
            .unwrap()
            .jobs;
        assert!(Path::new(&jobs["a"].command[0]).is_absolute() && jobs["a"].command[1] == "./y");
        assert_eq!(jobs["b"].command, ["sh"]);
    }
}
