//! What is measured of the outbox. In these tables a job stands for an event.

pub(super) mod feed;
pub(super) mod publish;
pub(super) mod read;
pub(super) mod sequencer;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use outhaul::{Dsn, EventContext, Outcome, RecordedEvent, Start, Stopper, Subscription, Worker};
use tokio::task::JoinHandle;

use crate::feed::{number_of, system_nanos};
use crate::reference::Design;
use crate::reference::events::EVENTS;
use crate::reference::naive::NAIVE;

fn design_of(variant: &str) -> &'static Design {
    if variant.starts_with("outhaul") { &EVENTS } else { &NAIVE }
}

/// What a reader was given: the number of each event and when, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(u64, u64)>>>);

impl Seen {
    fn note(&self, payload: &str) {
        let seen = (number_of(payload), system_nanos());
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(seen);
    }

    fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }

    /// Waits for so many.
    async fn until(&self, count: u64, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while (self.len() as u64) < count {
            if Instant::now() > deadline {
                bail!("{} of {count} events were read within {limit:?}", self.len());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}

/// The library's worker with one subscription, as it comes.
struct Reader {
    stopper: Stopper,
    task: JoinHandle<outhaul::Result<()>>,
}

impl Reader {
    /// `batch` for a handler of batches, else one event at a time.
    async fn start(url: &str, batch: Option<i32>, seen: &Seen) -> Result<Reader> {
        let subscription = Subscription::new("bench").start(Start::Beginning);
        let builder = Worker::builder(Dsn::parse(url, |_| None)?);
        let seen = seen.clone();
        let builder = match batch {
            Some(batch) => builder.subscribe_batches(
                subscription.batch(batch),
                move |events: Vec<RecordedEvent>, _: EventContext| {
                    events.iter().for_each(|event| seen.note(&event.payload));
                    std::future::ready(Outcome::Ok(()))
                },
            ),
            None => builder.subscribe(subscription, move |event: RecordedEvent, _: EventContext| {
                seen.note(&event.payload);
                std::future::ready(Outcome::Ok(()))
            }),
        };
        let worker = builder.build().await?;
        let stopper = worker.stopper();
        Ok(Reader { stopper, task: tokio::spawn(worker.run_until(std::future::pending())) })
    }

    async fn stop(self) -> Result<()> {
        self.stopper.drain();
        Ok(self.task.await??)
    }
}

/// Fails unless the numbers are those from `first` on, each once and in order.
fn check_order(seen: &[(u64, u64)], first: u64) -> Result<()> {
    match seen.iter().zip(first..).find(|((number, _), expected)| number != expected) {
        Some(((number, _), expected)) => bail!("event {number} was read where {expected} was to come"),
        None => Ok(()),
    }
}
