//! Sizes and times as people write them: a whole number and a unit, as `64MiB` and `150ms`.
//!
//! The units are those that a key's own is a divisor of, so that each text stands for a whole
//! number and no value is ever rounded. `MB` is refused: for some it has 1000² bytes, for TiKV
//! 1024² (docs/decisions/0050-one-table-of-settings.md).

/// Names of units, each with how much it is of the first one, in ascending order.
pub(super) type Units = [(&'static str, u64)];

/// Units of bytes.
pub(super) const BYTES: &Units =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
/// Units of milliseconds.
pub(super) const MILLISECONDS: &Units =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
/// Units of seconds.
pub(super) const SECONDS: &Units = &[("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// Why a text is no number of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoQuantity {
    /// It does not begin with a digit, or has no whole number.
    NoNumber,
    /// This is none of the units.
    Unit(String),
    /// It is more than 64 bits hold.
    TooLarge,
}

/// The number of the first unit that `text` stands for; a number alone is one of them.
///
/// # Errors
///
/// See [`NoQuantity`].
pub(super) fn parse(text: &str, units: &Units) -> Result<u64, NoQuantity> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if count.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err(NoQuantity::NoNumber);
    }
    let size = match units.iter().find(|(name, _)| *name == unit) {
        Some((_, size)) => *size,
        None if unit.is_empty() => 1,
        None => return Err(NoQuantity::Unit(unit.to_owned())),
    };
    let count = count.parse::<u64>().ok();
    count.and_then(|count| count.checked_mul(size)).ok_or(NoQuantity::TooLarge)
}

/// `value` in the largest unit that it is a multiple of.
pub(super) fn format(value: u64, units: &Units) -> String {
    let unit = units.iter().rev().find(|(_, size)| value.is_multiple_of(*size));
    match unit {
        Some((name, size)) if value > 0 => format!("{}{name}", value / size),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_unit_of_bytes() {
        for (text, bytes) in [
            ("0", 0),
            ("67108864", 64 << 20),
            ("512B", 512),
            ("64KiB", 64 << 10),
            (" 64 MiB ", 64 << 20),
            ("1GiB", 1 << 30),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text, BYTES), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1MiB", "1.5GiB", "1_000", "+1", "0x10"] {
            let error = parse(text, BYTES).unwrap_err();
            assert!(matches!(error, NoQuantity::NoNumber | NoQuantity::Unit(_)), "{text}");
        }
        for (text, unit) in [("64MB", "MB"), ("2s", "s"), ("1gib", "gib"), ("1MiB/s", "MiB/s")] {
            assert_eq!(parse(text, BYTES), Err(NoQuantity::Unit(unit.to_owned())));
        }
        for text in ["18446744073709551616", "16777216TiB"] {
            assert_eq!(parse(text, BYTES), Err(NoQuantity::TooLarge));
        }
    }

    #[test]
    fn a_time_is_a_number_and_a_unit_that_the_key_can_count() {
        for (text, ms) in [("150", 150), ("150ms", 150), ("2s", 2_000), ("7d", 604_800_000)] {
            assert_eq!(parse(text, MILLISECONDS), Ok(ms), "{text}");
        }
        assert_eq!(parse("2h", SECONDS), Ok(7_200));
        assert_eq!(parse("1500ms", SECONDS), Err(NoQuantity::Unit("ms".to_owned())));
    }

    #[test]
    fn a_value_is_written_in_its_largest_unit_and_read_again() {
        for (value, units, text) in [
            (0, BYTES, "0"),
            (1, BYTES, "1B"),
            (64 << 20, BYTES, "64MiB"),
            ((64 << 20) + 1, BYTES, "67108865B"),
            (600, MILLISECONDS, "600ms"),
            (90_000, MILLISECONDS, "90s"),
            (604_800_000, MILLISECONDS, "7d"),
            (10, SECONDS, "10s"),
        ] {
            assert_eq!(format(value, units), text);
            assert_eq!(parse(text, units), Ok(value));
        }
    }
}
