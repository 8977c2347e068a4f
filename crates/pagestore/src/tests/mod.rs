//! Tests of the whole store: on a disk in memory, against maps.

mod crash;
mod model;
mod rot;
mod shrink;
mod space;
mod surgery;
mod sync;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;

use crate::{Error, Options, PageStore};

fn path() -> PathBuf {
    PathBuf::from("/data/pages")
}

fn disk(seed: u64) -> FaultFs {
    let fs = FaultFs::new(seed);
    fs.create_dir_all(Path::new("/data")).unwrap();
    fs
}

fn try_open(fs: &FaultFs) -> Result<PageStore, Error> {
    let options = Options::default().growth_bytes(64 << 10).trim_bytes(64 << 10);
    PageStore::open(Arc::new(fs.clone()), &path(), options)
}

fn open(fs: &FaultFs) -> PageStore {
    try_open(fs).expect("the disk is well")
}
