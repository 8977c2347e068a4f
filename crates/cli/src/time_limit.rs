//! A limit of time as a command line gives it: `1500ms`, `10s`, `2m`, `1h`, or a number of seconds.

use std::fmt;
use std::time::{Duration, Instant};

/// How long a command may take. It runs from when it is parsed.
#[derive(Clone, Debug)]
pub struct TimeLimit {
    /// As it was given, for messages.
    text: String,
    length: Duration,
    end: Instant,
}

/// Longest limit: a clock can hold its end.
const LIMIT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Kept for finding out why a request had no answer.
const DIAGNOSIS_TIME_MAX: Duration = Duration::from_secs(1);

impl TimeLimit {
    /// The limit that `text` stands for, which begins now.
    ///
    /// # Errors
    ///
    /// Says what would be right.
    pub fn parse(text: &str) -> Result<TimeLimit, String> {
        let length = length(text).filter(|length| !length.is_zero() && *length <= LIMIT_MAX);
        let Some(length) = length else {
            return Err(
                "a time is a number of ms, s, m or h above 0 and up to a year, as 1500ms; a \
                        number without a unit has seconds"
                    .to_owned(),
            );
        };
        Ok(TimeLimit { text: text.to_owned(), length, end: Instant::now() + length })
    }

    /// How long it is.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// When everything ends.
    pub(crate) fn end(&self) -> Instant {
        self.end
    }

    /// When requests end, so that there is time to find out why one had no answer.
    pub(crate) fn requests_end(&self) -> Instant {
        self.end - DIAGNOSIS_TIME_MAX.min(self.length / 4)
    }

    /// Whether so much of it is over that an error about an answer that did not come is due to it.
    pub(crate) fn is_spent(&self) -> bool {
        Instant::now() + self.length / 2 >= self.end
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

fn length(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().ok()?;
    let seconds = |unit: u64| count.checked_mul(unit).map(Duration::from_secs);
    match unit {
        "ms" => Some(Duration::from_millis(count)),
        "s" | "" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(60 * 60),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_unit_or_means_seconds() {
        for (text, ms) in [("1500ms", 1_500), ("4", 4_000), ("10s", 10_000), ("2m", 120_000)] {
            assert_eq!(length(text), Some(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(TimeLimit::parse("1h").unwrap().to_string(), "1h");
        for bad in ["", "s", "1.5s", "-1s", "1 s", "0", "0ms", "1d", "8761h", "99999999999999999h"]
        {
            assert!(TimeLimit::parse(bad).is_err_and(|words| words.contains("1500ms")), "{bad}");
        }
    }

    #[test]
    fn requests_end_before_the_whole() {
        let diagnosis = |text| {
            let limit = TimeLimit::parse(text).unwrap();
            limit.end() - limit.requests_end()
        };
        assert_eq!(diagnosis("1m"), Duration::from_secs(1));
        assert_eq!(diagnosis("1200ms"), Duration::from_millis(300));
        assert!(!TimeLimit::parse("1h").unwrap().is_spent());
    }
}
