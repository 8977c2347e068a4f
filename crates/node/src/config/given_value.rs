//! A value as it is given, and as the kind of its key takes it: typed in a file, a text in
//! variables and flags.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::key::{SettingKey, SettingKind};
use super::quantity::{self, NoQuantity};

/// A value as it is given.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GivenValue {
    /// The text of a variable or of a flag, for whatever kind the key has.
    Untyped(String),
    /// A text of a file.
    Text(String),
    /// A number of a file, in decimal digits.
    Number(String),
    /// A truth value of a file.
    Switch(bool),
    /// A list of texts of a file.
    Texts(Vec<String>),
    /// A table of texts of a file.
    Labels(BTreeMap<String, String>),
    /// Anything else of a file, by the name of its type.
    Other(&'static str),
}

impl fmt::Display for GivenValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untyped(text) | Self::Number(text) => out.write_str(text),
            Self::Text(text) => write!(out, "{text:?}"),
            Self::Switch(is_on) => write!(out, "{is_on}"),
            Self::Texts(_) => out.write_str("a list"),
            Self::Labels(_) => out.write_str("a table"),
            Self::Other(type_name) => out.write_str(type_name),
        }
    }
}

impl SettingKey {
    /// The value that is meant, within the range.
    ///
    /// # Errors
    ///
    /// One sentence with the key, the value, and what would be right.
    pub(super) fn read(&self, given: &GivenValue) -> Result<Value, String> {
        let value = match self.kind() {
            SettingKind::Bytes
            | SettingKind::BytesPerSecond
            | SettingKind::Milliseconds
            | SettingKind::Seconds
            | SettingKind::Count => self.read_number(given)?,
            SettingKind::Ratio => match given {
                GivenValue::Untyped(text) | GivenValue::Number(text) => {
                    text.trim().parse::<f64>().ok().map(Value::from)
                }
                _ => None,
            },
            SettingKind::Switch => match given {
                GivenValue::Switch(is_on) => Some(json!(is_on)),
                GivenValue::Untyped(text) => text.trim().parse::<bool>().ok().map(Value::from),
                _ => None,
            },
            SettingKind::Text => read_text(given).map(Value::from),
            SettingKind::Word(words) => {
                read_text(given).filter(|text| words.contains(text)).map(Value::from)
            }
            SettingKind::Texts => read_texts(given).map(|texts| json!(texts)),
            SettingKind::Labels => read_labels(given).map(|labels| json!(labels)),
        };
        let Some(value) = value else {
            return Err(format!("{} = {given}: expected {}", self.path(), self.expected()));
        };
        if !self.takes(&value) {
            return Err(self.out_of_range(&given.to_string()));
        }
        Ok(value)
    }

    fn read_number(&self, given: &GivenValue) -> Result<Option<Value>, String> {
        let has_units = self.kind().units().is_some();
        let text = match given {
            GivenValue::Untyped(text) | GivenValue::Number(text) => text,
            GivenValue::Text(text) if has_units => text,
            _ => return Ok(None),
        };
        let is_rate = self.kind() == SettingKind::BytesPerSecond;
        let amount = text.trim_end().strip_suffix("/s").filter(|_| is_rate).unwrap_or(text);
        match quantity::parse(amount, self.kind().units().unwrap_or(&[])) {
            Ok(number) => Ok(Some(json!(number))),
            Err(NoQuantity::NoNumber) => Ok(None),
            Err(NoQuantity::TooLarge) => Err(self.out_of_range(&given.to_string())),
            Err(NoQuantity::Unit(unit)) => Err(format!(
                "{} = {given}: \"{unit}\" is no unit of this key; expected {}",
                self.path(),
                self.expected()
            )),
        }
    }

    /// Words for the values that the key takes.
    fn expected(&self) -> String {
        let range = self.range_words();
        let comma = if range.is_empty() { "" } else { ", " };
        let unit = self.kind().name().replace('_', " ");
        match self.kind() {
            SettingKind::Count => format!("a whole number{comma}{range}"),
            SettingKind::Ratio => format!("a number{comma}{range}"),
            SettingKind::Switch => "true or false".to_owned(),
            SettingKind::Text => "a text".to_owned(),
            SettingKind::Word(_) => range,
            SettingKind::Texts => "a list of texts".to_owned(),
            SettingKind::Labels => "names with values, as zone=a".to_owned(),
            kind => {
                let units = kind.units().unwrap_or(&[]);
                let units: Vec<_> = units.iter().map(|(name, _)| *name).collect();
                let units = units.join(", ");
                format!("a whole number of {units}, or of {unit} without a unit{comma}{range}")
            }
        }
    }
}

fn read_text(given: &GivenValue) -> Option<&str> {
    match given {
        GivenValue::Untyped(text) | GivenValue::Text(text) => Some(text),
        _ => None,
    }
}

fn read_texts(given: &GivenValue) -> Option<Vec<String>> {
    match given {
        GivenValue::Texts(texts) => Some(texts.clone()),
        GivenValue::Untyped(text) => Some(items(text).map(str::to_owned).collect()),
        _ => None,
    }
}

fn read_labels(given: &GivenValue) -> Option<BTreeMap<String, String>> {
    match given {
        GivenValue::Labels(labels) => Some(labels.clone()),
        GivenValue::Untyped(text) => {
            let pair = |item: &str| {
                let (name, value) = item.split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            };
            items(text).map(pair).collect()
        }
        _ => None,
    }
}

/// The items of a list with commas.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}
