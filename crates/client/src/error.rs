//! Errors of a call, one variant for each way in which a caller can react.

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid. Correct it.
    #[error("bad client configuration: {0}")]
    Config(String),
    /// No endpoint answered. Check the addresses, and that the stores run.
    #[error("no store answers at {endpoints}: {reason}")]
    Unreachable {
        /// The endpoints that were tried.
        endpoints: String,
        /// The failure of each of them.
        reason: String,
    },
    /// A store answers, and refuses: it has no cluster yet, or stops. It says what it waits for.
    #[error("{endpoint} answers, but does not serve: {reason}")]
    NotServing {
        /// The store that was asked.
        endpoint: String,
        /// The reason that it gave.
        reason: String,
    },
    /// A store runs an older version, which has not learnt this request. Upgrade it.
    #[error("{endpoint} runs an older version, which does not know this request: upgrade it first")]
    Unimplemented {
        /// The store that was asked.
        endpoint: String,
    },
    /// Stores answer, but none knows a leader of placement: fewer stores may run than the cluster
    /// needs. Find out which do not answer, and start them.
    #[error("placement has no leader: {reason}")]
    NoLeader {
        /// The answer of each endpoint.
        reason: String,
    },
    /// The deadline passed. Try again later; the cluster may be without a leader or overloaded.
    #[error("gave up after {waited_ms} ms and {attempts} attempts, the last one: {reason}{doubt}", doubt = doubt(*undetermined))]
    Deadline {
        /// How long the call took.
        waited_ms: u64,
        /// How often a store was asked.
        attempts: u32,
        /// Why the last attempt failed.
        reason: String,
        /// The call was a write, and some attempt may have had its effect.
        undetermined: bool,
    },
    /// A write that must not be sent twice may or may not have had its effect. Read to find out.
    #[error("the write may or may not have happened: {0}")]
    Undetermined(String),
    /// No region of clients' keys has this id: it was misspelt, or is that of placement's own
    /// region.
    #[error("there is no region {0} of clients' keys")]
    NoRegion(u64),
    /// A store refuses the request as it is; it had no effect, and sending it again is of no use.
    /// The text names the store and has its words.
    #[error("the cluster refuses the request: {0}")]
    Rejected(String),
    /// The answer makes no sense: the peer is no store of Flotilla's, or a broken one.
    #[error("an answer that makes no sense: {0}")]
    Protocol(String),
}

/// Follows the reason of a write that has failed.
fn doubt(undetermined: bool) -> &'static str {
    if undetermined { "; the write may have happened all the same" } else { "" }
}

impl Error {
    /// Whether a write that failed with this may nevertheless have had its effect.
    pub fn is_undetermined(&self) -> bool {
        match self {
            Error::Undetermined(_) | Error::Protocol(_) => true,
            Error::Deadline { undetermined, .. } => *undetermined,
            Error::Config(_)
            | Error::Unreachable { .. }
            | Error::NotServing { .. }
            | Error::Unimplemented { .. }
            | Error::NoLeader { .. }
            | Error::NoRegion(_)
            | Error::Rejected(_) => false,
        }
    }
}
