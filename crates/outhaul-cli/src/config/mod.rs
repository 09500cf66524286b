//! Settings, and where each comes from.
//!
//! Every setting has one key. The same key is looked for in the flags, in `OUTHAUL_<KEY>`, in what libpq's
//! users set (`DATABASE_URL`, `PG*`), in the files, and last among the defaults. The first place that has it
//! decides, and is remembered: `outhaul config show --origin`.

mod file;
mod projections;
mod roles;
mod settings;
mod suggest;
pub(crate) mod times;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use outhaul::{Dsn, SchemaName};

use crate::exit::{Exit, Problem};

pub(crate) use file::Binding;
pub(crate) use projections::Declared;
pub(crate) use roles::Role;
pub(crate) use settings::SETTINGS;
use times::Times;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(String),
    File(PathBuf),
    /// A role, and the file that declares it.
    Role(String, PathBuf),
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag(name) => f.write_str(name),
            Origin::Variable(name) => f.write_str(name),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Role(name, path) => write!(f, "{}, [roles.{name}]", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A value as it was written, with its origin. It may be a secret: only `shown` may print it.
#[derive(Clone)]
pub(crate) struct Value {
    text: String,
    pub(crate) origin: Origin,
}

/// What the flags say.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    pub(crate) database_url: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) config: Option<PathBuf>,
}

/// The settings after all places were looked at.
#[derive(Clone)]
pub(crate) struct Config {
    env: fn(&str) -> Option<String>,
    values: BTreeMap<&'static str, Value>,
    queues: BTreeMap<String, (usize, Origin)>,
    jobs: BTreeMap<String, Binding>,
    projections: BTreeMap<String, Declared>,
    roles: BTreeMap<String, Role>,
}

impl Config {
    /// No settings at all, for commands that need none.
    pub(crate) fn none() -> Config {
        Config {
            env: process_env,
            values: BTreeMap::new(),
            queues: BTreeMap::new(),
            jobs: BTreeMap::new(),
            projections: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }

    /// Looks at all places.
    ///
    /// # Errors
    /// A file that cannot be read, a key that does not exist, or a value of the wrong type.
    pub(crate) fn load(flags: &Flags, env: fn(&str) -> Option<String>) -> Result<Config, Problem> {
        let files = file::read_all(flags.config.as_deref(), env)?;
        let mut config = Config { env, ..Config::none() };
        for setting in SETTINGS {
            if let Some(value) = settings::find(setting, flags, env, &files)? {
                config.values.insert(setting.key, value);
            }
        }
        // The first file that names a queue, job type, projection or role decides.
        for file in files {
            let origin = Origin::File(file.path);
            for (name, concurrency) in file.queues {
                config.queues.entry(name).or_insert((concurrency, origin.clone()));
            }
            for (name, binding) in file.jobs {
                config.jobs.entry(name).or_insert(binding);
            }
            for (name, declared) in file.projections {
                config.projections.entry(name).or_insert(declared);
            }
            for (name, role) in file.roles {
                config.roles.entry(name).or_insert(role);
            }
        }
        config.check_roles()?;
        Ok(config)
    }

    /// A role runs projections that are declared somewhere.
    fn check_roles(&self) -> Result<(), Problem> {
        for (name, role) in &self.roles {
            let Some(missing) = role.projections.iter().find(|name| !self.projections.contains_key(*name))
            else {
                continue;
            };
            let problem = Problem::config(format!(
                "{}: [roles.{name}] runs projection {missing:?}, which no file declares",
                role.path.display()
            ));
            let known = self.projections.keys().map(String::as_str);
            return Err(match suggest::closest(missing, known) {
                Some(meant) => problem.hint(format!("Did you mean {meant:?}?")),
                None => problem.hint(format!("Declare it: [[projections.{missing}.rules]]")),
            });
        }
        Ok(())
    }

    /// The settings of a process that works as a role: its own go before all others but flags.
    ///
    /// # Errors
    /// There is no such role.
    pub(crate) fn as_role(&self, name: &str) -> Result<Config, Problem> {
        let role = roles::find(&self.roles, name)?;
        let mut config = self.clone();
        for (key, value) in &role.settings {
            let decided = config.values.get(key).is_some_and(|value| matches!(value.origin, Origin::Flag(_)));
            if !decided {
                config.values.insert(key, value.clone());
            }
        }
        Ok(config)
    }

    /// The roles that files declare.
    pub(crate) fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// What roles leave to nobody: work that only a worker without a role does.
    pub(crate) fn left_out(&self) -> Vec<String> {
        if self.roles.is_empty() {
            return Vec::new();
        }
        let mut said = Vec::new();
        let worked = |queue: &str| self.roles.values().any(|role| role.queues.contains_key(queue));
        let queues: std::collections::BTreeSet<&str> =
            self.jobs.values().map(|binding| binding.queue.as_str()).filter(|queue| !worked(queue)).collect();
        for queue in queues {
            said.push(format!("no role works queue {queue}: its jobs wait for a worker without --role"));
        }
        let run = |name: &String| self.roles.values().any(|role| role.projections.contains(name));
        for name in self.projections.keys().filter(|name| !run(name)) {
            said.push(format!("no role runs projection {name}: its events wait for a worker without --role"));
        }
        said
    }

    /// What a role sets besides its queues and projections, free of secrets.
    pub(crate) fn shown_of_role(&self, role: &Role) -> Vec<(&'static str, String)> {
        let shown = |setting: &settings::Setting| {
            let value = role.settings.get(setting.key)?;
            Some((setting.key, self.free_of_secrets(setting, value)))
        };
        SETTINGS.iter().filter_map(shown).collect()
    }

    fn free_of_secrets(&self, setting: &settings::Setting, value: &Value) -> String {
        match setting.secret {
            true => Dsn::parse(&value.text, self.env)
                .map_or_else(|_| "(not a valid database URL)".to_owned(), |dsn| dsn.to_string()),
            false => value.text.clone(),
        }
    }

    /// Where the database is, when anything says so.
    pub(crate) fn database(&self) -> anyhow::Result<Option<Dsn>> {
        self.dsn("database_url")
    }

    /// Where the database is.
    pub(crate) fn require_database(&self) -> anyhow::Result<Dsn> {
        Ok(self.database()?.ok_or_else(|| {
            Problem::new(Exit::Usage, "no_database_url", "no database is named")
                .hint("Set DATABASE_URL, or start a private server with `outhaul dev up`.")
        })?)
    }

    /// Another database URL, where one is set: `listen_url` or `owner_url`.
    pub(crate) fn dsn(&self, key: &'static str) -> anyhow::Result<Option<Dsn>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let doing = || format!("{key} (from {})", value.origin);
        Ok(Some(
            Dsn::parse(&value.text, self.env).map_err(|error| anyhow::Error::new(error).context(doing()))?,
        ))
    }

    /// The database URL as it was written. It may hold a password.
    pub(crate) fn database_text(&self) -> Option<&str> {
        self.text("database_url")
    }

    /// The schema that holds Outhaul's objects.
    pub(crate) fn schema(&self) -> anyhow::Result<SchemaName> {
        let Some(value) = self.values.get("schema") else { return Ok(SchemaName::default()) };
        let doing = || format!("schema {:?} (from {})", value.text, value.origin);
        SchemaName::new(value.text.as_str()).map_err(|error| anyhow::Error::new(error).context(doing()))
    }

    /// A setting as text.
    pub(crate) fn text(&self, key: &'static str) -> Option<&str> {
        debug_assert!(SETTINGS.iter().any(|setting| setting.key == key), "{key}");
        self.values.get(key).map(|value| value.text.as_str())
    }

    /// A setting as a number, a truth value, or anything else with a text form.
    pub(crate) fn parsed<T: FromStr>(&self, key: &'static str, form: &str) -> Result<Option<T>, Problem> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        value.text.parse().map(Some).map_err(|_| settings::bad_value(key, &value.origin, form))
    }

    /// A setting as a time, such as `30s`.
    pub(crate) fn duration(&self, key: &'static str, times: &Times) -> Result<Option<Duration>, Problem> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let bad = |wrong| {
            let what = format!("{key} (from {}) is not a time that can be used: {wrong}", value.origin);
            Problem::config(what).hint(format!("Set {key} to a time from {times}."))
        };
        times.parse(&value.text).map(Some).map_err(bad)
    }

    /// Handlers at once by queue, as the files say.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&str, usize, &Origin)> {
        self.queues.iter().map(|(name, (concurrency, origin))| (name.as_str(), *concurrency, origin))
    }

    /// Job types bound to commands.
    pub(crate) fn jobs(&self) -> &BTreeMap<String, Binding> {
        &self.jobs
    }

    /// Projections that turn events into jobs.
    pub(crate) fn projections(&self) -> &BTreeMap<String, Declared> {
        &self.projections
    }

    /// What is allowed and is hardly meant.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let bound = |job_type: &str| self.jobs.contains_key(job_type);
        self.projections.iter().flat_map(|(name, declared)| declared.unbound(name, bound)).collect()
    }

    /// Every setting with its value, free of secrets, and its origin.
    pub(crate) fn shown(&self) -> Vec<(&'static str, Option<String>, Option<&Origin>)> {
        let shown = |setting: &settings::Setting| {
            let value = self.values.get(setting.key);
            let text = value.map(|value| self.free_of_secrets(setting, value));
            (setting.key, text, value.map(|value| &value.origin))
        };
        SETTINGS.iter().map(shown).collect()
    }
}

/// A variable of this process; an empty one counts as not set.
pub(crate) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Refuses a variable that would count as not set because it is not text.
///
/// # Errors
/// Its name.
pub(crate) fn refuse_unreadable_variables() -> Result<(), Problem> {
    let read = |name: &str| name == "DATABASE_URL" || name.starts_with("OUTHAUL_") || name.starts_with("PG");
    let unreadable = std::env::vars_os().find_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| read(name))?;
        value.to_str().is_none().then_some(name)
    });
    match unreadable {
        Some(name) => Err(Problem::config(format!("the variable {name} is not valid UTF-8"))
            .hint("In a URL, write such bytes as %XX.")),
        None => Ok(()),
    }
}

/// Names of variables that look like ours but mean nothing, with what was probably meant.
pub(crate) fn misspelt_variables() -> Vec<(String, String)> {
    let known: Vec<String> = settings::known_variables();
    let ours = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = ours.filter(|name| name.starts_with("OUTHAUL_") && !known.contains(name));
    unknown
        .filter_map(|name| {
            let meant = suggest::closest(&name, known.iter().map(String::as_str))?.to_owned();
            Some((name, meant))
        })
        .collect()
}
