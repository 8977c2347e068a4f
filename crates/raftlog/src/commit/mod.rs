//! Group commit: rounds with one leader and its followers, the append at the end of the log,
//! background maintenance.

pub(crate) mod appender;
mod background_thread;
pub(crate) mod commit_driver;
pub(crate) mod commit_handle;
pub(crate) mod group_commit;
pub(crate) mod leader;
pub(crate) mod maintenance;
pub(crate) mod no_space;
pub(crate) mod rounds;
