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
        let warnings: Vec<String> = warnings(global).collect();
        global.print_json(&serde_json::json!({ "settings": settings, "warnings": warnings }))?;
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
    for warning in warnings(global) {
        global.say(format_args!("warning: {warning}"));
    }
    Ok(Exit::Ok)
}

fn warnings(global: &Global) -> impl Iterator<Item = String> {
    global.config.warnings().into_iter().chain(global.config.left_out())
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
    let roles = config.roles().iter().flat_map(|(name, role)| {
        let origin = role.path.display().to_string();
        let works = shown(format!("roles.{name}"), role.to_string(), origin.clone());
        let sets = config.shown_of_role(role).into_iter();
        let sets = sets.map(move |(key, value)| shown(format!("roles.{name}.{key}"), value, origin.clone()));
        std::iter::once(works).chain(sets)
    });
    scalars.chain(queues).chain(jobs).chain(projections).chain(roles).collect()
}
