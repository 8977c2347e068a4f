//! Crash recovery: from files to an index when a log is opened; footers, scans, the torn tail.

pub(crate) mod background_io;
pub(crate) mod frame_scanner;
pub(crate) mod load;
pub(crate) mod recover;
pub(crate) mod report;
