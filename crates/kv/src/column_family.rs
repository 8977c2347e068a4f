//! Column families: sets of keys beside each other. The same key may have a value in each.

use std::fmt;

/// A set of keys. RawKV has the three of TiKV (`tikv/components/engine_traits/src/cf_defs.rs`);
/// regions are cut alike through all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColumnFamily {
    /// That of requests that name none.
    #[default]
    Default,
    /// `lock`.
    Lock,
    /// `write`.
    Write,
}

impl ColumnFamily {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Default, Self::Lock, Self::Write];

    /// The number in logs, snapshots and messages between stores. None ever gets another meaning.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Default => 0,
            Self::Lock => 1,
            Self::Write => 2,
        }
    }

    /// The family with this number, if there is one.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The family with this name, if there is one; the empty name is that of the default one.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        if name.is_empty() {
            return Some(Self::Default);
        }
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// The name that requests give it: none for the default one, since clusters of API V2 refuse to
    /// be told even that.
    #[must_use]
    pub fn request_name(self) -> String {
        match self {
            Self::Default => String::new(),
            family => family.name().to_owned(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Lock => "lock",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for ColumnFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back() {
        for (place, family) in ColumnFamily::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(family.number()), place);
            assert_eq!(ColumnFamily::of_number(family.number()), Some(family));
            assert_eq!(ColumnFamily::of_name(family.name()), Some(family));
        }
        assert_eq!(ColumnFamily::of_name(""), Some(ColumnFamily::Default));
        assert_eq!(ColumnFamily::of_name("Default"), None);
        assert_eq!(ColumnFamily::of_number(3), None);
    }
}
