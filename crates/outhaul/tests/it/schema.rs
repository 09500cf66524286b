//! `schema.sql` is what the migrations leave behind.

use std::path::Path;
use std::process::Command;

use outhaul_local::Installation;

use crate::support::Db;

const REFRESH: &str = "OUTHAUL_REFRESH=1 cargo test -p outhaul --test it schema::";

#[tokio::test]
async fn schema_sql_shows_the_schema_as_it_is() {
    let installation = Installation::find().unwrap();
    let Some(pg_dump) = usable_pg_dump(&installation) else {
        return outhaul_local::skip(&format!("there is no pg_dump for PostgreSQL {}", installation.major()));
    };
    let db = Db::new().await;
    let output = Command::new(pg_dump)
        .args(["--schema-only", "--no-owner", "--schema=outhaul", &format!("--dbname={}", db.url())])
        .args(
            ["jobs_finished", "job_attempts", "outbox_events", "outbox_feed"]
                .map(|table| format!("--exclude-table=outhaul.{table}_[ft0-9]*")),
        )
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let now = readable(&String::from_utf8(output.stdout).unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.sql");
    if std::env::var_os("OUTHAUL_REFRESH").is_some() {
        return std::fs::write(&file, now).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(now.lines()).position(|(kept, now)| kept != now);
    let place = differs.unwrap_or_else(|| kept.lines().count().min(now.lines().count()));
    let line = |text: &str| text.lines().nth(place).unwrap_or("(nothing)").to_owned();
    assert!(
        kept == now,
        "schema.sql is stale from line {} on, refresh it with: {REFRESH}\n  there: {}\n  now:   {}",
        place + 1,
        line(&kept),
        line(&now)
    );
}

fn usable_pg_dump(installation: &Installation) -> Option<std::path::PathBuf> {
    let program = installation.tool("pg_dump")?;
    let told = Command::new(&program).arg("--version").output().ok()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let major: u32 = told.split_whitespace().find_map(|word| word.split('.').next()?.parse().ok())?;
    (major >= installation.major()).then_some(program)
}

/// A dump as a person reads it, the same from every version of pg_dump: statements without comments and
/// settings, functions without their bodies, which are the files of `sql/`.
fn readable(dump: &str) -> String {
    let mut out = format!(
        "-- The schema that the migrations make, to read and to compare: pg_dump without owners, without partitions, and\n\
         -- without the bodies of the functions, which are the files of sql/. A test keeps it up to date:\n\
         --   {REFRESH}\n"
    );
    let (mut body, mut in_view): (Option<String>, bool) = (None, false);
    let mut after_gap = true;
    for line in dump.lines() {
        if let Some(end) = &body {
            if line.ends_with(end) {
                body = None;
            }
            continue;
        }
        let noise = ["--", "SET ", "SELECT pg_catalog.set_config", "\\restrict", "\\unrestrict"];
        if line.trim().is_empty() || noise.iter().any(|noise| line.starts_with(noise)) {
            after_gap = true;
            continue;
        }
        if std::mem::take(&mut after_gap) {
            out.push('\n');
        }
        in_view = (in_view || line.starts_with("CREATE VIEW")) && !line.ends_with(';');
        if let Some(text) = line.strip_prefix("    AS $") {
            let (quote, begin) = text.split_once('$').expect("a quote");
            out.push_str("    AS '...';\n");
            let end = format!("${quote}$;");
            body = (!begin.ends_with(&end)).then_some(end);
            continue;
        }
        // Columns of a view with one table are qualified by some versions only.
        let line = match in_view || line.ends_with(';') {
            true => ["jobs_finished.", "jobs_dead.", "jobs."]
                .iter()
                .fold(line.to_owned(), |line, table| unqualified(&line, table)),
            false => line.to_owned(),
        };
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Takes a table's name off its columns, where it stands as a word of its own and is no part of a longer name.
fn unqualified(line: &str, table: &str) -> String {
    let mut parts = line.split(table);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if out.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.') {
            out.push_str(table);
        }
        out.push_str(part);
    }
    out
}
