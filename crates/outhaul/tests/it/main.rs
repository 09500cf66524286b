//! The promises of the library, each on a real server.

mod support;

mod flow;
mod fault;
mod leases;
