//! `flotilla pages` as a user meets it at a shell, on files that are whole, damaged, and in use.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod forks;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use flotilla_pagestore::{CommitDurability, Options, PageStore};
use flotilla_vfs::os::OsFs;
use serde_json::{Value, json};

fn flotilla<S: AsRef<OsStr>>(args: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    forks::output(command.arg("pages").args(args))
}

/// The output of a command that succeeds.
fn succeeds<S: AsRef<OsStr>>(args: &[S]) -> Vec<u8> {
    let output = flotilla(args);
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn tells<S: AsRef<OsStr>>(args: &[S]) -> Value {
    serde_json::from_slice(&succeeds(args)).unwrap()
}

fn says<S: AsRef<OsStr>>(args: &[S]) -> String {
    String::from_utf8(succeeds(args)).unwrap()
}

/// Exit code and what is said on standard error.
fn fails<S: AsRef<OsStr>>(args: &[S]) -> (i32, String) {
    let output = flotilla(args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn open(path: &Path) -> PageStore {
    let options = Options::default().redo_bytes(64 << 10);
    forks::settle();
    PageStore::open_with(Arc::new(OsFs::new()), path, options).unwrap()
}

/// Two trees, the first with a hundred keys, the second with a long value; a transaction that only
/// the redo area has.
fn some_pages(path: &Path) -> PageStore {
    let store = open(path);
    let mut txn = store.write().unwrap();
    for i in 0..100 {
        txn.tree("ships").unwrap().put(format!("key {i:03}").as_bytes(), &[b'v'; 200]).unwrap();
    }
    txn.tree("maps").unwrap().put(b"north", &[b'n'; 9000]).unwrap();
    txn.set_commit_metadata(b"position 17");
    txn.commit(CommitDurability::Sync).unwrap();
    let mut txn = store.write().unwrap();
    txn.tree("ships").unwrap().put(b"later", b"by the redo area").unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
    store
}

fn path(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[test]
fn a_file_is_shown_and_found_sound() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    drop(some_pages(&path));
    let before = fs::read(&path).unwrap();
    let info = tells(&["info", &file, "--json"]);
    assert_eq!(
        (&info["trees"][1]["tree"], &info["trees"][1]["keys"]),
        (&json!("ships"), &json!(100))
    );
    assert_eq!(
        (&info["redo"]["transactions"], &info["redo"]["last_txid"], &info["problems"]),
        (&json!(1), &json!(2), &json!([]))
    );
    let text = says(&["info", &file]);
    assert!(text.contains("position 17") && text.contains("1 transaction beyond"), "{text}");
    let report = tells(&["check", &file, "--json"]);
    assert_eq!(
        (&report["sound"], &report["keys"], &report["long_values"]),
        (&json!(true), &json!(101), &json!(1))
    );
    assert!(says(&["check", &file]).ends_with("nothing is wrong\n"));
    assert_eq!(before, fs::read(&path).unwrap(), "nothing was changed");
}

#[test]
fn entries_and_pages_are_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    drop(some_pages(&path));
    let text = says(&["dump", &file]);
    assert_eq!(text.lines().count(), 101);
    assert!(text.starts_with("maps north, 9000 bytes at page "), "{text}");
    let text = says(&["dump", &file, "--tree", "ships", "--values", "--limit", "1"]);
    assert_eq!(text, format!("ships key 000, 200 bytes {}\n", "v".repeat(200)));
    let line: Value = serde_json::from_str(
        says(&["dump", &file, "--tree", "maps", "--values", "--json"]).trim_end(),
    )
    .unwrap();
    assert_eq!((&line["bytes"], &line["key_hex"]), (&json!(9000), &json!("6e6f727468")));
    assert_eq!(line["value_hex"].as_str().unwrap().len(), 18_000);

    let root = tells(&["info", &file, "--json"])["trees"][1]["root"].to_string();
    let page = tells(&["dump", &file, "--page", &root, "--json"]);
    assert_eq!((&page["kind"], &page["level"]), (&json!("branch"), &json!(1)));
    let leaf = page["cells"][0]["child"].to_string();
    let text = says(&["dump", &file, "--page", &leaf, "--limit", "1"]);
    assert!(text.contains("leaf") && text.contains("key 000: 200 bytes"), "{text}");
    assert_eq!(fails(&["dump", &file, "--tree", "none"]).0, 3);
    assert_eq!(fails(&["dump", &file, "--page", "0"]).0, 1);
    assert_eq!(fails(&["dump", &file, "--page", "2", "--tree", "ships"]).0, 2);
}

#[test]
fn a_file_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    let (svg, picture) = self::path(&dir, "map.svg");
    drop(some_pages(&path));
    let text = says(&["map", &file, "--svg", &picture]);
    assert!(text.contains("redo area") && text.contains("ships") && text.contains("mm"), "{text}");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
    assert!(drawn.contains("ships: ") && drawn.contains("hsl("), "{drawn}");
    assert_eq!(fails(&["map", &file, "--svg", &picture]).0, 2);
    let map = tells(&["map", &file, "--json"]);
    let runs = map["runs"].as_array().unwrap();
    let pages: u64 = runs.iter().map(|run| run["pages"].as_u64().unwrap()).sum();
    assert_eq!(pages * 4096, fs::metadata(&path).unwrap().len());
}

/// Spoils the first leaf of `ships`; returns its page.
fn spoil(path: &Path, file: &str) -> u64 {
    let root = tells(&["info", file, "--json"])["trees"][1]["root"].to_string();
    let page = tells(&["dump", file, "--page", &root, "--json"]);
    let leaf = page["cells"][0]["child"].as_u64().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[leaf as usize * 4096 + 2000] ^= 4;
    fs::write(path, bytes).unwrap();
    leaf
}

#[test]
fn damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    drop(some_pages(&path));
    let leaf = spoil(&path, &file);
    let output = flotilla(&["check", &file, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problem = &report["problems"][0];
    assert_eq!(
        (&report["sound"], &problem["page"], &problem["of"]),
        (&json!(false), &json!(leaf), &json!("tree \"ships\""))
    );
    assert!(problem["lost"]["keys"].as_u64().unwrap() > 5, "{problem}");
    for command in ["map", "dump"] {
        let (code, said) = fails(&[command, &file]);
        assert!(code == 1 && said.contains("1 problem found"), "{said}");
    }
    let leaf = leaf.to_string();
    let output = flotilla(&["dump", &file, "--page", &leaf]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("DAMAGED: checksum"));
}

#[test]
fn a_file_in_use_and_one_that_is_missing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    let store = some_pages(&path);
    for command in ["info", "check", "dump", "map"] {
        let (code, said) = fails(&[command, &file]);
        assert!(code == 1 && said.contains("Stop its store first"), "{said}");
        let missing = format!("{file}.none");
        assert_eq!(fails(&[command, &missing]).0, 3);
    }
    drop(store);
    let empty = dir.path().join("empty");
    fs::write(&empty, b"").unwrap();
    let (code, said) = fails(&["info".as_ref(), empty.as_os_str()]);
    assert!(code == 1 && said.contains("too short"), "{said}");
}

#[test]
fn a_dense_copy_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    let (copy, to) = self::path(&dir, "copy");
    drop(some_pages(&path));
    let made = tells(&["compact", &file, &to, "--json"]);
    assert_eq!((&made["keys"], &made["txid"]), (&json!(102), &json!(2)));
    assert_eq!(made["bytes"], fs::metadata(&copy).unwrap().len());
    let report = tells(&["check", &to, "--json"]);
    assert_eq!((&report["sound"], &report["keys"]), (&json!(true), &json!(102)));
    let snapshot = open(&copy).read();
    assert_eq!(snapshot.commit_metadata(), b"position 17");
    let ships = snapshot.tree("ships").unwrap().unwrap();
    assert_eq!(ships.get(b"later").unwrap().unwrap(), b"by the redo area");
    drop((ships, snapshot));
    assert_eq!(fails(&["compact", &file, &to]).0, 2);
    spoil(&path, &file);
    let (code, said) = fails(&["compact", &file, &format!("{to}2")]);
    assert!(code == 1 && said.contains("pages repair"), "{said}");
}

#[test]
fn what_is_whole_is_rescued() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    let (_, to) = self::path(&dir, "new");
    drop(some_pages(&path));
    spoil(&path, &file);
    let before = fs::read(&path).unwrap();
    let text = says(&["repair", &file, &to]);
    assert!(text.contains("checksum") && text.contains("2 trees"), "{text}");
    assert_eq!(before, fs::read(&path).unwrap(), "nothing was changed");
    let report = tells(&["check", &to, "--json"]);
    let kept = report["keys"].as_u64().unwrap();
    let again = format!("{to}2");
    let report = tells(&["repair", &file, &again, "--json"]);
    let lost = report["problems"][0]["lost"]["keys"].as_u64().unwrap();
    assert_eq!((kept + lost, &report["keys"]), (102, &json!(kept)));
    assert_eq!(fails(&["repair", &file, &to]).0, 2);
    assert_eq!(fails(&["repair", &format!("{file}.none"), &again]).0, 3);
}

#[test]
fn backups_are_made_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = path(&dir, "pages");
    let [one, two, new] = ["one", "two", "new"].map(|name| self::path(&dir, name).1);
    let store = some_pages(&path);
    assert_eq!(fails(&["backup", &file, &one]).0, 1, "it is in use");
    drop(store);
    let whole = tells(&["backup", &file, &one, "--json"]);
    assert_eq!((&whole["txid"], &whole["kept"]), (&json!(2), &json!(0)));
    let store = open(&path);
    let mut txn = store.write().unwrap();
    txn.tree("ships").unwrap().put(b"latest", b"in the second").unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
    drop(store);
    let more = tells(&["backup", &file, &two, "--since", &one, "--json"]);
    assert!(more["bytes"].as_u64() < whole["bytes"].as_u64(), "{more} {whole}");
    assert!(says(&["restore", &new, &one, &two]).contains("up to transaction 3"));
    let report = tells(&["check", &new, "--json"]);
    assert_eq!((&report["sound"], &report["keys"]), (&json!(true), &json!(103)));
    let snapshot = open(Path::new(&new)).read();
    let ships = snapshot.tree("ships").unwrap().unwrap();
    assert_eq!(ships.get(b"latest").unwrap().unwrap(), b"in the second");
    drop((ships, snapshot));

    let other = format!("{new}2");
    let (code, said) = fails(&["restore", &other, &two]);
    assert!(code == 1 && said.contains("two: it does not follow"), "{said}");
    assert_eq!(fails(&["restore", &new, &one]).0, 2);
    assert_eq!(fails(&["backup", &file, &one]).0, 2);
    assert_eq!(fails(&["restore", &other, "/none"]).0, 3);
    assert_eq!(fails(&["backup", &format!("{file}.none"), &other]).0, 3);
    assert_eq!(fails(&["restore", &other]).0, 2);
    assert!(!Path::new(&other).exists());
}
