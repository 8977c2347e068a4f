//! Borders of regions from a file: one key a line, escaped as `ctl` prints keys.

use std::path::Path;

use bytes::Bytes;
use flotilla_client::Client;
use flotilla_proto::metapb;

use crate::tool::Error;

/// Keys of one file at most, as many as one request may have.
const KEYS_MAX: usize = 10_000;
/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Looks at the regions before those that still lack a border are given up: regions may be split by
/// others meanwhile.
const TRIES_MAX: usize = 10;

/// The keys of a file, in order and each once. `\\` stands for a backslash and `\xNN` for a byte.
///
/// # Errors
///
/// [`Error::Argument`] with the line that is no key.
pub(crate) fn read(path: &Path) -> Result<Vec<Bytes>, Error> {
    let named = |what: String| Error::Argument(format!("{}: {what}", path.display()));
    let bytes = std::fs::metadata(path).map_err(|error| named(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(named(format!("{bytes} bytes, at most {FILE_BYTES_MAX} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    parse(&text).map_err(named)
}

fn parse(text: &str) -> Result<Vec<Bytes>, String> {
    let mut keys = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        let key = unescape(line).ok_or_else(|| {
            let known = r"after a backslash comes another one, or x and two hexadecimal digits";
            format!("line {number}: {line:?} is no key: {known}")
        })?;
        if key.is_empty() {
            return Err(format!("line {number} is empty: the first region begins there anyway"));
        }
        keys.push(key);
    }
    keys.sort_unstable();
    keys.dedup();
    match keys.len() {
        0 => Err("there is no key in it".to_owned()),
        count if count > KEYS_MAX => Err(format!("{count} keys, at most {KEYS_MAX}")),
        _ => Ok(keys),
    }
}

fn unescape(line: &str) -> Option<Bytes> {
    let mut key = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        (rest, key) = match (byte, after) {
            (b'\\', [b'\\', after @ ..]) => (after, pushed(key, b'\\')),
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let byte = digit(*high)? * 16 + digit(*low)?;
                (after, pushed(key, u8::try_from(byte).ok()?))
            }
            (b'\\', _) => return None,
            (byte, after) => (after, pushed(key, byte)),
        };
    }
    Some(key.into())
}

fn pushed(mut key: Vec<u8>, byte: u8) -> Vec<u8> {
    key.push(byte);
    key
}

/// Splits regions until each of `keys` is a border. Returns how many regions there are then.
///
/// # Errors
///
/// The first split that failed; others may have been carried out.
pub(crate) async fn split(client: &Client, keys: &[Bytes]) -> Result<usize, Error> {
    for _ in 0..TRIES_MAX {
        let regions = client.regions().await?;
        let mut is_done = true;
        for region in regions.iter().map(|located| &located.region) {
            let inside: Vec<_> =
                keys.iter().filter(|key| is_inside(region, key)).cloned().collect();
            if !inside.is_empty() {
                is_done = false;
                client.split_region(region.id, inside).await?;
            }
        }
        if is_done {
            return Ok(regions.len());
        }
    }
    Err(Error::Refused("the regions change too fast to be split at the keys".to_owned()))
}

fn is_inside(region: &metapb::Region, key: &Bytes) -> bool {
    *key > region.start_key && (region.end_key.is_empty() || *key < region.end_key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::escape;

    #[test]
    fn keys_are_read_as_ctl_prints_them() {
        let keys: [&[u8]; 5] = [b"a b", b"a\\b", b"\x00\xff", "n\u{e4}ive".as_bytes(), b"\\x41"];
        let text: String = keys.iter().map(|key| escape(key) + "\n").collect();
        let mut sorted = keys.map(Bytes::copy_from_slice).to_vec();
        sorted.sort();
        assert_eq!(parse(&text).unwrap(), sorted);
        assert_eq!(parse("b\na\nb").unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_line_that_is_no_key_is_named() {
        for (text, line) in [("a\n\nb", 2), ("\\", 1), ("a\nb\\y", 2), ("\\x4", 1), ("\\xgg", 1)] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(&format!("line {line}")), "{text:?}: {why}");
        }
        assert!(parse("").unwrap_err().contains("no key"));
        let many: String = (0..=KEYS_MAX).map(|number| format!("{number}\n")).collect();
        assert!(parse(&many).unwrap_err().contains("10001 keys"));
    }

    #[test]
    fn a_border_is_not_inside() {
        let region = |start: &'static str, end: &'static str| metapb::Region {
            start_key: start.into(),
            end_key: end.into(),
            ..Default::default()
        };
        let inside = |region: &metapb::Region, key: &'static str| is_inside(region, &key.into());
        assert!(inside(&region("", ""), "a") && inside(&region("a", "c"), "b"));
        assert!(!inside(&region("a", "c"), "a") && !inside(&region("a", "c"), "c"));
    }
}
