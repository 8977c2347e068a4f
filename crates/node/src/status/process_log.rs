//! The logger of the process, as the nodes in it see it. The process's own crate has it, and says
//! here how it is asked.

use std::sync::OnceLock;

/// The process's logger: the functions that ask and set it.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLog {
    /// Lines that it had to drop since the process began.
    pub lines_lost: fn() -> u64,
    /// The last lines, of a bounded count of bytes, as they were written.
    pub recent_lines: fn() -> String,
    /// Its filter, as `info` or `flotilla_node=debug,warn`.
    pub filter: fn() -> String,
    /// Sets its filter from now on.
    ///
    /// # Errors
    ///
    /// Why the text is no filter.
    pub set_filter: fn(&str) -> Result<(), String>,
}

static PROCESS_LOG: OnceLock<ProcessLog> = OnceLock::new();

impl ProcessLog {
    /// Makes it known to all nodes of the process. The first one counts, as `tracing` keeps the
    /// first subscriber.
    pub fn register(self) {
        // Set before: the first logger stays.
        let _ = PROCESS_LOG.set(self);
    }

    /// The logger of this process, if it has one that was registered.
    pub(crate) fn get() -> Option<&'static Self> {
        PROCESS_LOG.get()
    }
}
