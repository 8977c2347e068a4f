//! Medians, ratios, what a ratio must keep, and numbers for people.

use std::fmt;

/// The middle of the values, or the mean of the two in the middle. Not a number if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// One median in units of another, if there is something to divide by.
pub fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (of, to) = (of?, to?);
    let ratio = of / to;
    ratio.is_finite().then_some(ratio)
}

/// How the ratio of our median to the peer's must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least so large: of what shall be high.
    AtLeast(f64),
    /// At most so large: of what shall be low.
    AtMost(f64),
}

impl Bound {
    /// Whether a ratio keeps the bound.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, ">= {least}"),
            Bound::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// A number with three digits that count.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => {
            let digits = format!("{value:.0}");
            let mut text = String::new();
            for (place, digit) in digits.chars().enumerate() {
                let left = digits.len() - place;
                if place > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), 3.0);
    }

    #[test]
    fn ratios() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(Some(0.0), Some(2.0)), Some(0.0));
        for (of, to) in [(None, Some(1.0)), (Some(1.0), None), (Some(1.0), Some(0.0))] {
            assert_eq!(ratio(of, to), None);
        }
        assert_eq!(ratio(Some(0.0), Some(0.0)), None);
        assert_eq!(ratio(Some(f64::NAN), Some(1.0)), None);
    }

    #[test]
    fn bounds_hold_on_their_own_side_and_at_themselves() {
        assert!(Bound::AtLeast(1.4).is_met(1.4) && Bound::AtLeast(1.4).is_met(9.0));
        assert!(!Bound::AtLeast(1.4).is_met(1.39));
        assert!(Bound::AtMost(0.5).is_met(0.5) && Bound::AtMost(0.5).is_met(0.0));
        assert!(!Bound::AtMost(0.5).is_met(0.51) && !Bound::AtMost(0.5).is_met(f64::NAN));
    }

    #[test]
    fn figures_are_short_and_have_their_thousands_apart() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.01234, "0.0123"),
            (1.236, "1.24"),
            (12.36, "12.4"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (-123.0, "-123"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
