//! Tests of the table: it has each field of the structs, and each of its rows holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::given_value::GivenValue;
use super::super::key::NO_LIMIT;
use super::super::table::find_variable;
use super::super::*;
use super::parsed;

#[test]
fn the_table_has_each_field_of_the_structs_and_no_other() {
    let values = setting_values(&NodeConfig::default());
    let mut fields = BTreeSet::new();
    for (name, value) in values.as_object().unwrap() {
        match value {
            Value::Object(keys) if SECTIONS.iter().any(|section| section.name == name) => {
                fields.extend(keys.keys().map(|key| format!("{name}.{key}")));
            }
            _ => {
                fields.insert(name.clone());
            }
        }
    }
    let keys: BTreeSet<_> = setting_keys().map(SettingKey::path).collect();
    assert_eq!(keys, fields);
    assert_eq!(keys.len(), setting_keys().count(), "each key once");
    let variables: BTreeSet<_> = setting_keys().map(SettingKey::variable).collect();
    assert_eq!(variables.len(), keys.len(), "each variable once");
}

#[test]
fn each_default_is_within_its_range() {
    let values = default_values();
    for key in setting_keys() {
        assert!(key.takes(setting_value(&values, key)), "{}", key.path());
    }
}

#[test]
fn each_end_of_a_range_is_taken_and_no_number_beyond() {
    let set = |key: &SettingKey, value: u64| {
        let mut layers = SettingLayers::default();
        layers.add_flag("--set", &key.path(), value.to_string());
        let layered = layers.finish()?;
        let values = setting_values(&layered.config);
        assert_eq!(setting_value(&values, key), &json!(value), "{}", key.path());
        Ok::<_, ConfigError>(())
    };
    for key in setting_keys() {
        let ValueRange { least, most, or_zero, .. } = key.range();
        if key.kind() == SettingKind::Count || key.kind().units().is_some() {
            set(key, least).unwrap();
            set(key, most).unwrap();
            assert!(most == NO_LIMIT || set(key, most + 1).is_err(), "{}", key.path());
            assert!(least == 0 || least == 1 || set(key, least - 1).is_err(), "{}", key.path());
            assert_eq!(set(key, 0).is_ok(), or_zero || least == 0, "{}", key.path());
        }
    }
}

#[test]
fn a_value_is_shown_as_it_may_be_given() {
    let values = default_values();
    for key in setting_keys() {
        let value = setting_value(&values, key);
        let shown = GivenValue::Untyped(key.value_words(value));
        if !value.is_null() {
            assert_eq!(key.read(&shown).as_ref(), Ok(value), "{}", key.path());
        }
    }
}

#[test]
fn the_file_of_all_settings_sets_nothing_and_with_its_lines_taken_in_the_defaults() {
    let file = default_file();
    assert_eq!(parsed(&file).unwrap(), NodeConfig::default());
    assert!(file.lines().all(|line| line.chars().count() <= 150), "{file}");
    let taken_in = |line: &str| match line.strip_prefix('#') {
        // A key that has no value by default.
        Some(setting) if setting.ends_with(" =") => String::new(),
        Some(setting) if !setting.starts_with(' ') => setting.to_owned(),
        _ => line.to_owned(),
    };
    let lines: Vec<_> = file.lines().map(taken_in).collect();
    let settings = lines.iter().filter(|line| !line.starts_with('#') && line.contains(" = "));
    let without_default = ["storage.log_disk_bytes_max", "tls.mode"];
    assert_eq!(settings.count() + without_default.len(), setting_keys().count());
    let mut taken_in = parsed(&lines.join("\n")).unwrap();
    taken_in.sources = SettingSources::default();
    let taken_in = taken_in.resolve().unwrap();
    let defaults = NodeConfig::default().resolve().unwrap();
    assert_eq!(taken_in.effective(), defaults.effective());
}

#[test]
fn no_variable_of_tests_and_benches_is_taken_for_a_setting() {
    // `FLOTILLA_LOG` and `FLOTILLA_API` are settings, and are meant as such.
    let mut names = BTreeSet::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut open: Vec<PathBuf> = ["tests", "benches", "crates/sim"].map(|dir| top.join(dir)).into();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            if !path.ends_with("target") {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            continue;
        }
        let text = fs::read(&path).unwrap_or_default();
        for rest in String::from_utf8_lossy(&text).split("FLOTILLA_").skip(1) {
            let is_part = |letter: &char| letter.is_ascii_uppercase() || *letter == '_';
            names.insert(rest.chars().take_while(is_part).collect::<String>());
        }
    }
    assert!(names.contains("KILLS") && names.contains("SECONDS"), "{names:?}");
    for name in names {
        assert!(find_variable(&format!("FLOTILLA_{name}")).is_ok(), "FLOTILLA_{name}");
    }
}
