//! `outhaul outbox list|show|tail|status|check|retry|rotate-history`.

mod tail;

use outhaul::{Disposition, EventDetail, EventFilter, EventId, EventView, OutboxFinding, OutboxView};
use serde_json::json;

use super::each::{Acted, Things, each};
use super::{confirm, observer, operator};
use crate::cli::{Outbox, OutboxList};
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global, facts, or_dash, span, time};

pub(crate) async fn run(what: Outbox, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Outbox::List(args) => list(args, global).await,
        Outbox::Show { id, payload } => show(id, payload, global).await,
        Outbox::Tail(args) => tail::run(args, global).await,
        Outbox::Status => status(global).await,
        Outbox::Check { limit } => check(limit, global).await,
        Outbox::Retry { ids, reason } => retry(&ids, reason.as_deref(), global).await,
        Outbox::RotateHistory { consent, reason } => {
            rotate_history(consent.yes, reason.as_deref(), global).await
        }
    }
}

async fn list(args: OutboxList, global: &Global) -> anyhow::Result<Exit> {
    let filter = EventFilter {
        event_type: args.event_type,
        aggregate_type: args.aggregate_type,
        aggregate_id: args.aggregate_id,
        only_parked: args.parked,
        before: args.before,
        limit: args.limit,
    };
    let events = observer(global).await?.events(&filter).await?;
    // A full page may be the last one; then the next is empty.
    let next = events.last().filter(|_| events.len() == args.limit as usize).map(|event| event.seq);
    if global.json {
        global.print_json(&json!({ "events": events, "next_before": next }))?;
    } else if args.jsonl {
        events.iter().try_for_each(|event| global.print_json(event))?;
    } else {
        let header = ["SEQ", "POSITION", "ID", "TYPE", "AGGREGATE_TYPE", "AGGREGATE_ID", "RELAY", "AT"];
        global.print_table(&header, events.iter().map(row).collect())?;
        if let Some(next) = next {
            global.say(format_args!("more: --before {next}"));
        }
    }
    Ok(Exit::Ok)
}

fn row(event: &EventView) -> Vec<String> {
    vec![
        event.seq.to_string(),
        or_dash(event.position),
        event.id.to_string(),
        event.event_type.clone(),
        event.aggregate_type.clone(),
        event.aggregate_id.to_string(),
        or_dash(event.relay.as_ref()),
        time(event.at),
    ]
}

async fn show(id: EventId, payload: bool, global: &Global) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    let stored = observer.event(id).await?;
    if stored.is_empty() {
        let problem = Problem::new(Exit::NotFound, "not_found", format!("there is no event {id}"));
        return Err(problem
            .hint(
                "It may have been removed: events go when they are old enough and no reader waits for them.",
            )
            .into());
    }
    let aside = observer.dispositions(id).await?;
    let payload = if payload { observer.event_payload(id).await? } else { None };
    if global.json {
        let mut shown = json!({ "events": stored, "set_aside_by": aside });
        if let Some(payload) = &payload {
            shown["payload"] = serde_json::from_str(payload)?;
        }
        global.print_json(&shown)?;
        return Ok(Exit::Ok);
    }
    for line in stored.iter().flat_map(of_event) {
        global.print(line)?;
    }
    if !aside.is_empty() {
        global.print(global.bold("set aside by"))?;
        for line in facts(aside.iter().map(|one| (&*one.subscription, Some(of_disposition(one))))) {
            global.print(line)?;
        }
    }
    if let Some(payload) = payload {
        global.print(format_args!("payload      {payload}"))?;
    }
    if stored.len() > 1 {
        let n = stored.len();
        global.say(format_args!("this id was published {n} times; the payload is that of the first"));
    }
    Ok(Exit::Ok)
}

fn of_event(detail: &EventDetail) -> Vec<String> {
    let e = &detail.event;
    let position = e.position.map_or("without a position".to_owned(), |at| format!("position {at}"));
    let mut lines = vec![format!(
        "{}  {}  {} {}  version {}  {position}",
        e.id, e.event_type, e.aggregate_type, e.aggregate_id, e.schema_version
    )];
    lines.extend(facts([
        ("seq", Some(e.seq.to_string())),
        ("organization", detail.organization_id.map(|id| id.to_string())),
        ("partition", detail.partition_key.clone()),
        ("occurred", Some(time(e.occurred_at))),
        ("inserted", Some(time(e.at))),
        ("relay", e.relay.clone()),
        ("available", detail.available_at.filter(|_| e.relay.as_deref() == Some("pending")).map(time)),
        ("attempts", (detail.attempts > 0).then(|| detail.attempts.to_string())),
        ("processed", detail.processed_at.map(time)),
        ("last error", detail.last_error.clone()),
        ("trace", detail.traceparent.clone()),
    ]));
    lines
}

/// What a subscription has done with an event, in a line.
fn of_disposition(one: &Disposition) -> String {
    let event = &one.parked;
    let again = event.unparked_at.map(|at| format!(", given back {}", time(at))).unwrap_or_default();
    let code = event.error_code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
    let why = event.error_summary.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    format!("{} at position {}{again}{code}{why}", event.how, event.position)
}

async fn status(global: &Global) -> anyhow::Result<Exit> {
    let outbox = observer(global).await?.outbox().await?;
    if global.json {
        global.print_json(&outbox)?;
        return Ok(Exit::Ok);
    }
    for line in of_outbox(&outbox) {
        global.print(line)?;
    }
    Ok(Exit::Ok)
}

fn of_outbox(outbox: &OutboxView) -> Vec<String> {
    let oldest = |ms: Option<i64>| ms.map(|ms| format!(", the oldest for {}", span(ms))).unwrap_or_default();
    let more = if outbox.capped { "; counting stopped there, there are more" } else { "" };
    let relay = outbox.relay.as_ref();
    let since = relay.map(|relay| relay.since.map_or("the beginning".to_owned(), time));
    facts([
        ("head", Some(format!("position {}", outbox.head))),
        ("history", Some(outbox.history_id.to_string())),
        (
            "no position",
            Some(format!("{}{}{more}", outbox.unsequenced, oldest(outbox.oldest_unsequenced_ms))),
        ),
        ("relay", Some(since.map_or("none is registered".to_owned(), |since| format!("since {since}")))),
        ("pending", relay.map(|relay| format!("{}{}{more}", relay.pending, oldest(relay.oldest_ms)))),
        ("leased", relay.map(|relay| relay.leased.to_string())),
        ("parked", relay.map(|relay| relay.parked.to_string())),
    ])
}

async fn check(limit: i32, global: &Global) -> anyhow::Result<Exit> {
    let findings = observer(global).await?.reconcile_outbox(limit).await?;
    output::unless_closed(print_findings(&findings, global))?;
    if findings.is_empty() {
        return Ok(Exit::Ok);
    }
    let what = match findings.len() {
        1 => "1 thing in the outbox does not fit".to_owned(),
        n => format!("{n} things in the outbox do not fit"),
    };
    Err(Problem::new(Exit::Failed, "findings", what)
        .hint("Nothing was changed. DETAILS says what each means; a cursor is mended with: outhaul subs rewind NAME")
        .into())
}

fn print_findings(findings: &[OutboxFinding], global: &Global) -> anyhow::Result<()> {
    if global.json {
        return global.print_json(&json!({ "findings": findings }));
    }
    if findings.is_empty() {
        return Ok(global.print("everything fits: events, positions, cursors, and what became of events")?);
    }
    let row = |found: &OutboxFinding| {
        vec![
            found.finding.clone(),
            or_dash(found.seq),
            or_dash(found.position),
            or_dash(found.subscription.as_ref()),
            found.details.clone(),
        ]
    };
    let header = ["FINDING", "SEQ", "POSITION", "SUBSCRIPTION", "DETAILS"];
    Ok(global.print_table(&header, findings.iter().map(row).collect())?)
}

async fn retry(ids: &[EventId], reason: Option<&str>, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let missing = |id| {
        let what = format!("the relay has parked no event {id}; nothing was changed");
        Problem::new(Exit::NotFound, "not_found", what).hint("Those it has: outhaul outbox list --parked")
    };
    let act = async |id| {
        Ok(match operator.retry_event(id, reason).await? {
            true => Acted::good("due"),
            false => Acted::missing(missing(id)),
        })
    };
    let show = "outhaul outbox show".to_owned();
    let events = Things { noun: "event".to_owned(), key: "id", show, by_name: true };
    each(ids, &events, act, global).await
}

async fn rotate_history(yes: bool, reason: Option<&str>, global: &Global) -> anyhow::Result<Exit> {
    let doing = "beginning a new history of positions";
    confirm::possible(yes, doing)?;
    let operator = operator(global).await?;
    if !yes {
        let question =
            "readers elsewhere that hold positions of this outbox will be refused: begin a new history?";
        confirm::ask(question, doing)?;
    }
    let look = "Look at it: outhaul outbox status";
    let id = operator.rotate_history(reason).await.map_err(|error| exit::of_change(error, look))?;
    let done = format!("positions belong to history {id} from now on");
    let printed = match global.json {
        true => global.print_json(&json!({ "history_id": id })),
        false => global.print(&done).map_err(Into::into),
    };
    output::told(printed, done, look)?;
    Ok(Exit::Ok)
}
