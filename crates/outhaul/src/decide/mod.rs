//! Decisions, and nothing else: no I/O, no SQL, no clock, no random numbers. Time and jitter are arguments.

pub(crate) mod classify;
pub(crate) mod lag;
pub(crate) mod lease;
pub(crate) mod pace;
pub(crate) mod ranges;
pub(crate) mod retry;
pub(crate) mod verdict;
pub(crate) mod words;
