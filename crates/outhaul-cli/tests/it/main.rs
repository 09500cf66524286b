//! The promises of the binary, each tried with the built binary on a real server.

mod support;

mod commands;
mod demo;
mod dev;
mod events;
mod exits;
mod guides;
mod isolation;
mod outages;
mod projections;
mod readme;
mod repair;
mod secrets;
mod settings;
mod work;
