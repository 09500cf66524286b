//! `outhaul queues list|show|set|limit-key|pause|resume`.

mod show;

use outhaul::QueueChange;
use serde_json::json;

use super::operator;
use crate::cli::{Queues, QueuesAct, QueuesSet, Rate, Set};
use crate::exit::{self, Exit, Problem};
use crate::output::{self, Global, facts};

pub(crate) async fn run(what: Queues, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Queues::List { jsonl } => show::list(jsonl, global).await,
        Queues::Show { queue, keys } => show::show(&queue, keys, global).await,
        Queues::Set(args) => set(&args, global).await,
        Queues::LimitKey { queue, key, most, reason } => {
            limit_key(&queue, &key, most, reason.as_deref(), global).await
        }
        Queues::Pause(args) => act(&args, true, global).await,
        Queues::Resume(args) => act(&args, false, global).await,
    }
}

async fn set(args: &QueuesSet, global: &Global) -> anyhow::Result<Exit> {
    let queue = &args.queue;
    let change = change(args);
    if change == QueueChange::new() {
        return Err(Problem::usage(format!("nothing is named that is to change on queue {queue}"))
            .hint(format!("Name a setting, such as --max-running 4, or look: outhaul queues show {queue}"))
            .into());
    }
    let operator = operator(global).await?;
    let look = format!("Look at it: outhaul queues show {queue}");
    let changed = operator.set_queue(queue, &change, args.reason.as_deref()).await;
    let settings = changed.map_err(|error| exit::of_change(error, look.as_str()))?;
    let printed = match global.json {
        true => global.print_json(&json!({ "queue": queue, "settings": settings })),
        false => {
            let lines = facts(show::settings(&settings));
            let lines = std::iter::once(global.bold(queue)).chain(lines);
            lines.into_iter().try_for_each(|line| Ok(global.print(line)?))
        }
    };
    output::told(printed, format_args!("queue {queue} is changed"), look)?;
    Ok(Exit::Ok)
}

fn change(args: &QueuesSet) -> QueueChange {
    type To<T> = fn(QueueChange, T) -> QueueChange;
    fn one<T>(change: QueueChange, name: &str, set: Option<Set<T>>, to: To<T>) -> QueueChange {
        match set {
            None => change,
            Some(Set::None) => change.without(name),
            Some(Set::To(value)) => to(change, value),
        }
    }
    let change = QueueChange::new();
    let change = one(change, "max_running", args.max_running, QueueChange::max_running);
    let change = one(change, "max_running_per_key", args.max_per_key, QueueChange::max_running_per_key);
    let change = one(change, "rate", args.rate, |change, rate: Rate| change.rate(rate.jobs, rate.per));
    let change = one(change, "rate_burst", args.burst, QueueChange::rate_burst);
    let change =
        one(change, "key_rate", args.key_rate, |change, rate: Rate| change.key_rate(rate.jobs, rate.per));
    let change = one(change, "key_rate_burst", args.key_burst, QueueChange::key_rate_burst);
    let change = one(change, "objective_seconds", args.objective, QueueChange::objective);
    let change = args.fair.into_iter().fold(change, QueueChange::fair);
    let change = args.history.iter().fold(change, |change, history| change.history(history));
    if args.end_cooldown { change.without("cool_until") } else { change }
}

async fn limit_key(
    queue: &str,
    key: &str,
    most: Set<i32>,
    reason: Option<&str>,
    global: &Global,
) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let look = format!("Look at it: outhaul queues show {queue}");
    let done = operator.limit_key(queue, key, most.value(), reason).await;
    done.map_err(|error| exit::of_change(error, look.as_str()))?;
    let done = match most {
        Set::To(0) => format!("queue {queue}: nothing of limit key {key} begins any more"),
        Set::To(most) => {
            format!("queue {queue}: at most {most} jobs of limit key {key} run at the same time")
        }
        Set::None => format!("queue {queue}: limit key {key} has no limit of its own"),
    };
    let printed = match global.json {
        true => global.print_json(&json!({ "queue": queue, "limit_key": key, "max_running": most.value() })),
        false => global.print(&done).map_err(Into::into),
    };
    output::told(printed, done, look)?;
    Ok(Exit::Ok)
}

async fn act(args: &QueuesAct, pause: bool, global: &Global) -> anyhow::Result<Exit> {
    let operator = operator(global).await?;
    let (queue, reason, look) = (&args.queue, args.reason.as_deref(), "Look at it: outhaul queues list");
    let changed = match pause {
        true => operator.pause(queue, reason).await,
        false => operator.resume(queue, reason).await,
    };
    let changed = changed.map_err(|error| exit::of_change(error, look))?;
    let word = match (pause, changed) {
        (true, true) => "is paused",
        (true, false) => "was paused before",
        (false, true) => "goes on",
        (false, false) => "was not paused",
    };
    let done = format!("queue {queue} {word}");
    let printed = match global.json {
        true => global.print_json(&json!({ "queue": queue, "paused": pause, "changed": changed })),
        false => global.print(&done).map_err(Into::into),
    };
    output::told(printed, done, look)?;
    Ok(Exit::Ok)
}
