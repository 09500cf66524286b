//! `outhaul operations`: what is done to many jobs at once.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use outhaul::{
    NewOperation, OperationItem, OperationKind, OperationState, OperationView, Operator, Selection, Switch,
    Switched,
};
use serde_json::{Value, json};

use super::{confirm, observer, operator};
use crate::cli::{OperationAct, OperationNew, Operations};
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global, facts, or_dash, time};

/// How often somebody who waits looks.
const LOOK: Duration = Duration::from_millis(200);
/// How wide the bar is.
const BAR: usize = 30;

pub(crate) async fn run(what: Operations, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Operations::Replay { new, which, reason } => {
            let selection = which.selection(new.all);
            create(new, OperationKind::Replay, selection, reason, global).await
        }
        Operations::Discard { new, which, reason } => {
            let selection = which.selection(new.all);
            create(new, OperationKind::Discard, selection, Some(reason), global).await
        }
        Operations::Cancel { new, which, reason } => {
            let selection = which.selection(new.all);
            create(new, OperationKind::Cancel, selection, reason, global).await
        }
        Operations::List { jsonl } => list(jsonl, global).await,
        Operations::Show { name } => {
            let shown = observer(global).await?.operation(&name).await?.ok_or_else(|| not_found(&name))?;
            print(&shown, global)?;
            Ok(Exit::Ok)
        }
        Operations::Items { name, outcome, after, limit, jsonl } => {
            items(&name, outcome.as_deref(), (after, limit), jsonl, global).await
        }
        Operations::Start { which, consent, wait } => start(&which, consent.yes, wait, global).await,
        Operations::Stop(which) => switch(&operator(global).await?, &which, Switch::Stop, global).await,
        Operations::Resume { which, wait } => {
            let operator = operator(global).await?;
            match wait {
                true => {
                    switched(&operator, &which, Switch::Resume).await?;
                    until_done(&operator, &which.name, global).await
                }
                false => switch(&operator, &which, Switch::Resume, global).await,
            }
        }
    }
}

async fn create(
    new: OperationNew,
    kind: OperationKind,
    selection: Selection,
    reason: Option<String>,
    global: &Global,
) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let name = new.name;
    let operation = NewOperation { reason, ..NewOperation::new(&name, kind, selection) };
    let created = operator.create_operation(&operation.per_second(new.per_second)).await;
    let total = created.map_err(|error| exit::of_change(error, look_at(&name)))?;
    let done = format!("operation {name} is ready: {kind} {}", jobs(total));
    let printed = match operator.operation(&name).await {
        Ok(Some(shown)) => print(&shown, global),
        // It is there, which is what has to be told.
        _ => global.print(&done).map_err(Into::into),
    };
    output::told(printed, done, look_at(&name))?;
    global.say(format_args!("nothing is done yet; begin: outhaul operations start {name}"));
    Ok(Exit::Ok)
}

async fn list(jsonl: bool, global: &Global) -> anyhow::Result<Exit> {
    let operations = observer(global).await?.operations().await?;
    if global.json {
        global.print_json(&json!({ "operations": operations }))?;
    } else if jsonl {
        operations.iter().try_for_each(|operation| global.print_json(operation))?;
    } else {
        let header =
            ["NAME", "KIND", "STATE", "TOTAL", "DONE", "SKIPPED", "PER_SECOND", "CREATED_AT", "REASON"];
        global.print_table(&header, operations.iter().map(row).collect())?;
    }
    Ok(Exit::Ok)
}

fn row(o: &OperationView) -> Vec<String> {
    vec![
        o.name.clone(),
        o.kind.to_string(),
        o.state.to_string(),
        o.total.to_string(),
        o.done.to_string(),
        o.skipped.to_string(),
        o.per_second.to_string(),
        time(o.created_at),
        or_dash(o.reason.as_ref()),
    ]
}

/// An operation with its set: as one JSON object, or as lines.
fn print(o: &OperationView, global: &Global) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(o);
    }
    let mut lines = vec![format!("{}  {} {}  {}", o.name, o.kind, jobs(o.total), o.state)];
    let outcomes: Vec<String> = o.outcomes.iter().map(|(outcome, n)| format!("{outcome} {n}")).collect();
    lines.extend(facts([
        ("filter", Some(o.filter.to_string())),
        ("done", Some(format!("{} of {}, {} skipped", o.done, o.total, o.skipped))),
        ("outcomes", (!outcomes.is_empty()).then(|| outcomes.join(", "))),
        ("per second", Some(o.per_second.to_string())),
        ("created", Some(format!("{} by {}", time(o.created_at), o.actor))),
        ("reason", o.reason.clone()),
        ("started", o.started_at.map(time)),
        ("stopped", o.stopped_at.map(time)),
        ("finished", o.finished_at.map(time)),
        ("error", o.error.clone()),
    ]));
    lines.push(global.bold("its jobs, as they were chosen"));
    let text = |value: &Value| or_dash(value.as_str());
    for group in o.preview["groups"].as_array().into_iter().flatten() {
        let (queue, job_type, code) = (text(&group["queue"]), text(&group["job_type"]), text(&group["code"]));
        lines.push(format!("  {:>8}  {queue}  {job_type}  {code}", group["jobs"].as_i64().unwrap_or(0)));
    }
    lines.push(global.bold("the first of them"));
    for job in o.preview["sample"].as_array().into_iter().flatten() {
        let (id, job_type, code) = (text(&job["id"]), text(&job["job_type"]), text(&job["code"]));
        lines.push(format!("  {id}  {job_type}  {code}  {}", text(&job["summary"])));
    }
    Ok(lines.iter().try_for_each(|line| global.print(line))?)
}

async fn items(
    name: &str,
    outcome: Option<&str>,
    (after, limit): (i64, i32),
    jsonl: bool,
    global: &Global,
) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    observer.operation(name).await?.ok_or_else(|| not_found(name))?;
    let items = observer.operation_items(name, after, outcome, limit).await?;
    let next = items.last().filter(|_| items.len() == limit as usize).map(|item| item.n);
    if global.json {
        global.print_json(&json!({ "items": items, "next_after": next }))?;
    } else if jsonl {
        items.iter().try_for_each(|item| global.print_json(item))?;
    } else {
        let row = |item: &OperationItem| {
            vec![item.n.to_string(), item.job_id.to_string(), or_dash(item.outcome.as_ref())]
        };
        global.print_table(&["N", "JOB", "OUTCOME"], items.iter().map(row).collect())?;
        if let Some(next) = next {
            global.say(format_args!("more: --after {next}"));
        }
    }
    Ok(Exit::Ok)
}

async fn start(which: &OperationAct, yes: bool, wait: bool, global: &Global) -> anyhow::Result<Exit> {
    let name = &which.name;
    let doing = format!("starting {name}");
    confirm::possible(yes, &doing)?;
    let operator = operator(global).await?;
    if !yes {
        let o = operator.operation(name).await?.ok_or_else(|| not_found(name))?;
        confirm::ask(question(&o), doing)?;
    }
    match wait {
        true => {
            switched(&operator, which, Switch::Start).await?;
            until_done(&operator, name, global).await
        }
        false => switch(&operator, which, Switch::Start, global).await,
    }
}

/// Names what will be done to how many, and the largest groups of them.
fn question(o: &OperationView) -> String {
    let mut text = format!("{} {}", o.kind, jobs(o.total));
    let groups = o.preview["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    for group in groups.iter().take(3) {
        let word = |name: &str| group[name].as_str().unwrap_or("-").to_owned();
        let n = group["jobs"].as_i64().unwrap_or(0);
        let _ = write!(text, ", {n} {} {} {}", word("queue"), word("job_type"), word("code"));
    }
    let more = if groups.len() > 3 { " and others" } else { "" };
    format!("{text}{more}, at most {} a second?", o.per_second)
}

/// Does it, or says why it cannot be done. What is so already is no problem.
async fn switched(operator: &Operator, which: &OperationAct, to: Switch) -> anyhow::Result<Switched> {
    let name = &which.name;
    let found = operator.switch_operation(name, to, which.reason.as_deref()).await;
    let found = found.map_err(|error| match error.is_not_found() {
        true => not_found(name).into(),
        false => exit::of_change(error, look_at(name)),
    })?;
    let Switched::Was(state) = found else { return Ok(found) };
    let so_already = match to {
        Switch::Start | Switch::Resume => matches!(state, OperationState::Running | OperationState::Done),
        Switch::Stop => state == OperationState::Stopped,
    };
    let hint = match state {
        _ if so_already => return Ok(found),
        OperationState::Stopped => format!("Go on with it: outhaul operations resume {name}"),
        OperationState::Ready => format!("It has not begun: outhaul operations start {name}"),
        OperationState::Running | OperationState::Done => look_at(name),
    };
    let what = format!("operation {name} is {state}; nothing was changed");
    Err(Problem::new(Exit::Refused, state.as_str(), what).hint(hint).into())
}

async fn switch(
    operator: &Operator,
    which: &OperationAct,
    to: Switch,
    global: &Global,
) -> anyhow::Result<Exit> {
    let name = &which.name;
    let found = switched(operator, which, to).await?;
    let (state, word) = match (to, found) {
        (Switch::Stop, Switched::Changed) => (OperationState::Stopped, "is stopped"),
        (Switch::Start, Switched::Changed) => (OperationState::Running, "has begun"),
        (Switch::Resume, Switched::Changed) => (OperationState::Running, "goes on"),
        (_, Switched::Was(state)) => (
            state,
            match state {
                OperationState::Ready => "is ready",
                OperationState::Running => "was running before",
                OperationState::Stopped => "was stopped before",
                OperationState::Done => "is done",
            },
        ),
    };
    let done = format!("operation {name} {word}");
    let answer = json!({ "operation": name, "state": state, "changed": found == Switched::Changed });
    let printed = match global.json {
        true => global.print_json(&answer),
        false => global.print(&done).map_err(Into::into),
    };
    output::told(printed, done, look_at(name))?;
    Ok(Exit::Ok)
}

/// Makes steps, and looks, until the operation is done or somebody has stopped it. It goes on without this process, if
/// there are workers; an outage of the database is waited out.
async fn until_done(operator: &Operator, name: &str, global: &Global) -> anyhow::Result<Exit> {
    let drawn = io::stderr().is_terminal() && !global.quiet && !global.json;
    loop {
        match look(operator, name).await {
            Ok(Some(o)) => {
                if drawn {
                    let _ = write!(io::stderr(), "\r{}\x1b[K", bar(&o));
                }
                if matches!(o.state, OperationState::Done | OperationState::Stopped) {
                    if drawn {
                        let _ = writeln!(io::stderr());
                    }
                    return ended(&o, global);
                }
            }
            Ok(None) => return Err(not_found(name).into()),
            Err(e) if e.is_retryable() || e.is_unavailable() || e.is_outcome_unknown() => {}
            Err(error) => return Err(exit::of_change(error, look_at(name))),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Makes the steps that are due, and says how it stands then.
async fn look(operator: &Operator, name: &str) -> outhaul::Result<Option<OperationView>> {
    while let Some(step) = operator.step_operation(name).await? {
        if step.state != OperationState::Running {
            break;
        }
    }
    operator.operation(name).await
}

fn ended(o: &OperationView, global: &Global) -> anyhow::Result<Exit> {
    let name = &o.name;
    let done =
        format!("operation {name} is {}: {} of {} done, {} skipped", o.state, o.done, o.total, o.skipped);
    let printed = match global.json {
        true => global.print_json(o),
        false => global.print(&done).map_err(Into::into),
    };
    output::told(printed, &done, look_at(name))?;
    match o.state {
        OperationState::Stopped => {
            Err(Problem::new(Exit::Refused, "stopped", format!("{done}: somebody has stopped it"))
                .hint(format!("Go on with it: outhaul operations resume {name}"))
                .into())
        }
        _ => Ok(Exit::Ok),
    }
}

fn bar(o: &OperationView) -> String {
    let past = o.done + o.skipped;
    let full = (past as f64 / o.total.max(1) as f64 * BAR as f64) as usize;
    let full = full.min(BAR);
    let (done, open) = ("#".repeat(full), ".".repeat(BAR - full));
    format!("[{done}{open}] {past}/{}  done {}  skipped {}", o.total, o.done, o.skipped)
}

fn jobs(n: i64) -> String {
    if n == 1 { "1 job".to_owned() } else { format!("{n} jobs") }
}

fn not_found(name: &str) -> Problem {
    Problem::new(Exit::NotFound, "not_found", format!("there is no operation {name}"))
        .hint("Their names: outhaul operations list. One that is over is kept for 30 days.")
}

fn look_at(name: &str) -> String {
    format!("Look at it: outhaul operations show {name}")
}
