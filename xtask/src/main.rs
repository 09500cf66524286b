//! Checks of the repository itself that need nothing but cargo and git: `xtask dependencies|texts`.

mod dependencies;
mod licence;
mod texts;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What is wrong, one sentence each; empty when all is well.
type Problems = Vec<String>;

fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    let checked = match verb.as_str() {
        "dependencies" => dependencies::check(&root()),
        "texts" => texts::check(&root()),
        _ => {
            eprintln!("usage: xtask dependencies|texts");
            return ExitCode::from(2);
        }
    };
    let problems = checked.unwrap_or_else(|failure| vec![failure]);
    problems.iter().for_each(|problem| eprintln!("{verb}: {problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository").to_owned()
}

/// The standard output of a program that has to succeed.
fn output_of(program: &str, args: &[&str], dir: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new(program).args(args).current_dir(dir).output();
    let output = output.map_err(|e| format!("cannot run {program}: {e}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {} failed: {}", args.join(" "), told.trim()));
    }
    Ok(output.stdout)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}
