//! Bit rot: a bit of a page flips on a disk.

use std::path::Path;

use flotilla_pagestore::tools::PageFile;
use flotilla_vfs::{FileSystem as _, OpenMode};

use super::{DIRECTORY, SimNode};

/// Bytes of a unit of the page file.
const UNIT_BYTES: u64 = 4096;
/// Where the bit flips in the page.
const OFFSET: u64 = 77;

impl SimNode {
    /// Flips a bit of the leaf that has this key on the disk of a store that is down.
    pub(crate) fn rot(&mut self, key: &[u8]) {
        assert!(!self.is_up(), "store {} is up", self.place);
        let path = Path::new(DIRECTORY).join("pages");
        let file = PageFile::open(&self.fs, &path).expect("the disk is sound");
        let pages = self.fs.open(&path, OpenMode::Read).expect("it is there");
        let units = pages.len().expect("it is there");
        let units = units / UNIT_BYTES;
        let leaves = (0..units).filter_map(|unit| file.page(unit).ok()).filter(|page| {
            let has_key = page.cells.iter().any(|cell| cell.key == key);
            page.kind == "leaf" && page.damage.is_none() && has_key
        });
        let newest = leaves.max_by_key(|page| page.created_txid).expect("a leaf has the key");
        drop(file);
        self.fs.flip_bit(&path, newest.page * UNIT_BYTES + OFFSET, 3);
        self.disk.is_rotten = true;
    }

    /// Replicas here that have lost rows.
    pub(crate) fn damaged_replicas(&self) -> u64 {
        let running = self.running.as_ref();
        running.map_or(0, |running| running.executor.store().stats().damaged_replicas)
    }
}
