//! Private PostgreSQL servers, a proxy and child processes.
