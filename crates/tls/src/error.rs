//! Why certificates cannot be used.

use std::io;
use std::path::PathBuf;

/// Why certificates cannot be used. The text names the file, and says what to change.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A file has something else in it than it should.
    #[error("{}: {words}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        words: String,
    },
    /// The TLS library takes the certificate, its key or the authority for wrong.
    #[error("{}: {words}", path.display())]
    Unusable {
        /// The file of the certificate.
        path: PathBuf,
        /// The fault.
        words: String,
    },
}
