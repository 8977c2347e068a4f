//! Formats on disk stay as they are: directories that an older binary wrote, kept in
//! `tests/compat/`, are read, and written again byte for byte.
//!
//! With `FLOTILLA_WRITE_COMPAT=1` the directories are written anew; `tests/compat/README.md` says
//! when that is right.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod log;
mod pages;
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat").join(name)
}

/// A copy of a fixture that may be opened for writing.
fn copy_of(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for (path, bytes) in files(&fixture(name)) {
        let path = copy.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    copy
}

/// Runs what wrote a fixture again, and compares all bytes.
fn is_written_alike(name: &str, write: impl Fn(&Path)) {
    let again = tempfile::tempdir().unwrap();
    write(again.path());
    let written = files(again.path());
    if std::env::var_os("FLOTILLA_WRITE_COMPAT").is_some() {
        let _ = fs::remove_dir_all(fixture(name));
        for (path, bytes) in &written {
            let path = fixture(name).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    let kept = files(&fixture(name));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(&kept), "{name}");
    for (path, bytes) in kept {
        let other = &written[&path];
        assert_eq!(other.len(), bytes.len(), "{name}: length of {}", path.display());
        let differs = bytes.iter().zip(other).position(|(kept, written)| kept != written);
        assert_eq!(differs, None, "{name}: first byte of {} that differs", path.display());
    }
}

/// All files below a directory, by their paths in it.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Bytes that neither repeat nor compress, the same in each run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}
