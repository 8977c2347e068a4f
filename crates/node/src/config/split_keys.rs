//! Borders of regions from a file: one key a line, escaped as `ctl` prints keys.

use std::path::Path;

use bytes::Bytes;
use flotilla_identity::{ApiVersion, REGIONS_MAX};

use super::error::ConfigError;
use super::limits::KEY_BYTES_MAX;

/// Keys of one file at most, as many as one request may have.
const KEYS_MAX: usize = 10_000;
/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the keys at most with which a cluster begins. The plan has each three times, and is one
/// message between stores.
const FIRST_BYTES_MAX: usize = 4 << 20;

/// The keys of a file, in order and each once. `\\` stands for a backslash and `\xNN` for a byte.
///
/// # Errors
///
/// [`ConfigError::Read`] if it cannot be read, [`ConfigError::Value`] with the line that is no key.
pub fn read_split_keys(path: &Path) -> Result<Vec<Bytes>, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(refused(path, &format!("{bytes} bytes, at most {FILE_BYTES_MAX} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|words| refused(path, &words))
}

/// The same for a cluster of this API version that begins with `regions` other ones.
pub(crate) fn read_first_borders(
    path: &Path,
    regions: u64,
    api: ApiVersion,
) -> Result<Vec<Bytes>, ConfigError> {
    let keys = read_split_keys(path)?;
    check_first(&keys, regions, api).map_err(|words| refused(path, &words))?;
    Ok(keys)
}

fn check_first(keys: &[Bytes], regions: u64, api: ApiVersion) -> Result<(), String> {
    check_prefixes(keys, api)?;
    let keys_max = REGIONS_MAX - regions;
    if keys.len() as u64 > keys_max {
        return Err(format!(
            "{} keys, and regions = {regions}: a cluster begins with {REGIONS_MAX} regions at most",
            keys.len()
        ));
    }
    let bytes: usize = keys.iter().map(Bytes::len).sum();
    if bytes > FIRST_BYTES_MAX {
        return Err(format!("the keys have {bytes} bytes, at most {FIRST_BYTES_MAX} together"));
    }
    Ok(())
}

/// Clients of V2 cut the mode and the keyspace off a border without a look.
fn check_prefixes(keys: &[Bytes], api: ApiVersion) -> Result<(), String> {
    let is_short = |key: &&Bytes| key.len() < ApiVersion::PREFIX_BYTES;
    match keys.iter().find(is_short).filter(|_| api == ApiVersion::V2) {
        None => Ok(()),
        Some(key) => Err(format!(
            "{} is too short for api = \"v2\": a border has the mode byte and three bytes of a \
             keyspace first, as \\x72\\x00\\x00\\x00",
            key.escape_ascii()
        )),
    }
}

fn refused(path: &Path, words: &str) -> ConfigError {
    ConfigError::Value(format!("{}: {words}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Bytes>, String> {
    let mut keys = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        let key = unescape_key(line)
            .ok_or_else(|| format!("line {number}: {line:?} is no key: {KEY_ESCAPES}"))?;
        if key.len() > KEY_BYTES_MAX {
            let size = key.len();
            return Err(format!("line {number}: {size} bytes, a key has {KEY_BYTES_MAX} at most"));
        }
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

/// The rule of keys that are text, for messages.
pub const KEY_ESCAPES: &str =
    r"after a backslash comes another one, or x and two hexadecimal digits";

/// The key that a text stands for, as `ctl` prints keys: `\\` stands for a backslash and `\xNN` for
/// a byte. `None` if another letter follows a backslash.
pub fn unescape_key(line: &str) -> Option<Bytes> {
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

/// The text for a key, as `ctl` prints keys: [`unescape_key`] makes the key of it again. Text stays
/// as it is; a backslash is doubled, and other bytes become `\xNN`, so that no key can move the
/// cursor of the terminal that shows it.
#[must_use]
pub fn escape_key(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                control if control.is_control() => {
                    for byte in control.encode_utf8(&mut [0; 4]).bytes() {
                        push_hex(&mut text, byte);
                    }
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            push_hex(&mut text, *byte);
        }
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    text.push_str("\\x");
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from_digit(u32::from(digit), 16).expect("four bits are one digit"));
    }
}

fn pushed(mut key: Vec<u8>, byte: u8) -> Vec<u8> {
    key.push(byte);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_ctl_prints_them() {
        let keys: [&[u8]; 4] = [b"\x00\xff", b"\\x41", b"a b", b"a\\b"];
        let text = "a b\na\\\\b\n\\x00\\xff\n\\\\x41";
        assert_eq!(parse(text).unwrap(), keys);
        assert_eq!(parse("b\na\nb").unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_line_that_is_no_key_is_named() {
        for (text, line) in [("a\n\nb", 2), ("\\", 1), ("a\nb\\y", 2), ("\\x4", 1), ("\\xgg", 1)] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(&format!("line {line}")), "{text:?}: {why}");
        }
        assert!(parse("").unwrap_err().contains("no key"));
        let long = parse(&format!("a\n{}", "k".repeat(KEY_BYTES_MAX + 1))).unwrap_err();
        assert!(long.contains("line 2: 8193 bytes"), "{long}");
        let many: String = (0..=KEYS_MAX).map(|number| format!("{number}\n")).collect();
        assert!(parse(&many).unwrap_err().contains("10001 keys"));
    }

    #[test]
    fn a_cluster_begins_with_no_more_borders_than_one_plan_has_room_for() {
        let keys = |count: usize, len: usize| vec![Bytes::from(vec![b'k'; len]); count];
        let check_first = |keys: &[Bytes], regions| check_first(keys, regions, ApiVersion::V1Ttl);
        assert_eq!(check_first(&keys(9_996, 400), 1), Ok(()));
        let many = check_first(&keys(9_996, 4), 2).unwrap_err();
        assert!(many.contains("9996 keys, and regions = 2"), "{many}");
        let long = check_first(&keys(600, 8192), 1).unwrap_err();
        assert!(long.contains("4915200 bytes"), "{long}");
    }

    #[test]
    fn a_border_of_v2_has_room_for_a_keyspace() {
        let check = |key: &'static [u8], api| check_first(&[Bytes::from_static(key)], 1, api);
        assert_eq!(check(b"r\0\0", ApiVersion::V1Ttl), Ok(()));
        assert_eq!(check(b"r\0\0\0", ApiVersion::V2), Ok(()));
        let short = check(b"r\0\0", ApiVersion::V2).unwrap_err();
        assert!(short.starts_with("r\\x00\\x00 is too short for api"), "{short}");
    }
}
