//! Connections, statements and migrations: SQL to model and back.

pub(crate) mod conn;
pub(crate) mod dsn;
pub(crate) mod migrate;
pub(crate) mod ranges;
pub(crate) mod sequence;
pub(crate) mod source;
pub(crate) mod statement;
pub(crate) mod tls;
