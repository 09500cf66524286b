//! The promises of the library, each on a real server.

mod calls;
mod doors;
mod fault;
mod support;

mod adapters;
mod claims;
mod enqueue;
mod flow;
mod input;
mod keys;
mod leases;
mod settling;
mod crash;
mod fencing;
mod shutdown;
mod verdicts;
