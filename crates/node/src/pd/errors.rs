//! Error messages that clients search for.

use tonic::Status;

/// The message by which clients know that they have to look for the leader.
pub(super) fn not_leader() -> Status {
    Status::unavailable("not leader")
}
