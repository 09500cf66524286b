//! What goes to the terminal: data to standard output, messages to standard error.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde::Serialize;

use crate::config::Config;
use crate::exit::{Exit, Problem};

/// What every command is told: how to speak, and the configuration.
pub(crate) struct Global {
    /// One stable JSON object on standard output, problems as JSON on standard error.
    pub(crate) json: bool,
    /// No messages but errors.
    pub(crate) quiet: bool,
    /// Whether standard output takes colours: a terminal that is not dumb, and nobody objects.
    pub(crate) color: bool,
    /// The same of standard error.
    pub(crate) color_err: bool,
    /// Whether a person looks at standard output.
    pub(crate) interactive: bool,
    /// The settings, each with its origin.
    pub(crate) config: Config,
}

impl Global {
    /// The same with other settings.
    pub(crate) fn with_config(&self, config: Config) -> Global {
        Global { config, ..*self }
    }

    /// Prints a line of data.
    pub(crate) fn print(&self, line: impl Display) -> Result<(), Unwritten> {
        write(&format!("{line}\n"))
    }

    /// Prints one JSON value on a line of its own.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.print(serde_json::to_string(value)?)?;
        Ok(())
    }

    /// A message for the person: to standard error, and not with `--quiet` or `--json`.
    pub(crate) fn say(&self, line: impl Display) {
        if !self.quiet && !self.json {
            // Nobody listens any more: no reason to fail.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// Says which database a command is about to change.
    pub(crate) fn say_target(&self, dsn: &outhaul::Dsn, schema: &outhaul::SchemaName) {
        self.say(format_args!("target: {}  schema {schema}", dsn.target()));
    }

    /// Prints rows under a header: aligned for a person, separated by tabs for a program. The columns are
    /// the same.
    pub(crate) fn print_table(&self, header: &[&str], rows: Vec<Vec<String>>) -> Result<(), Unwritten> {
        if !self.interactive {
            let mut lines = header.join("\t") + "\n";
            for row in &rows {
                lines += &(row.join("\t") + "\n");
            }
            return write(&lines);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.to_vec());
        table.add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for line in table.lines() {
            self.print(line.trim_end())?;
        }
        Ok(())
    }

    /// Prints one row of a table whose end is not known yet: cells with the least widths of their columns.
    pub(crate) fn print_row(
        &self,
        cells: impl IntoIterator<Item = (String, usize)>,
    ) -> Result<(), Unwritten> {
        let cell = |(text, width): (String, usize)| match self.interactive {
            true => format!("{text:<width$}"),
            false => text,
        };
        let gap = if self.interactive { "  " } else { "\t" };
        let row = cells.into_iter().map(cell).collect::<Vec<_>>().join(gap);
        self.print(row.trim_end())
    }

    /// A word in bold, where colours are taken.
    pub(crate) fn bold(&self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Standard output cannot be written: it is full, or nobody reads it any more.
#[derive(Debug)]
pub(crate) struct Unwritten(io::Error);

impl Unwritten {
    /// The reader has seen enough, as in `outhaul jobs list | head`.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output cannot be written: {}", self.0)
    }
}

impl std::error::Error for Unwritten {}

/// Writes to standard output, to the last byte.
pub(crate) fn write(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unwritten)
}

/// Lets a command whose exit code says something go on when nobody reads its output any more.
pub(crate) fn unless_closed(printed: anyhow::Result<()>) -> anyhow::Result<()> {
    match printed {
        Err(error) if error.downcast_ref().is_some_and(Unwritten::is_closed) => Ok(()),
        printed => printed,
    }
}

/// For what a command prints after it has changed something: the change stands when that cannot be written, so the
/// problem says what was `done`, and where to `look`.
pub(crate) fn told(
    printed: anyhow::Result<()>,
    done: impl Display,
    look: impl Into<String>,
) -> anyhow::Result<()> {
    printed.map_err(|error| match error.downcast::<Unwritten>() {
        Ok(unwritten) => Problem::untold(done, unwritten, look).into(),
        Err(error) => error,
    })
}

/// A time as tables show it: UTC, to the second.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// An optional text as tables show it. Never empty, so that columns stay countable.
pub(crate) fn or_dash<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Facts as lines, each behind its word; those without a value are left out.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Vec<String> {
    facts.into_iter().filter_map(|(word, value)| Some(format!("{word:<12} {}", value?))).collect()
}

/// Milliseconds as a person reads them: the two largest units that say something.
pub(crate) fn span(ms: i64) -> String {
    let s = ms / 1_000;
    match s {
        ..0 => "0s".to_owned(),
        0 => format!("{ms}ms"),
        1..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// Whether a stream takes colours.
pub(crate) fn color(no_color: bool, stream: &impl IsTerminal) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let dumb = set("TERM").is_some_and(|term| term == "dumb");
    !no_color && set("NO_COLOR").is_none() && !dumb && stream.is_terminal()
}

/// Tells a problem on standard error and gives its exit code.
pub(crate) fn report(problem: Problem, json: bool, no_color: bool) -> Exit {
    // A hint is a text of ours: scrubbed it would no longer say how a URL is written.
    let problem = Problem { message: scrub(&problem.message), ..problem };
    let mut err = io::stderr().lock();
    // Standard error may be closed; the exit code still tells.
    let _ = if json {
        writeln!(err, "{}", serde_json::json!({ "error": problem }))
    } else {
        let (red, plain) = if color(no_color, &io::stderr()) { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let hint = problem.hint.as_deref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        writeln!(err, "{red}error[{}]{plain}: {}{hint}", problem.code, problem.message)
    };
    problem.exit
}

/// Takes passwords out of a text that may repeat what the user typed, in both forms that libpq knows.
pub(crate) fn scrub(text: &str) -> String {
    const MARKS: [&str; 2] = ["://", "password="];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, mark)) = MARKS.iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min() {
        let (before, after) = rest.split_at(at + mark.len());
        out.push_str(before);
        let secret = if mark == "://" { userinfo(after) } else { Some(pair_value(after)) };
        if secret.is_some() {
            out.push_str("***");
        }
        rest = &after[secret.unwrap_or(0)..];
    }
    out + rest
}

/// The length of what stands before the host of a URL. Up to the last `@`: a password may hold one itself.
fn userinfo(text: &str) -> Option<usize> {
    text[..text.find(char::is_whitespace).unwrap_or(text.len())].rfind('@')
}

/// The length of a value of a `name=value` pair.
fn pair_value(text: &str) -> usize {
    let quoted = text.strip_prefix('\'').map(|quoted| quoted.find('\'').map_or(text.len(), |end| end + 2));
    quoted.unwrap_or_else(|| text.find(|c: char| c.is_whitespace() || c == '&').unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_of_a_url_is_repeated() {
        for (text, safe) in [
            ("unexpected 'postgres://u:s3cret@h/d' found", "unexpected 'postgres://***@h/d' found"),
            ("postgres://u:a@b:s3cret@h/d and more", "postgres://***@h/d and more"),
            ("see https://example.test/a", "see https://example.test/a"),
            ("two a://b:c@d e://f:g@h", "two a://***@d e://***@h"),
            ("a://h/d?password=s3cret&b=c", "a://h/d?password=***&b=c"),
            ("'host=h password=s3cret user=u'", "'host=h password=*** user=u'"),
            ("password='s3cret with blanks' user=u", "password=*** user=u"),
        ] {
            assert_eq!(scrub(text), safe);
        }
    }

    #[test]
    fn spans_are_short() {
        for (ms, text) in
            [(7, "7ms"), (59_999, "59s"), (61_000, "1m01s"), (3_660_000, "1h01m"), (90_000_000, "1d01h")]
        {
            assert_eq!(span(ms), text);
        }
    }
}
