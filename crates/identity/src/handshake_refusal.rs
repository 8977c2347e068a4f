//! The reasons for which a member does not take another store's messages, in words for operators.

use flotilla_region::StoreId;

use crate::settings::SettingConflict;
use crate::store_identity::{StoreRun, StoreUuid};

/// Why the messages of a store are not taken. The store may go on and try again: what is wrong may
/// be wrong here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// It belongs to another cluster.
    #[error(
        "this is store {name} of cluster {ours}, and a store of cluster {theirs} was meant: two \
         clusters use one address; compare --addr, --advertise-addr and --initial-cluster of both"
    )]
    OtherCluster {
        /// This store's name.
        name: String,
        /// This store's cluster.
        ours: u64,
        /// The other's.
        theirs: u64,
    },
    /// It means another store.
    #[error(
        "this is store {ours}, and store {meant} was meant: two stores use one address; compare \
         their --addr and --advertise-addr"
    )]
    Misdirected {
        /// This store.
        ours: StoreId,
        /// The store that was meant.
        meant: StoreId,
    },
    /// The registry has no such store, and the store shows no later one.
    #[error(
        "cluster {cluster_id} has no store {store}, and that store shows no later registry: compare \
         the --data-dir of the store that bears it"
    )]
    Unlisted {
        /// The cluster.
        cluster_id: u64,
        /// The store.
        store: StoreId,
    },
    /// The registry that the store shows is not one of this cluster's.
    #[error(
        "the registry of store {store}, version {theirs}, is no later state of the one here, version \
         {ours}: compare --data-dir and --join of the two"
    )]
    OtherRegistry {
        /// The store.
        store: StoreId,
        /// The version of this store's copy.
        ours: u64,
        /// The version of the other's.
        theirs: u64,
    },
    /// The store was declared lost or has left.
    #[error(
        "store {store} is no store of this cluster any more: stop it, and do not start it again"
    )]
    Gone {
        /// The store.
        store: StoreId,
    },
    /// The directory is not the one that the cluster knows under this id.
    #[error(
        "store {store} is directory {expected} for this cluster, and directory {found} speaks for \
         it: that store lost its data; bring its disk back, or replace the store"
    )]
    WrongUuid {
        /// The store.
        store: StoreId,
        /// The directory of the registry.
        expected: StoreUuid,
        /// The directory that speaks.
        found: StoreUuid,
    },
    /// The version is too old for what the cluster's stores may say.
    #[error("store {store} has feature level {found}, and the cluster needs {needed}: upgrade it")]
    OldVersion {
        /// The store.
        store: StoreId,
        /// Its level.
        found: u64,
        /// The least that is needed.
        needed: u64,
    },
    /// The two have other settings of the same version.
    #[error(
        "the settings of the cluster differ: {0}; no link between the two until they are equal"
    )]
    Settings(SettingConflict),
    /// A later start of the store was heard, or another one of the same count.
    #[error(
        "store {store} speaks in {found}, but {known} was heard before: an older copy of this \
         store's disk, or one directory that runs twice; stop it and bring the newest disk back"
    )]
    OlderCopy {
        /// The store.
        store: StoreId,
        /// The start that was known.
        known: StoreRun,
        /// The start of the message.
        found: StoreRun,
    },
}
