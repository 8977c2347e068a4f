//! The table of all settings: one list of keys, from which come the commands, the page of the docs,
//! the variables, the checks of ranges, and the words of refusals.

use serde_json::Value;

use super::disk::DiskConfig;
use super::error::{ConfigError, ConfigErrors};
use super::http2::Http2Config;
use super::key::{SettingKey, SettingSection};
use super::limits::{LimitsConfig, ThreadsConfig};
use super::node::NodeConfig;
use super::raft::RaftConfig;
use super::snapshot::SnapshotConfig;
use super::split::SplitConfig;
use super::storage::{ScrubConfig, StorageConfig};
use super::tls::TlsConfig;
use super::verify::VerifyConfig;

/// All sections, in the order in which they are shown.
pub static SECTIONS: [&SettingSection; 12] = [
    &NodeConfig::SECTION,
    &RaftConfig::SECTION,
    &StorageConfig::SECTION,
    &DiskConfig::SECTION,
    &ScrubConfig::SECTION,
    &VerifyConfig::SECTION,
    &SplitConfig::SECTION,
    &SnapshotConfig::SECTION,
    &TlsConfig::SECTION,
    &LimitsConfig::SECTION,
    &Http2Config::SECTION,
    &ThreadsConfig::SECTION,
];

/// Keys that an earlier version knew by another name: old name, new name.
const RENAMED_KEYS: [(&str, &str); 3] = [
    ("limits.hold_ms", "limits.leader_wait_ms"),
    ("limits.held_count_max", "limits.leader_wait_count_max"),
    ("limits.inbox_bytes_max", "limits.mailbox_bytes_max"),
];

/// Names that differ in more than one letter out of so many are not taken for each other.
const LETTERS_PER_ERROR: usize = 3;

/// All keys.
pub fn setting_keys() -> impl Iterator<Item = &'static SettingKey> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The value of each key, by sections, as JSON.
#[must_use]
pub fn setting_values(config: &NodeConfig) -> Value {
    serde_json::to_value(config).expect("settings are texts, numbers, lists and tables of them")
}

/// The value of one key among those of [`setting_values`].
#[must_use]
pub fn setting_value<'a>(values: &'a Value, key: &SettingKey) -> &'a Value {
    match key.section() {
        "" => &values[key.name()],
        section => &values[section][key.name()],
    }
}

/// The key at `path`, as `limits.slow_request_ms`.
///
/// # Errors
///
/// There is none; which one may be meant, in words.
pub(super) fn find(path: &str) -> Result<&'static SettingKey, String> {
    if let Some(key) = setting_keys().find(|key| key.path() == path) {
        return Ok(key);
    }
    if let Some((_, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == path) {
        return Err(format!("`{path}` is now `{new}`: rename it"));
    }
    Err(match nearest(path, setting_keys().map(SettingKey::path)).or_else(|| elsewhere(path)) {
        Some(near) => format!("`{path}` is no setting; the nearest is `{near}`"),
        None => format!("`{path}` is no setting; `flotilla config default` has all of them"),
    })
}

/// The key of a variable of the environment, if `name` is that of one, or is like one.
///
/// Others have variables of this prefix too: tests, and Kubernetes for a service by the name of
/// `flotilla`. So a name is held to be that of a setting if it begins with a section, or differs
/// from one in a few letters, and is left alone otherwise.
///
/// # Errors
///
/// It is like one, but none; which one may be meant, in words.
pub(super) fn find_variable(name: &str) -> Result<Option<&'static SettingKey>, String> {
    if !name.starts_with("FLOTILLA_") {
        return Ok(None);
    }
    if let Some(key) = setting_keys().find(|key| key.variable() == name) {
        return Ok(Some(key));
    }
    let of_section = |section: &&SettingSection| {
        let prefix = format!("FLOTILLA_{}_", section.name.to_uppercase());
        !section.name.is_empty() && name.starts_with(&prefix)
    };
    let renamed = RENAMED_KEYS.iter().find(|(old, _)| variable(old) == name);
    if let Some((_, new)) = renamed {
        return Err(format!("it is now {}: rename it", variable(new)));
    }
    let short = |name: &str| name["FLOTILLA_".len()..].to_owned();
    let names = setting_keys().map(|key| short(&key.variable()));
    match nearest(&short(name), names) {
        Some(near) => Err(format!("it sets nothing; the nearest is FLOTILLA_{near}")),
        None if SECTIONS.iter().any(of_section) => {
            Err("it sets nothing; `flotilla config default` has all variables".to_owned())
        }
        None => Ok(None),
    }
}

fn variable(path: &str) -> String {
    format!("FLOTILLA_{}", path.replace('.', "_").to_uppercase())
}

/// The one of `names` that `name` is likely to be meant for.
fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let distance = |other: &String| strsim::damerau_levenshtein(name, other);
    let nearest = names.min_by_key(distance)?;
    (distance(&nearest) <= name.chars().count() / LETTERS_PER_ERROR).then_some(nearest)
}

/// The path of a key of this name in another section.
fn elsewhere(path: &str) -> Option<String> {
    let name = path.rsplit('.').next()?;
    setting_keys().find(|key| key.name() == name).map(SettingKey::path)
}

/// Each value is within its range.
///
/// # Errors
///
/// All that are not, by their names.
pub(super) fn check_ranges(config: &NodeConfig) -> Result<(), ConfigError> {
    let values = setting_values(config);
    let mut errors = ConfigErrors::default();
    for key in setting_keys() {
        let value = setting_value(&values, key);
        if !key.takes(value) {
            // JSON has no word for a number that is none.
            let shown = if value.is_null() { "NaN".to_owned() } else { value.to_string() };
            errors.add(ConfigError::Value(key.out_of_range(&shown)));
        }
    }
    errors.end()
}
