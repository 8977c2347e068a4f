//! Every file system passes the same suite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::os::OsFs;
use flotilla_vfs::{FileSystem, OpenMode};

use suite::check_all;

mod suite;

#[test]
fn the_real_file_system_conforms_mapped_or_not() {
    for os in [OsFs::new(), OsFs::unmapped()] {
        let root = tempfile::tempdir().unwrap();
        let count = AtomicU64::new(0);
        check_all(&|| {
            let fs: Arc<dyn FileSystem> = Arc::new(os);
            let dir = root.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
            fs.create_dir_all(&dir).unwrap();
            (fs, dir)
        });
    }
}

#[test]
fn views_are_mapped_unless_it_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for (os, kind) in [(OsFs::new(), "mapped"), (OsFs::unmapped(), "owned")] {
        let file = os.open(&root.path().join(kind), OpenMode::CreateNew).unwrap();
        file.write_at(b"some bytes", 0).unwrap();
        let view = file.view(5..10).unwrap();
        assert_eq!(file.view_mapped(5..10).unwrap().is_some(), kind == "mapped");
        assert_eq!(
            (&*view, format!("{view:?}")),
            (&b"bytes"[..], format!("View({kind}, 5 bytes)"))
        );
        assert!(file.view(5..u64::MAX).is_err(), "and takes no memory for it");
    }
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
