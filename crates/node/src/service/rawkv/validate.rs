//! Validates requests before any region is asked: TiKV's limits, with TiKV's messages.

use flotilla_proto::kvrpcpb::Context;

use super::errors::RequestFailure;
use crate::config::KEY_BYTES_MAX;

/// API V1, the only one that is spoken: keys are stored as they come.
const API_V1: i32 = 0;

/// Checks the parts that all requests have in common.
///
/// There is one column family. TiKV has two more for raw keys, which are hardly used; they are
/// refused like unknown ones, for answering from the wrong one would be worse.
pub(crate) fn common(context: Option<&Context>, cf: &str) -> Result<(), RequestFailure> {
    let api_version = context.map_or(API_V1, |context| context.api_version);
    if api_version != API_V1 {
        return refuse(format!(
            "Api version in request does not match with TiKV storage, storage: V1, request: {}",
            version_name(api_version)
        ));
    }
    if !cf.is_empty() && cf != "default" {
        return refuse(format!("invalid cf name: {}", head(cf)));
    }
    Ok(())
}

/// A key that a region is to begin with: not the first of all, for one does already.
pub(crate) fn border(border: &[u8]) -> Result<(), RequestFailure> {
    if border.is_empty() {
        return refuse("key is empty".to_owned());
    }
    key(border)
}

/// A key, or a bound of a range. The empty key is one like others: it is the first.
pub(crate) fn key(key: &[u8]) -> Result<(), RequestFailure> {
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
    match api_version {
        1 => "V1TTL".to_owned(),
        2 => "V2".to_owned(),
        other => other.to_string(),
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

    #[test]
    fn limits_are_told_in_the_words_of_tikv() {
        assert_eq!(words(key(b"k")), "");
        assert_eq!(words(key(&[7; KEY_BYTES_MAX])), "");
        assert_eq!(words(key(b"")), "");
        assert_eq!(words(border(b"")), "key is empty");
        assert_eq!(words(border(b"k")), "");
        assert_eq!(
            words(border(&[7; KEY_BYTES_MAX + 1])),
            "max key size exceeded, size: 8193, limit: 8192"
        );
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
    fn one_column_family_and_one_version_of_the_api() {
        for cf in ["", "default"] {
            assert_eq!(words(common(None, cf)), "");
        }
        for cf in ["write", "lock", "raft", "Default"] {
            assert_eq!(words(common(None, cf)), format!("invalid cf name: {cf}"));
        }
        assert_eq!(words(common(None, &"x".repeat(9999))).len(), "invalid cf name: ".len() + 64);
        let v2 = Context { api_version: 2, ..Context::default() };
        assert!(words(common(Some(&v2), "")).ends_with("storage: V1, request: V2"));
    }
}
