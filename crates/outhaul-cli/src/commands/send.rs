//! What `enqueue` and `publish` share: the payload, and what to say when nobody knows whether it is committed.

use std::fmt::Display;
use std::io::{IsTerminal, Read};

use crate::exit::{Exit, Problem};
use crate::output::Global;

/// Standard input is read up to here. White space does not count towards the limit of a payload, so this is
/// more than that limit.
const STDIN_LIMIT: u64 = 16 * 1024 * 1024;

/// The payload: the argument itself, or what standard input says when the argument is `-`.
pub(crate) async fn payload(argument: &str, global: &Global) -> anyhow::Result<String> {
    let payload = if argument == "-" { stdin(global).await? } else { argument.to_owned() };
    if payload.trim().is_empty() {
        return Err(invalid("the payload is empty")
            .hint("Send JSON, such as {} or null; without an argument the payload is {}.")
            .into());
    }
    Ok(payload)
}

/// What to do when it is not known whether something was committed: a job or an event, which `show` shows.
pub(crate) fn look_first(noun: &str, id: impl Display, keyed: bool, show: &str) -> String {
    match keyed {
        true => format!("It may be committed. Repeat it with the same key, which makes no second {noun}."),
        false => format!(
            "It may be committed, as {noun} {id}. Look before you repeat it: {show} {id}; with an \
             --idempotency-key repeating is safe."
        ),
    }
}

fn invalid(what: impl Into<String>) -> Problem {
    Problem::new(Exit::Usage, "invalid_input", what)
}

async fn stdin(global: &Global) -> anyhow::Result<String> {
    if std::io::stdin().is_terminal() {
        global.say("reading the payload from the terminal, up to Ctrl-D");
    }
    let read = || {
        let mut payload = Vec::new();
        std::io::stdin().lock().take(STDIN_LIMIT + 1).read_to_end(&mut payload).map(|_| payload)
    };
    let payload = tokio::task::spawn_blocking(read).await?.map_err(|error| {
        invalid(format!("standard input cannot be read: {error}")).hint("Send the payload there, as JSON.")
    })?;
    if payload.len() as u64 > STDIN_LIMIT {
        return Err(invalid("standard input is larger than any payload may be")
            .hint("Store it elsewhere, and send its place.")
            .into());
    }
    String::from_utf8(payload)
        .map_err(|_| invalid("standard input is not valid UTF-8").hint("Send JSON, in UTF-8.").into())
}
