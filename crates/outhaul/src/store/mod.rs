//! Connections, statements and migrations: SQL to model and back.

pub(crate) mod conn;
pub(crate) mod dsn;
