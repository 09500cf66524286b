//! The promises of the library, each on a real server.

mod calls;
mod doors;
mod fault;
mod support;

mod enqueue;
mod flow;
mod keys;
mod leases;
