//! Errors of settings, which say what to change.

use std::fmt::Write as _;
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
    /// The list of initial stores is wrong.
    #[error("initial_cluster: {0}")]
    Cluster(#[from] InvalidList),
    /// A value is outside its range, or does not fit another one; a key does not exist.
    #[error("{0}")]
    Value(String),
    /// Several settings are wrong. None of the errors is of this kind itself.
    #[error("{} settings are wrong:{}", .0.len(), listed(.0))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    /// The errors by themselves, one line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Several(errors) => errors.iter().map(Self::to_string).collect(),
            error => vec![error.to_string()],
        }
    }
}

fn listed(errors: &[ConfigError]) -> String {
    errors.iter().fold(String::new(), |mut list, error| {
        let _ = write!(list, "\n  {error}");
        list
    })
}

/// Errors as they are found, so that an operator hears of all of them at once.
#[derive(Debug, Default)]
pub(super) struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Notes one.
    pub(super) fn add(&mut self, error: ConfigError) {
        match error {
            ConfigError::Several(errors) => self.0.extend(errors),
            error => self.0.push(error),
        }
    }

    /// The value of a result, whose error is noted.
    pub(super) fn take<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Nothing, if none was noted.
    ///
    /// # Errors
    ///
    /// All that were noted.
    pub(super) fn end(mut self) -> Result<(), ConfigError> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(ConfigError::Several(self.0)),
        }
    }
}
