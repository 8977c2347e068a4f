//! Errors of settings, which say what to change.

use std::path::PathBuf;

use flotilla_identity::InvalidList;

/// The error of a setting. The text says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a name or a type that does not belong there.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        source: Box<toml::de::Error>,
    },
    /// The file has a key by a name of an earlier version.
    #[error("{path}: `{old}` is now `{new}`: rename it")]
    Renamed {
        /// The file.
        path: PathBuf,
        /// The name in the file, with its group.
        old: String,
        /// The name that it has now.
        new: String,
    },
    /// The list of initial stores is wrong.
    #[error("initial_cluster: {0}")]
    Cluster(#[from] InvalidList),
    /// A value is outside its range, or does not fit another one.
    #[error("{0}")]
    Value(String),
}

/// Refuses a value outside its range, by the name of its setting.
pub(super) fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Value(format!("{name} = {value} is out of range: {least} to {most}")))
}
