//! The API version of a cluster: which of TiKV's forms of RawKV keys its clients speak.
//!
//! Decision 45 (`docs/decisions/0045-api-v2-at-the-rim.md`).

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

/// The version, chosen at the bootstrap and never changed. Values may expire under both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ApiVersion {
    /// A key is any byte string, and borders of regions are shown as they are.
    #[default]
    V1Ttl,
    /// A key begins with a mode byte, `r`, and the three bytes of a keyspace's id. Borders travel
    /// in the memcomparable encoding.
    V2,
}

/// A word that names no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no API version: \"v1ttl\" or \"v2\"")]
pub struct UnknownApiVersion(String);

impl ApiVersion {
    /// Bytes of a key of V2 before those of its user: the mode and the keyspace. No key is shorter,
    /// and no border: clients cut them off without a look.
    pub const PREFIX_BYTES: usize = 4;
    /// The first raw key of V2: the empty key of the keyspace `DEFAULT`.
    pub const RAW_START: &'static [u8] = b"r\0\0\0";
    /// The end of all raw keys of V2.
    pub const RAW_END: &'static [u8] = b"s";

    /// The number of the version in a row and in settings that programs read.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::V1Ttl => 1,
            Self::V2 => 2,
        }
    }

    /// The version of this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::V1Ttl, Self::V2].into_iter().find(|version| version.number() == number)
    }

    /// The first key of the keyspace with this id, and the end of its keys. Clients look for a
    /// border of regions at the latter: client-rust scans from region to region until it meets one.
    #[must_use]
    pub fn keyspace_bounds(id: u32) -> (Bytes, Bytes) {
        let first = |id: u32| {
            let [high, low @ ..] = id.to_be_bytes();
            match high {
                0 => Bytes::from([&Self::RAW_START[..1], &low].concat()),
                _ => Bytes::from_static(Self::RAW_END),
            }
        };
        (first(id), first(id.saturating_add(1)))
    }

    /// The borders that the regions of a new cluster have besides: the end of the keyspace
    /// `DEFAULT`.
    pub(crate) fn first_borders(self) -> Option<Bytes> {
        match self {
            Self::V1Ttl => None,
            Self::V2 => Some(Self::keyspace_bounds(0).1),
        }
    }

    /// The bytes with which the keys begin that a new cluster expects.
    pub(crate) fn first_keys(self) -> &'static [u8] {
        match self {
            Self::V1Ttl => b"",
            Self::V2 => Self::RAW_START,
        }
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1Ttl => "v1ttl",
            Self::V2 => "v2",
        })
    }
}

impl FromStr for ApiVersion {
    type Err = UnknownApiVersion;

    fn from_str(word: &str) -> Result<Self, UnknownApiVersion> {
        let mut known = [Self::V1Ttl, Self::V2].into_iter();
        known
            .find(|version| version.to_string() == word)
            .ok_or_else(|| UnknownApiVersion(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyspaces_lie_one_behind_the_other() {
        let bounds = |id| {
            let (start, end) = ApiVersion::keyspace_bounds(id);
            (start.to_vec(), end.to_vec())
        };
        assert_eq!(bounds(0), (ApiVersion::RAW_START.to_vec(), b"r\0\0\x01".to_vec()));
        assert_eq!(bounds(255), (b"r\0\0\xff".to_vec(), b"r\0\x01\0".to_vec()));
        assert_eq!(
            bounds((1 << 24) - 1),
            (b"r\xff\xff\xff".to_vec(), ApiVersion::RAW_END.to_vec())
        );
    }

    #[test]
    fn a_version_has_a_word_and_a_number() {
        for (version, word, number) in [(ApiVersion::V1Ttl, "v1ttl", 1), (ApiVersion::V2, "v2", 2)]
        {
            assert_eq!((version.to_string().as_str(), version.number()), (word, number));
            assert_eq!(word.parse(), Ok(version));
            assert_eq!(ApiVersion::from_number(number), Some(version));
        }
        assert_eq!(ApiVersion::from_number(3), None);
        let refused = "v1".parse::<ApiVersion>().unwrap_err();
        assert_eq!(refused.to_string(), "`v1` is no API version: \"v1ttl\" or \"v2\"");
    }
}
