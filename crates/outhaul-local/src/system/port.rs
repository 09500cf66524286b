//! Loopback ports that stay ours while nothing listens on them.

use std::fs::File;
use std::net::TcpListener;

use crate::error::{Error, Result};
use crate::system::account::Account;
use crate::system::{lock, place};

/// Below the ephemeral range of Linux (32768) and macOS (49152).
///
/// Hazard: a client that reconnects in a loop to a closed loopback port *inside* the ephemeral range
/// sooner or later connects to itself, and the server can then not bind its own port again.
const FIRST: u16 = 15_000;
const LAST: u16 = 32_000;

/// A port that no other user of this crate takes until this value is dropped.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    _lock: File,
}

impl ReservedPort {
    pub(crate) fn any(account: &Account) -> Result<ReservedPort> {
        let folder = place::within(account, "ports")?;
        for _ in 0..500 {
            let number = fastrand::u16(FIRST..LAST);
            let Some(lock) = lock::try_lock(&folder.join(number.to_string()))? else { continue };
            if is_free(number) {
                return Ok(ReservedPort { number, _lock: lock });
            }
        }
        let text = format!("no free loopback port found between {FIRST} and {LAST}");
        Err(Error::new(text).with_hint("stop servers that are not needed any more"))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
