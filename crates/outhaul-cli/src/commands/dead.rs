//! `outhaul dead list|groups|discard`.

use outhaul::{DeadGroup, DeadView, Discarded, JobId, Operator};
use serde_json::json;

use super::each::{Acted, each};
use super::{jobs, observer, operator, wait};
use crate::cli::{Dead, DeadList, DeadWhich};
use crate::exit::Exit;
use crate::output::{Global, or_dash, time};

pub(crate) async fn run(what: Dead, global: &Global) -> anyhow::Result<Exit> {
    match what {
        Dead::List(args) => list(args, global).await,
        Dead::Groups { which, limit, jsonl } => groups(which, limit, jsonl, global).await,
        Dead::Discard { ids, reason } => discard(&ids, &reason, global).await,
    }
}

async fn list(args: DeadList, global: &Global) -> anyhow::Result<Exit> {
    let selection = args.which.selection(false);
    let dead = observer(global).await?.dead(&selection, args.cursor, args.limit).await?;
    let last = dead.last().filter(|_| dead.len() == args.limit as usize);
    let next = last.map(|dead| format!("{}/{}", dead.died_at, dead.id));
    if global.json {
        global.print_json(&json!({ "dead_letters": dead, "next_cursor": next }))?;
    } else if args.jsonl {
        dead.iter().try_for_each(|dead| global.print_json(dead))?;
    } else {
        let header = ["ID", "QUEUE", "TYPE", "ATTEMPTS", "CLASS", "CODE", "DIED_AT", "SUMMARY"];
        global.print_table(&header, dead.iter().map(row).collect())?;
        if let Some(next) = next {
            global.say(format_args!("more: --cursor {next}"));
        }
    }
    Ok(Exit::Ok)
}

fn row(dead: &DeadView) -> Vec<String> {
    vec![
        dead.id.to_string(),
        dead.queue.clone(),
        dead.job_type.clone(),
        format!("{}/{}", dead.attempts, dead.max_attempts),
        dead.error_class.clone(),
        or_dash(dead.error_code.as_ref()),
        time(dead.died_at),
        or_dash(dead.error_summary.as_ref()),
    ]
}

async fn groups(which: DeadWhich, limit: i32, jsonl: bool, global: &Global) -> anyhow::Result<Exit> {
    let groups = observer(global).await?.dead_groups(&which.selection(false), limit).await?;
    if global.json {
        global.print_json(&json!({ "groups": groups }))?;
    } else if jsonl {
        groups.iter().try_for_each(|group| global.print_json(group))?;
    } else {
        let header = ["QUEUE", "TYPE", "CODE", "JOBS", "OLDEST", "NEWEST", "SAMPLE", "SUMMARY"];
        global.print_table(&header, groups.iter().map(group).collect())?;
    }
    Ok(Exit::Ok)
}

fn group(group: &DeadGroup) -> Vec<String> {
    vec![
        group.queue.clone(),
        group.job_type.clone(),
        or_dash(group.error_code.as_ref()),
        group.jobs.to_string(),
        time(group.oldest_at),
        time(group.newest_at),
        or_dash(group.sample_id),
        or_dash(group.sample_summary.as_ref()),
    ]
}

async fn discard(ids: &[JobId], reason: &str, global: &Global) -> anyhow::Result<Exit> {
    let operator: Operator = operator(global).await?;
    let act = async |id| {
        Ok(match operator.discard(id, reason).await? {
            Discarded::Discarded => Acted::good("discarded"),
            Discarded::Live => Acted::refused("live", "is no dead letter: it waits or runs"),
            Discarded::Ended => Acted::refused("ended", "has ended"),
            Discarded::NotFound => Acted::missing(wait::not_found(id)),
        })
    };
    each(ids, &jobs::jobs(), act, global).await
}
