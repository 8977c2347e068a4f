//! Bit rot: a bit of a page flips on a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use flotilla_pagestore::tools::PageFile;
use flotilla_region::RegionId;
use flotilla_store::ReadError;
use flotilla_vfs::{FileSystem as _, OpenMode};

use super::{DIRECTORY, SimNode};

/// Bytes of a unit of the page file.
const UNIT_BYTES: u64 = 4096;
/// Where the bit flips in the page.
const OFFSET: u64 = 77;

impl SimNode {
    /// Flips a bit of the leaf that has this key on the disk of a store that is down.
    #[cfg(test)]
    pub(crate) fn rot(&mut self, key: &[u8]) {
        let rotten = self.rot_some(0, &BTreeSet::from([Bytes::copy_from_slice(key)]));
        assert!(rotten.is_some(), "a leaf has the key");
    }

    /// Flips a bit of the newest leaf that has one of these keys, as `choice` says which, on the
    /// disk of a store that is down. The key; `None` if no leaf has any.
    pub(crate) fn rot_some(&mut self, choice: u64, keys: &BTreeSet<Bytes>) -> Option<Bytes> {
        assert!(!self.is_up(), "store {} is up", self.place);
        let path = Path::new(DIRECTORY).join("pages");
        let mut newest = BTreeMap::new();
        // Without a page file there is no row yet.
        let file = PageFile::open(&self.fs, &path).ok()?;
        let pages = self.fs.open(&path, OpenMode::Read).expect("it is there");
        let units = pages.len().expect("it is there") / UNIT_BYTES;
        let leaves = (0..units).filter_map(|unit| file.page(unit).ok());
        for leaf in leaves.filter(|page| page.kind == "leaf" && page.damage.is_none()) {
            let here = (leaf.created_txid, leaf.page);
            for key in leaf.cells.iter().filter_map(|cell| keys.get(&*cell.key)) {
                let known = newest.entry(key).or_insert(here);
                *known = here.max(*known);
            }
        }
        drop(file);
        let nth = choice.checked_rem(newest.len() as u64)?;
        let (key, (_, page)) = newest.into_iter().nth(nth as usize).expect("there are so many");
        self.fs.flip_bit(&path, page * UNIT_BYTES + OFFSET, 3);
        self.disk.is_rotten = true;
        self.coverage.driver.disks.rotten += 1;
        Some(key.clone())
    }

    /// Whether a bit has flipped on its disk, healed or not.
    pub(crate) fn is_rotten(&self) -> bool {
        self.disk.is_rotten
    }

    /// Whether the replica of a region here has lost rows.
    pub(crate) fn is_damaged(&self, region: RegionId) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let read = running.executor.store().read().region(region, None);
            matches!(read, Err(ReadError::Damaged))
        })
    }

    /// Rows are lost that no other store has.
    pub(crate) fn note_loss(&mut self) {
        self.coverage.driver.disks.lost += 1;
    }

    /// Replicas here that have lost rows.
    pub(crate) fn damaged_replicas(&self) -> u64 {
        let running = self.running.as_ref();
        running.map_or(0, |running| running.executor.store().stats().damaged_replicas)
    }
}
