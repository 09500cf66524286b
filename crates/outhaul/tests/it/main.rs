//! The promises of the library, each on a real server.

mod calls;
mod doors;
mod fault;
mod support;

mod adapters;
mod audit;
mod claims;
mod crash;
mod depth;
mod enqueue;
mod fencing;
mod flow;
mod input;
mod keys;
mod layers;
mod leases;
mod listener;
mod metrics_text;
mod migrating;
mod partitions;
mod reading;
mod prepared;
mod roles;
mod schema;
mod settling;
mod shutdown;
mod verdicts;
mod wakes;
mod outcome_unknown;
mod reconnect;
mod budget;
mod held_snapshot;
mod memory;
mod outages;
