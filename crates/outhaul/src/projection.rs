//! Projections: declared rules that turn facts into jobs.

use std::sync::Arc;

use crate::engine::events::RecordedEvent;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::model::{Event, NewJob, check_name};
use crate::subscription::Subscription;

type Make = dyn Fn(&RecordedEvent) -> std::result::Result<Option<NewJob>, Failure> + Send + Sync;

/// An ordered subscription whose rules turn events into jobs: exactly one job per event and rule.
///
/// The jobs of a batch and the checkpoint behind it are one transaction, so a crash stores both or neither. Each job's
/// idempotency key is made of the names of projection and rule and the event's id: events that are delivered again after a
/// rewind make no second job while the key is kept (until seven days after the job has ended). The job has the event's
/// organization and trace context unless the rule gives it others, and its `source_event_id` is the event's id.
///
/// For other views of the facts than jobs use a [`Subscription`] whose handler ends with
/// [`EventContext::advance_in`](crate::EventContext::advance_in).
///
/// ```
/// use outhaul::{Event, Job, NewJob, Projection, RecordedEvent, Rule, Start, Subscription};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPaid { customer: i64, cents: i64 }
/// impl Event for OrderPaid {
///     const TYPE: &'static str = "order.paid";
///     const AGGREGATE_TYPE: &'static str = "order";
/// }
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Receipt { customer: i64 }
/// impl Job for Receipt {
///     const TYPE: &'static str = "mail.receipt";
///     const QUEUE: &'static str = "mail";
/// }
///
/// let projection = Projection::new(Subscription::new("order-jobs").start(Start::Beginning))
///     // The job gets the payload of the event.
///     .rule(Rule::copy("order.cancelled", "billing", "billing.refund"))
///     // Small amounts make no job.
///     .rule(Rule::typed("receipt", |paid: OrderPaid, _: &RecordedEvent| {
///         let receipt = Receipt { customer: paid.customer };
///         Ok((paid.cents >= 100).then(|| NewJob::new(&receipt)).transpose()?)
///     }));
/// # let _ = projection;
/// ```
#[derive(Clone)]
pub struct Projection {
    subscription: Subscription,
    rules: Vec<Rule>,
}

impl Projection {
    /// A projection without rules yet. The subscription's name is the projection's; its filter of event types is
    /// made of the rules.
    pub fn new(subscription: Subscription) -> Projection {
        Projection { subscription, rules: Vec::new() }
    }

    /// Adds a rule. An event goes through all rules of its type.
    pub fn rule(mut self, rule: Rule) -> Projection {
        self.rules.push(rule);
        self
    }

    /// The subscription, with the types that the rules need.
    pub(crate) fn subscription(&self) -> Subscription {
        let mut types: Vec<&str> = self.rules.iter().map(|rule| &*rule.event_type).collect();
        types.sort_unstable();
        types.dedup();
        self.subscription.clone().events(types)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let name = &self.subscription.name;
        if self.rules.is_empty() {
            return Err(Error::config(format!("projection {name} has no rules"))
                .with_hint("Add at least one, such as Rule::copy(event_type, queue, job_type)."));
        }
        for (n, rule) in self.rules.iter().enumerate() {
            check_name("rule", &rule.name)?;
            if self.rules[..n].iter().any(|other| other.name == rule.name) {
                return Err(Error::config(format!("projection {name} has two rules named {}", rule.name))
                    .with_hint("Jobs are told apart by their rule's name: give one of them another."));
            }
            if let Some(job) = &rule.copies {
                job.check()?;
            }
        }
        Ok(())
    }

    /// The jobs of one event, each with its key.
    pub(crate) fn jobs_of(&self, event: &RecordedEvent) -> std::result::Result<Vec<NewJob>, Failure> {
        let mut jobs = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.event_type == event.event_type) {
            let Some(mut job) = (rule.make)(event).map_err(|failure| rule.failed(failure))? else { continue };
            job.idempotency_key = Some(format!("{}/{}/{}", self.subscription.name, rule.name, event.id));
            job.organization = job.organization.or(event.organization);
            job.traceparent = job.traceparent.or_else(|| event.traceparent.clone());
            job.check().map_err(|error| {
                let code = error.code();
                rule.failed(Failure::permanent(error).code(code))
            })?;
            jobs.push(job);
        }
        Ok(jobs)
    }
}

/// Which job follows from an event of one type, if any.
///
/// A rule is a pure function of the event: it may run again for the same event, and what it makes then is not stored
/// a second time.
#[derive(Clone)]
pub struct Rule {
    name: String,
    event_type: String,
    /// The job of a rule that copies, which can be checked beforehand.
    copies: Option<NewJob>,
    make: Arc<Make>,
}

impl Rule {
    /// A rule with a name of its own, 1 to 63 characters: a letter, then letters, digits and `_ . : -`.
    ///
    /// The name is part of the jobs' keys: under a new name, events that are delivered again make new jobs. An error ends as
    /// the failure of a handler would; `Ok(None)` makes no job.
    pub fn new<F>(name: impl Into<String>, event_type: impl Into<String>, make: F) -> Rule
    where
        F: Fn(&RecordedEvent) -> std::result::Result<Option<NewJob>, Failure> + Send + Sync + 'static,
    {
        Rule { name: name.into(), event_type: event_type.into(), copies: None, make: Arc::new(make) }
    }

    /// A rule for the events of a type, with the payload read.
    pub fn typed<E, F>(name: impl Into<String>, make: F) -> Rule
    where
        E: Event,
        F: Fn(E, &RecordedEvent) -> std::result::Result<Option<NewJob>, Failure> + Send + Sync + 'static,
    {
        Rule::new(name, E::TYPE, move |event| make(event.decode::<E>()?, event))
    }

    /// A rule whose job has the payload of the event. Its name is that of the job's type.
    pub fn copy(
        event_type: impl Into<String>,
        queue: impl Into<String>,
        job_type: impl Into<String>,
    ) -> Rule {
        let job = NewJob::raw(queue, job_type, "{}");
        let (name, copied) = (job.job_type.clone(), job.clone());
        let make = move |event: &RecordedEvent| {
            Ok(Some(NewJob::raw(&copied.queue, &copied.job_type, event.payload.to_string())))
        };
        Rule { copies: Some(job), ..Rule::new(name, event_type, make) }
    }

    /// Changes the job that it makes: gives it keys, a priority or a time that follow from the event.
    ///
    /// ```
    /// use outhaul::Rule;
    ///
    /// // Of each order one call after another, and no more calls of one customer at once than the queue allows.
    /// let rule = Rule::copy("order.paid", "webhooks", "webhook.call").with(|job, event| {
    ///     let job = job.ordering_key(event.aggregate_id.to_string());
    ///     event.organization.iter().fold(job, |job, customer| job.limit_key(customer.to_string()))
    /// });
    /// # drop(rule);
    /// ```
    pub fn with<F>(mut self, change: F) -> Rule
    where
        F: Fn(NewJob, &RecordedEvent) -> NewJob + Send + Sync + 'static,
    {
        let make = self.make;
        self.make = Arc::new(move |event| Ok(make(event)?.map(|job| change(job, event))));
        self
    }

    /// A failure that says which rule it is of.
    fn failed(&self, mut failure: Failure) -> Failure {
        failure.summary = format!("rule {}: {}", self.name, failure.summary);
        failure.rule = Some(self.name.clone());
        failure
    }

    /// Gives it another name.
    pub fn named(mut self, name: impl Into<String>) -> Rule {
        self.name = name.into();
        self
    }
}
