//! Tests of the whole store: on a disk in memory, against maps.

mod background;
mod beside;
mod checkpoint_pieces;
mod crash;
mod defragment;
mod drop_pages;
mod fill;
mod forged;
mod ingest;
mod model;
mod page_size;
mod problems;
mod read_ahead;
mod reads;
mod redo_ring;
mod rot;
mod scrub;
mod shrink;
mod space;
mod spill;
mod split_join;
mod sync;
mod tampered;
mod threads;
mod tool_crashes;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;

use crate::{Error, Options, PageStore};

fn path() -> PathBuf {
    PathBuf::from("/data/pages")
}

fn disk(seed: u64) -> FaultFs {
    let fs = FaultFs::new(seed);
    fs.create_dir_all(Path::new("/data")).unwrap();
    fs
}

/// Runs a test on a disk in memory, whose pages are read into the cache, and on the real one, whose
/// pages are read from a map.
fn in_both_modes(test: impl Fn(&dyn Fn() -> PageStore)) {
    let fs = disk(1);
    test(&|| open(&fs));
    on_a_mapped_file(test);
}

/// Runs a test on the real disk, whose pages are read from a map.
fn on_a_mapped_file(test: impl Fn(&dyn Fn() -> PageStore)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages");
    let options = Options::default().growth_bytes(64 << 10);
    test(&|| PageStore::open_with(Arc::new(OsFs::new()), &path, options.clone()).unwrap());
}

fn try_open(fs: &FaultFs) -> Result<PageStore, Error> {
    let options = Options::default().growth_bytes(64 << 10).trim_bytes(64 << 10);
    PageStore::open_with(Arc::new(fs.clone()), &path(), options)
}

fn open(fs: &FaultFs) -> PageStore {
    try_open(fs).expect("the disk is well")
}
