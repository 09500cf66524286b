//! What this crate needs from the machine: the account servers run as, folders, locks, ports, processes.

pub(crate) mod account;
pub(crate) mod lock;
pub(crate) mod place;
pub(crate) mod port;
pub(crate) mod process;
