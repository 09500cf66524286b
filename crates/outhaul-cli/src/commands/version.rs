//! `outhaul version`.

use crate::exit::Exit;
use crate::output::Global;

pub(crate) fn run(global: &Global) -> anyhow::Result<Exit> {
    let version = env!("CARGO_PKG_VERSION");
    if global.json {
        global.print_json(&serde_json::json!({ "version": version, "schema": outhaul::SCHEMA_VERSION }))?;
    } else {
        global.print(format_args!("outhaul {version} (schema {})", outhaul::SCHEMA_VERSION))?;
    }
    Ok(Exit::Ok)
}
