//! How far the wall clock of a store is from those of the others. The middle one counts as right,
//! so that one that is wrong is found among three, whichever store leads placement.

/// How far `own_ms` is ahead of the middle one of `all_ms`, which has the clocks of all stores,
/// this one among them. Negative if it is behind. Of two in the middle the farther one counts: of
/// two clocks that differ neither can be trusted.
#[must_use]
pub fn clock_deviation(own_ms: i64, all_ms: &[i64]) -> i64 {
    let mut sorted = all_ms.to_vec();
    sorted.sort_unstable();
    let middle = |place: usize| sorted.get(place).map(|ms| own_ms.saturating_sub(*ms));
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    let deviations = [middle(low), middle(high)];
    let farthest = deviations.into_iter().flatten().max_by_key(|ms| ms.unsigned_abs());
    farthest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_clock_is_right() {
        assert_eq!(clock_deviation(0, &[]), 0);
        assert_eq!(clock_deviation(5, &[5]), 0);
        let all = [0, 3, 90_000];
        assert_eq!(all.map(|own| clock_deviation(own, &all)), [-3, 0, 89_997]);
        // The one that compares is wrong itself: the others differ from it alike.
        let all = [0, 70_000, 70_004];
        assert_eq!(all.map(|own| clock_deviation(own, &all)), [-70_000, 0, 4]);
        let all = [-8, 90_000];
        assert_eq!(all.map(|own| clock_deviation(own, &all)), [-90_008, 90_008]);
        let all = [i64::MIN, 0, i64::MAX];
        assert_eq!(all.map(|own| clock_deviation(own, &all)), [i64::MIN, 0, i64::MAX]);
    }
}
