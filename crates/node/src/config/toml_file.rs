//! A TOML file as a list of settings, each with the line on which it stands.

use std::collections::BTreeMap;

use toml::de::{DeArray, DeTable, DeValue};

use super::given_value::GivenValue;
use super::table::SECTIONS;

/// One setting of a file.
#[derive(Debug, PartialEq)]
pub(super) struct FileSetting {
    /// Its name, with that of its table.
    pub(super) path: String,
    /// The line on which its name stands, counted from 1.
    pub(super) line: usize,
    /// Its value.
    pub(super) given: GivenValue,
}

/// The settings of `text`, in the order of their lines.
///
/// # Errors
///
/// It is not TOML: line and reason of each error.
pub(super) fn read(text: &str) -> Result<Vec<FileSetting>, Vec<(usize, String)>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let place = |error: &toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            (line(text, at), error.message().to_owned())
        };
        return Err(errors.iter().map(place).collect());
    }
    let mut found = Vec::new();
    for (name, value) in table.get_ref() {
        let is_section = SECTIONS.iter().any(|section| section.name == name.get_ref().as_ref());
        match value.get_ref() {
            DeValue::Table(keys) if is_section => {
                found.extend(keys.iter().map(|(key, value)| FileSetting {
                    path: format!("{}.{}", name.get_ref(), key.get_ref()),
                    line: line(text, key.span().start),
                    given: given(value.get_ref()),
                }));
            }
            value => found.push(FileSetting {
                path: name.get_ref().to_string(),
                line: line(text, name.span().start),
                given: given(value),
            }),
        }
    }
    found.sort_by_key(|setting| setting.line);
    Ok(found)
}

/// The line of a place in `text`.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

fn given(value: &DeValue<'_>) -> GivenValue {
    match value {
        DeValue::String(text) => GivenValue::Text(text.to_string()),
        DeValue::Integer(number) => {
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            GivenValue::Number(decimal.map_or_else(|_| number.to_string(), |it| it.to_string()))
        }
        DeValue::Float(number) => GivenValue::Number(number.as_str().to_owned()),
        DeValue::Boolean(is_on) => GivenValue::Switch(*is_on),
        DeValue::Datetime(_) => GivenValue::Other("a date"),
        DeValue::Array(items) => {
            texts(items).map_or(GivenValue::Other("a list of other things"), GivenValue::Texts)
        }
        DeValue::Table(pairs) => {
            labels(pairs).map_or(GivenValue::Other("a table of other things"), GivenValue::Labels)
        }
    }
}

fn texts(items: &DeArray<'_>) -> Option<Vec<String>> {
    items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
}

fn labels(pairs: &DeTable<'_>) -> Option<BTreeMap<String, String>> {
    let pair = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        Some((name.to_string(), value.get_ref().as_str()?.to_owned()))
    };
    pairs.iter().map(pair).collect()
}
