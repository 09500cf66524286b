//! Durable asynchronous work inside PostgreSQL.

mod error;
mod store;

pub use error::{Error, Result};
