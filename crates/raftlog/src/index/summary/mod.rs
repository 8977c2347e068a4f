//! The summary of one segment: its net change, group by group.
//!
//! A segment's summary is built change by change while the segment is written, or while it is
//! scanned, and stands in the footer of a sealed one. A start merges the summaries of all segments
//! in order; that makes the same index as applying every change of every frame would.
//!
//! Of one group, in the order in which it takes effect: it was removed, with all that came before;
//! the entries of earlier segments were cut off at an index; its log begins at an index now; these
//! entries lie in the segment, in the place of any that have their indexes; these keys have new
//! values or are gone.
//!
//! Invariants:
//! - Entries and values that the segment itself has replaced are not in it.
//! - Its encoding takes at most `encoded_bytes_max`.

use crate::batch::frame::{Append, Change};
use encoding::{take, take_count};
use flotilla_base::id_hash::IdMap;
use flotilla_base::varint::{put_varint, take_u8};
use std::convert::Infallible;

mod bounds;
mod changes;
mod encoding;

pub(crate) use changes::{CompactionPoint, GroupChanges};

const VERSION: u8 = 1;

/// The net change of a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentSummary {
    groups: Vec<GroupChanges>,
    /// The index of each group in the list. Empty if the summary was decoded.
    places: IdMap<u32>,
    first_lsn: u64,
    frames: u64,
    entries: u64,
    discarded_below: u64,
    /// The end of the last item, counted from the beginning of the segment.
    items_end: u64,
    encoded_bytes_max: u64,
}

impl SegmentSummary {
    /// Counts a frame; its changes follow. Frames come in the order of the log.
    pub(crate) fn begin_frame(&mut self, lsn: u64) {
        if self.frames == 0 {
            self.first_lsn = lsn;
        }
        assert_eq!(lsn, self.first_lsn + self.frames, "a frame is missing in the summary");
        self.frames += 1;
    }

    /// Adds a change of the frame that begins at `frame_offset`.
    ///
    /// # Errors
    ///
    /// The change does not fit those before it. Writes are checked at admission, so this is a fault
    /// of the bytes that are scanned.
    pub(crate) fn apply(&mut self, change: &Change, frame_offset: u32) -> Result<(), &'static str> {
        match change {
            Change::Append(append) => {
                self.note_entries(append, frame_offset);
                self.encoded_bytes_max += self.group(append.group).append(append, frame_offset)?;
            }
            Change::Move(append) => {
                self.note_entries(append, frame_offset);
                self.encoded_bytes_max +=
                    self.group(append.group).relocate(append, frame_offset)?;
            }
            Change::Truncate { group, from } => {
                self.encoded_bytes_max += self.group(*group).cut(*from)?;
            }
            Change::Compact { group, first, term_before } => {
                let compaction = CompactionPoint { first: *first, term_before: *term_before };
                self.encoded_bytes_max += self.group(*group).compact(compaction)?;
            }
            Change::Put { group, key, value } => {
                self.encoded_bytes_max += self.group(*group).set(key, Some(value));
            }
            Change::Delete { group, key } => {
                self.encoded_bytes_max += self.group(*group).set(key, None);
            }
            Change::Remove { group } => {
                *self.group(*group) =
                    GroupChanges { is_removed: true, ..GroupChanges::new(*group) };
            }
            Change::Discard { below_segment } => {
                self.discarded_below = self.discarded_below.max(*below_segment);
            }
            Change::Stale => {}
        }
        Ok(())
    }

    /// The sequence number of the first frame; zero if there is none.
    pub(crate) fn first_lsn(&self) -> u64 {
        self.first_lsn
    }

    /// The sequence number of the last frame; zero if there is none.
    pub(crate) fn last_lsn(&self) -> u64 {
        (self.first_lsn + self.frames).saturating_sub(1)
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Entries that its frames hold, live or not.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// The first segment that is still needed, by the newest purge in the segment; zero if there is
    /// none.
    pub(crate) fn discarded_below(&self) -> u64 {
        self.discarded_below
    }

    /// The end of the last item, counted from the beginning of the segment.
    pub(crate) fn items_end(&self) -> u64 {
        self.items_end
    }

    /// The net change by group.
    pub(crate) fn into_groups(self) -> Vec<GroupChanges> {
        self.groups
    }

    /// The tombstones alone: removals and cuts, compactions, keys that are gone. To be called of a
    /// segment without live records, each of which a later segment has replaced or hidden.
    ///
    /// A compaction stays even if a later one is newer: a record that was rewritten in between has
    /// only those entries that this one has left.
    pub(crate) fn into_tombstones(mut self) -> SegmentSummary {
        self.groups.retain_mut(GroupChanges::reduce);
        (self.items_end, self.encoded_bytes_max) = (0, 0);
        let mut encoded = Vec::new();
        self.encode(&mut encoded);
        self.encoded_bytes_max = encoded.len() as u64;
        self
    }

    /// An upper bound of the encoded length, kept up to date by each change.
    pub(crate) fn encoded_bytes_max(&self) -> u64 {
        bounds::HEADER_BYTES_MAX + self.encoded_bytes_max
    }

    /// Adds the bytes to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let Ok(()) = self.encode_in_pieces(out, &mut |_| Ok::<_, Infallible>(()));
    }

    /// Adds the bytes to `out`, and calls `spill` after every few, which may take them out of it.
    ///
    /// # Errors
    ///
    /// Those of `spill`.
    pub(crate) fn encode_in_pieces<E>(
        &self,
        out: &mut Vec<u8>,
        spill: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        out.push(VERSION);
        for number in
            [self.first_lsn, self.frames, self.entries, self.discarded_below, self.items_end]
        {
            put_varint(out, number);
        }
        put_varint(out, self.groups.len() as u64);
        let mut groups: Vec<&GroupChanges> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|changes| changes.group);
        let mut before = 0;
        for changes in groups {
            put_varint(out, changes.group - before);
            encoding::put_group(out, changes, spill)?;
            before = changes.group;
        }
        Ok(())
    }

    /// Decodes the bytes of [`SegmentSummary::encode`]. Allocates at most about forty times as much
    /// as there are bytes, and that only if they are nothing but removals of groups; usually
    /// thrice.
    ///
    /// # Errors
    ///
    /// The bytes are no summary, or one that no segment can have.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentSummary, &'static str> {
        let mut input = bytes;
        let input = &mut input;
        if take_u8(input)? != VERSION {
            return Err("a summary has a form that this version does not know");
        }
        let mut summary = SegmentSummary {
            first_lsn: take(input)?,
            frames: take(input)?,
            entries: take(input)?,
            discarded_below: take(input)?,
            items_end: take(input)?,
            ..SegmentSummary::default()
        };
        summary.first_lsn.checked_add(summary.frames).ok_or(encoding::WRONG)?;
        // Each takes two bytes at least.
        let count = take_count(input, 2)?;
        summary.groups.reserve_exact(count);
        let mut before = None;
        for _ in 0..count {
            let group = take(input)?;
            let group = match before {
                None => group,
                Some(before) if group > 0 => group.checked_add(before).ok_or(encoding::WRONG)?,
                Some(_) => return Err(encoding::WRONG),
            };
            summary.groups.push(encoding::take_group(input, group, summary.items_end)?);
            before = Some(group);
        }
        if input.is_empty() { Ok(summary) } else { Err("something follows a summary") }
    }

    /// The changes of a group, made if there are none yet.
    fn group(&mut self, group: u64) -> &mut GroupChanges {
        let place = *self.places.entry(group).or_insert_with(|| {
            self.encoded_bytes_max += bounds::group_bytes_max(group);
            self.groups.push(GroupChanges::new(group));
            self.groups.len() as u32 - 1
        });
        &mut self.groups[place as usize]
    }

    fn note_entries(&mut self, append: &Append, frame_offset: u32) {
        self.entries += append.count;
        let begin = u64::from(frame_offset) + u64::from(append.offset);
        self.items_end = self.items_end.max(begin + u64::from(append.item_bytes));
    }
}

#[cfg(test)]
mod tests;
