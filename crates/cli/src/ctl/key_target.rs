//! The keys that a command is about.

use flotilla_client::{Client, ColumnFamily};

use crate::tool::{ClusterTarget, Error};

/// Reads the name of a column family.
pub(super) fn column_family(name: &str) -> Result<ColumnFamily, String> {
    let family = ColumnFamily::of_name(name).filter(|_| !name.is_empty());
    family.ok_or_else(|| "there are default, lock and write".to_owned())
}

/// The keys of a column family of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyTarget<'a> {
    pub(super) cluster: &'a ClusterTarget,
    pub(super) family: ColumnFamily,
}

impl KeyTarget<'_> {
    pub(super) async fn client(self) -> Result<Client, Error> {
        Ok(self.cluster.client().await?.in_family(self.family))
    }
}
