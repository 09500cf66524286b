//! One command a file, and what several of them share: `confirm`, `each`, `send`, `wait`, `waits`.

pub(crate) mod completions;
pub(crate) mod config;
mod confirm;
pub(crate) mod dead;
pub(crate) mod dev;
mod each;
pub(crate) mod enqueue;
pub(crate) mod jobs;
pub(crate) mod migrate;
pub(crate) mod operations;
pub(crate) mod outbox;
pub(crate) mod publish;
pub(crate) mod queues;
mod send;
pub(crate) mod subs;
pub(crate) mod version;
pub(crate) mod wait;
mod waits;
pub(crate) mod work;

use outhaul::{Observer, Operator};

use crate::output::Global;

/// Connects to look.
async fn observer(global: &Global) -> anyhow::Result<Observer> {
    Ok(Observer::connect(&global.config.require_database()?, &global.config.schema()?).await?)
}

/// Connects to act, and says where.
async fn operator(global: &Global) -> anyhow::Result<Operator> {
    let (dsn, schema) = (global.config.require_database()?, global.config.schema()?);
    global.say_target(&dsn, &schema);
    Ok(Operator::connect(&dsn, &schema).await?)
}
