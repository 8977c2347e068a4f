//! The form of the log's lines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: time, level, words, and fields as `key=value`.
    #[default]
    Text,
    /// For programs: an object with `time`, `level`, `target`, `message`, and a key for each field.
    Json,
}

/// There is no such form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no format of the log: text or json")]
pub struct UnknownLogFormat(String);

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(word: &str) -> Result<Self, UnknownLogFormat> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownLogFormat(word.to_owned())),
        }
    }
}

/// As it is given.
impl fmt::Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_it_is_shown() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let words = "xml".parse::<LogFormat>().unwrap_err().to_string();
        assert_eq!(words, "\"xml\" is no format of the log: text or json");
    }
}
