//! Every file system passes the same suite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_vfs::FileSystem;
use flotilla_vfs::conformance::check_all;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::os::OsFs;

#[test]
fn the_real_file_system_conforms() {
    let root = tempfile::tempdir().unwrap();
    let count = AtomicU64::new(0);
    check_all(&|| {
        let fs: Arc<dyn FileSystem> = Arc::new(OsFs::new());
        let dir = root.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        fs.create_dir_all(&dir).unwrap();
        (fs, dir)
    });
}

#[test]
fn the_faulty_file_system_conforms() {
    check_all(&|| {
        let fs: Arc<dyn FileSystem> = Arc::new(FaultFs::new(7));
        let dir = Path::new("/disk").join("data");
        fs.create_dir_all(&dir).unwrap();
        (fs, dir)
    });
}

#[test]
fn a_hooked_file_system_conforms_and_calls_its_hook() {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    check_all(&move || {
        let (disk, syncs) = (Arc::new(FaultFs::new(7)), counted.clone());
        let fs: Arc<dyn FileSystem> = Arc::new(HookedFs::new(disk, move |operation| {
            syncs.fetch_add(u64::from(operation == Operation::Sync), Ordering::Relaxed);
        }));
        let dir = Path::new("/disk").join("data");
        fs.create_dir_all(&dir).unwrap();
        (fs, dir)
    });
    assert!(syncs.load(Ordering::Relaxed) > 0);
}
