//! Private PostgreSQL servers: persistent, throw-away and shared by tests.

mod cluster;
pub(crate) mod home;
pub(crate) mod installation;
mod persistent;
mod postmaster;
mod shared;
pub(crate) mod sql;
mod standby;
mod throwaway;
mod url;

pub use installation::Installation;
pub use persistent::{Server, ServerOptions, Status};
pub use shared::{Template, TestDatabase, TestServer};
pub use throwaway::{Throwaway, ThrowawayOptions};

/// The superuser of every private server.
pub const SUPERUSER: &str = "outhaul";

pub(crate) use cluster::tail;
pub(crate) use url::{Url, encode};
