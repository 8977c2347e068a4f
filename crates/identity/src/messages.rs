//! Messages of the bootstrap between listed stores.

use crate::settings::SettingConflict;
use crate::spec::{BootstrapPlan, ClusterSpec};
use crate::store_identity::StoreUuid;

/// A question of the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BootstrapRequest {
    /// "Is your configuration the same as mine, and do you promise this round to me?"
    Prepare {
        /// The name of the store that asks.
        from: String,
        /// The name that the list gives to the store that is asked.
        to: String,
        /// The configuration of the asking store.
        spec: ClusterSpec,
        /// The round to promise; 0 promises nothing, and asks only how far the other is.
        round: u64,
    },
    /// "This is the cluster: keep its rows."
    Form(Box<BootstrapPlan>),
    /// "All stores keep the rows of this plan: be a member."
    Begin {
        /// The plan's cluster.
        cluster_id: u64,
        /// The plan's round.
        round: u64,
    },
}

/// The answer. Where it tells of something durable, that is durable before the answer leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BootstrapResponse {
    /// No member; nothing was asked to be promised.
    Fresh,
    /// The round is promised: no lower one counts any more.
    Promised {
        /// The directory that promises.
        uuid: StoreUuid,
        /// The round.
        round: u64,
    },
    /// As much or more was promised before.
    Higher {
        /// The greatest round so far.
        promised: u64,
    },
    /// The store has another configuration; `ours` is its value.
    Differs(SettingConflict),
    /// The store has another name than the list says.
    Misdirected {
        /// The name that it has.
        name: String,
    },
    /// The store is a member already.
    Member {
        /// Of this cluster.
        cluster_id: u64,
        /// The round of the plan by which it began.
        round: u64,
        /// Whether a store of that cluster has the name of the one that asks.
        knows_asker: bool,
    },
    /// The rows of the plan are kept.
    Formed {
        /// The plan's cluster.
        cluster_id: u64,
        /// The plan's round.
        round: u64,
    },
    /// The plan is not taken: it is for another directory, or older than a promise.
    NotFormed,
    /// The store is a member of the plan's cluster.
    Begun,
    /// The store does not keep the rows of this plan, or has promised a later round.
    NotBegun,
}

/// Why a store ends instead of waiting: nothing that happens later makes it right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapRefusal {
    /// The cluster exists and has a store of this name: the directory was emptied or exchanged.
    #[error(
        "store {name} is a store of cluster {cluster_id}, as {by} says, but this data directory \
         holds nothing of that cluster: this store lost its data; bring its disk back, or start it \
         with --replace and --join, which give it a new id"
    )]
    DataLost {
        /// The store's name.
        name: String,
        /// The cluster.
        cluster_id: u64,
        /// The member that said so.
        by: String,
    },
    /// A listed store belongs to a cluster without this one.
    #[error(
        "{by} is a member of cluster {cluster_id}, which has no store {name}: start it with --join \
         to add it to that cluster, or list only stores with empty data directories"
    )]
    Foreign {
        /// The store's name.
        name: String,
        /// The cluster.
        cluster_id: u64,
        /// The member that said so.
        by: String,
    },
    /// A store that is listed alone was dialled as a store of another cluster.
    #[error(
        "this address is that of store {store} of cluster {cluster_id}, as {by} says, but this \
         data directory is not: this store lost its data; bring its disk back, or start it with \
         --replace and --join, or begin a new cluster with --new"
    )]
    Dialled {
        /// The id that the address has there.
        store: u64,
        /// The cluster.
        cluster_id: u64,
        /// The member that dialled.
        by: String,
    },
}
