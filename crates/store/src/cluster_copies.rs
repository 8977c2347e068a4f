//! The store's own copies of what the cluster has agreed on.

use flotilla_identity::{ClusterSettings, StoreRegistry};
use flotilla_pagestore::WriteTxn;

use crate::error::Error;
use crate::schema::{CLUSTER, REGISTRY_KEY, SETTINGS_KEY};

/// Puts the copies of the registry, and of the first settings, into a transaction.
pub(crate) fn put(
    txn: &mut WriteTxn<'_>,
    registry: &StoreRegistry,
    settings: Option<&ClusterSettings>,
) -> Result<(), Error> {
    let mut cluster = txn.tree(CLUSTER)?;
    cluster.put(REGISTRY_KEY, &registry.encode())?;
    if let Some(settings) = settings {
        cluster.put(SETTINGS_KEY, &settings.encode())?;
    }
    Ok(())
}
