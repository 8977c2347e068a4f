//! Keys in two parts: the common prefix of a page, and the suffix.

/// A key in two parts, so that a prefix and a suffix need not be copied together.
pub(crate) type Key<'a> = (&'a [u8], &'a [u8]);

/// The first four bytes of a key, in an order that numbers share with keys.
#[inline]
pub(crate) fn head(key: &[u8]) -> u32 {
    match key.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..key.len()].copy_from_slice(key);
            u32::from_be_bytes(bytes)
        }
    }
}

/// How many bytes both keys begin with.
pub(crate) fn shared_len(a: Key<'_>, b: Key<'_>) -> usize {
    if a.0 == b.0 {
        return a.0.len() + shared_bytes(a.1, b.1);
    }
    let bytes =
        |key: Key<'_>, i: usize| key.0.get(i).or_else(|| key.1.get(i - key.0.len())).copied();
    let mut i = 0;
    while let (Some(x), Some(y)) = (bytes(a, i), bytes(b, i)) {
        if x != y {
            break;
        }
        i += 1;
    }
    i
}

fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Whether the key begins with `prefix`.
pub(crate) fn begins_with(key: Key<'_>, prefix: &[u8]) -> bool {
    shared_len(key, (prefix, &[])) == prefix.len()
}

/// Whether the key begins with the last `len` bytes of `page`, which has as many, and at least
/// eight.
///
/// Nothing behind the page is read. The library's comparison of short strings reads 32 bytes and
/// ignores those that are too many; at the end of a page of the map they would cost a TLB miss and
/// a cache miss in vain.
#[inline]
pub(crate) fn begins_as_ends(key: &[u8], page: &[u8], len: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    let (Some(start), Some(last)) = (key.get(..len), page.last_chunk::<WORD>()) else {
        return false;
    };
    if let Some(start_last) = start.last_chunk::<WORD>() {
        let (words, _) = start.as_chunks::<WORD>();
        let (page_words, _) = page[page.len() - len..].as_chunks::<WORD>();
        return start_last == last && words.iter().zip(page_words).all(|(a, b)| a == b);
    }
    let mut word = [0; WORD];
    match key.first_chunk::<WORD>() {
        Some(bytes) => word = *bytes,
        None => word[..len].copy_from_slice(start),
    }
    // The prefix's bytes come first, then zeros; so they do in the other, but for what follows in
    // the key.
    let prefix = u64::from_be_bytes(*last).checked_shl(8 * (WORD - len) as u32).unwrap_or(0);
    let behind = u64::MAX.checked_shr(8 * len as u32).unwrap_or(0);
    prefix == u64::from_be_bytes(word) & !behind
}

/// The first key that is greater than all which begin with `prefix`; none if there is no such key.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte < 0xff)?;
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

/// The whole key in one piece.
pub(crate) fn joined(key: Key<'_>) -> Vec<u8> {
    [key.0, key.1].concat()
}

/// Copies `len` bytes of `key`, beginning at its byte `from`.
pub(crate) fn copy_key(to: &mut [u8], key: Key<'_>, from: usize, len: usize) {
    let first = key.0.get(from..).unwrap_or_default();
    let first = &first[..first.len().min(len)];
    to[..first.len()].copy_from_slice(first);
    let skip = from.saturating_sub(key.0.len());
    let rest = len - first.len();
    to[first.len()..len].copy_from_slice(&key.1[skip..skip + rest]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_matter() {
        let whole = b"abcdefgh";
        for cut in 0..=whole.len() {
            let key = whole.split_at(cut);
            assert_eq!(joined(key), whole);
            for other in 0..=whole.len() {
                assert_eq!(shared_len(key, whole.split_at(other)), whole.len());
                assert_eq!(shared_len(key, (&whole[..other], b"x")), other);
                assert!(begins_with(key, &whole[..other]));
                let mut copy = vec![0; whole.len() - other];
                copy_key(&mut copy, key, other, whole.len() - other);
                assert_eq!(copy, &whole[other..]);
            }
            assert!(!begins_with(key, b"abd") && !begins_with(key, b"abcdefghi"));
        }
    }

    #[test]
    fn successor_is_behind_all_that_begin_so() {
        let cases: [(&[u8], Option<&[u8]>); 4] =
            [(b"ab", Some(b"ac")), (b"a\xff\xff", Some(b"b")), (b"\xff\xff", None), (b"", None)];
        for (prefix, expected) in cases {
            assert_eq!(successor(prefix).as_deref(), expected);
        }
    }

    #[test]
    fn page_ends_as_a_key_begins() {
        let page: Vec<u8> = (0..60).collect();
        for len in 0..40 {
            for longer in 0..10 {
                let key: Vec<u8> = (60 - len as u8..60 + longer).collect();
                assert!(begins_as_ends(&key, &page, len), "{len} bytes and {longer} more");
                for wrong in 0..len {
                    let mut key = key.clone();
                    key[wrong] ^= 1;
                    assert!(!begins_as_ends(&key, &page, len), "byte {wrong} of {len}");
                    assert!(!begins_as_ends(&key[..wrong], &page, len));
                }
            }
        }
    }

    #[test]
    fn heads_are_in_the_order_of_keys() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0\0\0b", b"ab", b"\xff\xff\xff\xff\xff"];
        assert!(keys.windows(2).all(|pair| head(pair[0]) <= head(pair[1])));
    }
}
