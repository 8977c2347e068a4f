//! The reasons for which a store does not join or replace another one, in words for operators.

use flotilla_region::StoreId;

/// How much of its cluster a member reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReach {
    /// The stores that take part.
    pub stores: u32,
    /// Those that it is connected to, and itself.
    pub connected: u32,
}

impl StoreReach {
    pub(crate) fn has_majority(self) -> bool {
        2 * u64::from(self.connected) > u64::from(self.stores)
    }

    pub(crate) fn gone(self) -> u32 {
        self.stores.saturating_sub(self.connected)
    }
}

/// Why a store does not join: nothing that happens later makes it right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// The directory holds a plan that may have become a cluster.
    #[error(
        "the data directory keeps the plan of cluster {cluster_id}, in which it is store {store}, \
         {name}: start it with --initial-cluster as before, or join with an empty directory"
    )]
    Forming {
        /// The plan's cluster.
        cluster_id: u64,
        /// The store in it.
        store: StoreId,
        /// Its name there.
        name: String,
    },
    /// An address is the store's own.
    #[error("--join names {0}, which is this store itself: name members of the running cluster")]
    Itself(String),
    /// The cluster is not the one that is meant.
    #[error(
        "{by} is a member of cluster {found}, and cluster {wanted} is meant: correct --join or \
         --cluster-id"
    )]
    OtherCluster {
        /// The address that answered.
        by: String,
        /// Its cluster.
        found: u64,
        /// The cluster that is meant, or that another address named.
        wanted: u64,
    },
    /// A value that is given differs from the cluster's.
    #[error(
        "{name} = {given} is given, but the cluster has {has}, as {by} says: take it out of the \
         flags and files of this store"
    )]
    Setting {
        /// The setting.
        name: String,
        /// The value that is given.
        given: String,
        /// The value of the cluster.
        has: String,
        /// The member that said so.
        by: String,
    },
    /// The addresses are of stores that have not begun a cluster.
    #[error(
        "{by} has no cluster yet, it waits for {waiting}: a store joins a running cluster; begin \
         that one first, or list this store in --initial-cluster on all of them"
    )]
    NoCluster {
        /// The address that answered.
        by: String,
        /// The cause of its waiting.
        waiting: String,
    },
    /// Another program than a store listens at the address.
    #[error("{by} answers, but not as a store that others can join: {why}: correct --join")]
    NoStore {
        /// The address that answered.
        by: String,
        /// Its words.
        why: String,
    },
    /// Too few stores run, so there is no leader of placement who could replace one.
    #[error(
        "no quorum: {} of {} stores are gone; replace needs one: start the stores that have their \
         data; {by} says so",
        .reach.gone(), .reach.stores
    )]
    NoQuorum {
        /// The address that answered.
        by: String,
        /// The stores that it reaches.
        reach: StoreReach,
    },
    /// The leader of placement does not take the store.
    #[error("cluster {cluster_id} does not take this store, as {by} says: {why}")]
    Refused {
        /// The cluster.
        cluster_id: u64,
        /// The address that answered.
        by: String,
        /// Its words.
        why: String,
    },
}
