//! The bounds of each group's log as they will be once all that is queued is written.
//!
//! A batch is checked against them when it is queued, so a wrong one is refused before it is
//! written, and batches behind it never fail because of it.
//!
//! The bounds of a group are cached for its next batch: only batches change where its log begins
//! and ends.

use crate::batch::frame::{Append, Change, Frame};
use crate::error::Error;
use crate::index::groups::Groups;
use flotilla_base::id_hash::IdMap;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;

/// How many groups may be cached at least. Above, the groups are evicted of which the index knows
/// as much.
const KNOWN_MIN: usize = 4096;

/// Bounds of groups that batches have changed lately, all that are queued among them.
#[derive(Debug)]
pub(crate) struct QueuedBounds {
    known: IdMap<CachedBounds>,
    /// With so many groups cached, the next write evicts.
    known_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct CachedBounds {
    tail: Option<GroupBounds>,
    /// The last write that changes the group. Once it is applied, the index has the same bounds.
    write_number: u64,
}

/// The bounds of groups before a batch, in the order of its changes.
type Undo = SmallVec<[(u64, Option<CachedBounds>); 2]>;

/// The bounds of one group: its log is `first .. next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupBounds {
    first: u64,
    next: u64,
    /// The log begins at `first` by a compaction, so it does even if it is empty.
    is_compacted: bool,
}

impl Default for QueuedBounds {
    fn default() -> QueuedBounds {
        QueuedBounds { known: IdMap::default(), known_max: KNOWN_MIN }
    }
}

impl QueuedBounds {
    /// Admits the changes of the write `write_number`, all of them or none. Compactions below a
    /// first index are marked as stale: each one that the log holds as a compaction has changed
    /// something, also for a restart that no longer sees the segments before it.
    ///
    /// # Errors
    ///
    /// The first change that does not fit.
    pub(crate) fn admit(
        &mut self,
        frame: &mut Frame,
        write_number: u64,
        groups: &Groups,
    ) -> Result<(), Error> {
        let mut undo = Undo::new();
        for at in 0..frame.changes.len() {
            let change = &frame.changes[at];
            let Some(group) = group_of(change) else { continue };
            let entry = self.known.entry(group);
            let before = match &entry {
                Entry::Occupied(known) => Some(*known.get()),
                Entry::Vacant(_) => None,
            };
            let tail = before.map_or_else(|| tail_of(groups, group), |known| known.tail);
            if is_stale(tail, change) {
                frame.make_stale(at);
                continue;
            }
            match after(tail, change) {
                Ok(tail) => {
                    debug_assert!(tail.is_none_or(|t| t.first <= t.next), "{tail:?}");
                    undo.push((group, before));
                    entry.insert_entry(CachedBounds { tail, write_number });
                }
                Err(error) => {
                    self.restore(undo);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Evicts groups of which the index knows as much, since all writes up to this one are applied.
    /// It does so only if many are cached.
    pub(crate) fn forget_applied(&mut self, write_number: u64) {
        if self.known.len() >= self.known_max {
            self.known.retain(|_, known| known.write_number > write_number);
            // Doubled, so that these walks cost each write a constant on average.
            self.known_max = (2 * self.known.len()).max(KNOWN_MIN);
        }
    }

    /// Forgets all: queued writes have failed, so the bounds do not come true.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    fn restore(&mut self, undo: Undo) {
        // In reverse: a group that the batch changed twice gets its oldest bounds back.
        for (group, before) in undo.into_iter().rev() {
            match before {
                Some(known) => self.known.insert(group, known),
                None => self.known.remove(&group),
            };
        }
    }
}

/// The group whose bounds the change may move; keys have no order to check.
fn group_of(change: &Change) -> Option<u64> {
    match change {
        Change::Append(append) => Some(append.group),
        Change::Compact { group, .. }
        | Change::Remove { group }
        | Change::Truncate { group, .. } => Some(*group),
        // A rewrite moves entries to another place; it adds none and removes none.
        Change::Move(_)
        | Change::Put { .. }
        | Change::Delete { .. }
        | Change::Discard { .. }
        | Change::Stale => None,
    }
}

fn tail_of(groups: &Groups, group: u64) -> Option<GroupBounds> {
    let index = groups.get(group)?;
    let index = index.read();
    index.has_begun().then(|| GroupBounds {
        first: index.first(),
        next: index.next(),
        is_compacted: index.is_compacted(),
    })
}

fn is_stale(tail: Option<GroupBounds>, change: &Change) -> bool {
    matches!((tail, change), (Some(tail), Change::Compact { first, .. }) if *first < tail.first)
}

fn after(tail: Option<GroupBounds>, change: &Change) -> Result<Option<GroupBounds>, Error> {
    Ok(match change {
        Change::Append(append) => Some(appended(tail, append)?),
        Change::Compact { first, .. } => {
            let next = tail.map_or(*first, |tail| tail.next.max(*first));
            Some(GroupBounds { first: *first, next, is_compacted: true })
        }
        Change::Truncate { group, from } => truncated(tail, *group, *from)?,
        Change::Remove { .. } => None,
        Change::Move(_)
        | Change::Put { .. }
        | Change::Delete { .. }
        | Change::Discard { .. }
        | Change::Stale => tail,
    })
}

fn appended(tail: Option<GroupBounds>, append: &Append) -> Result<GroupBounds, Error> {
    let (group, got) = (append.group, append.first);
    let tail = tail.unwrap_or(GroupBounds { first: got, next: got, is_compacted: false });
    tail.check(group, got)?;
    Ok(GroupBounds { next: got + append.count, ..tail })
}

fn truncated(
    tail: Option<GroupBounds>,
    group: u64,
    from: u64,
) -> Result<Option<GroupBounds>, Error> {
    let tail_or_new = tail.unwrap_or(GroupBounds { first: 1, next: 1, is_compacted: false });
    tail_or_new.check(group, from)?;
    let left = tail.map(|tail| GroupBounds { next: from, ..tail });
    Ok(left.filter(|left| left.next > left.first || left.is_compacted))
}

impl GroupBounds {
    /// Whether a change that begins at `got` leaves no hole and no entry below the first.
    fn check(&self, group: u64, got: u64) -> Result<(), Error> {
        if got < self.first {
            return Err(Error::Stale { group, first: self.first, got });
        }
        if got > self.next {
            return Err(Error::Gap { group, expected: self.next, got });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::log_batch::{Entry, LogBatch};
    use crate::index::groups::FrameLocation;
    use crate::index::segment_usage::SegmentUsage;

    type Build = fn(&mut LogBatch);

    fn append(batch: &mut LogBatch, first: u64, count: u64) {
        let entry = |index| Entry { index, term: 1, kind: 0, data: "data".into() };
        let entries: Vec<Entry> = (first..first + count).map(entry).collect();
        batch.append(1, &entries);
    }

    fn frame(build: impl FnOnce(&mut LogBatch)) -> Frame {
        let mut batch = LogBatch::new();
        build(&mut batch);
        batch.seal(u64::MAX).expect("it is a batch")
    }

    #[test]
    fn each_change_is_checked_against_those_before() {
        let groups = Groups::default();
        let good: [Build; 10] = [
            |b| [(7, 3), (10, 1), (7, 1), (8, 1)].into_iter().for_each(|(f, n)| append(b, f, n)),
            |b| (append(b, 7, 3), b.compact_to(1, 9, 1), append(b, 9, 1)).1,
            |b| (append(b, 7, 3), b.compact_to(1, 20, 1), append(b, 20, 1)).1,
            |b| (append(b, 7, 3), b.compact_to(1, 2, 1), append(b, 7, 1)).1,
            |b| (append(b, 7, 3), b.remove_group(1), append(b, 1, 1)).1,
            |b| (b.compact_to(1, 9, 1), append(b, 9, 1)).1,
            |b| (append(b, 7, 3), b.truncate_from(1, 8), append(b, 8, 1)).1,
            |b| (append(b, 7, 3), b.truncate_from(1, 10), append(b, 10, 1)).1,
            |b| (append(b, 7, 3), b.truncate_from(1, 7), append(b, 3, 1)).1,
            |b| b.truncate_from(1, 1),
        ];
        for (at, build) in good.into_iter().enumerate() {
            let admitted = QueuedBounds::default().admit(&mut frame(build), 1, &groups);
            assert!(admitted.is_ok(), "{at}: {admitted:?}");
        }
        let bad: [Build; 9] = [
            |b| (append(b, 7, 3), append(b, 11, 1)).1,
            |b| (append(b, 7, 3), append(b, 6, 9)).1,
            |b| (append(b, 7, 3), b.compact_to(1, 9, 1), append(b, 8, 1)).1,
            |b| (append(b, 7, 3), b.compact_to(1, 20, 1), append(b, 21, 1)).1,
            |b| (b.compact_to(1, 9, 1), append(b, 8, 1)).1,
            |b| (append(b, 7, 3), b.truncate_from(1, 6)).1,
            |b| (append(b, 7, 3), b.truncate_from(1, 11)).1,
            |b| (append(b, 7, 3), b.compact_to(1, 9, 1), b.truncate_from(1, 9), append(b, 7, 1)).3,
            |b| b.truncate_from(1, 2),
        ];
        for (at, build) in bad.into_iter().enumerate() {
            let mut queued_bounds = QueuedBounds::default();
            assert!(queued_bounds.admit(&mut frame(build), 1, &groups).is_err(), "{at}");
            assert!(queued_bounds.known.is_empty(), "a refused batch leaves nothing");
        }
    }

    #[test]
    fn a_compaction_that_comes_too_late_is_none_in_the_log() {
        let groups = Groups::default();
        let mut frame = frame(|b| {
            b.put(1, b"k", b"v");
            append(b, 7, 3);
            b.compact_to(1, 6, 300);
            b.compact_to(1, 7, 1);
            b.compact_to(2, 6, 1);
        });
        QueuedBounds::default().admit(&mut frame, 1, &groups).expect("it is right");
        let is_stale: Vec<_> = frame.changes.iter().map(|c| matches!(c, Change::Stale)).collect();
        assert_eq!(is_stale, [false, false, true, false, false]);
        let body = &frame.bytes[crate::format::layout::FRAME_HEADER_BYTES..];
        assert_eq!(frame.body_checksum, crate::format::layout::body_checksum(body));
        let mut input = crate::format::layout::unpad(body).expect("it is padded");
        for change in &frame.changes {
            let found = Change::of(crate::format::item::take_item(&mut input).expect("an item"), 0);
            assert_eq!(std::mem::discriminant(change), std::mem::discriminant(&found));
        }
        assert!(input.is_empty());
    }

    #[test]
    fn what_is_queued_counts_before_it_is_in_the_index() {
        let groups = Groups::default();
        let mut queued_bounds = QueuedBounds::default();
        let mut right = frame(|b| append(b, 5, 2));
        let mut wrong = frame(|b| (append(b, 7, 1), append(b, 9, 1)).1);
        let mut next = frame(|b| append(b, 7, 1));
        queued_bounds.admit(&mut right, 1, &groups).expect("right");
        assert!(queued_bounds.admit(&mut wrong, 2, &groups).is_err());
        assert!(
            queued_bounds.admit(&mut next, 2, &groups).is_ok(),
            "as if nothing had been refused"
        );
    }

    #[test]
    fn what_the_index_knows_is_forgotten_if_it_is_much() {
        let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
        let mut queued_bounds = QueuedBounds::default();
        let written = KNOWN_MIN as u64 - 1;
        let of = |group: u64, first| {
            frame(|b| {
                b.append(group, &[Entry { index: first, term: 1, kind: 0, data: "data".into() }]);
            })
        };
        for group in 0..=written {
            let mut frame = of(group, 5);
            queued_bounds.admit(&mut frame, group + 1, &groups).expect("right");
            if group < written {
                let place = FrameLocation { segment: 1, offset: 64, lsn: group + 1 };
                groups.apply(&frame.changes[0], place, &mut usage).expect("right");
            }
        }
        queued_bounds.forget_applied(written);
        assert_eq!(queued_bounds.known.len(), 1, "of the last group the index does not know");
        for group in [0, written] {
            assert!(queued_bounds.admit(&mut of(group, 7), written + 2, &groups).is_err());
            assert!(queued_bounds.admit(&mut of(group, 6), written + 2, &groups).is_ok());
        }
        queued_bounds.forget_applied(written);
        assert_eq!(queued_bounds.known.len(), 2, "there is room for them");
    }
}
