//! The protocols that clients speak, each in a folder of its own, and the operator service with
//! the rows of regions for backups.

pub(crate) mod operator;
pub mod rawkv;
pub(crate) mod region_backup;
