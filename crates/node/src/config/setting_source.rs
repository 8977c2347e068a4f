//! Where the values of settings come from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// Nowhere: it is the default.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// A variable of the environment, by its name.
    Variable(String),
    /// A flag of the command line, with its dashes.
    Flag(String),
}

impl SettingSource {
    /// The kind of the source, in a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Variable(_) => "variable",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File { path, line } => write!(out, "{}, line {line}", path.display()),
            Self::Variable(name) | Self::Flag(name) => out.write_str(name),
        }
    }
}

/// The sources of all values, by the paths of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingSources(BTreeMap<String, SettingSource>);

impl SettingSources {
    /// The source of the value of the key at `path`, as `limits.slow_request_ms`.
    #[must_use]
    pub fn of(&self, path: &str) -> &SettingSource {
        self.0.get(path).unwrap_or(&SettingSource::Default)
    }

    /// The value comes from there.
    pub(crate) fn set(&mut self, path: String, source: SettingSource) {
        self.0.insert(path, source);
    }
}
