//! The region that a backup reads next, and whether regions cover the key space.
//!
//! Regions are only ever split, so a border that was there once stays: the region that holds a
//! border begins with it, and a part that an interrupted backup has finished fits beside what is
//! read later, whatever was split between the two.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::manifest::BackupRegion;

/// Walks the key space from its first key to its end.
#[derive(Debug, Default)]
pub struct CoveragePlan {
    /// Regions that are finished already and were not met yet, by their first keys.
    kept: BTreeMap<Bytes, BackupRegion>,
    /// Regions so far, which cover all keys up to the position.
    covered: Vec<BackupRegion>,
    is_whole: bool,
}

/// The next step of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRegion {
    /// The region that holds this key is read. It begins with it.
    Read(Bytes),
    /// The whole key space is covered.
    Whole,
}

/// Keys that no region covers, or that two do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("region {region} begins with another key than the one before it ends with")]
pub struct CoverageGap {
    /// The region behind the gap; 0 for the end of the key space.
    pub region: u64,
}

impl CoveragePlan {
    /// A plan for a backup of which these regions are finished. Of two with the same first key the
    /// later one counts.
    #[must_use]
    pub fn resume(finished: Vec<BackupRegion>) -> Self {
        let kept = finished.into_iter().map(|region| (region.point.start.clone(), region));
        Self { kept: kept.collect(), ..Self::default() }
    }

    /// The next step. Regions that are finished and come next are stepped over.
    pub fn next_step(&mut self) -> NextRegion {
        loop {
            let position = self.position();
            if self.is_whole {
                return NextRegion::Whole;
            }
            match self.kept.remove(&position) {
                Some(region) => self.push(region),
                None => return NextRegion::Read(position),
            }
        }
    }

    /// The region that was asked for is finished.
    ///
    /// # Errors
    ///
    /// It is another one than the next.
    pub fn finish(&mut self, region: BackupRegion) -> Result<(), CoverageGap> {
        if self.is_whole || region.point.start != self.position() {
            return Err(CoverageGap { region: region.point.region });
        }
        self.push(region);
        Ok(())
    }

    /// All regions so far, in the order of their keys.
    #[must_use]
    pub fn covered(&self) -> &[BackupRegion] {
        &self.covered
    }

    fn position(&self) -> Bytes {
        self.covered.last().map(|last| last.point.end.clone()).unwrap_or_default()
    }

    fn push(&mut self, region: BackupRegion) {
        self.is_whole = region.point.end.is_empty();
        self.covered.push(region);
    }
}

/// Checks that the regions, in their order, cover each key once.
///
/// # Errors
///
/// The first place where they do not.
pub fn check_coverage(regions: &[BackupRegion]) -> Result<(), CoverageGap> {
    let mut plan = CoveragePlan::default();
    for region in regions {
        let point = &region.point;
        let is_range = point.end.is_empty() || point.start < point.end;
        if !is_range {
            return Err(CoverageGap { region: point.region });
        }
        plan.finish(region.clone())?;
    }
    match plan.next_step() {
        NextRegion::Whole => Ok(()),
        NextRegion::Read(_) => Err(CoverageGap { region: 0 }),
    }
}

/// The keys at which a region begins, without the first key of all.
pub fn borders(regions: &[BackupRegion]) -> impl Iterator<Item = Bytes> + '_ {
    regions.iter().map(|region| region.point.start.clone()).filter(|start| !start.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::region;

    #[test]
    fn an_interrupted_backup_goes_on_between_the_regions_that_are_finished() {
        let mut plan = CoveragePlan::resume(vec![region(7, "m", "s"), region(2, "", "c")]);
        assert_eq!(plan.next_step(), NextRegion::Read("c".into()));
        // The region was split since: its first part ends earlier.
        plan.finish(region(9, "c", "f")).unwrap();
        assert_eq!(plan.next_step(), NextRegion::Read("f".into()));
        assert_eq!(plan.finish(region(10, "g", "m")), Err(CoverageGap { region: 10 }));
        plan.finish(region(10, "f", "m")).unwrap();
        assert_eq!(plan.next_step(), NextRegion::Read("s".into()));
        plan.finish(region(8, "s", "")).unwrap();
        assert_eq!(plan.next_step(), NextRegion::Whole);
        let ids: Vec<_> = plan.covered().iter().map(|region| region.point.region).collect();
        assert_eq!(ids, [2, 9, 10, 7, 8]);
        assert_eq!(check_coverage(plan.covered()), Ok(()));
        assert_eq!(borders(plan.covered()).collect::<Vec<_>>(), ["c", "f", "m", "s"]);
        assert!(plan.finish(region(11, "", "")).is_err(), "nothing is left");
    }

    #[test]
    fn a_backup_from_the_beginning_reads_the_first_key_first() {
        let mut plan = CoveragePlan::default();
        assert_eq!(plan.next_step(), NextRegion::Read(Bytes::new()));
        plan.finish(region(2, "", "")).unwrap();
        assert_eq!(plan.next_step(), NextRegion::Whole);
    }

    #[test]
    fn gaps_and_overlaps_are_found() {
        let gap = |regions: &[BackupRegion]| check_coverage(regions).map_err(|gap| gap.region);
        assert_eq!(gap(&[]), Err(0));
        assert_eq!(gap(&[region(2, "", "m")]), Err(0));
        assert_eq!(gap(&[region(2, "", "m"), region(7, "n", "")]), Err(7));
        assert_eq!(gap(&[region(2, "", "m"), region(7, "l", "")]), Err(7));
        assert_eq!(gap(&[region(2, "", ""), region(7, "m", "")]), Err(7));
        assert_eq!(gap(&[region(2, "", "m"), region(7, "m", "m"), region(8, "m", "")]), Err(7));
        assert_eq!(gap(&[region(2, "a", "")]), Err(2));
    }
}
