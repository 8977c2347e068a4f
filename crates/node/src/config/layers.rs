//! Settings in layers: a flag wins over a variable of the environment, that over the file, and that
//! over the default. Each value remembers where it comes from, for refusals and for `config show`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use super::error::{ConfigError, ConfigErrors};
use super::given_value::GivenValue;
use super::key::SettingKey;
use super::node::NodeConfig;
use super::setting_source::{SettingSource, SettingSources};
use super::table::{find, find_variable};
use super::toml_file;

/// Bytes of a file of settings at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings as they are put together: the lowest layer first.
#[derive(Debug, Default)]
pub struct SettingLayers {
    given: BTreeMap<String, (&'static SettingKey, Value, SettingSource)>,
    errors: ConfigErrors,
}

/// Settings, and where each comes from.
#[derive(Clone, Debug)]
pub struct LayeredConfig {
    /// The settings: each within its range, but not yet resolved.
    pub config: NodeConfig,
}

impl LayeredConfig {
    /// The source of the value of a key.
    #[must_use]
    pub fn source(&self, key: &SettingKey) -> &SettingSource {
        self.source_of(&key.path())
    }

    /// The same for the key of this name, as `limits.slow_request_ms`.
    #[must_use]
    pub fn source_of(&self, path: &str) -> &SettingSource {
        self.config.sources.of(path)
    }
}

impl SettingLayers {
    /// Adds the settings of a TOML file.
    pub fn add_file(&mut self, path: &Path) {
        match read_file(path) {
            Ok(text) => self.add_text(path, &text),
            Err(error) => self.errors.add(error),
        }
    }

    /// Adds the settings of such a file's text; `path` is for messages.
    pub fn add_text(&mut self, path: &Path, text: &str) {
        let source = |line| SettingSource::File { path: path.to_owned(), line };
        match toml_file::read(text) {
            Ok(settings) => {
                for setting in settings {
                    self.put(source(setting.line), &setting.path, &setting.given);
                }
            }
            Err(errors) => {
                for (line, words) in errors {
                    self.refuse(&source(line), &words);
                }
            }
        }
    }

    /// Adds the settings of the variables of an environment, whose others are left alone. An empty
    /// variable counts as not set.
    pub fn add_variables(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        // Sorted, so that errors are: an environment has no order.
        let variables: BTreeMap<_, _> = variables.into_iter().collect();
        for (name, text) in variables {
            let Some(name) = name.to_str().filter(|_| !text.is_empty()) else { continue };
            let source = SettingSource::Variable(name.to_owned());
            match (find_variable(name), text.into_string()) {
                (Ok(None), _) => {}
                (Ok(Some(key)), Ok(text)) => {
                    self.put(source, &key.path(), &GivenValue::Untyped(text));
                }
                (Ok(Some(_)), Err(_)) => self.refuse(&source, "its value is no UTF-8"),
                (Err(words), _) => self.refuse(&source, &words),
            }
        }
    }

    /// Adds the value that `flag` gives to the key at `path`.
    pub fn add_flag(&mut self, flag: &str, path: &str, text: impl Into<String>) {
        let source = SettingSource::Flag(flag.to_owned());
        self.put(source, path, &GivenValue::Untyped(text.into()));
    }

    /// Adds the value of a flag that can set any key, as `limits.slow_request_ms=2s`.
    pub fn add_assignment(&mut self, flag: &str, assignment: &str) {
        match assignment.split_once('=') {
            Some((path, text)) => self.add_flag(flag, path.trim(), text.trim()),
            None => {
                let words = format!("`{assignment}` is not of the form KEY=VALUE");
                self.refuse(&SettingSource::Flag(flag.to_owned()), &words);
            }
        }
    }

    /// Adds an error of a layer that this does not know.
    pub fn add_error(&mut self, words: impl Into<String>) {
        self.errors.add(ConfigError::Value(words.into()));
    }

    /// The settings.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in one of the layers, with its place. How values fit together is
    /// checked by [`NodeConfig::resolve`].
    pub fn finish(self) -> Result<LayeredConfig, ConfigError> {
        self.errors.end()?;
        let (mut root, mut sources) = (Map::new(), SettingSources::default());
        for (path, (key, value, source)) in self.given {
            let keys = match key.section() {
                "" => &mut root,
                section => root
                    .entry(section)
                    .or_insert_with(|| Value::Object(Map::new()))
                    .as_object_mut()
                    .expect("no key has the name of a section"),
            };
            keys.insert(key.name().to_owned(), value);
            sources.set(path, source);
        }
        let config = serde_json::from_value(Value::Object(root));
        let mut config: NodeConfig =
            config.map_err(|error| ConfigError::Value(error.to_string()))?;
        config.sources = sources;
        Ok(LayeredConfig { config })
    }

    fn put(&mut self, source: SettingSource, path: &str, given: &GivenValue) {
        let read = find(path).and_then(|key| Ok((key, key.read(given)?)));
        let (key, mut value) = match read {
            Ok(read) => read,
            Err(words) => return self.refuse(&source, &words),
        };
        match (self.given.remove(path), &mut value) {
            (Some((_, Value::Array(mut before), _)), Value::Array(items)) => {
                before.append(items);
                *items = before;
            }
            (Some((_, Value::Object(mut before), _)), Value::Object(pairs)) => {
                before.append(pairs);
                *pairs = before;
            }
            _ => {}
        }
        self.given.insert(path.to_owned(), (key, value, source));
    }

    fn refuse(&mut self, source: &SettingSource, words: &str) {
        self.add_error(format!("{source}: {words}"));
    }
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let path = path.display();
        let words = format!("{path}: a file of settings has {FILE_BYTES_MAX} bytes at most");
        return Err(ConfigError::Value(words));
    }
    Ok(text)
}
