//! Pacing callback of a checkpoint: the rate limit of its writes.

use crate::error::Result;

/// Bytes written between two calls of the pacing callback.
pub(super) const PACE_BYTES: u64 = 1 << 20;

/// A pacing callback: it is told of bytes that were just written, and may rest.
pub(super) type Pace<'a> = dyn FnMut(u64) -> Result<()> + 'a;
