//! `outhaul subs list|show|pause|resume|rewind|skip|unpark|drop`.

use anyhow::Error;
use outhaul::{Hold, Observer, ParkedView, SetAside, Start, SubscriptionView};
use serde_json::{Value, json};

use super::each::{Acted, Things, each};
use super::{confirm, observer, operator};
use crate::cli::{Subs, SubsAct, SubsRewind, SubsShow};
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global, facts, or_dash, span, time};

pub(crate) async fn run(what: Subs, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Subs::List { jsonl } => list(jsonl, global).await,
        Subs::Show(args) => show(&args, global).await,
        Subs::Pause(args) => pause(&args, true, global).await,
        Subs::Resume(args) => pause(&args, false, global).await,
        Subs::Rewind(args) => rewind(&args, global).await,
        Subs::Skip { name, position, reason } => skip(&name, position, &reason, global).await,
        Subs::Unpark { name, positions, reason } => {
            unpark(&name, &positions, reason.as_deref(), global).await
        }
        Subs::Drop { name, consent, reason } => drop(&name, consent.yes, reason.as_deref(), global).await,
    }
}

async fn list(jsonl: bool, global: &Global) -> anyhow::Result<Exit> {
    let mut subscriptions = observer(global).await?.subscriptions().await?;
    subscriptions.sort_by(|a, b| b.oldest_ms.cmp(&a.oldest_ms).then_with(|| a.name.cmp(&b.name)));
    if global.json {
        global.print_json(&json!({ "subscriptions": subscriptions }))?;
    } else if jsonl {
        subscriptions.iter().try_for_each(|subscription| global.print_json(subscription))?;
    } else {
        let header = ["NAME", "OLDEST", "BEHIND", "POSITION", "HEAD", "PARKED", "HOLDS", "SEEN_AT"];
        global.print_table(&header, subscriptions.iter().map(row).collect())?;
    }
    Ok(Exit::Ok)
}

fn row(s: &SubscriptionView) -> Vec<String> {
    vec![
        s.name.clone(),
        or_dash(s.oldest_ms.map(span)),
        s.behind.to_string(),
        s.position.to_string(),
        s.head.to_string(),
        s.parked.to_string(),
        or_dash(s.holds),
        time(s.seen_at),
    ]
}

async fn show(args: &SubsShow, global: &Global) -> anyhow::Result<Exit> {
    let observer = observer(global).await?;
    let s = known(&observer, &args.name).await?;
    let aside = observer.set_aside(&args.name).await?;
    let parked = observer.parked(&args.name, args.before, args.limit).await?;
    // A full page may be the last one; then the next is empty.
    let next = parked.last().filter(|_| parked.len() == args.limit as usize).map(|event| event.position);
    let advice = s.holds.map(|hold| advice(&s, hold));
    if global.json {
        let mut shown = serde_json::to_value(&s)?;
        shown["hint"] = advice.map_or(Value::Null, Value::String);
        shown["skipped"] = aside.skipped.into();
        shown["given_back"] = aside.given_back.into();
        // Not `parked`, which is a number.
        shown["parked_events"] = serde_json::to_value(&parked)?;
        shown["next_before"] = next.into();
        global.print_json(&shown)?;
        return Ok(Exit::Ok);
    }
    for line in of_subscription(&s, aside) {
        global.print(line)?;
    }
    if !parked.is_empty() {
        global.print(global.bold("events set aside"))?;
        let header = ["POSITION", "ID", "TYPE", "HOW", "AT", "ATTEMPTS", "CODE", "SUMMARY", "GIVEN_BACK"];
        global.print_table(&header, parked.iter().map(parked_row).collect())?;
    }
    if let Some(next) = next {
        global.say(format_args!("more: --before {next}"));
    }
    if let Some(advice) = advice {
        global.say(format_args!("hint: {advice}"));
    }
    Ok(Exit::Ok)
}

fn of_subscription(s: &SubscriptionView, aside: SetAside) -> Vec<String> {
    let SetAside { parked, skipped, given_back } = aside;
    let list = |names: &Option<Vec<String>>| names.as_ref().map(|names| names.join(", "));
    let mut lines = vec![format!(
        "{}  position {} of {}  behind {}  {}",
        s.name,
        s.position,
        s.head,
        s.behind,
        s.holds.map_or("nothing holds it back", Hold::as_str)
    )];
    lines.extend(facts([
        ("oldest", s.oldest_ms.map(span)),
        ("events", list(&s.event_types)),
        ("aggregates", list(&s.aggregate_types)),
        ("policy", Some(s.policy.clone())),
        ("paused", s.paused_reason.clone()),
        ("failing", failing(s)),
        ("next attempt", s.due_at.filter(|_| s.stuck_class.is_some()).map(time)),
        ("set aside", Some(format!("parked {parked}, skipped {skipped}, given back {given_back}"))),
        ("leased by", s.leased_by.map(|id| id.to_string())),
        ("lease until", s.lease_until.map(time)),
        ("moved", Some(time(s.moved_at))),
        ("caught up", s.caught_up_at.map(time)),
        ("seen", Some(time(s.seen_at))),
        ("epoch", (s.epoch > 0).then(|| s.epoch.to_string())),
    ]));
    lines
}

/// The failure that it waits behind, in a line.
fn failing(s: &SubscriptionView) -> Option<String> {
    let class = s.stuck_class.as_deref()?;
    let place = s.blocked_position.map(|at| format!("position {at}, ")).unwrap_or_default();
    let code = s.stuck_code.as_deref().map(|code| format!(" {code}")).unwrap_or_default();
    let summary = s.stuck_summary.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    Some(format!("{place}attempt {}, {class}{code}{summary}", s.attempts))
}

/// What to do about what holds it back.
fn advice(s: &SubscriptionView, hold: Hold) -> String {
    let (name, position) = (&s.name, s.position);
    match hold {
        Hold::Paused => format!("Let it go on: outhaul subs resume {name}"),
        Hold::Blocked => {
            let at = s.blocked_position.map_or("POSITION".to_owned(), |at| at.to_string());
            format!(
                "Mend the handler: a worker that starts anew tries it at once. If nobody needs the event: outhaul subs skip \
                 {name} {at} --reason TEXT"
            )
        }
        Hold::Truncated => format!(
            "The events after position {position} are not kept any more. Reconcile what it missed, then: outhaul \
             subs rewind {name} --to beginning"
        ),
        Hold::Diverged => format!(
            "Position {position} belongs to another history: the database was restored. Say where it shall go on: \
             outhaul subs rewind {name} --to POSITION"
        ),
        Hold::Gone => format!(
            "No consumer has asked since {}, and its events are kept. Start its worker; if nobody needs it any more: \
             outhaul subs drop {name}",
            time(s.seen_at)
        ),
        Hold::IdleConsumer => format!("No consumer has asked since {}. Start its worker.", time(s.seen_at)),
    }
}

fn parked_row(event: &ParkedView) -> Vec<String> {
    vec![
        event.position.to_string(),
        event.event_id.to_string(),
        event.event_type.clone(),
        event.how.clone(),
        time(event.parked_at),
        event.attempts.to_string(),
        or_dash(event.error_code.as_ref()),
        or_dash(event.error_summary.as_ref()),
        or_dash(event.unparked_at.map(time)),
    ]
}

async fn pause(args: &SubsAct, pause: bool, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let (name, reason) = (&args.name, args.reason.as_deref());
    let changed = match pause {
        true => operator.pause_subscription(name, reason).await,
        false => operator.resume_subscription(name, reason).await,
    };
    let changed = changed.map_err(|error| of_action(error, name))?;
    let word = match (pause, changed) {
        (true, true) => "is paused",
        (true, false) => "was paused before",
        (false, true) => "goes on",
        (false, false) => "was not paused",
    };
    let answer = json!({ "subscription": name, "paused": pause, "changed": changed });
    tell(&answer, &format!("subscription {name} {word}"), look_at(name), global)
}

async fn rewind(args: &SubsRewind, global: &Global) -> anyhow::Result<Exit> {
    let name = &args.name;
    let doing = format!("rewinding {name}");
    confirm::possible(args.consent.yes, &doing)?;
    let operator = operator(global).await?;
    if !args.consent.yes {
        confirm::ask(rewind_question(&observer(global).await?, name, args.to).await?, doing)?;
    }
    let done = operator.rewind_subscription(name, args.to, args.reason.as_deref()).await;
    let position = done.map_err(|error| of_action(error, name))?;
    let answer = json!({ "subscription": name, "position": position });
    let done = format!("subscription {name} is at position {position}: what follows is delivered again");
    tell(&answer, &done, look_at(name), global)
}

async fn rewind_question(observer: &Observer, name: &str, to: Start) -> anyhow::Result<String> {
    let s = known(observer, name).await?;
    let target = observer.tail(to, &[], 0).await?.through;
    if s.holds == Some(Hold::Diverged) {
        let at = s.position;
        return Ok(format!(
            "position {at} of {name} belongs to another history: let it go on after {target}?"
        ));
    }
    let events = match (s.position - target).max(0) {
        1 => "1 event".to_owned(),
        n => format!("{n} events"),
    };
    let most = if s.event_types.is_some() || s.aggregate_types.is_some() { "up to " } else { "" };
    let from = s.position;
    Ok(format!("{most}{events} will be delivered again: rewind {name} from position {from} to {target}?"))
}

async fn skip(name: &str, position: i64, reason: &str, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let done = operator.skip_event(name, position, reason).await;
    let at = done.map_err(|error| of_action(error, name))?;
    let answer = json!({ "subscription": name, "skipped": position, "position": at });
    let done = format!("subscription {name} has skipped the event at position {position}");
    tell(&answer, &done, look_at(name), global)
}

async fn unpark(
    name: &str,
    positions: &[i64],
    reason: Option<&str>,
    global: &Global,
) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let missing = |position| {
        let what = format!("no event at position {position} is parked for {name}; nothing was changed");
        Problem::new(Exit::NotFound, "not_found", what)
            .hint(format!("One that was given back waits for its turn. Look: outhaul subs show {name}"))
    };
    let act = async |position| {
        Ok(match operator.unpark_event(name, position, reason).await? {
            true => Acted::good("unparked"),
            false => Acted::missing(missing(position)),
        })
    };
    let show = format!("outhaul subs show {name}");
    let events = Things { noun: "position".to_owned(), key: "position", show, by_name: false };
    each(positions, &events, act, global).await
}

async fn drop(name: &str, yes: bool, reason: Option<&str>, global: &Global) -> anyhow::Result<Exit> {
    let doing = format!("dropping {name}");
    confirm::possible(yes, &doing)?;
    let operator = operator(global).await?;
    if !yes {
        let s = known(&observer(global).await?, name).await?;
        let what = format!("at position {}, {} behind, {} parked", s.position, s.behind, s.parked);
        confirm::ask(format_args!("forget subscription {name} ({what})?"), doing)?;
    }
    let parked = operator.drop_subscription(name, reason).await.map_err(|error| of_action(error, name))?;
    let answer = json!({ "subscription": name, "parked_events": parked });
    let done = format!("subscription {name} is dropped (parked events that went with it: {parked})");
    tell(&answer, &done, "Look: outhaul subs list".to_owned(), global)
}

async fn known(observer: &Observer, name: &str) -> anyhow::Result<SubscriptionView> {
    Ok(observer.subscription(name).await?.ok_or_else(|| not_found(name))?)
}

fn not_found(name: &str) -> Problem {
    Problem::new(Exit::NotFound, "not_found", format!("there is no subscription {name}"))
        .hint("Their names: outhaul subs list. A worker that declares one makes it.")
}

/// An error of an action on a subscription.
fn of_action(error: outhaul::Error, name: &str) -> Error {
    match error.is_not_found() {
        true => not_found(name).into(),
        false => exit::of_change(error, look_at(name)),
    }
}

fn look_at(name: &str) -> String {
    format!("Look at it: outhaul subs show {name}")
}

/// Tells what was done to a subscription.
fn tell(answer: &Value, done: &str, look: String, global: &Global) -> anyhow::Result<Exit> {
    let printed = match global.json {
        true => global.print_json(answer),
        false => global.print(done).map_err(Into::into),
    };
    output::told(printed, done, look)?;
    Ok(Exit::Ok)
}
