//! `flotilla log` as a user meets it at a shell, on logs that are closed, damaged, and written.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod forks;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine, SegmentState};
use flotilla_vfs::os::OsFs;
use serde_json::{Value, json};

fn flotilla<S: AsRef<OsStr>>(args: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    forks::output(command.arg("log").args(args))
}

fn tells<S: AsRef<OsStr>>(args: &[S]) -> Value {
    let output = flotilla(args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and what is said on standard error.
fn fails<S: AsRef<OsStr>>(args: &[S]) -> (i32, String) {
    let output = flotilla(args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn open(dir: &Path) -> LogEngine {
    let config = Config::default().segment_bytes(64 << 10);
    forks::settle();
    LogEngine::open_with(Arc::new(OsFs::new()), dir, config).unwrap().0
}

/// Two groups; the first has a hundred entries in several segments, the second a key.
fn some_log(dir: &Path) -> LogEngine {
    let log = open(dir);
    for index in 1..=100 {
        let mut batch = LogBatch::new();
        let data = format!("entry {index} ").repeat(200).into();
        batch.append(7, &[Entry { index, term: 1 + index / 50, kind: 2, data }]);
        if index == 1 {
            batch.put(8, b"vote", b"s1");
        }
        log.write(batch, Durability::Synced).wait().unwrap();
    }
    log
}

fn path(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[test]
fn a_log_is_shown_and_found_sound_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log_dir) = path(&dir, "log");
    let log = some_log(&path);
    let info = tells(&["info", &log_dir, "--json"]);
    assert!(info["segments"].as_array().unwrap().len() > 2, "{info}");
    assert_eq!(info["segments"][0]["number"], 1);
    let group = &info["groups"][0];
    assert_eq!(
        (&group["group"], &group["first"], &group["last"]),
        (&json!(7), &json!(1), &json!(100))
    );
    assert_eq!(
        (&group["last_term"], &info["groups"][1]["keys"][0]["key"]),
        (&json!(3), &json!("vote"))
    );
    let report = tells(&["verify", &log_dir, "--json"]);
    assert_eq!(
        (&report["sound"], &report["entries"], &report["batches"]),
        (&json!(true), &json!(100), &json!(100))
    );
    let quick = tells(&["verify", "--quick", &log_dir, "--json"]);
    assert_eq!((&quick["sound"], &quick["entries"]), (&json!(true), &json!(0)));
    let text = String::from_utf8(flotilla(&["info", &log_dir]).stdout).unwrap();
    assert!(text.contains("sealed") && text.contains("2 groups"), "{text}");
    let states: Vec<_> =
        info["segments"].as_array().unwrap().iter().map(|segment| &segment["state"]).collect();
    let own = log.segments().unwrap();
    assert_eq!(own.last().unwrap().state, SegmentState::Active);
    assert_eq!(states.last().unwrap(), &"active", "as the engine that writes it says: {info}");
    assert_eq!(states.iter().filter(|state| **state == "active").count(), 1, "{info}");

    let mut batch = LogBatch::new();
    batch.put(8, b"vote", b"s2");
    log.write(batch, Durability::Synced).wait().expect("nobody is in the way");
    log.close().unwrap();
    let report = tells(&["verify", &log_dir, "--json"]);
    assert_eq!((&report["sound"], &report["last_lsn"]), (&json!(true), &json!(101)));
    let text = String::from_utf8(flotilla(&["info", &log_dir]).stdout).unwrap();
    assert!(text.contains("sealed") && !text.contains("active"), "a closed log: {text}");
}

/// The store would go on, and the copy would lack what it writes.
#[test]
fn a_log_in_use_is_not_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log_dir) = path(&dir, "log");
    let (copy_path, copy) = self::path(&dir, "copy");
    let log = some_log(&path);
    let (code, said) = fails(&["salvage", &log_dir, &copy]);
    assert!(code == 1 && said.contains("Stop its store first"), "{said}");
    assert!(!copy_path.exists(), "nothing is made");
    drop(log);
    let report = tells(&["salvage", &log_dir, &copy, "--json"]);
    assert_eq!((&report["groups"], &report["entries"]), (&json!(2), &json!(100)));
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_a_log_says_is_dumped_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log_dir) = path(&dir, "log");
    some_log(&path).close().unwrap();
    let all = lines(&flotilla(&["dump", &log_dir, "--json"]));
    let count = |what: &str| all.iter().filter(|line| line["what"] == what).count();
    assert_eq!((count("batch"), count("append"), count("put")), (100, 100, 1));
    assert_eq!(count("footer") as u64, all.last().unwrap()["segment"]);
    assert_eq!(
        (&all[0]["what"], &all[0]["lsn"], &all[1]["group"]),
        (&json!("batch"), &json!(1), &json!(7))
    );

    let group = lines(&flotilla(&["dump", &log_dir, "--json", "--group", "8", "--data"]));
    let put = json!({
        "what": "put", "segment": 1, "offset": group[0]["offset"], "lsn": 1, "group": 8,
        "key": "vote", "key_hex": "766f7465", "bytes": 2, "value_hex": "7331",
    });
    assert_eq!(group, [put]);
    let entries = ["dump", &log_dir, "--json", "--entries", "--group", "7", "--limit", "4"];
    let entries = lines(&flotilla(&entries));
    assert_eq!(entries.len(), 4);
    assert_eq!(
        (&entries[3]["what"], &entries[3]["index"], &entries[3]["kind"]),
        (&json!("entry"), &json!(2), &json!(2))
    );
    assert_eq!((&entries[3]["bytes"], &entries[3]["data_hex"]), (&json!(8 * 200), &Value::Null));
    assert_eq!(
        fails(&["dump", &log_dir, "--group", "9"]),
        (3, "flotilla: there is no group 9\n".to_owned())
    );
    let text = flotilla(&["dump", &log_dir, "--data", "--limit", "3"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("1:64 batch 1, ") && text.contains("entry 1 entry 1"), "{text}");
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn damage_is_named_and_the_rest_is_rescued() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log_dir) = path(&dir, "log");
    some_log(&path).close().unwrap();
    let segment = path.join("00000000000000000002.log");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[1000] ^= 4;
    fs::write(&segment, bytes).unwrap();

    let output = flotilla(&["verify", &log_dir, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problem = &report["problems"][0];
    assert_eq!(
        (&report["sound"], &problem["segment"], &problem["group"]),
        (&json!(false), &json!(2), &json!(7))
    );
    let lost = problem["entries"]["first"].as_u64().unwrap();
    let said: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(said["error"].as_str().unwrap().contains("1 problem"), "{said}");
    let text = String::from_utf8(flotilla(&["verify", &log_dir]).stdout).unwrap();
    assert!(text.contains("a frame that was synced is damaged"), "{text}");
    let (_, copy) = self::path(&dir, "copy");
    let (code, said) = fails(&["checkpoint", &log_dir, &copy]);
    assert!(code == 1 && said.contains("flotilla log salvage"), "{said}");

    let (_, rescued) = self::path(&dir, "rescued");
    let report = tells(&["salvage", &log_dir, &rescued, "--json"]);
    let group = &report["damaged_groups"][0];
    assert_eq!(group["group"], 7);
    assert_eq!(group["kept"], json!({ "first": lost + 1, "end": 101 }));
    assert_eq!(group["lost"], json!([{ "first": lost, "end": lost + 1 }]));
    assert_eq!(group["left_behind"], json!([{ "first": 1, "end": lost }]));
    assert_eq!((&report["entries"], &report["keys"]), (&json!(100 - lost), &json!(1)));
    assert_eq!(tells(&["verify", &rescued, "--json"])["sound"], true);
    let (code, said) = fails(&["salvage", &log_dir, &rescued]);
    assert!(code == 2 && said.contains("not empty"), "{said}");
}

#[test]
fn logs_are_copied_exported_and_imported() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log_dir) = path(&dir, "log");
    let log = some_log(&path);
    let (copy_path, copy) = self::path(&dir, "copy");
    let made = tells(&["checkpoint", &log_dir, &copy, "--json"]);
    assert_eq!(made["last_lsn"], 100);
    let ends = |dir: &Path| {
        let log = open(dir);
        let group = log.group(7).unwrap();
        (group.first_index(), group.last_index(), log.group(8).is_some())
    };
    assert_eq!(ends(&copy_path), (1, 100, true));

    let (_, stream) = self::path(&dir, "groups.flotexpo");
    let done = tells(&["export", &log_dir, &stream, "--json"]);
    assert_eq!((&done["groups"], &done["entries"]), (&json!(2), &json!(100)));
    assert_eq!(fails(&["export", &log_dir, &stream]).0, 2, "it is not overwritten");
    let (new_path, new) = self::path(&dir, "new");
    assert_eq!(tells(&["import", &new, &stream, "--json"]), done);
    assert_eq!(ends(&new_path), (1, 100, true));
    let (code, said) = fails(&["import", &new, &stream]);
    assert!(code == 1 && said.contains("group 7 is there already"), "{said}");
    let (code, said) = fails(&["import", &log_dir, &stream]);
    assert!(code == 1 && said.contains("Stop its store first"), "{said}");
    drop(log);
    let piped = flotilla(&["export", &log_dir, "-", "--groups", "8"]);
    assert!(piped.status.success() && piped.stdout.starts_with(b"flotexpo"));
    assert_eq!(
        fails(&["export", &log_dir, "-", "--groups", "8,9"]),
        (3, "flotilla: there is no group 9\n".to_owned())
    );
}

#[test]
fn what_is_no_log_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let (_, to) = path(&dir, "to");
    for args in [
        vec!["info", here],
        vec!["dump", here],
        vec!["verify", here],
        vec!["salvage", here, &to],
        vec!["checkpoint", here, &to],
        vec!["export", here, &to],
    ] {
        let (code, said) = fails(&args);
        assert_eq!((code, said), (3, format!("flotilla: there is no log in {here}\n")), "{args:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made: {args:?}");
    }
    let (code, said) = fails(&["import", &to, &to]);
    assert!(code == 3 && said.contains("No such file"), "{said}");
    fs::write(dir.path().join("x"), b"something that is no export").unwrap();
    let (code, said) = fails(&["import", &to, dir.path().join("x").to_str().unwrap()]);
    assert!(code == 1 && said.contains("no export of a log"), "{said}");
}
