//! What jobs wait for, in words.

use jiff::Timestamp;
use outhaul::{JobId, WaitReason, WaitView};

use crate::output::{or_dash, span, time};

/// What one job waits for.
pub(crate) fn of_job(wait: &WaitView) -> String {
    let key = wait.key.as_deref();
    match wait.reason {
        WaitReason::Lane => match wait.job_id {
            Some(head) => {
                let more = wait.jobs.filter(|n| *n > 1).map(|n| format!(", with {} more before it", n - 1));
                format!(
                    "its turn behind {} (ordering key {}){}",
                    head_of(wait, head),
                    or_dash(key),
                    or_empty(more)
                )
            }
            None => format!(
                "a look at its ordering key {}, which the next claim of the queue takes",
                or_dash(key)
            ),
        },
        WaitReason::Permit => format!("a unit of its limit key {}: {}", or_dash(key), units(wait)),
        WaitReason::Limit => format!("a unit of the queue's limit: {}", units(wait)),
        WaitReason::Rate => match key {
            Some(key) => format!("its place in the rate of rate key {key}{}", until(wait)),
            None => format!("its place in the rate of the queue{}", until(wait)),
        },
        WaitReason::Cooldown => match key {
            Some(key) => format!("the cooldown of rate key {key}{}", until(wait)),
            None => format!("the cooldown of the queue{}", until(wait)),
        },
        WaitReason::Paused => {
            format!("the queue, which is paused since {}", or_dash(wait.until.map(time)))
        }
        _ => "something that this version does not know".to_owned(),
    }
}

/// What the jobs of a key wait for, to stand behind the key.
pub(crate) fn of_key(wait: &WaitView) -> String {
    match (wait.reason, wait.job_id) {
        (WaitReason::Lane, Some(head)) => format!("behind {}", head_of(wait, head)),
        (WaitReason::Lane, None) => "for the next claim of the queue".to_owned(),
        (WaitReason::Permit, _) => units(wait),
        _ => until(wait).trim_start().to_owned(),
    }
}

fn head_of(wait: &WaitView, head: JobId) -> String {
    let status = or_dash(wait.job_status);
    match wait.until {
        Some(at) => format!("job {head}, {status} until {}", time(at)),
        None => format!("job {head}, {status}"),
    }
}

fn units(wait: &WaitView) -> String {
    match wait.max_running {
        Some(most) => format!("{} of {most} in use", wait.running.unwrap_or(0)),
        None => "no limit any more, the next sweep lets it in".to_owned(),
    }
}

fn until(wait: &WaitView) -> String {
    let left = |at: Timestamp| span((at.as_millisecond() - Timestamp::now().as_millisecond()).max(0));
    wait.until.map_or_else(String::new, |at| format!(" until {}, in {}", time(at), left(at)))
}

fn or_empty(text: Option<String>) -> String {
    text.unwrap_or_default()
}
