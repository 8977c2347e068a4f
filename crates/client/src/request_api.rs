//! The API version of a cluster, as a client has to speak it.

use bytes::Bytes;
use flotilla_base::memcomparable;
use flotilla_proto::{kvrpcpb, metapb};

use crate::error::Error;

/// The API version that requests say. The cluster has one for ever, and refuses the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestApi {
    /// A key is any byte string.
    #[default]
    V1,
    /// A key begins with `r` and the three bytes of a keyspace's id; callers give and get whole
    /// keys. The empty bounds of a range are those of all such keys.
    V2,
}

/// The first key of V2, and the end of all.
const RAW_START: &[u8] = b"r\0\0\0";
const RAW_END: &[u8] = b"s";

impl RequestApi {
    pub(crate) fn version(self) -> kvrpcpb::ApiVersion {
        match self {
            RequestApi::V1 => kvrpcpb::ApiVersion::V1,
            RequestApi::V2 => kvrpcpb::ApiVersion::V2,
        }
    }

    /// A key as placement is asked for it.
    pub(crate) fn encode(self, key: &Bytes) -> Bytes {
        match self {
            RequestApi::V2 if !key.is_empty() => memcomparable::encode(key).into(),
            _ => key.clone(),
        }
    }

    /// A region with the borders that it has.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] if they are not encoded: the cluster is of another version.
    pub(crate) fn decode(self, mut region: metapb::Region) -> Result<metapb::Region, Error> {
        if self == RequestApi::V1 {
            return Ok(region);
        }
        for border in [&mut region.start_key, &mut region.end_key] {
            if !border.is_empty() {
                let decoded = memcomparable::decode(border);
                let wrong = |_| format!("a border of region {} is not encoded", region.id);
                *border = decoded.map_err(wrong).map_err(Error::Protocol)?.into();
            }
        }
        Ok(region)
    }

    /// The part of `[start, end)` that can have rows.
    pub(crate) fn clip(self, start: Bytes, end: Bytes) -> (Bytes, Bytes) {
        if self == RequestApi::V1 {
            return (start, end);
        }
        let last = Bytes::from_static(RAW_END);
        let end = if end.is_empty() { last } else { end.min(last) };
        (start.max(Bytes::from_static(RAW_START)), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_encodes_borders_and_clips_ranges_and_v1_does_neither() {
        let (key, none) = (Bytes::from_static(b"r\0\0\0k"), Bytes::new());
        let encoded = Bytes::from_static(b"r\0\0\0k\0\0\0\xfc");
        let region = |start_key: &Bytes| metapb::Region {
            id: 7,
            start_key: start_key.clone(),
            ..Default::default()
        };
        let (v1, v2) = (RequestApi::V1, RequestApi::V2);
        assert_eq!((v1.encode(&key), v2.encode(&key)), (key.clone(), encoded.clone()));
        assert_eq!(v2.encode(&none), none);
        assert_eq!(v1.decode(region(&encoded)).unwrap(), region(&encoded));
        assert_eq!(v2.decode(region(&encoded)).unwrap(), region(&key));
        assert!(matches!(v2.decode(region(&key)), Err(Error::Protocol(_))));
        assert_eq!(v1.clip(none.clone(), none.clone()), (none.clone(), none.clone()));
        let all = (Bytes::from_static(RAW_START), Bytes::from_static(RAW_END));
        assert_eq!(v2.clip(none.clone(), none), all);
        assert_eq!(v2.clip(key.clone(), encoded.clone()), (key, encoded));
    }
}
