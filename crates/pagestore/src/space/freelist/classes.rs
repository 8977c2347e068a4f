//! Size classes of free runs: one for each length up to 64 units, then two for each power of two.

/// Runs of up to this length have a class of their own.
const EXACT_UNITS_MAX: u32 = 64;

/// The longest run that a class exists for.
pub(super) const UNITS_MAX: u32 = (1 << 15) - 1;

/// How many classes there are.
pub(super) const CLASS_COUNT: usize = 82;

const _: () = assert!(CLASS_COUNT <= 128, "a mask of classes has 128 bits");

/// The class of runs of this length.
pub(super) fn class_of(units: u32) -> usize {
    if units <= EXACT_UNITS_MAX {
        return units as usize - 1;
    }
    let power = units.ilog2();
    let half = units >> (power - 1) & 1;
    (EXACT_UNITS_MAX + (power - 6) * 2 + half) as usize
}

/// The first class in which every run has at least `units` units.
pub(super) fn class_fitting(units: u32) -> usize {
    let class = class_of(units);
    let exact = units <= EXACT_UNITS_MAX || units.trailing_zeros() + 1 >= units.ilog2();
    if exact { class } else { class + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_and_fit() {
        let max = UNITS_MAX;
        for units in 1..max {
            assert!(class_of(units) <= class_of(units + 1));
            assert!(class_of(units + 1) < CLASS_COUNT);
            let fitting = class_fitting(units);
            assert!(fitting == class_of(units) || fitting == class_of(units) + 1);
            if units > 1 {
                assert!(class_of(units - 1) < fitting, "a shorter run than {units} would fit");
            }
        }
        assert_eq!(class_fitting(96), class_of(96));
        assert_eq!(class_fitting(97), class_of(96) + 1);
        assert_eq!(class_fitting(128), class_of(128));
    }
}
