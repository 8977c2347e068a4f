//! Shared by the programs of this package: figures of the kernel about a process, medians, bounds,
//! and numbers for people.

pub mod cgroup;
pub mod figures;
pub mod measure;

/// Why an engine could not do what was asked, as its text; a bench stops at the first error.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of an engine.
pub type Result<T> = std::result::Result<T, Error>;
