//! The source keeps its order: imports go down, decisions are pure, statements leave from two places.

use std::path::{Path, PathBuf};

/// The modules of the crate by layer, lowest first.
const LAYERS: [&[&str]; 5] = [
    &["model", "error", "telemetry", "json"],
    &["decide"],
    &["store", "caller", "failure"],
    &["engine"],
    &["worker", "observe", "operate", "session", "subscription", "projection", "testing"],
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every file of the source: its path below `src`, and its lines of code up to its unit tests.
fn files() -> Vec<(String, Vec<String>)> {
    let (mut files, mut folders) = (Vec::new(), vec![source()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs")
                && path.file_stem().is_some_and(|stem| stem != "tests")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
                let lines =
                    code.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned);
                let name = path.strip_prefix(source()).unwrap().to_string_lossy().into_owned();
                files.push((name, lines.collect()));
            }
        }
    }
    files
}

/// `engine` for `engine/run.rs` and for `engine.rs`.
fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// The modules named behind `crate::` in a line, those of a group included.
fn imports(line: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group.split(',').map(|part| word(part.trim()))),
            None => found.push(word(rest)),
        }
    }
    found
}

#[test]
fn imports_only_go_down() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (file, lines) in files() {
        if file == "lib.rs" {
            continue;
        }
        let own = layer_of(module_of(&file)).unwrap_or_else(|| panic!("{file} has no layer"));
        for (line, module) in
            lines.iter().flat_map(|line| imports(line).into_iter().map(move |module| (line, module)))
        {
            // What begins with a capital is a re-export of the crate's root, as documentation links use it.
            let Some(layer) = layer_of(&module) else {
                assert!(module.starts_with(char::is_uppercase), "{file}: {line}");
                continue;
            };
            seen += 1;
            if layer > own {
                wrong.push(format!("{file} (layer {own}) uses {module} (layer {layer}): {}", line.trim()));
            }
        }
    }
    assert!(seen > 50, "{seen} imports found");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn an_import_that_goes_up_would_be_found() {
    assert_eq!(imports("use crate::engine::run::Line;"), ["engine"]);
    assert_eq!(imports("use crate::{model, store::dsn::Dsn};"), ["model", "store"]);
    assert_eq!(imports("    let x: crate::error::Result<crate::model::JobId> = f();"), ["error", "model"]);
    assert!(layer_of("engine") > layer_of("store") && layer_of("decide") > layer_of("model"));
}

#[test]
fn decisions_know_no_clock_no_chance_no_database_and_no_runtime() {
    const FORBIDDEN: [&str; 13] = [
        "tokio",
        "postgres",
        "sqlx",
        "Instant::now",
        "SystemTime",
        "Timestamp::now",
        "Zoned::now",
        ".elapsed(",
        "fastrand",
        "async ",
        ".await",
        "std::thread",
        "std::fs",
    ];
    let mut lines_seen = 0;
    for (file, lines) in files().into_iter().filter(|(file, _)| module_of(file) == "decide") {
        for line in lines {
            lines_seen += 1;
            let found = FORBIDDEN.iter().find(|word| line.contains(**word));
            assert!(found.is_none(), "{file}: {line}");
        }
    }
    assert!(lines_seen > 200, "{lines_seen}");
}

/// The words that send a statement stand where statements are known, and nowhere else.
#[test]
fn statements_are_sent_from_the_store_and_by_the_callers_drivers_only() {
    const SENDING: [&str; 6] =
        [".batch_execute(", ".query_typed(", ".simple_query(", ".query_one(", ".query_opt(", ".prepare("];
    for (file, lines) in files() {
        if matches!(module_of(&file), "store" | "caller") {
            continue;
        }
        for line in lines {
            assert!(!SENDING.iter().any(|word| line.contains(word)), "{file}: {line}");
        }
    }
}
