//! Snapshots of regions: copies of a region's rows at one index, from one store to another.
//!
//! The sender reads rows from a view and never waits for writers. The receiver packs them into
//! pages beside the rows, in the file and in no tree; they are free again if the stage is dropped
//! or the store crashes. One transaction puts them in the place of the replica's rows.

mod chunk;
mod end;
mod error;
mod install;
mod reader;
mod stages;

pub use chunk::{SnapshotChunk, SnapshotRow};
pub use end::SnapshotEnd;
pub use error::StageError;
pub use install::Installed;
pub use reader::SnapshotReader;
pub use stages::StageOffer;

#[cfg(test)]
pub(crate) use chunk::ChunkBuilder;
pub(crate) use install::{ClearedRange, clear, fill};
pub(crate) use stages::{CompleteStage, SnapshotStages};
