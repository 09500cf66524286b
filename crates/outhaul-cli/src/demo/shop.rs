//! The business: an online bicycle-courier shop whose transactions change its own rows, publish what has happened, write
//! down the operations they promise, and enqueue the few jobs that are nobody else's conclusion.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outhaul::Session;
use outhaul::{Cancelled, Enqueued, JobId, NewJob, Producer, SchemaName};
use tokio::time::Instant;
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::facts;
use super::task::{Deck, Task, queue_of, service_of};

/// Jobs of one order that is placed, paid and delivered.
pub(super) const JOBS_PER_ORDER: usize = 8;

/// A review is asked for this long after the delivery; the customer may decline before.
const REVIEW_AFTER: Duration = Duration::from_millis(2_500);

/// Turns between the placing of an order and its payment, and again to its delivery.
const TURNS: usize = 3;

/// Makes the shop's tables in its schema, which exists.
pub(super) async fn create(client: &Client, schema: &str) -> anyhow::Result<()> {
    // `points` and `ledger` have no unique constraint on purpose: only the completion of the job, or the checkpoint, in
    // the same transaction protects them.
    let ddl = format!(
        "create table {schema}.orders (
           id integer primary key, status text not null, placed_at timestamptz not null default clock_timestamp(),
           paid_at timestamptz, delivered_at timestamptz, review_declined boolean not null default false);
         create table {schema}.operations (
           id uuid primary key, order_id integer not null references {schema}.orders (id),
           job_id uuid not null, job_type text not null, queue text not null,
           at timestamptz not null default clock_timestamp());
         create table {schema}.points (
           operation_id uuid not null, order_id integer not null, points integer not null,
           job_id uuid not null, claim_no integer not null, at timestamptz not null default clock_timestamp());
         create table {schema}.facts (
           event_id uuid primary key, order_id integer not null, what text not null,
           at timestamptz not null default clock_timestamp());
         create table {schema}.ledger (
           entry bigint generated always as identity, event_id uuid not null, order_id integer not null,
           what text not null, position bigint not null, at timestamptz not null default clock_timestamp());"
    );
    Ok(client.batch_execute(&ddl).await?)
}

/// What the till remembers, beside what it has committed.
#[derive(Debug, Default)]
pub(super) struct Sales {
    /// Operations of transactions that were rolled back: none of them may ever run.
    pub(super) rolled_back: HashSet<Uuid>,
    pub(super) rolled_back_transactions: usize,
    /// Facts of such transactions: none of them may ever be read.
    pub(super) rolled_back_facts: HashSet<Uuid>,
    /// Enqueues that were repeated under the same idempotency key.
    pub(super) enqueued_twice: usize,
    /// Repeats that the database answered with the job that was there.
    pub(super) answered_duplicate: usize,
    /// Jobs that the shop itself cancelled in time.
    pub(super) cancelled_in_time: usize,
}

/// The till: it takes orders until all are delivered.
pub(super) struct Till {
    client: Session,
    schema: String,
    producer: Producer,
    deck: Deck,
    placed: Arc<AtomicUsize>,
    sales: Sales,
    /// The job that will ask for the review of the order delivered last.
    review: Option<JobId>,
}

impl Till {
    /// `placed` counts along, for whoever draws the progress.
    pub(super) fn new(
        client: Session,
        schema: &str,
        outhaul: &SchemaName,
        seed: u64,
        placed: Arc<AtomicUsize>,
    ) -> Till {
        let producer = Producer::in_schema(outhaul);
        let schema = schema.to_owned();
        Till {
            client,
            schema,
            producer,
            deck: Deck::new(seed),
            placed,
            sales: Sales::default(),
            review: None,
        }
    }

    /// Places, takes payment for and delivers a number of orders, spread over a time. Slower when the
    /// database is slower, never faster.
    pub(super) async fn trade(mut self, orders: usize, time: Duration) -> anyhow::Result<Sales> {
        let turns = orders + 2 * TURNS;
        let started = Instant::now();
        for turn in 0..turns {
            tokio::time::sleep_until(started + time * turn as u32 / turns as u32).await;
            if turn < orders {
                self.place(turn as i32).await?;
                self.placed.fetch_add(1, Ordering::Relaxed);
            }
            if (TURNS..orders + TURNS).contains(&turn) {
                self.take_payment((turn - TURNS) as i32).await?;
            }
            if turn >= 2 * TURNS {
                self.deliver((turn - 2 * TURNS) as i32).await?;
            }
        }
        Ok(self.sales)
    }

    async fn place(&mut self, order: i32) -> anyhow::Result<()> {
        let follows = self.follows("order.placed", order);
        let mut tx = self.client.transaction().await?;
        let insert = format!("insert into {}.orders (id, status) values ($1, 'placed')", self.schema);
        tx.execute(&insert, &[&order]).await?;
        state(&mut tx, &self.schema, &self.producer, "order.placed", order, &follows).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Every seventh card is declined after everything was written and enqueued, and tried again; after
    /// every third payment the till has lost the answer and enqueues the receipt once more.
    async fn take_payment(&mut self, order: i32) -> anyhow::Result<()> {
        if order % 7 == 3 {
            let (receipt, follows) = self.payment(order)?;
            let (tx, fact) = self.pay(order, &receipt, &follows).await?;
            tx.rollback().await?;
            self.sales.rolled_back_transactions += 1;
            self.sales.rolled_back_facts.insert(fact);
            let tasks = follows.iter().map(|(_, task)| task).chain([&receipt.task]);
            self.sales.rolled_back.extend(tasks.map(|task| task.operation));
        }
        let (receipt, follows) = self.payment(order)?;
        self.pay(order, &receipt, &follows).await?.0.commit().await?;
        if order % 3 == 1 {
            self.repeat_receipt(&receipt).await?;
        }
        Ok(())
    }

    /// The receipt, which the till enqueues itself, under a key; and what follows from the payment.
    fn payment(&mut self, order: i32) -> anyhow::Result<(Promise, Vec<(&'static str, Task)>)> {
        let mut task = self.task("mail.receipt", order);
        // The key of a rolled-back payment is free again, for another operation.
        task.key = format!("receipt:{order}");
        let key = task.key.clone();
        let mut receipt = Promise::new("mail.receipt", task)?;
        receipt.job = receipt.job.idempotency_key(key);
        Ok((receipt, self.follows("order.paid", order)))
    }

    /// Only an order that waits for its payment becomes a paid one: without a row there is no fact.
    async fn pay(
        &mut self,
        order: i32,
        receipt: &Promise,
        follows: &[(&'static str, Task)],
    ) -> anyhow::Result<(Transaction<'_>, Uuid)> {
        let mut tx = self.client.transaction().await?;
        let update = format!(
            "update {}.orders set status = 'paid', paid_at = clock_timestamp() where id = $1 and status = 'placed'",
            self.schema
        );
        anyhow::ensure!(tx.execute(&update, &[&order]).await? == 1, "order {order} was not to be paid");
        let fact = state(&mut tx, &self.schema, &self.producer, "order.paid", order, follows).await?;
        promise(&mut tx, &self.schema, &self.producer, receipt).await?;
        Ok((tx, fact))
    }

    async fn repeat_receipt(&mut self, receipt: &Promise) -> anyhow::Result<()> {
        let again = receipt.job.clone().id(JobId::new());
        let mut tx = self.client.transaction().await?;
        let answer = self.producer.enqueue(&mut tx, &again).await?;
        tx.commit().await?;
        self.sales.enqueued_twice += 1;
        if answer == Enqueued::Duplicate(receipt.job.job_id()) {
            self.sales.answered_duplicate += 1;
        }
        Ok(())
    }

    /// Now and then the customer declines the review of the order before, in the same transaction.
    async fn deliver(&mut self, order: i32) -> anyhow::Result<()> {
        let task = self.task("mail.review", order);
        let mut review = Promise::new("mail.review", task)?;
        review.job = review.job.delay(REVIEW_AFTER);
        let follows = self.follows("order.delivered", order);
        let declined = if order % 10 == 4 { self.review } else { None };

        let mut tx = self.client.transaction().await?;
        let update = format!(
            "update {}.orders set status = 'delivered', delivered_at = clock_timestamp() \
             where id = $1 and status = 'paid'",
            self.schema
        );
        anyhow::ensure!(tx.execute(&update, &[&order]).await? == 1, "order {order} was not to be delivered");
        let mut cancelled = false;
        if let Some(review) = declined {
            let decline = format!("update {}.orders set review_declined = true where id = $1", self.schema);
            tx.execute(&decline, &[&(order - 1)]).await?;
            cancelled = self.producer.cancel(&mut tx, review).await? == Cancelled::Cancelled;
        }
        state(&mut tx, &self.schema, &self.producer, "order.delivered", order, &follows).await?;
        promise(&mut tx, &self.schema, &self.producer, &review).await?;
        tx.commit().await?;
        self.sales.cancelled_in_time += usize::from(cancelled);
        self.review = Some(review.job.job_id());
        Ok(())
    }

    fn task(&mut self, job_type: &'static str, order: i32) -> Task {
        self.deck.task(job_type, order)
    }

    /// The tasks of the jobs that will follow from a fact.
    fn follows(&mut self, fact: &str, order: i32) -> Vec<(&'static str, Task)> {
        let jobs = facts::FACTS.iter().filter(|(name, _)| *name == fact).flat_map(|(_, jobs)| *jobs);
        jobs.map(|job_type| (*job_type, self.task(job_type, order))).collect()
    }
}

/// A job with the operation that it carries out.
struct Promise {
    job_type: &'static str,
    task: Task,
    job: NewJob,
}

impl Promise {
    fn new(job_type: &'static str, task: Task) -> anyhow::Result<Promise> {
        let job = NewJob::raw(queue_of(job_type), job_type, serde_json::to_string(&task)?)
            .rate_key(service_of(job_type, task.order));
        Ok(Promise { job_type, task, job })
    }
}

/// Writes an operation into the shop's table and enqueues its job.
async fn promise(
    tx: &mut Transaction<'_>,
    schema: &str,
    producer: &Producer,
    promise: &Promise,
) -> anyhow::Result<()> {
    write_down(tx, schema, promise.job_type, &promise.task, promise.job.job_id().to_string().parse()?)
        .await?;
    producer.enqueue(tx, &promise.job).await?;
    Ok(())
}

/// Publishes a fact, and writes down the operations that follow from it; their jobs will have the operations' ids.
async fn state(
    tx: &mut Transaction<'_>,
    schema: &str,
    producer: &Producer,
    fact: &str,
    order: i32,
    follows: &[(&'static str, Task)],
) -> anyhow::Result<Uuid> {
    for (job_type, task) in follows {
        write_down(tx, schema, job_type, task, task.operation).await?;
    }
    facts::publish(tx, schema, producer, fact, order, follows.iter().cloned()).await
}

async fn write_down(
    tx: &Transaction<'_>,
    schema: &str,
    job_type: &str,
    task: &Task,
    job: Uuid,
) -> anyhow::Result<()> {
    let insert = format!(
        "insert into {schema}.operations (id, order_id, job_id, job_type, queue) values ($1, $2, $3, $4, $5)"
    );
    tx.execute(&insert, &[&task.operation, &task.order, &job, &job_type, &queue_of(job_type)]).await?;
    Ok(())
}
