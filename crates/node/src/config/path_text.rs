//! Paths of settings as texts.

use std::path::Path;

use serde::{Serialize as _, Serializer};

/// For those who look: bytes that are no text are shown as such. No path is read back from it.
pub(super) fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(to)
}
