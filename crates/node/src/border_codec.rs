//! Borders of regions on the wire of clients: as they are under API V1, in the memcomparable
//! encoding under API V2.
//!
//! Clients of V2 encode the keys that they ask placement for, and decode the borders in its answers
//! and in region errors. Everything behind this rim has the borders as they are (decision 45,
//! `docs/decisions/0045-api-v2-at-the-rim.md`).

use bytes::Bytes;
use flotilla_base::memcomparable;
use flotilla_identity::ApiVersion;
use flotilla_proto::{kvrpcpb, metapb};

/// Encodes and decodes for clients of one API version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BorderCodec(pub(crate) ApiVersion);

/// A key in a request that should be encoded, and is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {0} is not in the memcomparable encoding that API V2 has for borders of regions")]
pub(crate) struct NotEncoded(String);

impl BorderCodec {
    /// A border as clients see it. The empty one is no border, and stays empty.
    pub(crate) fn encode(self, border: Bytes) -> Bytes {
        match self.0 {
            ApiVersion::V2 if !border.is_empty() => memcomparable::encode(&border).into(),
            _ => border,
        }
    }

    /// The key that a client has encoded as a border.
    ///
    /// # Errors
    ///
    /// It is not encoded.
    pub(crate) fn decode(self, key: Bytes) -> Result<Bytes, NotEncoded> {
        if self.0 == ApiVersion::V1Ttl || key.is_empty() {
            return Ok(key);
        }
        let decoded = memcomparable::decode(&key);
        // The words must not be as long as the request.
        let head = || key[..key.len().min(KEY_HEAD_BYTES)].escape_ascii().to_string();
        decoded.map(Bytes::from).map_err(|_| NotEncoded(head()))
    }

    /// Whether a region may begin with `border`: clients of V2 cut the mode and the keyspace off it
    /// without a look.
    pub(crate) fn is_border(self, border: &[u8]) -> bool {
        let bytes_min = match self.0 {
            ApiVersion::V1Ttl => 1,
            ApiVersion::V2 => ApiVersion::PREFIX_BYTES,
        };
        border.len() >= bytes_min
    }

    /// Encodes the borders of a region.
    pub(crate) fn encode_region(self, region: &mut metapb::Region) {
        for border in [&mut region.start_key, &mut region.end_key] {
            *border = self.encode(std::mem::take(border));
        }
    }
}

/// The version that a request has to say in a cluster of `api`.
pub(crate) fn request_version(api: ApiVersion) -> kvrpcpb::ApiVersion {
    match api {
        ApiVersion::V1Ttl => kvrpcpb::ApiVersion::V1,
        ApiVersion::V2 => kvrpcpb::ApiVersion::V2,
    }
}

/// Bytes of a wrong key that are shown.
const KEY_HEAD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_of_v2_are_encoded_and_no_border_is_none() {
        let (v1, v2) = (BorderCodec(ApiVersion::V1Ttl), BorderCodec(ApiVersion::V2));
        let key = Bytes::from_static(b"r\0\0\0k");
        assert_eq!(v1.encode(key.clone()), key);
        assert_eq!(v1.decode(key.clone()), Ok(key.clone()));
        let encoded = v2.encode(key.clone());
        assert_eq!(encoded, &b"r\0\0\0k\0\0\0\xfc"[..]);
        assert_eq!(v2.decode(encoded.clone()), Ok(key.clone()));
        for codec in [v1, v2] {
            assert_eq!(codec.encode(Bytes::new()), Bytes::new());
            assert_eq!(codec.decode(Bytes::new()), Ok(Bytes::new()));
        }
        assert!(v1.is_border(b"r") && !v1.is_border(b""));
        assert!(v2.is_border(b"r\0\0\x01") && !v2.is_border(b"r\0\x01"));
        let mut region = metapb::Region { start_key: key, ..Default::default() };
        v2.encode_region(&mut region);
        assert_eq!((region.start_key, region.end_key), (encoded, Bytes::new()));
        let refused = v2.decode(Bytes::from_static(b"r\0\0\0k")).unwrap_err().to_string();
        assert!(
            refused.starts_with("key r\\x00\\x00\\x00k is not in the memcomparable"),
            "{refused}"
        );
        let long = v2.decode(Bytes::from(vec![b'k'; 9_000])).unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }
}
