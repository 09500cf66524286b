//! Promises of this crate, each shown on a real PostgreSQL server.

mod children;
mod common;
mod pooling;
mod proxying;
mod servers;
mod shared;
