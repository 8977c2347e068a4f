//! Words that clients search for in messages.

use tonic::Status;

/// The words by which clients know that they have to look for the leader.
pub(super) fn not_leader() -> Status {
    Status::unavailable("not leader")
}
