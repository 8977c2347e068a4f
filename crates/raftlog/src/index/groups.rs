//! The table of all groups, sharded so that threads that work on different groups seldom contend.

use crate::batch::frame::Change;
use crate::index::group_index::GroupIndex;
use crate::index::segment_usage::{LiveUsage, SegmentUsage};
use crate::index::summary::SegmentSummary;
use flotilla_base::id_hash::IdMap;
use parking_lot::RwLock;
use std::sync::Arc;

const SHARD_COUNT: u64 = 64;

/// The two counts of an `Arc`.
const ARC_BYTES: usize = 2 * size_of::<usize>();

/// The index of one group, shared with its read handles.
pub(crate) type SharedIndex = Arc<RwLock<GroupIndex>>;

/// All groups by their ids.
#[derive(Debug)]
pub(crate) struct Groups {
    shards: Vec<RwLock<IdMap<SharedIndex>>>,
}

/// The location of a frame in the log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameLocation {
    pub(crate) segment: u64,
    pub(crate) offset: u32,
    pub(crate) lsn: u64,
}

impl Default for Groups {
    fn default() -> Groups {
        Groups { shards: (0..SHARD_COUNT).map(|_| RwLock::default()).collect() }
    }
}

impl Groups {
    pub(crate) fn get(&self, group: u64) -> Option<SharedIndex> {
        self.shard(group).read().get(&group).cloned()
    }

    /// The ids of all groups, in order.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> =
            self.shards.iter().flat_map(|s| s.read().keys().copied().collect::<Vec<_>>()).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    /// Memory of all groups and of the tables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let shard = shard.read();
            bytes += shard.capacity() * (size_of::<(u64, SharedIndex)>() + 1);
            bytes += shard.len() * (size_of::<RwLock<GroupIndex>>() - size_of::<GroupIndex>());
            bytes += shard.len() * ARC_BYTES;
        }
        let mut groups = 0;
        self.each(|_, index| groups += index.memory_bytes());
        bytes as u64 + groups
    }

    /// Calls `look` with each group. Groups that come or go meanwhile may be missed.
    pub(crate) fn each(&self, mut look: impl FnMut(u64, &GroupIndex)) {
        for id in self.ids() {
            if let Some(index) = self.get(id) {
                look(id, &index.read());
            }
        }
    }

    /// Applies a change of the frame at `place`. Frames come in the order of the log, from one
    /// thread.
    ///
    /// # Errors
    ///
    /// The change does not fit the ones before; see [`GroupIndex::append`].
    pub(crate) fn apply(
        &self,
        change: &Change,
        place: FrameLocation,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        let segment = place.segment;
        debug_assert!(segment > 0 && place.lsn > 0, "{place:?} is no place of a frame");
        match change {
            Change::Append(append) => {
                let add = |index: &SharedIndex, usage: &mut SegmentUsage| {
                    index.write().append(append, segment, place.offset, usage)
                };
                // Under the shard's lock, without a clone of the handle: most writes are appends.
                // No thread takes the two locks in the other order.
                if let Some(index) = self.shard(append.group).read().get(&append.group) {
                    return add(index, usage);
                }
                add(&self.get_or_make(append.group), usage)?;
            }
            Change::Compact { group, first, term_before } => {
                let group = self.get_or_make(*group);
                group.write().compact(*first, *term_before, segment, usage);
            }
            Change::Put { group, key, value } => {
                self.get_or_make(*group).write().put(key, value, segment, usage);
            }
            Change::Delete { group, key } => self.shrink(*group, |index| index.delete(key, usage)),
            Change::Remove { group } => self.shrink(*group, |index| index.remove(usage)),
            Change::Truncate { group, from } => {
                self.shrink(*group, |index| index.truncate_from(*from, usage));
            }
            Change::Move(append) => {
                let group = self.get_or_make(append.group);
                group.write().relocate(append, segment, place.offset, usage)?;
            }
            Change::Discard { .. } | Change::Stale => {}
        }
        Ok(())
    }

    /// Applies the net change of a segment, as if each change were applied; only that there may be
    /// holes between entries until the last segment is merged. Segments come in order.
    ///
    /// # Errors
    ///
    /// The changes do not fit those of the segments before.
    pub(crate) fn merge(
        &self,
        summary: SegmentSummary,
        segment: u64,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        for changes in summary.into_groups() {
            let group = changes.group;
            let index =
                if changes.makes_group() { Some(self.get_or_make(group)) } else { self.get(group) };
            if let Some(index) = index {
                index.write().merge(changes, segment, usage)?;
                self.forget_if_empty(group, &index);
            }
        }
        Ok(())
    }

    /// Whether all entries are there, once all segments are replayed.
    ///
    /// # Errors
    ///
    /// A group lacks entries.
    pub(crate) fn check_replayed(&self) -> Result<(), &'static str> {
        for index in self.ids().into_iter().filter_map(|id| self.get(id)) {
            index.read().check_replayed()?;
        }
        Ok(())
    }

    /// The groups with live records in a segment, and their usage of it, in order of their ids.
    /// Costs a look at each group's stretches of entries, not at the entries.
    pub(crate) fn groups_in(&self, segment: u64) -> Vec<(u64, LiveUsage)> {
        let mut groups_in = Vec::new();
        self.each(|group, index| {
            let held = index.live_in(segment);
            if !held.is_empty() {
                groups_in.push((group, held));
            }
        });
        groups_in
    }

    /// Takes something out of a group, if the group is there.
    fn shrink(&self, group: u64, take_out: impl FnOnce(&mut GroupIndex)) {
        if let Some(index) = self.get(group) {
            take_out(&mut index.write());
            self.forget_if_empty(group, &index);
        }
    }

    /// A group of which a restart would bring nothing back is removed at once, so that memory
    /// always holds what a restart would make of the log.
    fn forget_if_empty(&self, group: u64, index: &SharedIndex) {
        if index.read().is_empty() {
            self.shard(group).write().remove(&group);
        }
    }

    fn get_or_make(&self, group: u64) -> SharedIndex {
        if let Some(index) = self.get(group) {
            return index;
        }
        self.shard(group).write().entry(group).or_default().clone()
    }

    fn shard(&self, group: u64) -> &RwLock<IdMap<SharedIndex>> {
        // Ids often come in steps (a hundred a region, say); multiplying spreads them.
        let spread = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[(spread % SHARD_COUNT) as usize]
    }
}
