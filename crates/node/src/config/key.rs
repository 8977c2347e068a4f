//! A key of the settings as data: its kind, range, scope, and what it means. The struct of a
//! section is declared once, with [`settings!`], and all that is known of a key stands at its field
//! (docs/decisions/0050-one-table-of-settings.md).

use serde_json::Value;

use super::quantity::{self, Units};

/// One key: everything about it but its value.
#[derive(Clone, Copy, Debug)]
pub struct SettingKey {
    section: &'static str,
    name: &'static str,
    meaning: &'static str,
    kind: SettingKind,
    range: ValueRange,
    default: Option<&'static str>,
    scope: SettingScope,
    effect: SettingEffect,
}

/// The keys of one table of the file, or those that are in none.
#[derive(Debug)]
pub struct SettingSection {
    /// The table's name; empty for the keys that are in none.
    pub name: &'static str,
    /// One sentence about it. Begins with a space.
    pub about: &'static str,
    /// Its keys, in the order in which they are shown.
    pub keys: &'static [SettingKey],
}

/// Kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// A size.
    Bytes,
    /// A rate.
    BytesPerSecond,
    /// A time, counted in milliseconds.
    Milliseconds,
    /// A time, counted in seconds.
    Seconds,
    /// A number of things.
    Count,
    /// A part of a whole, 0 to 1.
    Ratio,
    /// True or false.
    Switch,
    /// A text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Several texts.
    Texts,
    /// Names with values.
    Labels,
}

/// Bounds of a number, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRange {
    /// The least value.
    pub least: u64,
    /// The greatest value; `u64::MAX` if there is none but that of 64 bits.
    pub most: u64,
    /// Whether 0 is a value even if `least` is more.
    pub or_zero: bool,
    /// The bound that another key sets, in words; empty if none does.
    pub beside: &'static str,
}

/// The owner of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingScope {
    /// One store's: each may have its own.
    Store,
    /// The cluster's: equal on all stores.
    Cluster,
}

/// When a value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingEffect {
    /// When the cluster begins. Later starts compare it, or ignore it, as its meaning says.
    Bootstrap,
    /// At each start.
    Start,
    /// At each start, and while the store runs: at SIGHUP.
    Reload,
    /// When the cluster begins, and while it runs: by `flotilla ctl config set`.
    Online,
}

/// The greatest value of a number that has no bound of its own.
pub(super) const NO_LIMIT: u64 = u64::MAX;
/// Bytes of a kibibyte.
pub(super) const KIB: u64 = 1 << 10;
/// Bytes of a mebibyte.
pub(super) const MIB: u64 = 1 << 20;
/// Bytes of a gibibyte.
pub(super) const GIB: u64 = 1 << 30;
/// Bytes of a tebibyte.
pub(super) const TIB: u64 = 1 << 40;
/// Milliseconds of a second.
pub(super) const SECOND: u64 = 1000;
/// Milliseconds of a minute.
pub(super) const MINUTE: u64 = 60 * SECOND;
/// Milliseconds of an hour.
pub(super) const HOUR: u64 = 60 * MINUTE;

/// A size of `least` to `most` bytes.
pub(super) const fn bytes(least: u64, most: u64) -> SettingKey {
    SettingKey::new(SettingKind::Bytes, least, most)
}

/// A rate of `least` to `most` bytes in a second.
pub(super) const fn bytes_per_s(least: u64, most: u64) -> SettingKey {
    SettingKey::new(SettingKind::BytesPerSecond, least, most)
}

/// A time of `least` to `most` milliseconds.
pub(super) const fn milliseconds(least: u64, most: u64) -> SettingKey {
    SettingKey::new(SettingKind::Milliseconds, least, most)
}

/// A time of `least` to `most` seconds.
pub(super) const fn seconds(least: u64, most: u64) -> SettingKey {
    SettingKey::new(SettingKind::Seconds, least, most)
}

/// A number of `least` to `most` things.
pub(super) const fn count(least: u64, most: u64) -> SettingKey {
    SettingKey::new(SettingKind::Count, least, most)
}

/// A part of a whole.
pub(super) const fn ratio() -> SettingKey {
    SettingKey::new(SettingKind::Ratio, 0, 1)
}

/// A key that says true or false.
pub(super) const fn switch() -> SettingKey {
    SettingKey::new(SettingKind::Switch, 0, NO_LIMIT)
}

/// A text, which may be empty.
pub(super) const fn text() -> SettingKey {
    SettingKey::new(SettingKind::Text, 0, NO_LIMIT)
}

/// One of `words`.
pub(super) const fn word(words: &'static [&'static str]) -> SettingKey {
    SettingKey::new(SettingKind::Word(words), 0, NO_LIMIT)
}

/// A list of texts. The lists of several sources are put together.
pub(super) const fn texts() -> SettingKey {
    SettingKey::new(SettingKind::Texts, 0, NO_LIMIT)
}

/// Names with values. Those of several sources are put together, by name.
pub(super) const fn labels() -> SettingKey {
    SettingKey::new(SettingKind::Labels, 0, NO_LIMIT)
}

impl SettingKey {
    const fn new(kind: SettingKind, least: u64, most: u64) -> Self {
        Self {
            section: "",
            name: "",
            meaning: "",
            kind,
            range: ValueRange { least, most, or_zero: false, beside: "" },
            default: None,
            scope: SettingScope::Store,
            effect: SettingEffect::Start,
        }
    }

    /// Puts in where the key stands. For [`settings!`].
    pub(super) const fn named(
        mut self,
        section: &'static str,
        name: &'static str,
        meaning: &'static str,
    ) -> Self {
        (self.section, self.name, self.meaning) = (section, name, meaning);
        self
    }

    /// Says that 0 is a value too.
    pub(super) const fn or_zero(mut self) -> Self {
        self.range.or_zero = true;
        self
    }

    /// Names the bound that another key sets. Checked where the two meet.
    pub(super) const fn beside(mut self, bound: &'static str) -> Self {
        self.range.beside = bound;
        self
    }

    /// Says in words what the default follows from, where it is no constant.
    pub(super) const fn default_is(mut self, words: &'static str) -> Self {
        self.default = Some(words);
        self
    }

    /// Says that all stores have the same, from the bootstrap on.
    pub(super) const fn of_cluster(mut self) -> Self {
        self.scope = SettingScope::Cluster;
        self.at_bootstrap()
    }

    /// Says that an operator changes it while the cluster runs.
    pub(super) const fn online(mut self) -> Self {
        self.effect = SettingEffect::Online;
        self
    }

    /// Says that it counts when the cluster begins.
    pub(super) const fn at_bootstrap(mut self) -> Self {
        self.effect = SettingEffect::Bootstrap;
        self
    }

    /// Says that SIGHUP changes it.
    pub(super) const fn at_reload(mut self) -> Self {
        self.effect = SettingEffect::Reload;
        self
    }

    /// The table of the file that it is in; empty if in none.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.section
    }

    /// Its name in that table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its name with that of its table, as `limits.slow_request_ms`.
    #[must_use]
    pub fn path(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}.{}", self.name),
        }
    }

    /// The variable of the environment that sets it, as `FLOTILLA_LIMITS_SLOW_REQUEST_MS`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("FLOTILLA_{}", self.path().replace('.', "_").to_uppercase())
    }

    /// Its meaning, in one paragraph.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        self.meaning.trim_start()
    }

    /// The kind of its values.
    #[must_use]
    pub fn kind(&self) -> SettingKind {
        self.kind
    }

    /// The bounds of its values, for the kinds that are numbers.
    #[must_use]
    pub fn range(&self) -> ValueRange {
        self.range
    }

    /// Words for its default, where that is no constant.
    #[must_use]
    pub fn default_words(&self) -> Option<&'static str> {
        self.default
    }

    /// The owner of its value.
    #[must_use]
    pub fn scope(&self) -> SettingScope {
        self.scope
    }

    /// When its value takes effect.
    #[must_use]
    pub fn effect(&self) -> SettingEffect {
        self.effect
    }

    /// The values that it may have, in words; empty if any of its kind.
    #[must_use]
    pub fn range_words(&self) -> String {
        let ValueRange { least, most, or_zero, beside } = self.range;
        let bound = |value| self.kind.number_words(value);
        let numbers = match self.kind {
            SettingKind::Switch | SettingKind::Text | SettingKind::Texts | SettingKind::Labels => {
                String::new()
            }
            SettingKind::Word(words) => words.join(" or "),
            _ if (least, most) == (0, NO_LIMIT) => String::new(),
            _ if most == NO_LIMIT => format!("at least {}", bound(least)),
            _ => format!("{} to {}", bound(least), bound(most)),
        };
        let zero = if or_zero { "0, or " } else { "" };
        let comma = if numbers.is_empty() || beside.is_empty() { "" } else { ", " };
        format!("{zero}{numbers}{comma}{beside}")
    }

    /// A value as it is shown: with a unit if the kind has one, and as a list with commas.
    #[must_use]
    pub fn value_words(&self, value: &Value) -> String {
        match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            Value::Number(number) => {
                number.as_u64().map_or_else(|| number.to_string(), |it| self.kind.number_words(it))
            }
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                items.join(",")
            }
            Value::Object(pairs) => {
                let pairs = pairs.iter().filter_map(|(name, value)| Some((name, value.as_str()?)));
                let pairs: Vec<_> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
                pairs.join(",")
            }
            Value::Bool(_) => value.to_string(),
        }
    }

    /// Whether a value of its kind is within its range. A number that is not there is: the default
    /// is put in later.
    pub(super) fn takes(&self, value: &Value) -> bool {
        let ValueRange { least, most, or_zero, .. } = self.range;
        match self.kind {
            // JSON has no word for a number that is none.
            SettingKind::Ratio => value.as_f64().is_some_and(|ratio| (0.0..=1.0).contains(&ratio)),
            _ => value
                .as_u64()
                .is_none_or(|number| (least..=most).contains(&number) || (or_zero && number == 0)),
        }
    }

    /// The refusal of a value outside its range, which is shown as it was given.
    pub(super) fn out_of_range(&self, shown: &str) -> String {
        format!("{} = {shown} is out of range: {}", self.path(), self.range_words())
    }
}

impl SettingKind {
    /// The units in which numbers of this kind may be given; the first is that of a number alone.
    pub(super) fn units(self) -> Option<&'static Units> {
        match self {
            Self::Bytes | Self::BytesPerSecond => Some(quantity::BYTES),
            Self::Milliseconds => Some(quantity::MILLISECONDS),
            Self::Seconds => Some(quantity::SECONDS),
            _ => None,
        }
    }

    /// The unit of a number alone, or the kind itself where there are no units; for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes_per_second",
            Self::Milliseconds => "milliseconds",
            Self::Seconds => "seconds",
            Self::Count => "count",
            Self::Ratio => "ratio",
            Self::Switch => "boolean",
            Self::Text => "text",
            Self::Word(_) => "word",
            Self::Texts => "texts",
            Self::Labels => "labels",
        }
    }

    fn number_words(self, number: u64) -> String {
        self.units().map_or_else(|| number.to_string(), |units| quantity::format(number, units))
    }
}

impl SettingScope {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cluster => "cluster",
        }
    }
}

impl SettingEffect {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Online => "online",
            Self::Start => "start",
            Self::Reload => "reload",
        }
    }
}

/// Declares the struct of a section of the settings, with `SECTION`, the list of its keys.
///
/// Behind the name of the struct stands that of the table in the file. The documentation of a
/// field is the meaning of its key, wherever that is shown; `#[key(...)]` has the rest: a
/// constructor of this file with the range, and what else is to be said. A field without either
/// does not compile. Fields behind a `;` are no keys. Defaults are those of `Default`.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $group:ident: $section:literal {
            $(
                $(#[doc = $meaning:literal])+
                #[key($key:expr)]
                $(#[serde($($serde:tt)+)])?
                pub $field:ident: $type:ty,
            )+
            $(; $($rest:tt)*)?
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        $(#[derive($($derive),+)])?
        #[serde(default, deny_unknown_fields)]
        pub struct $group {
            $(
                $(#[doc = $meaning])+
                $(#[serde($($serde)+)])?
                pub $field: $type,
            )+
            $($($rest)*)?
        }

        impl $group {
            /// Its keys.
            pub(super) const SECTION: $crate::config::key::SettingSection =
                $crate::config::key::SettingSection {
                    name: $section,
                    about: concat!($($about),+),
                    keys: &[
                        $($key.named($section, stringify!($field), concat!($($meaning),+))),+
                    ],
                };
        }
    };
}

pub(super) use settings;
