//! Durable asynchronous work inside PostgreSQL.
