//! Tools for operators: verify, dump, checkpoint, export, salvage.

pub(crate) mod checkpoint;
pub(crate) mod dump;
pub(crate) mod engine_calls;
pub(crate) mod export;
mod export_stream;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod raw_scan;
pub(crate) mod salvage;
pub(crate) mod salvage_in_place;
pub(crate) mod verify;
