//! The loop: wake, claim, commit, handle, decide, settle.

pub(crate) mod dispatch;
pub(crate) mod events;
pub(crate) mod handle;
pub(crate) mod held;
pub(crate) mod lead;
pub(crate) mod link;
pub(crate) mod plane;
pub(crate) mod project;
pub(crate) mod pulse;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod source;
pub(crate) mod vital;
pub(crate) mod wake;
