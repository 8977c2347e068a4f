//! `flotilla config` as an operator meets it: check, show and default, with their exit codes.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A directory that has one file of settings, and is the working directory of the commands.
struct Folder(TempDir);

impl Folder {
    fn new(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("f.toml"), text).unwrap();
        Self(dir)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
        command.current_dir(self.0.path()).env_clear().stdin(Stdio::null()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Nothing but the file is there: the commands have no side effects.
    fn is_unchanged(&self) -> bool {
        let names = std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        names.collect::<Vec<PathBuf>>() == [self.0.path().join("f.toml")]
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_file_that_is_right_passes_whatever_the_environment_says() {
    let folder = Folder::new("name = 's1'\n[storage]\nsegment_bytes = '32MiB'\n");
    let mut check = folder.command(&["config", "check", "f.toml"]);
    let output = check.env("FLOTILLA_REGIONS", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(output.stdout), "nothing is wrong\n");
    let json = folder.run(&["config", "check", "f.toml", "--json"]);
    let said: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(said, serde_json::json!({ "valid": true, "errors": [] }));
    assert!(folder.is_unchanged());
}

#[test]
fn everything_that_is_wrong_with_a_file_is_said_at_once() {
    let folder =
        Folder::new("regions = 0\n[raft]\nelection_tick = 3\n[limits]\nhand_over_ms = '2GiB'\n");
    let output = folder.run(&["config", "check", "f.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(output.stdout);
    assert_eq!(said.lines().count(), 3, "{said}");
    for words in [
        "f.toml, line 1: regions = 0 is out of range: 1 to 9997\n",
        "f.toml, line 3: `raft.election_tick` is no setting; the nearest is `raft.election_ticks`\n",
        "f.toml, line 5: limits.hand_over_ms = \"2GiB\": \"GiB\" is no unit of this key; expected a \
         whole number of ms, s, m, h, d, or of milliseconds without a unit, 0 to 1m\n",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(text(output.stderr), "flotilla: 3 problems found\n");
    let json = folder.run(&["config", "check", "f.toml", "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&said["valid"], said["errors"].as_array().unwrap().len()), (&false.into(), 3));
    assert!(folder.is_unchanged());
}

#[test]
fn values_that_do_not_fit_together_are_refused_as_by_serve() {
    let folder = Folder::new("log = 'loud'\nname = 'x'\ninitial_cluster = 's1=h:1'\n");
    let output = folder.run(&["config", "check", "f.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(output.stdout);
    assert!(said.contains("name = \"x\" is not in initial_cluster, which has s1"), "{said}");
    assert!(said.contains("f.toml, line 1: log = \"loud\": \"loud\" is no level"), "{said}");
    let served = folder.run(&["serve", "--config", "f.toml"]);
    assert_eq!(served.status.code(), Some(1));
    assert!(text(served.stderr).contains("log = \"loud\": \"loud\" is no level"));
    assert!(folder.is_unchanged());
}

#[test]
fn a_file_that_is_not_there_has_an_exit_code_of_its_own() {
    let folder = Folder::new("");
    let output = folder.run(&["config", "check", "none.toml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(output.stderr).contains("none.toml: No such file"));
}

#[test]
fn effective_settings_are_shown_with_their_sources() {
    let folder = Folder::new("regions = 2\n[limits]\nslow_request_ms = '2s'\n");
    let show = ["config", "show", "--config", "f.toml", "--set", "storage.cache_bytes=1GiB"];
    let variables = [("FLOTILLA_LIMITS_SLOW_REQUEST_MS", "3s"), ("FLOTILLA_LOG", "warn")];
    let with_log = [&show[..], &["--log", "debug"]].concat();
    let output = folder.command(&with_log).envs(variables).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(output.stderr));
    let shown = text(output.stdout);
    let row = |key: &str| {
        let row = shown.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        row.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("regions"), "2 f.toml, line 1");
    assert_eq!(row("limits.slow_request_ms"), "3s FLOTILLA_LIMITS_SLOW_REQUEST_MS");
    assert_eq!(row("log"), "debug --log");
    assert_eq!(row("storage.cache_bytes"), "1GiB --set");
    assert_eq!(row("storage.segment_bytes"), "64MiB default");
    assert_eq!(row("storage.dirty_bytes_hard_max"), "256MiB default");
    assert_eq!(row("raft.election_ticks"), "12 default, or the cluster");
    assert_eq!(row("data_dir"), "data/s1 default");
    assert_eq!(row("initial_cluster"), "(this store alone) default");

    let json = folder.command(&[&show[..], &["--json"]].concat()).envs(variables).output().unwrap();
    let shown: Value = serde_json::from_slice(&json.stdout).unwrap();
    let of = |key: &str| shown.as_array().unwrap().iter().find(|it| it["key"] == key).unwrap();
    let slow = of("limits.slow_request_ms");
    assert_eq!((&slow["value"], &slow["source"]), (&3000.into(), &"variable".into()));
    assert_eq!(slow["place"], "FLOTILLA_LIMITS_SLOW_REQUEST_MS");
    assert_eq!(of("regions")["place"], "f.toml, line 1");
    assert_eq!(of("storage.segment_bytes")["source"], "default");
    assert!(folder.is_unchanged());
}

#[test]
fn settings_that_serve_would_refuse_are_not_shown() {
    let folder = Folder::new("");
    let mut show = folder.command(&["config", "show", "--set", "raft.tick_ms=1"]);
    let output = show.env("FLOTILLA_LIMITS_SLOW_REQUESTS_MS", "3s").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(output.stdout), "");
    let said = text(output.stderr);
    assert!(said.starts_with("flotilla: 2 settings are wrong:\n"), "{said}");
    assert!(said.contains("the nearest is FLOTILLA_LIMITS_SLOW_REQUEST_MS\n"), "{said}");
    assert!(said.contains("--set: raft.tick_ms = 1 is out of range: 10ms to 10s"), "{said}");
    let served = folder.run(&["serve", "--set", "raft.tick_ms=1"]);
    assert_eq!(served.status.code(), Some(1));
    assert!(text(served.stderr).contains("--set: raft.tick_ms = 1 is out of range"));
    assert!(folder.is_unchanged());
}

#[test]
fn the_file_of_all_settings_passes_the_check_and_changes_nothing() {
    let folder = Folder::new("");
    let shown = folder.run(&["config", "show", "--json"]).stdout;
    let file = folder.run(&["config", "default"]).stdout;
    std::fs::write(folder.0.path().join("f.toml"), &file).unwrap();
    assert_eq!(folder.run(&["config", "check", "f.toml"]).status.code(), Some(0));
    assert_eq!(folder.run(&["config", "show", "--json", "--config", "f.toml"]).stdout, shown);
    let file = text(file);
    assert!(file.contains("\n#slow_request_ms = \"1s\"\n"), "{file}");

    let described: Value =
        serde_json::from_slice(&folder.run(&["config", "default", "--json"]).stdout).unwrap();
    let keys = described.as_array().unwrap();
    assert!(keys.len() > 60, "{}", keys.len());
    let disk = keys.iter().find(|key| key["key"] == "storage.segment_bytes").unwrap();
    assert_eq!((&disk["default"], &disk["kind"]), (&(64 << 20).into(), &"bytes".into()));
    assert_eq!(disk["range"], "1MiB to 1GiB");
    assert_eq!(disk["variable"], "FLOTILLA_STORAGE_SEGMENT_BYTES");
}
