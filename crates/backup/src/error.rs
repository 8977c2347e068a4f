//! Why bytes are no part of a backup.

use flotilla_base::fields::Malformed;

/// Why bytes cannot be read as a part of a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// They are damaged, or of another program: which part, and where it is not as it was written.
    #[error("{0}")]
    Damaged(String),
    /// They are of a version of the format that this program does not know.
    #[error("{what} is of version {version} of the format, and this program knows {known}")]
    Version {
        /// The file.
        what: &'static str,
        /// The version that it says.
        version: u8,
        /// The last one that is known.
        known: u8,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<Malformed> for BackupError {
    fn from(malformed: Malformed) -> Self {
        Self::Damaged(malformed.to_string())
    }
}

impl BackupError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}
