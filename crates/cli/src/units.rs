//! Numbers as people read them, the same in every table and sentence of the command line.
//!
//! - A count has its digits in groups of three: `1,234,567`. A number that names something (a
//!   region, a store, an index, a term, a page, a place in a file) has none, for it is copied into
//!   commands.
//! - Bytes below 1024 are whole, larger ones have a binary unit and one decimal: `1.5 MiB`.
//! - A time has the largest unit of which there is one at least, and one decimal: `850.0 us`,
//!   `2.5 s`.
//! - A rate is a count and `/s`.
//!
//! JSON has whole numbers in the unit that its key names.

use std::time::Duration;

/// Units of bytes above bytes, each 1024 of the one before.
const BINARY_UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Units of times below a second, each 1000 of the one before.
const TIME_UNITS: [&str; 2] = ["us", "ms"];

/// The part of a unit from which on one decimal shows the whole unit.
const ROUNDED_UP: f64 = 0.99995;

/// So many things.
#[must_use]
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// So many things and their name, in the singular or in the plural.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// So many bytes.
#[must_use]
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    scaled(bytes as f64 / 1024.0, 1024.0, &BINARY_UNITS)
}

/// So long.
#[must_use]
pub(crate) fn time(length: Duration) -> String {
    let micros = length.as_secs_f64() * 1e6;
    // One unit after the other, for they do not have the same steps.
    if micros < ROUNDED_UP * 1e6 {
        return scaled(micros, 1e3, &TIME_UNITS);
    }
    let (seconds, units) =
        (micros / 1e6, [(1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "d")]);
    let (length, unit) =
        units.into_iter().rfind(|(length, _)| seconds / length >= ROUNDED_UP).unwrap_or(units[0]);
    format!("{:.1} {unit}", seconds / length)
}

/// So many things in a second.
#[must_use]
pub(crate) fn rate(per_second: f64) -> String {
    format!("{}/s", count(per_second.round() as u64))
}

/// `number`, in the first of `units`, with one decimal, in the unit of which there is one at least.
fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut place = 0;
    while number >= step * ROUNDED_UP && place + 1 < units.len() {
        number /= step;
        place += 1;
    }
    format!("{number:.1} {}", units[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_groups_of_three_digits() {
        let counts = [0, 12, 999, 1_000, 12_345, 123_456, 1_234_567, u64::MAX].map(count);
        let shown = ["0", "12", "999", "1,000", "12,345", "123,456", "1,234,567"];
        assert_eq!(counts[..7], shown);
        assert_eq!(counts[7], "18,446,744,073,709,551,615");
        assert_eq!(counted(1, "key", "keys") + &counted(2_000, "key", "keys"), "1 key2,000 keys");
        assert_eq!(rate(12_345.6), "12,346/s");
    }

    #[test]
    fn bytes_have_the_largest_binary_unit_that_fits() {
        let shown = [0, 1_023, 1_024, 1_536, 1 << 20, 5 << 30, u64::MAX].map(bytes);
        let right = ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "16.0 EiB"];
        assert_eq!(shown, right);
        assert_eq!([(1 << 20) - 1, (1 << 20) - 60].map(bytes), ["1.0 MiB", "1023.9 KiB"]);
    }

    #[test]
    fn times_have_the_largest_unit_that_fits() {
        let shown = [0, 850, 1_500, 999_999, 2_500_000, 59_900_000, 90_000_000].map(micros);
        let right = ["0.0 us", "850.0 us", "1.5 ms", "1.0 s", "2.5 s", "59.9 s", "1.5 min"];
        assert_eq!(shown, right);
        let hours = [3_600, 86_400, 200_000].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(hours, ["1.0 h", "1.0 d", "2.3 d"]);
    }

    fn micros(micros: u64) -> String {
        time(Duration::from_micros(micros))
    }
}
