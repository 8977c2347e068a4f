//! The net change of one group in a segment.

use super::bounds;
use crate::batch::frame::Append;
use crate::index::extents::Extents;
use crate::index::key_map::KeyMap;

/// The segment number of entries in the summarized segment itself.
pub(crate) const THIS_SEGMENT: u64 = 1;

/// No earlier entries were cut off.
const NOT_CUT: u64 = u64::MAX;

/// The net change of one group in a segment.
#[derive(Clone, Debug)]
pub(crate) struct GroupChanges {
    pub(crate) group: u64,
    pub(crate) is_removed: bool,
    pub(super) cut_from: u64,
    pub(super) compaction: Option<CompactionPoint>,
    pub(crate) extents: Extents,
    /// A key without a value is gone.
    pub(crate) keys: KeyMap<Option<Box<[u8]>>>,
}

/// The newest compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionPoint {
    pub(crate) first: u64,
    pub(crate) term_before: u64,
}

impl GroupChanges {
    pub(super) fn new(group: u64) -> GroupChanges {
        GroupChanges {
            group,
            is_removed: false,
            cut_from: NOT_CUT,
            compaction: None,
            extents: Extents::default(),
            keys: KeyMap::default(),
        }
    }

    /// The index from which on entries of earlier segments are gone.
    pub(crate) fn cut_from(&self) -> Option<u64> {
        Some(self.cut_from).filter(|from| *from != NOT_CUT)
    }

    pub(crate) fn compaction(&self) -> Option<CompactionPoint> {
        self.compaction
    }

    /// Whether the group exists after them, if it did not before.
    pub(crate) fn makes_group(&self) -> bool {
        let sets_key = self.keys.iter().any(|(_, value)| value.is_some());
        self.compaction.is_some() || !self.extents.is_empty() || sets_key
    }

    /// Drops entries and values, so that the tombstones are left. False if there are none.
    pub(super) fn reduce(&mut self) -> bool {
        self.extents = Extents::default();
        let mut gone = KeyMap::default();
        for (key, _) in self.keys.iter().filter(|(_, value)| value.is_none()) {
            gone.insert(key, None);
        }
        self.keys = gone;
        self.is_removed
            || self.cut_from().is_some()
            || self.compaction.is_some()
            || !self.keys.is_empty()
    }

    // Each of these returns an upper bound of the bytes that the encoding grows by.

    pub(super) fn append(
        &mut self,
        append: &Append,
        frame_offset: u32,
    ) -> Result<u64, &'static str> {
        let cut_bytes = self.cut(append.first)?;
        // Without other entries, earlier ones are cut off where the own ones begin, which takes no
        // bytes.
        let cut_bytes = if self.extents.is_empty() { 0 } else { cut_bytes };
        let run = append.run(THIS_SEGMENT, frame_offset);
        let bytes = bounds::added_bytes_max(&self.extents, &run, &append.terms);
        self.extents.push(run, &append.terms);
        Ok(bytes + cut_bytes)
    }

    pub(super) fn relocate(
        &mut self,
        append: &Append,
        frame_offset: u32,
    ) -> Result<u64, &'static str> {
        self.check(append.first)?;
        let run = append.run(THIS_SEGMENT, frame_offset);
        let bytes = bounds::relocated_bytes_max(&self.extents, &run, &append.terms);
        let mut moved = Extents::default();
        moved.push(run, &append.terms);
        self.extents.relocate(moved, |_, _| ())?;
        Ok(bytes)
    }

    /// Drops the entries from `from` on, its own and those of earlier segments.
    pub(super) fn cut(&mut self, from: u64) -> Result<u64, &'static str> {
        self.check(from)?;
        self.extents.truncate(from, |_, _| ());
        debug_assert!(self.extents.end().is_none_or(|end| end <= from), "cut at {from}");
        if self.is_removed || self.cut_from <= from {
            return Ok(0);
        }
        self.cut_from = from;
        Ok(bounds::CUT_BYTES_MAX)
    }

    pub(super) fn compact(&mut self, compaction: CompactionPoint) -> Result<u64, &'static str> {
        self.check(compaction.first)?;
        self.extents.drop_prefix(compaction.first, |_, _| ());
        let first = self.extents.first();
        debug_assert!(first.is_none_or(|first| first >= compaction.first), "{compaction:?}");
        let is_first = self.compaction.replace(compaction).is_none();
        Ok(if is_first { bounds::COMPACTION_BYTES_MAX } else { 0 })
    }

    pub(super) fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> u64 {
        let value: Option<Box<[u8]>> = value.map(Into::into);
        let bytes = bounds::value_bytes_max(key, value.as_deref());
        if self.is_removed && value.is_none() {
            self.keys.remove(key);
            return 0;
        }
        let old = self.keys.insert(key, value);
        old.map_or(bytes, |old| bytes.saturating_sub(bounds::value_bytes_max(key, old.as_deref())))
    }

    fn check(&self, index: u64) -> Result<(), &'static str> {
        if self.compaction.is_some_and(|compaction| index < compaction.first) {
            return Err("a change below the first index of its group");
        }
        Ok(())
    }
}
