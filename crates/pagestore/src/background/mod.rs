//! Background work: the maintenance thread, defragmentation, and giving space back to the file
//! system.

pub(crate) mod defragment;
pub(crate) mod maintenance;
pub(crate) mod trim_punch;
