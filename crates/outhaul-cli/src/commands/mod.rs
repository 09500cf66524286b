//! One command a file.

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dev;
pub(crate) mod enqueue;
pub(crate) mod jobs;
pub(crate) mod migrate;
pub(crate) mod queues;
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod work;
