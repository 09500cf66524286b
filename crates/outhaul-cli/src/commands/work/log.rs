//! The log of a worker, on standard error.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;
use crate::exit::Problem;
use crate::output::Global;

/// Starts logging in the form that the flag, or else the configuration, asks for.
pub(super) fn start(flag: Option<LogFormat>, global: &Global) -> Result<LogFormat, Problem> {
    let config = &global.config;
    let bad = |what: String, hint: &str| Problem::config(what).hint(hint);
    let format = match (flag, config.text("log_format")) {
        (Some(format), _) => format,
        (None, Some(text)) => LogFormat::from_str(text, false)
            .map_err(|_| bad(format!("log_format {text:?} does not exist"), "Use text or json."))?,
        (None, None) => LogFormat::Text,
    };
    let level = if global.quiet { "error" } else { config.text("log").unwrap_or("info") };
    let filter = EnvFilter::try_new(level).map_err(|error| {
        bad(format!("log {level:?} is no filter: {error}"), "Use a level, such as info or outhaul=debug.")
    })?;
    // A log that cannot be written must not end what is being logged: the default panics in its place.
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(global.color_err).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(format)
}
