//! The project's own files: which there are, and their text.

use std::fs;
use std::path::{Path, PathBuf};

/// The top of the work tree.
pub(crate) fn top() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests package lies in the work tree").to_owned()
}

/// A path as the findings name it.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(top()).unwrap_or(path).display().to_string()
}

/// All files below `dir` whose name ends in `.ext`, sorted; build output and hidden folders left
/// out.
pub(crate) fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.map(|e| e.expect("a readable entry").path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == ext) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Every Rust file of the workspace.
pub(crate) fn rust_files() -> Vec<PathBuf> {
    ["crates", "benches", "examples", "tests"]
        .iter()
        .flat_map(|d| files(&top().join(d), "rs"))
        .collect()
}

/// The folders of the product's crates, sorted.
pub(crate) fn crates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(top().join("crates"))
        .expect("crates/ exists")
        .map(|e| e.expect("a readable entry").path())
        .filter(|p| p.join("Cargo.toml").is_file())
        .collect();
    found.sort();
    found
}

/// A file's text.
pub(crate) fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Whether a file holds only tests.
pub(crate) fn is_test(path: &Path) -> bool {
    let shown = shown(path);
    // A program that measures is no test: it may wait for time to pass.
    if shown.starts_with("benches/src/bin/") {
        return false;
    }
    ["tests/", "benches/", "examples/"].iter().any(|d| shown.starts_with(d))
        || shown.contains("/tests/")
        || shown.contains("/fuzz/")
        || shown.ends_with("/tests.rs")
        || shown.ends_with("_tests.rs")
}
