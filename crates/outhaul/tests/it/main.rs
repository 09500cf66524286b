//! The promises of the library, each on a real server.

mod calls;
mod doors;
mod fault;
mod support;

#[cfg(any(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
mod adapters;
mod audit;
mod budget;
mod claims;
mod crash;
mod depth;
mod enqueue;
mod failover;
mod fencing;
mod flow;
mod held_snapshot;
mod input;
mod keys;
mod layers;
mod leases;
mod listener;
mod memory;
mod metrics_text;
mod metrics_values;
mod migrating;
mod outages;
mod outbox_keep;
mod outbox_reading;
mod outcome_unknown;
mod partitions;
mod parts;
mod prepared;
mod publish;
mod reading;
mod reconciling;
mod reconnect;
mod relay;
mod roles;
mod schema;
mod sequencer;
mod settling;
mod shutdown;
mod subscriptions;
mod verdicts;
mod wakes;
