//! What the text and the variables say, parameter by parameter, before it means anything.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::parameter::{self, PARAMETERS, Support};
use crate::error::{Error, Result};

pub(super) const ENCODE: &str =
    "Percent-encode `@`, `:`, `/`, `?`, `#`, `&`, `=` and `%` in user names and passwords (`@` is %40).";

/// Values by parameter, with the variable they came from.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<&'static str, Setting>);

struct Setting {
    value: String,
    env: Option<&'static str>,
}

impl Settings {
    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.0.insert(name, Setting { value, env: None });
    }

    /// `echo` is false where the name may be a piece of a password that was not quoted or encoded.
    pub(super) fn set_by_name(&mut self, name: &str, value: String, echo: bool) -> Result<()> {
        // The JDBC driver's word, which libpq takes in URLs too.
        if name == "ssl" && value == "true" {
            self.set("sslmode", "require".into());
            return Ok(());
        }
        let name = if name == "keepalives_retries" { "keepalives_count" } else { name };
        match parameter::named(name) {
            Some(parameter) => self.set(parameter.name, value),
            // Not repeated when it has other characters: then it is a mangled URL with a password in it.
            None if echo && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) => {
                return Err(unknown(name));
            }
            None => {
                return Err(Error::config("the connection text has an unknown parameter").with_hint(ENCODE));
            }
        }
        Ok(())
    }

    /// Asks for the variables of what the text leaves open.
    pub(super) fn fill_from(&mut self, env: &impl Fn(&str) -> Option<String>) {
        for parameter in PARAMETERS.iter().filter(|parameter| !parameter.env.is_empty()) {
            if !self.0.contains_key(parameter.name)
                && let Some(value) = env(parameter.env)
            {
                self.0.insert(parameter.name, Setting { value, env: Some(parameter.env) });
            }
        }
        if !self.0.contains_key("sslmode") && env("PGREQUIRESSL").is_some_and(|value| value.starts_with('1'))
        {
            self.0.insert("sslmode", Setting { value: "require".into(), env: Some("PGREQUIRESSL") });
        }
    }

    pub(super) fn refuse_unsupported(&self) -> Result<()> {
        for parameter in PARAMETERS {
            let Some(value) = self.get(parameter.name) else { continue };
            match parameter.support {
                Support::Refused(instead) => {
                    return Err(Error::config(format!("{} is not supported", self.called(parameter.name)))
                        .with_hint(instead));
                }
                Support::Only(values) if !values.iter().any(|v| v.eq_ignore_ascii_case(value)) => {
                    return Err(self.not_one_of(parameter.name, values.iter().copied()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The value of a parameter; an empty one counts as not given, as in libpq.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// A whole number; negative ones mean the system's default in libpq, as zero does.
    pub(super) fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.trim().parse::<i32>() {
            Ok(number) => Ok(Some(u32::try_from(number).unwrap_or(0))),
            Err(_) => Err(Error::config(format!("{} is not a whole number", self.called(name)))
                .with_hint("Units are fixed: seconds, and milliseconds for tcp_user_timeout.")),
        }
    }

    pub(super) fn one_of<T: Copy>(&self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found
            .map(|(_, value)| Some(*value))
            .ok_or_else(|| self.not_one_of(name, words.iter().map(|(word, _)| *word)))
    }

    fn not_one_of<'a>(&self, name: &str, words: impl Iterator<Item = &'a str>) -> Error {
        let words: Vec<&str> = words.collect();
        let value = self.get(name).unwrap_or("");
        Error::config(format!("{} cannot be {value:?}", self.called(name)))
            .with_hint(format!("Use one of: {}.", words.join(", ")))
    }

    /// How the user knows the parameter: by its variable when the value came from there.
    pub(super) fn called<'a>(&self, name: &'a str) -> &'a str {
        self.0.get(name).and_then(|setting| setting.env).unwrap_or(name)
    }
}

fn unknown(name: &str) -> Error {
    let error = Error::config(format!("the connection text has an unknown parameter {name:?}"));
    match parameter::similar(name) {
        Some(known) => error.with_hint(format!("Did you mean `{known}`?")),
        None => error.with_hint("Take it out; the parameters are those of libpq."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dsn;
    use super::super::parts::TlsMode;
    use super::super::tests::{env, refused};

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        refused(&[
            ("user=u service=x", "service is not supported"),
            ("user=u sslcrl=x", "sslcrl is not supported"),
            ("user=u sslpassword=x", "sslpassword is not supported"),
            ("user=u require_auth=scram-sha-256", "require_auth is not supported"),
            ("user=u gssencmode=require", "gssencmode cannot be \"require\""),
            ("user=u client_encoding=latin1", "client_encoding cannot be \"latin1\""),
            ("user=u replication=database", "replication cannot be \"database\""),
        ]);
    }

    #[test]
    fn an_unknown_parameter_is_named_with_what_was_meant() {
        let table = [
            ("sslmod", "Did you mean `sslmode`?"),
            ("ssl-mode", "Did you mean `sslmode`?"),
            ("sslRootCert", "Did you mean `sslrootcert`?"),
            ("database", "Did you mean `dbname`?"),
            ("targetSessionAttrs", "Did you mean `target_session_attrs`?"),
            ("username", "Did you mean `user`?"),
            ("pool_size", "Take it out; the parameters are those of libpq."),
            ("x", "Take it out; the parameters are those of libpq."),
        ];
        for (name, hint) in table {
            let error = format!("postgres://u@h/d?{name}=1").parse::<Dsn>().unwrap_err();
            assert_eq!(error.to_string(), format!("the connection text has an unknown parameter {name:?}"));
            assert_eq!(error.hint(), Some(hint), "{name}");
        }
    }

    #[test]
    fn variables_fill_what_the_text_leaves_open() {
        let all = [
            ("PGHOST", "h1,h2"),
            ("PGPORT", "1,2"),
            ("PGDATABASE", "d"),
            ("PGUSER", "u"),
            ("PGPASSWORD", "p"),
            ("PGAPPNAME", "a"),
            ("PGSSLMODE", "require"),
            ("PGTARGETSESSIONATTRS", "primary"),
            ("PGCONNECT_TIMEOUT", "3"),
            ("HOME", "/nowhere"),
        ];
        let dsn = Dsn::from_env(env(&all)).unwrap();
        assert_eq!(
            dsn.to_string(),
            "postgres://u@h1:1,h2:2/d?passfile=/nowhere/.pgpass&application_name=a&connect_timeout=3\
             &target_session_attrs=primary&sslmode=require"
        );
        assert_eq!(dsn.password.as_deref(), Some("p"));
        let dsn = Dsn::parse("postgres://me@h3:3/mine?sslmode=disable", env(&all)).unwrap();
        assert_eq!(dsn.target(), "me@h3:3/mine");
        assert_eq!(dsn.tls.mode, TlsMode::Disable);
    }

    #[test]
    fn a_bad_variable_is_called_by_its_own_name() {
        let error =
            |name, value| Dsn::parse("postgres://u@h/d", env(&[(name, value)])).unwrap_err().to_string();
        assert_eq!(error("PGSSLMODE", "on"), "PGSSLMODE cannot be \"on\"");
        assert_eq!(error("PGSERVICE", "x"), "PGSERVICE is not supported");
        assert_eq!(error("PGCONNECT_TIMEOUT", "x"), "PGCONNECT_TIMEOUT is not a whole number");
        let required = Dsn::parse("postgres://u@h/d", env(&[("PGREQUIRESSL", "1")])).unwrap();
        assert_eq!(required.tls.mode, TlsMode::Require);
    }
}
