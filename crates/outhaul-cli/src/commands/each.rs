//! Acting on several things, one by one, and telling what became of each.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global, Unwritten};

/// What the things are.
pub(crate) struct Things {
    /// One of them in a sentence, such as `job`.
    pub(crate) noun: String,
    /// What names it in JSON, such as `id`.
    pub(crate) key: &'static str,
    /// The command that shows it, its name left out.
    pub(crate) show: String,
    /// Whether that command wants the name.
    pub(crate) by_name: bool,
}

impl Things {
    fn look(&self, it: impl Display) -> String {
        if self.by_name { format!("{} {it}", self.show) } else { self.show.clone() }
    }
}

/// What an action did to one of them.
pub(crate) struct Acted {
    result: &'static str,
    refused: Option<Refused>,
}

enum Refused {
    State(&'static str),
    Missing(Problem),
}

impl Acted {
    /// It was done.
    pub(crate) fn good(result: &'static str) -> Acted {
        Acted { result, refused: None }
    }

    /// The thing is in a state in which it cannot be done, in words that follow its name.
    pub(crate) fn refused(result: &'static str, why: &'static str) -> Acted {
        Acted { result, refused: Some(Refused::State(why)) }
    }

    /// There is no such thing.
    pub(crate) fn missing(problem: Problem) -> Acted {
        Acted { result: "not_found", refused: Some(Refused::Missing(problem)) }
    }
}

struct Told {
    it: Value,
    line: String,
    result: &'static str,
    problem: Option<Problem>,
}

/// Acts on each, and tells what was done. An error ends it, and what was done before is told all the same. The first
/// one that could not be changed decides about the exit code.
pub(crate) async fn each<T: Copy + Display + Serialize>(
    all: &[T],
    things: &Things,
    act: impl AsyncFn(T) -> outhaul::Result<Acted>,
    global: &Global,
) -> anyhow::Result<Exit> {
    let mut done = Vec::new();
    for it in all {
        match act(*it).await {
            Ok(acted) => done.push(told(*it, acted, things)?),
            Err(error) => {
                if !done.is_empty() {
                    tell(&done, things, global)?;
                }
                let look = format!("Look at it before you go on: {}", things.look(it));
                let noun = &things.noun;
                let left = all.len() - done.len() - 1;
                let doing = match left {
                    0 => format!("{noun} {it}"),
                    _ => format!("{noun} {it} ({left} more not tried)"),
                };
                return Err(exit::of_change(anyhow::Error::new(error).context(doing), look));
            }
        }
    }
    tell(&done, things, global)?;
    match done.into_iter().find_map(|told| told.problem) {
        Some(problem) => Err(problem.into()),
        None => Ok(Exit::Ok),
    }
}

fn told<T: Copy + Display + Serialize>(it: T, acted: Acted, things: &Things) -> anyhow::Result<Told> {
    let problem = acted.refused.map(|refused| match refused {
        Refused::Missing(problem) => problem,
        Refused::State(why) => {
            let what = format!("{} {it} {why}; nothing was changed", things.noun);
            Problem::new(Exit::Refused, acted.result, what).hint(format!("Look at it: {}", things.look(it)))
        }
    });
    Ok(Told { it: serde_json::to_value(it)?, line: it.to_string(), result: acted.result, problem })
}

fn tell(done: &[Told], things: &Things, global: &Global) -> anyhow::Result<()> {
    let words = |blank| done.iter().map(move |told| format!("{}{blank}{}", told.line, told.result));
    let printed = match global.json {
        true => {
            let results = done.iter().map(|told| json!({ things.key: told.it, "result": told.result }));
            global.print_json(&json!({ "results": results.collect::<Vec<_>>() }))
        }
        false => words("  ").try_for_each(|line| Ok(global.print(line)?)),
    };
    if done.iter().all(|told| told.problem.is_some()) {
        // Nothing was changed, which the problem will say.
        return match printed {
            Err(error) if error.is::<Unwritten>() => Ok(()),
            printed => printed,
        };
    }
    let what = format!("it is done ({})", words(" ").collect::<Vec<_>>().join(", "));
    output::told(printed, what, format!("Look at them: {}", things.look(things.key.to_uppercase())))
}
