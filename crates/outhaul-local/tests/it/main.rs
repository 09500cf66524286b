//! Promises of this crate, each shown on a real PostgreSQL server.

mod servers;
mod shared;
