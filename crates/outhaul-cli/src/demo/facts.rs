//! The shop's facts: what is published, which jobs follow from it, and the ledger that a second reader keeps.

use std::collections::BTreeMap;

use anyhow::Context as _;
use outhaul::{
    EventContext, Failure, NewEvent, NewJob, Outcome, Producer, Projection, RecordedEvent, Rule, Start,
    Subscription,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::task::{LOYALTY, Task, queue_of, service_of};

/// Every type of fact with the types of the jobs that follow from it.
pub(super) const FACTS: [(&str, &[&str]); 3] = [
    ("order.placed", &["mail.confirmation"]),
    ("order.paid", &["partner.paid", "courier.assign", LOYALTY]),
    ("order.delivered", &["sms.delivered", "delivery.report"]),
];

/// The projection's name.
const JOBS: &str = "order-jobs";
/// The ledger's name.
const LEDGER: &str = "ledger";

/// The payload of every fact: the order, and for the demonstration what the jobs will meet with.
#[derive(Serialize, Deserialize)]
struct Fact {
    order: i32,
    work: BTreeMap<String, Task>,
}

/// Publishes a fact in the shop's transaction and writes it down there; the row of its order is locked by then, so
/// that the facts of one order are in the order of its changes.
pub(super) async fn publish(
    tx: &mut Transaction<'_>,
    schema: &str,
    producer: &Producer,
    what: &str,
    order: i32,
    work: impl IntoIterator<Item = (&'static str, Task)>,
) -> anyhow::Result<Uuid> {
    let work = work.into_iter().map(|(job_type, task)| (job_type.to_owned(), task)).collect();
    let payload = serde_json::to_string(&Fact { order, work })?;
    let event = NewEvent::raw(what, "order", Uuid::from_u128(order as u128 + 1), payload);
    let id = producer.publish(tx, &event).await?.id();
    let id: Uuid = id.to_string().parse().context("an event's id")?;
    let insert = format!("insert into {schema}.facts (event_id, order_id, what) values ($1, $2, $3)");
    tx.execute(&insert, &[&id, &order, &what]).await?;
    Ok(id)
}

/// The rules that turn facts into jobs: one for each type of job.
pub(super) fn projection() -> Projection {
    let rules = FACTS.iter().flat_map(|(fact, jobs)| jobs.iter().map(move |job| rule(fact, job)));
    let subscription = Subscription::new(JOBS).start(Start::Beginning);
    rules.fold(Projection::new(subscription), Projection::rule)
}

fn rule(fact: &str, job_type: &'static str) -> Rule {
    Rule::new(job_type, fact, move |event: &RecordedEvent| {
        let fact: Fact = event.read()?;
        let Some(task) = fact.work.get(job_type) else { return Ok(None) };
        let job = NewJob::raw(queue_of(job_type), job_type, serde_json::to_string(task)?)
            .rate_key(service_of(job_type, task.order));
        // Known beforehand to the shop, which has written it down with the operation.
        Ok(Some(job.id(task.operation.to_string().parse()?)))
    })
}

/// The second reader of all facts.
pub(super) fn ledger() -> Subscription {
    Subscription::new(LEDGER).start(Start::Beginning)
}

/// Enters a fact into the ledger: the entry commits with the checkpoint, or not at all.
pub(super) async fn enter(
    shop: &mut Client,
    schema: &str,
    event: &RecordedEvent,
    cx: &EventContext,
) -> Outcome {
    let order = event.read::<Fact>()?.order;
    let mut tx = shop.transaction().await.map_err(Failure::transient)?;
    let insert =
        format!("insert into {schema}.ledger (event_id, order_id, what, position) values ($1, $2, $3, $4)");
    tx.execute(&insert, &[&event.id, &order, &event.event_type, &event.position])
        .await
        .map_err(Failure::transient)?;
    cx.advance_in(&mut tx).await?;
    tx.commit().await.map_err(Failure::transient)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::task::TYPES;

    #[test]
    fn every_job_that_follows_from_a_fact_is_one_that_is_worked() {
        for job_type in FACTS.iter().flat_map(|(_, jobs)| *jobs) {
            assert!(TYPES.iter().any(|(name, _)| name == job_type), "{job_type}");
        }
    }
}
