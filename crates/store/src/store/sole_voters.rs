//! The part of a store that a recovery without a majority changes: descriptors, rows of placement
//! and the copy of the registry, past the log. No replica of it runs then.

use std::collections::BTreeMap;

use flotilla_identity::StoreRegistry;
use flotilla_region::{Descriptor, Space};

use super::Store;
use crate::cluster_copies;
use crate::error::Error;
use crate::schema::{self, DataRow, REGION};

impl Store {
    /// All rows of placement that are here.
    pub(crate) fn system_rows(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let mut found = BTreeMap::new();
        for trees in schema::trees_of(Space::System) {
            let Some(tree) = self.pages.read().tree(trees.rows)? else { continue };
            let mut rows = tree.range(..);
            while let Some((key, row)) = rows.next()? {
                found.insert(key.to_vec(), DataRow::decode(row)?.value.to_vec());
            }
        }
        Ok(found)
    }

    /// Puts regions with one voter, rows of placement and the copy of the registry, in one durable
    /// root.
    ///
    /// # Panics
    ///
    /// If a region had a lower version, another range, or more than one replica.
    pub(crate) fn put_sole_voters(
        &self,
        regions: &[Descriptor],
        system_rows: &BTreeMap<Vec<u8>, Vec<u8>>,
        registry: Option<&StoreRegistry>,
    ) -> Result<(), Error> {
        let mut txn = self.pages.write()?;
        for next in regions {
            let key = schema::region_key(next.id);
            let row = txn.tree(REGION)?.get(&key)?.map(|row| row.to_vec());
            let before = schema::decode_descriptor(next.id, &row.ok_or(Error::NoRegion(next.id))?)?;
            let (old, new) = (before.epoch, next.epoch);
            let count = next.peers.len();
            assert!(count == 1, "region {}: {count} replicas are to be its only one", next.id);
            assert!(
                new.conf_version > old.conf_version && new.version > old.version,
                "region {}: the epoch {old:?} becomes {new:?}",
                next.id
            );
            assert!(before.range() == next.range(), "region {}: its range has changed", next.id);
            txn.tree(REGION)?.put(&key, &next.encode())?;
        }
        let [trees] = schema::trees_of(Space::System) else {
            unreachable!("placement has one column family");
        };
        let mut row = vec![];
        for (key, value) in system_rows {
            DataRow { expires_ms: 0, value }.encode(&mut row);
            txn.tree(trees.rows)?.put(key, &row)?;
        }
        if let Some(registry) = registry {
            cluster_copies::put(&mut txn, registry, None)?;
        }
        txn.publish()?;
        self.pages.checkpoint()?;
        Ok(())
    }
}
