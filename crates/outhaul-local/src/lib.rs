//! Private PostgreSQL servers, a PostgreSQL-aware TCP proxy and child processes.
//!
//! This crate gives demos, tests, benchmarks and fault studies the outside world they need, on one
//! machine and without containers:
//!
//! * [`Server`] keeps a private server for a person in a data directory and adopts it when it already runs;
//! * [`Throwaway`] is a direct child that can be killed and restarted, gets a standby that can be promoted, and
//!   vanishes with its owner;
//! * [`TestServer`] is shared by every test of a machine user and hands out template clones;
//! * [`Pooler`] puts a PgBouncer in front of any of them;
//! * [`Proxy`] sits between a client and a server, reads the protocol and injects faults at proven points;
//! * [`Child`] is a process to be stopped, continued and killed;
//! * [`until`] waits for a condition.
//!
//! It deliberately knows nothing of Outhaul's own tables, and it never touches a server that it did not start.
//!
//! Only Unix systems are supported. Servers run as the current user, or as `postgres` (else `nobody`) when
//! the current user is root, because PostgreSQL refuses root.

mod error;
mod system;
mod wait;

pub mod child;
pub mod pooler;
pub mod proxy;
pub mod server;

pub use child::{Child, ChildOptions};
pub use error::{Error, Result};
pub use pooler::{PoolMode, Pooler};
pub use proxy::{Action, Match, Phase, Proxy, Rule};
pub use server::{
    Installation, Server, ServerOptions, Status, Template, TestDatabase, TestServer, Throwaway,
    ThrowawayOptions,
};
pub use wait::{PATIENCE, until};

/// Says that a test cannot run here, and why; the test then returns.
///
/// With `OUTHAUL_NO_SKIP=1`, which a check of everything sets, a skipped test is a failed one.
///
/// # Panics
/// When `OUTHAUL_NO_SKIP` is `1`.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("OUTHAUL_NO_SKIP").is_none_or(|value| value != "1"),
        "a test is skipped where none may be: {reason}"
    );
    eprintln!("skipped: {reason}");
}
