//! The reasons for which placement's leader does not register a store, in words for operators.

use flotilla_region::StoreId;

use crate::store_identity::{StoreRun, StoreUuid};

/// Stores that a registry may have, those that are gone included: the row is written whole.
pub const REGISTERED_STORES_MAX: usize = 1_000;

/// Why a store does not join. Nothing that happens by itself changes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterRefusal {
    /// Name, address or labels are none.
    #[error("{0}")]
    Invalid(String),
    /// The version is too old for what the cluster's stores may say.
    #[error("it has feature level {found}, and the cluster needs {needed}: upgrade it")]
    OldVersion {
        /// The level of the store that asks.
        found: u64,
        /// The least that the cluster needs.
        needed: u64,
    },
    /// Another directory has the name.
    #[error(
        "{name} is the name of store {store} of this cluster, whose directory is {expected}, and \
         this data directory is {found}: if this is that store, this store lost its data; bring its \
         disk back, or start it with --replace and --join, which give it a new id; else give it a \
         --name that no store has"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The store that has it.
        store: StoreId,
        /// The directory of that store.
        expected: StoreUuid,
        /// The directory that asks.
        found: StoreUuid,
    },
    /// A store is to be replaced that never was.
    #[error(
        "no store of this cluster has ever been {name}, so there is none to replace: correct --name, \
         or leave out --replace"
    )]
    NothingToReplace {
        /// The name.
        name: String,
    },
    /// Another store has the address.
    #[error(
        "{address} is the address of store {store}, {name}: give --addr or --advertise-addr of this \
         store alone"
    )]
    AddressTaken {
        /// The address.
        address: String,
        /// The store that has it.
        store: StoreId,
        /// That store's name.
        name: String,
    },
    /// The directory has been a member, and holds nothing of it.
    #[error(
        "this data directory was store {store} in {known}, and holds nothing of it: an older copy \
         of this store's disk; a data directory is never restored: bring the newest disk back, or \
         start with an empty one, --replace and --join"
    )]
    Forgotten {
        /// The id of the directory.
        store: StoreId,
        /// The last start that the registry knows.
        known: StoreRun,
    },
    /// The directory's store was declared lost, or has left.
    #[error(
        "this data directory was store {store}, which is no store of this cluster any more: join \
         with an empty one"
    )]
    Gone {
        /// The id of the directory.
        store: StoreId,
    },
    /// No more stores fit into the registry.
    #[error("the cluster has had {REGISTERED_STORES_MAX} stores, and takes no more")]
    Full,
}
