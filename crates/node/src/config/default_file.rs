//! A file with all settings: each commented out, with its default, its range and its meaning.

use std::fmt::Write as _;

use serde_json::Value;

use super::key::{SettingEffect, SettingKey, SettingKind, SettingScope};
use super::node::NodeConfig;
use super::table::{SECTIONS, setting_value, setting_values};

/// Columns of a comment.
const COLUMNS: usize = 100;

/// Lines at the head of the file.
const HEAD: &str = "\
Every setting of a store, with its default. A line that begins with `#` and a name sets nothing \
until that `#` is taken out. Sizes and times are numbers with a unit, or numbers alone, whose unit \
ends the key's name. A variable of the environment wins over this file, and a flag over both. \
Settings of the cluster that are given must be equal to those that it has.";

/// The default of a key where nothing else is set; null if it has no value then. Where the default
/// follows from the machine it is that of this one.
#[must_use]
pub fn default_values() -> Value {
    let config = NodeConfig::default();
    let mut values = setting_values(&config);
    let resolved = config.resolve().expect("the defaults fit together");
    let effective = setting_values(&resolved.effective());
    for section in SECTIONS {
        for key in section.keys {
            let value = match section.name {
                "" => &mut values[key.name()],
                section => &mut values[section][key.name()],
            };
            if value.is_null() {
                *value = setting_value(&effective, key).clone();
            }
        }
    }
    values
}

/// The text of a TOML file that names every setting and changes none.
#[must_use]
pub fn default_file() -> String {
    let values = default_values();
    let mut text = String::new();
    comment(&mut text, HEAD);
    for section in SECTIONS {
        text.push('\n');
        comment(&mut text, section.about.trim());
        if !section.name.is_empty() {
            let _ = writeln!(text, "[{}]", section.name);
        }
        for key in section.keys {
            text.push('\n');
            comment(&mut text, key.meaning());
            comment(&mut text, &facts(key));
            match toml_value(key, setting_value(&values, key)) {
                Some(value) => {
                    let _ = writeln!(text, "#{} = {value}", key.name());
                }
                None => {
                    let _ = writeln!(text, "#{} =", key.name());
                }
            }
        }
    }
    text
}

/// Range, scope and effect of a key, and its variable.
fn facts(key: &SettingKey) -> String {
    let mut facts = String::new();
    let range = key.range_words();
    if !range.is_empty() {
        let _ = write!(facts, "Range: {range}. ");
    }
    if let Some(words) = key.default_words() {
        let _ = write!(facts, "Default: {words}. ");
    }
    let scope = match key.scope() {
        SettingScope::Store => "the store's own",
        SettingScope::Cluster => "of the cluster",
    };
    let effect = match key.effect() {
        SettingEffect::Bootstrap => "at the bootstrap",
        SettingEffect::Start => "at a start",
        SettingEffect::Reload => "at a start and at SIGHUP",
        SettingEffect::Online => "at the bootstrap, later by `flotilla ctl config set`",
    };
    let _ = write!(facts, "Scope: {scope}, {effect}. Variable: {}", key.variable());
    facts
}

/// A value as the file has it; none if there is no value.
fn toml_value(key: &SettingKey, value: &Value) -> Option<String> {
    match (key.kind(), value) {
        (_, Value::Null) => None,
        (kind, Value::Number(number)) => {
            let is_plain = kind.units().is_none() || number.as_u64() == Some(0);
            let words = key.value_words(value);
            Some(if is_plain { words } else { format!("{words:?}") })
        }
        (SettingKind::Labels, Value::Object(_)) => Some("{}".to_owned()),
        // Texts, lists of them and truth values are the same in JSON.
        _ => Some(value.to_string()),
    }
}

/// Appends comments of as many lines as `words` need.
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(text, "{line}");
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}
