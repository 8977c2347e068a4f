//! Tests of layers: which value wins, where it comes from, and what is refused with which words.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::super::*;
use super::parsed;

/// The settings of a file, of variables, and of assignments on the command line.
fn layered(
    file: &str,
    variables: &[(&str, &str)],
    assignments: &[&str],
) -> Result<LayeredConfig, ConfigError> {
    let mut layers = SettingLayers::default();
    layers.add_text(Path::new("f.toml"), file);
    let text = |text: &&str| OsString::from(*text);
    layers.add_variables(variables.iter().map(|(name, value)| (text(name), text(value))));
    for assignment in assignments {
        layers.add_assignment("--set", assignment);
    }
    layers.finish()
}

fn refused(file: &str, variables: &[(&str, &str)], assignments: &[&str]) -> Vec<String> {
    layered(file, variables, assignments).unwrap_err().lines()
}

#[test]
fn a_flag_wins_over_a_variable_that_over_the_file_and_that_over_the_default() {
    let file = "regions = 2\n\n[limits]\nslow_request_ms = '2s'\n";
    let variables = [("FLOTILLA_LIMITS_SLOW_REQUEST_MS", "3s")];
    let path = "limits.slow_request_ms";
    let slow = |file, variables: &[_], assignments: &[_]| {
        let layered = layered(file, variables, assignments).unwrap();
        (layered.config.limits.slow_request_ms, layered.source_of(path).clone())
    };
    let in_file = SettingSource::File { path: PathBuf::from("f.toml"), line: 4 };
    assert_eq!(slow("", &[], &[]), (1_000, SettingSource::Default));
    assert_eq!(slow(file, &[], &[]), (2_000, in_file));
    let variable = SettingSource::Variable(variables[0].0.to_owned());
    assert_eq!(slow(file, &variables, &[]), (3_000, variable));
    let flag = SettingSource::Flag("--set".to_owned());
    assert_eq!(slow(file, &variables, &["limits.slow_request_ms=4s"]), (4_000, flag));
    let all = layered(file, &variables, &[]).unwrap();
    assert_eq!((all.config.regions, all.config.limits.queued_count_max), (2, 16_384));
}

#[test]
fn lists_and_labels_of_all_layers_are_put_together() {
    let file = "also_listen = ['h:1']\nlabels = { zone = 'a', rack = 'r1' }";
    let variables = [("FLOTILLA_ALSO_LISTEN", "h:2, h:3"), ("FLOTILLA_LABELS", "zone=b,row=1")];
    let config = layered(file, &variables, &["also_listen=h:4", "labels=row=2"]).unwrap().config;
    assert_eq!(config.also_listen, ["h:1", "h:2", "h:3", "h:4"]);
    let labels: Vec<_> = config.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(labels, [("rack", "r1"), ("row", "2"), ("zone", "b")]);
}

#[test]
fn sizes_and_times_have_units_in_all_layers() {
    let file = "[storage]\nsegment_bytes = '32MiB'\ncheckpoint_interval_ms = 500\n\
                [snapshot]\nbytes_per_s = '100MiB/s'\n[split]\nload_seconds = '1m'\n\
                bytes_per_s_max = 0x100000\n";
    let variables = [("FLOTILLA_STORAGE_CACHE_BYTES", "1 GiB"), ("FLOTILLA_RAFT_TICK_MS", "20")];
    let config = layered(file, &variables, &["scrub.pages_interval_ms=30d"]).unwrap().config;
    assert_eq!(config.storage.segment_bytes, 32 << 20);
    assert_eq!(config.storage.checkpoint_interval_ms, 500);
    assert_eq!(config.snapshot.bytes_per_s, 100 << 20);
    assert_eq!((config.split.load_seconds, config.split.bytes_per_s_max), (60, 1 << 20));
    assert_eq!(config.storage.cache_bytes, 1 << 30);
    assert_eq!(config.raft.tick_ms, Some(20));
    assert_eq!(config.scrub.pages_interval_ms, 30 * 24 * 60 * 60 * 1000);
}

#[test]
fn a_value_that_its_key_does_not_take_is_refused_with_what_it_takes() {
    for (file, words) in [
        (
            "[storage]\nsegment_bytes = '2s'",
            "f.toml, line 2: storage.segment_bytes = \"2s\": \"s\" is no unit of this key; expected \
             a whole number of B, KiB, MiB, GiB, TiB, or of bytes without a unit, 1MiB to 1GiB",
        ),
        (
            "[limits]\nhand_over_ms = '1.5s'",
            "f.toml, line 2: limits.hand_over_ms = \"1.5s\": expected a whole number of ms, s, m, \
             h, d, or of milliseconds without a unit, 0 to 1m",
        ),
        ("regions = '3'", "f.toml, line 1: regions = \"3\": expected a whole number, 1 to 9997"),
        ("regions = -1", "f.toml, line 1: regions = -1: expected a whole number, 1 to 9997"),
        ("regions = 1.0", "f.toml, line 1: regions = 1.0: expected a whole number, 1 to 9997"),
        (
            "[storage]\nsegment_bytes = '99999999TiB'",
            "f.toml, line 2: storage.segment_bytes = \"99999999TiB\" is out of range: 1MiB to 1GiB",
        ),
        ("[split]\nautomatic = 1", "f.toml, line 2: split.automatic = 1: expected true or false"),
        ("name = 1979-05-27", "f.toml, line 1: name = a date: expected a text"),
        ("also_listen = 'h:1'", "f.toml, line 1: also_listen = \"h:1\": expected a list of texts"),
        (
            "labels = { zone = 1 }",
            "f.toml, line 1: labels = a table of other things: expected names with values, as zone=a",
        ),
        (
            "limits = 3",
            "f.toml, line 1: `limits` is no setting; `flotilla config default` has all of them",
        ),
    ] {
        assert_eq!(refused(file, &[], &[]), [words], "{file}");
    }
    let wrong = refused("", &[], &["regions", "raft.read_leases=maybe"]);
    assert_eq!(wrong[0], "--set: `regions` is not of the form KEY=VALUE");
    assert_eq!(wrong[1], "--set: raft.read_leases = maybe: expected true or false");
}

#[test]
fn a_key_that_does_not_exist_is_refused_with_the_nearest() {
    for (file, near) in [
        ("nmae = 's1'", "name"),
        ("[raft]\ntick = 5", "raft.tick_ms"),
        ("raft.election_tick = 5", "raft.election_ticks"),
        ("tick_ms = 5", "raft.tick_ms"),
        ("[storage]\nslow_request_ms = 5", "limits.slow_request_ms"),
        ("[lmits]\nslow_request_ms = 5", "limits"),
    ] {
        let said = refused(file, &[], &[]);
        let is_named = said[0].ends_with(&format!("the nearest is `{near}`"));
        assert!(is_named || (near == "limits" && said[0].contains("`lmits` is no se")), "{said:?}");
    }
    let far = refused("[zebra]\nx = 5", &[], &[]);
    assert!(far[0].ends_with("`flotilla config default` has all of them"), "{far:?}");
}

#[test]
fn a_key_of_an_earlier_version_is_refused_with_its_new_name() {
    for (old, new) in [
        ("hold_ms", "leader_wait_ms"),
        ("held_count_max", "leader_wait_count_max"),
        ("inbox_bytes_max", "mailbox_bytes_max"),
    ] {
        let said = refused(&format!("name = 's1'\n[limits]\n{old} = 2097152"), &[], &[]);
        let words = format!("f.toml, line 3: `limits.{old}` is now `limits.{new}`: rename it");
        assert_eq!(said, [words]);
        let variable = format!("FLOTILLA_LIMITS_{}", old.to_uppercase());
        let said = refused("", &[(&variable, "2097152")], &[]);
        let new_variable = format!("FLOTILLA_LIMITS_{}", new.to_uppercase());
        assert_eq!(said, [format!("{variable}: it is now {new_variable}: rename it")]);
        assert!(parsed(&format!("[limits]\n{new} = 2097152\n")).is_ok(), "{new}");
    }
}

#[test]
fn a_variable_that_is_like_a_setting_is_refused_with_the_nearest_and_others_are_left_alone() {
    for (variable, near) in [
        ("FLOTILLA_LIMITS_SLOW_REQUESTS_MS", "FLOTILLA_LIMITS_SLOW_REQUEST_MS"),
        ("FLOTILLA_LIMIT_SLOW_REQUEST_MS", "FLOTILLA_LIMITS_SLOW_REQUEST_MS"),
        ("FLOTILLA_DATADIR", "FLOTILLA_DATA_DIR"),
        ("FLOTILLA_SPLIT_KEY", "FLOTILLA_SPLIT_KEYS"),
    ] {
        let said = refused("", &[(variable, "1")], &[]);
        assert_eq!(said, [format!("{variable}: it sets nothing; the nearest is {near}")]);
    }
    let said = refused("", &[("FLOTILLA_STORAGE_COLOUR", "red")], &[]);
    let words = "it sets nothing; `flotilla config default` has all variables";
    assert_eq!(said, [format!("FLOTILLA_STORAGE_COLOUR: {words}")]);
    let said = refused("", &[("FLOTILLA_REGIONS", "many")], &[]);
    assert_eq!(said, ["FLOTILLA_REGIONS: regions = many: expected a whole number, 1 to 9997"]);
    let others = [
        ("FLOTILLA_PORT", "tcp://10.0.0.1:20160"),
        ("FLOTILLA_SERVICE_HOST", "10.0.0.1"),
        ("FLOTILLA_PORT_20160_TCP_ADDR", "10.0.0.1"),
        ("FLOTILLA_REGIONS", ""),
        ("LIMITS_SLOW_REQUEST_MS", "1"),
    ];
    assert_eq!(layered("", &others, &[]).unwrap().config, NodeConfig::default());
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let file = "nmae = 's1'\n[limits]\nslow_request_ms = '1MiB'\nconnections_max = 1\n";
    let said = refused(file, &[("FLOTILLA_REGIONS", "0")], &["raft.tick_ms=1ms"]);
    let places: Vec<_> = said.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        places,
        ["f.toml, line 1", "f.toml, line 3", "f.toml, line 4", "FLOTILLA_REGIONS", "--set"]
    );
    let both = parsed("name = 'x'\ninitial_cluster = 's1=h:1'\n[limits]\nleader_wait_ms = '20s'\n");
    let said = both.unwrap().resolve().unwrap_err().lines();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[1].contains("limits.leader_wait_ms = 20000 is more than limits.request_timeout"));
    let shown = parsed(file).unwrap_err().to_string();
    assert!(shown.starts_with("3 settings are wrong:\n  f.toml, line 1: "), "{shown}");
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_each_line() {
    let said = refused("regions = 1\nregions = 2\n[limits\n", &[], &[]);
    assert!(said.len() >= 2, "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("f.toml, line 2: duplicate key")), "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("f.toml, line 3: ")), "{said:?}");
}

#[test]
fn a_file_without_end_is_not_read_whole() {
    let mut layers = SettingLayers::default();
    layers.add_file(Path::new("/dev/zero"));
    let said = layers.finish().unwrap_err().to_string();
    assert!(said.contains("1048576 bytes at most"), "{said}");
}
