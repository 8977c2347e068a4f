//! Validates requests before any region is asked: TiKV's limits, with TiKV's messages.

use bytes::Bytes;
use flotilla_identity::ApiVersion;
use flotilla_kv::ColumnFamily;
use flotilla_proto::kvrpcpb::{self, Context};

use super::errors::{RequestFailure, hex};
use crate::border_codec::{BorderCodec, request_version};
use crate::config::KEY_BYTES_MAX;

/// The checks of one kind of requests, in a cluster of an API version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRules {
    /// The version of the cluster.
    pub(super) api: ApiVersion,
    /// The kind, by TiKV's name for its command.
    pub(super) command: &'static str,
}

impl RequestRules {
    /// Checks the API version that all requests name.
    pub(crate) fn version(self, context: Option<&Context>) -> Result<(), RequestFailure> {
        let asked = context.map_or(0, |context| context.api_version);
        // A cluster whose values may expire takes requests that know nothing of it, and only those.
        if asked != i32::from(request_version(self.api)) {
            return refuse(format!(
                "Api version in request does not match with TiKV storage, cmd: {}, storage: {}, \
                 request: {}",
                self.command,
                self.storage(),
                version_name(asked)
            ));
        }
        Ok(())
    }

    /// Checks the version, and the name of the column family of a request for keys. Under V2 none
    /// may be named (`tikv/src/storage/mod.rs`, `rawkv_cf`).
    pub(crate) fn family(
        self,
        context: Option<&Context>,
        cf: &str,
    ) -> Result<ColumnFamily, RequestFailure> {
        self.version(context)?;
        if self.api == ApiVersion::V2 && !cf.is_empty() {
            refuse(format!("cf is deprecated in API V2, cf name: {}", head(cf)))?;
        }
        ColumnFamily::of_name(cf)
            .ok_or_else(|| RequestFailure::Refused(format!("invalid cf name: {}", head(cf))))
    }

    /// A key. Under V1 the empty key is one like others: it is the first.
    pub(crate) fn key(self, key: &[u8]) -> Result<(), RequestFailure> {
        if self.api == ApiVersion::V2 && !is_raw(key) {
            return refuse(self.mode_mismatch(&format!("key: {}", head(&hex(key)))));
        }
        size(key)
    }

    /// The bounds of a range, the lower one first; an empty upper one is none.
    pub(crate) fn range(self, lower: &Bytes, upper: &Bytes) -> Result<(), RequestFailure> {
        let same_mode = upper.first() == lower.first() || upper == ApiVersion::RAW_END;
        if self.api == ApiVersion::V2 && !(is_raw(lower) && same_mode) {
            let shown = |key: &Bytes| (!key.is_empty()).then(|| head(&hex(key)));
            let range = (shown(lower), shown(upper));
            return refuse(self.mode_mismatch(&format!("range: {range:?}")));
        }
        size(lower)?;
        size(upper)
    }

    /// A key that a region is to begin with: not the first of all, for one does already.
    pub(crate) fn border(self, border: &[u8]) -> Result<(), RequestFailure> {
        if border.is_empty() {
            return refuse("key is empty".to_owned());
        }
        if !BorderCodec(self.api).is_border(border) {
            let border = border.escape_ascii();
            return refuse(format!(
                "key {border} is too short: a border has a mode and a keyspace under API V2"
            ));
        }
        size(border)
    }

    fn mode_mismatch(self, what: &str) -> String {
        let Self { command, .. } = self;
        let storage = self.storage();
        format!(
            "Key mode mismatched with the request mode, cmd: {command}, storage: {storage}, {what}"
        )
    }

    fn storage(self) -> &'static str {
        match self.api {
            ApiVersion::V1Ttl => "V1ttl",
            ApiVersion::V2 => "V2",
        }
    }
}

/// Whether a key of V2 is one of RawKV: with its mode byte, and a keyspace.
fn is_raw(key: &[u8]) -> bool {
    key.len() >= ApiVersion::PREFIX_BYTES && key.first() == ApiVersion::RAW_START.first()
}

/// Checks the length of a key, or of a bound of a range.
pub(crate) fn size(key: &[u8]) -> Result<(), RequestFailure> {
    let size = key.len();
    if size > KEY_BYTES_MAX {
        return refuse(format!("max key size exceeded, size: {size}, limit: {KEY_BYTES_MAX}"));
    }
    Ok(())
}

/// The times to live of a batch, in seconds, 0 for none: `for_all` of them unless the list has one
/// for all, or one each.
pub(crate) fn ttls(
    list: &[u64],
    for_all: u64,
    pair_count: usize,
) -> Result<impl Fn(usize) -> u64, RequestFailure> {
    if list.len() > 1 && list.len() != pair_count {
        let words = "The length of ttls does not equal to the length of pairs";
        return Err(RequestFailure::Refused(words.to_owned()));
    }
    Ok(move |place: usize| match list {
        [] => for_all,
        [for_all] => *for_all,
        list => list[place],
    })
}

fn refuse(message: String) -> Result<(), RequestFailure> {
    Err(RequestFailure::Refused(message))
}

fn version_name(api_version: i32) -> String {
    match kvrpcpb::ApiVersion::try_from(api_version) {
        Ok(kvrpcpb::ApiVersion::V1) => "V1".to_owned(),
        Ok(kvrpcpb::ApiVersion::V1ttl) => "V1ttl".to_owned(),
        Ok(kvrpcpb::ApiVersion::V2) => "V2".to_owned(),
        Ok(kvrpcpb::ApiVersion::V3) => "V3".to_owned(),
        Err(_) => api_version.to_string(),
    }
}

/// The beginning of a name from a request: an answer must not be as long as the request.
fn head(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(result: Result<(), RequestFailure>) -> String {
        match result {
            Ok(()) => String::new(),
            Err(RequestFailure::Refused(message)) => message,
            Err(other) => panic!("not for the caller's eyes: {other:?}"),
        }
    }

    const V1: RequestRules = RequestRules { api: ApiVersion::V1Ttl, command: "raw_get" };
    const V2: RequestRules = RequestRules { api: ApiVersion::V2, command: "raw_get" };

    #[test]
    fn limits_are_told_in_the_words_of_tikv() {
        assert_eq!(words(V1.key(b"k")), "");
        assert_eq!(words(V1.key(&[7; KEY_BYTES_MAX])), "");
        assert_eq!(words(V1.key(b"")), "");
        assert_eq!(words(V1.range(&Bytes::new(), &Bytes::new())), "");
        assert_eq!(words(V1.border(b"")), "key is empty");
        assert_eq!(words(V1.border(b"k")), "");
        let too_long = "max key size exceeded, size: 8193, limit: 8192";
        assert_eq!(words(V1.border(&[7; KEY_BYTES_MAX + 1])), too_long);
        let long = Bytes::from(vec![b'r'; KEY_BYTES_MAX + 1]);
        for rules in [V1, V2] {
            assert_eq!(words(rules.key(&long)), too_long);
            assert_eq!(words(rules.range(&long, &long)), too_long);
        }
    }

    #[test]
    fn a_key_of_v2_has_the_raw_mode_and_a_keyspace() {
        for key in [&b"r\0\0\0"[..], b"r\0\0\x01k", b"r\xff\xff\xffk"] {
            assert_eq!(words(V2.key(key)), "");
        }
        for (key, shown) in [
            (&b""[..], ""),
            (b"k", "6B"),
            (b"r\0\0", "720000"),
            (b"x\0\0\0k", "780000006B"),
            (b"s\0\0\0", "73000000"),
        ] {
            let expected = format!(
                "Key mode mismatched with the request mode, cmd: raw_get, storage: V2, key: {shown}"
            );
            assert_eq!(words(V2.key(key)), expected);
        }
        assert!(words(V2.key(&[b'x'; 8_000])).len() < 200);
        assert!(words(V2.border(b"r\0\0")).contains("too short"));
        assert_eq!(words(V2.border(b"x\0\0\0")), "", "no rows there, and no harm");
    }

    #[test]
    fn a_range_of_v2_stays_within_the_raw_mode() {
        let range = |lower: &'static [u8], upper: &'static [u8]| {
            words(V2.range(&Bytes::from_static(lower), &Bytes::from_static(upper)))
        };
        for (lower, upper) in
            [(&b"r\0\0\0"[..], &b"r\0\0\x01"[..]), (b"r\0\0\0k", b"s"), (b"r\0\0\x01", b"r\0\0\0")]
        {
            assert_eq!(range(lower, upper), "");
        }
        let refused =
            "Key mode mismatched with the request mode, cmd: raw_get, storage: V2, range: ";
        for (lower, upper, shown) in [
            (&b""[..], &b""[..], "(None, None)"),
            (b"r\0\0\0", b"", "(Some(\"72000000\"), None)"),
            (b"r\0\0\0", b"s\0", "(Some(\"72000000\"), Some(\"7300\"))"),
            (b"r", b"s", "(Some(\"72\"), Some(\"73\"))"),
            (b"x\0\0\0", b"x\0\0\x01", "(Some(\"78000000\"), Some(\"78000001\"))"),
        ] {
            assert_eq!(range(lower, upper), format!("{refused}{shown}"));
        }
    }

    #[test]
    fn a_batch_has_no_ttl_one_or_one_each() {
        let all = |list: &[u64], for_all| {
            let ttl = ttls(list, for_all, 3)?;
            Ok::<_, RequestFailure>([ttl(0), ttl(1), ttl(2)])
        };
        assert_eq!(all(&[], 0).unwrap(), [0, 0, 0]);
        assert_eq!(all(&[], 7).unwrap(), [7, 7, 7]);
        assert_eq!(all(&[5], 7).unwrap(), [5, 5, 5]);
        assert_eq!(all(&[0, 5, 9], 7).unwrap(), [0, 5, 9]);
        let unequal = "The length of ttls does not equal to the length of pairs";
        for list in [&[0, 0][..], &[1, 2, 3, 4]] {
            assert_eq!(words(all(list, 0).map(drop)), unequal);
        }
    }

    #[test]
    fn the_version_is_that_of_the_cluster_and_v2_names_no_column_family() {
        let of = |api_version| Some(Context { api_version, ..Context::default() });
        for (cf, family) in [
            ("", ColumnFamily::Default),
            ("default", ColumnFamily::Default),
            ("lock", ColumnFamily::Lock),
            ("write", ColumnFamily::Write),
        ] {
            assert_eq!(V1.family(of(0).as_ref(), cf).unwrap(), family);
            assert_eq!(V1.family(None, cf).unwrap(), family);
        }
        assert_eq!(V2.family(of(2).as_ref(), "").unwrap(), ColumnFamily::Default);
        for cf in ["default", "lock", "raft"] {
            let refused = words(V2.family(of(2).as_ref(), cf).map(drop));
            assert_eq!(refused, format!("cf is deprecated in API V2, cf name: {cf}"));
        }
        for cf in ["raft", "Default"] {
            let refused = words(V1.family(None, cf).map(drop));
            assert_eq!(refused, format!("invalid cf name: {cf}"));
        }
        let long = words(V1.family(None, &"x".repeat(9999)).map(drop));
        assert_eq!(long.len(), "invalid cf name: ".len() + 64);
        for (rules, version, shown) in [
            (V1, 1, "V1ttl, request: V1ttl"),
            (V1, 2, "V1ttl, request: V2"),
            (V2, 0, "V2, request: V1"),
            (V2, 1, "V2, request: V1ttl"),
            (V2, 7, "V2, request: 7"),
        ] {
            let expected = format!(
                "Api version in request does not match with TiKV storage, cmd: raw_get, storage: \
                 {shown}"
            );
            assert_eq!(words(rules.version(of(version).as_ref())), expected);
            assert_eq!(words(rules.family(of(version).as_ref(), "").map(drop)), expected);
        }
    }
}
