//! `outhaul queues list|pause|resume`.

use outhaul::QueueView;
use serde_json::json;

use super::{observer, operator};
use crate::cli::{Queues, QueuesAct};
use crate::exit::{self, Exit};
use crate::output::{self, Global, or_dash, span};

pub(crate) async fn run(what: Queues, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Queues::List { jsonl } => list(jsonl, global).await,
        Queues::Pause(args) => act(&args, true, global).await,
        Queues::Resume(args) => act(&args, false, global).await,
    }
}

async fn list(jsonl: bool, global: &Global) -> anyhow::Result<Exit> {
    let mut queues = observer(global).await?.queues().await?;
    queues.sort_by(|a, b| b.oldest_pending_ms.cmp(&a.oldest_pending_ms).then_with(|| a.queue.cmp(&b.queue)));
    if global.json {
        global.print_json(&json!({ "queues": queues }))?;
    } else if jsonl {
        queues.iter().try_for_each(|queue| global.print_json(queue))?;
    } else {
        let header = [
            "QUEUE",
            "OLDEST_PENDING",
            "PENDING",
            "SCHEDULED",
            "LEASED",
            "RETRYING",
            "DEAD_LETTER",
            "WORKERS",
            "PAUSED",
        ];
        global.print_table(&header, queues.iter().map(row).collect())?;
    }
    Ok(Exit::Ok)
}

fn row(queue: &QueueView) -> Vec<String> {
    // Live jobs are counted up to a cap, and the reader is told when there are more.
    let live = |n: i64| if queue.capped { format!("{n}+") } else { n.to_string() };
    vec![
        queue.queue.clone(),
        or_dash(queue.oldest_pending_ms.map(span)),
        live(queue.pending),
        live(queue.scheduled),
        live(queue.leased),
        live(queue.retrying),
        queue.dead_letter.to_string(),
        queue.workers.to_string(),
        if queue.paused { queue.paused_reason.clone().unwrap_or_else(|| "yes".into()) } else { "-".into() },
    ]
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
