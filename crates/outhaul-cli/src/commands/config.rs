//! `outhaul config show`: every setting, and where it comes from.

use serde::Serialize;

use crate::cli::ConfigCommand;
use crate::exit::Exit;
use crate::output::{Global, or_dash};

#[derive(Serialize)]
struct Shown {
    key: String,
    value: Option<String>,
    origin: Option<String>,
}

pub(crate) fn run(what: &ConfigCommand, global: &Global) -> anyhow::Result<Exit> {
    let ConfigCommand::Show { origin } = what;
    let settings = settings(global);
    if global.json {
        global
            .print_json(&serde_json::json!({ "settings": settings, "warnings": global.config.warnings() }))?;
        return Ok(Exit::Ok);
    }
    let header: &[&str] = if *origin { &["KEY", "VALUE", "ORIGIN"] } else { &["KEY", "VALUE"] };
    let row = |shown: Shown| {
        let mut row = vec![shown.key, or_dash(shown.value)];
        if *origin {
            row.push(or_dash(shown.origin));
        }
        row
    };
    global.print_table(header, settings.into_iter().map(row).collect())?;
    for warning in global.config.warnings() {
        global.say(format_args!("warning: {warning}"));
    }
    Ok(Exit::Ok)
}

fn settings(global: &Global) -> Vec<Shown> {
    let config = &global.config;
    let shown =
        |key: String, value: String, origin: String| Shown { key, value: Some(value), origin: Some(origin) };
    let scalars = config.shown().into_iter().map(|(key, value, origin)| Shown {
        key: key.to_owned(),
        value,
        origin: origin.map(ToString::to_string),
    });
    let queues = config.queues().map(|(name, concurrency, origin)| {
        shown(format!("queues.{name}"), concurrency.to_string(), origin.to_string())
    });
    let jobs = config.jobs().iter().map(|(name, job)| {
        shown(format!("jobs.{name}"), job.command.join(" "), job.path.display().to_string())
    });
    let projections = config.projections().iter().map(|(name, declared)| {
        shown(format!("projections.{name}"), declared.to_string(), declared.path.display().to_string())
    });
    scalars.chain(queues).chain(jobs).chain(projections).collect()
}
