//! Holes of the file: free space that was punched out, and that must be reserved before it is
//! written.
//!
//! Long free runs that stay free over some checkpoints are chosen to become holes of the file,
//! which `trim_punch` makes of them piece by piece, as far as they are free by then. A unit of a
//! hole that is allocated is reserved again by the checkpoint that is going to write it, before
//! that takes its cut: a full disk is so found when nothing has happened yet. The groups that have
//! holes are flagged in their records before the first hole is made, and as long as some are
//! chosen; after opening all that is free there counts as one.

use std::collections::VecDeque;

use crate::page::layout::{META_UNITS, group_of};
use crate::page::unit_set::UnitSet;
use crate::page::{Span, UNIT_BYTES};
use crate::space::freelist::Freelist;

/// No setting makes holes of shorter runs, which the freelist does not find quickly: 512 KiB.
const RUN_UNITS_LEAST: u32 = 128;

/// Checkpoints, at least, between two looks at the free runs. A run that both see becomes a hole.
const CHECKPOINTS: u64 = 8;

/// Groups that one checkpoint looks at: 8 GiB.
const GROUPS_MAX: usize = 64;

/// Units that are chosen at a time: 1 GiB.
const UNITS_MAX: u64 = 1 << 18;

/// The holes of a file, and the runs that are going to be.
#[derive(Default)]
pub(crate) struct Holes {
    /// Shorter runs stay.
    run_units_min: u32,
    /// Units of holes, counted from the first group on.
    units: UnitSet,
    count: u64,
    /// How many of them each group has.
    by_group: Vec<u32>,
    /// Units that were allocated out of holes, and are not reserved yet.
    unreserved: VecDeque<Span>,
    /// The long free runs of the last look at all groups, rising; without those of the groups that
    /// were looked at again since.
    seen: VecDeque<Span>,
    /// Those of the look that is under way.
    seen_now: VecDeque<Span>,
    /// The group at which the look goes on; 0 if none is under way.
    next_group: usize,
    /// Runs that are going to be holes; durable records flag their groups.
    chosen: VecDeque<Span>,
}

impl Holes {
    /// No holes, in a store that makes them of free runs of `punch_bytes`.
    pub(crate) fn new(punch_bytes: u64) -> Self {
        let units = u32::try_from(punch_bytes / UNIT_BYTES as u64).unwrap_or(u32::MAX);
        Self { run_units_min: units.max(RUN_UNITS_LEAST), ..Self::default() }
    }

    /// How many units are holes.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a group has holes.
    fn has(&self, group: usize) -> bool {
        self.by_group.get(group).is_some_and(|&count| count > 0)
    }

    /// A predicate of the groups that have holes, or will have once `chosen` is noted.
    pub(crate) fn groups(&self, chosen: &[Span]) -> impl Fn(usize) -> bool {
        let mut soon = UnitSet::default();
        for span in self.chosen.iter().chain(chosen) {
            soon.insert(group_of(span.start) as u64);
        }
        move |group| self.has(group) || soon.contains(group as u64)
    }

    /// Notes that a free span is a hole now.
    pub(crate) fn add(&mut self, span: Span) {
        let group = group_of(span.start);
        if self.by_group.len() <= group {
            self.by_group.resize(group + 1, 0);
        }
        let (at, units) = (span.start - META_UNITS, u64::from(span.units));
        let new = units - self.hole_units(span);
        debug_assert_eq!(group, group_of(span.end() - 1), "{span:?} crosses the border of a group");
        self.units.insert_run(at, units);
        self.count += new;
        self.by_group[group] += new as u32;
    }

    /// Notes that a span was given out.
    pub(crate) fn give_out(&mut self, span: Span) {
        if self.count > 0 && self.has(group_of(span.start)) && self.forget(span) {
            self.unreserved.push_back(span);
        }
    }

    /// Notes that a span is no part of the file any more, or no hole. True if some of it was.
    pub(crate) fn forget(&mut self, span: Span) -> bool {
        let removed = self.units.remove_run(span.start - META_UNITS, u64::from(span.units));
        if removed > 0 {
            assert!(removed <= self.count, "{span:?} has more holes than there are");
            self.count -= removed;
            self.by_group[group_of(span.start)] -= removed as u32;
        }
        removed > 0
    }

    /// Whether something has to be reserved before the next checkpoint writes.
    pub(crate) fn are_unreserved(&self) -> bool {
        !self.unreserved.is_empty()
    }

    /// The spans to reserve in a file that ends at `end`, in the order of allocation.
    pub(crate) fn unreserved_before(&mut self, end: u64) -> &[Span] {
        self.unreserved.retain_mut(|span| {
            let units = end.saturating_sub(span.start).min(u64::from(span.units));
            span.units = units as u32;
            units > 0
        });
        self.unreserved.make_contiguous()
    }

    /// Notes that the first of them is reserved now.
    pub(crate) fn note_reserved(&mut self) {
        assert!(!self.unreserved.is_empty(), "a span is reserved twice");
        self.unreserved.pop_front();
    }

    /// The runs to make holes of once checkpoint `number` is durable: long runs that were free when
    /// their group was looked at last, eight checkpoints before or more, and are free now. None as
    /// long as some are left of the last choice. Each checkpoint looks at some groups only, so its
    /// cost does not grow with the file.
    pub(crate) fn choose(&mut self, freelist: &Freelist, number: u64) -> Vec<Span> {
        if self.next_group == 0 && !number.is_multiple_of(CHECKPOINTS) {
            return Vec::new();
        }
        let groups = self.next_group..self.next_group + GROUPS_MAX;
        let now = freelist.long_runs(groups.clone(), self.run_units_min);
        let seen = self.seen.partition_point(|span| group_of(span.start) < groups.end);
        let before = self.seen.drain(..seen).collect::<Vec<_>>();
        let mut chosen = Vec::new();
        let mut units = 0;
        for span in common(&before, &now) {
            let is_hole = self.hole_units(span) == u64::from(span.units);
            let wanted = span.units >= self.run_units_min && !is_hole;
            if wanted && units < UNITS_MAX && self.chosen.is_empty() {
                units += u64::from(span.units);
                chosen.push(span);
            }
        }
        debug_assert!(now.is_sorted_by(|a, b| a.end() <= b.start), "runs do not rise");
        self.seen_now.extend(now);
        self.next_group = groups.end;
        if groups.end >= freelist.group_count() {
            self.next_group = 0;
            self.seen = std::mem::take(&mut self.seen_now);
        }
        chosen
    }

    fn hole_units(&self, span: Span) -> u64 {
        self.units.count_run(span.start - META_UNITS, u64::from(span.units))
    }

    /// Notes the chosen runs, whose groups durable records flag.
    pub(crate) fn note_chosen(&mut self, spans: Vec<Span>) {
        debug_assert!(spans.is_empty() || self.chosen.is_empty(), "a choice while one is left");
        self.chosen.extend(spans);
    }

    /// Gives up the chosen runs.
    pub(crate) fn forget_chosen(&mut self) {
        self.chosen.clear();
    }

    /// How many units are chosen, some of which may not be free any more.
    pub(crate) fn chosen_units(&self) -> u64 {
        self.chosen.iter().map(|span| u64::from(span.units)).sum()
    }

    /// Takes up to `units` units of the chosen runs; they may not be free any more.
    pub(crate) fn next_chosen(&mut self, units: u32) -> Option<Span> {
        let span = self.chosen.pop_front()?;
        assert!(units > 0 && span.units > 0, "a piece of no units");
        let piece = Span { units: span.units.min(units), ..span };
        if piece.units < span.units {
            let rest = Span { start: piece.end(), units: span.units - piece.units };
            self.chosen.push_front(rest);
        }
        Some(piece)
    }
}

/// The intersection of two rising lists of spans.
fn common(one: &[Span], other: &[Span]) -> Vec<Span> {
    let (mut i, mut j) = (0, 0);
    let mut common = Vec::new();
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let (start, end) = (a.start.max(b.start), a.end().min(b.end()));
        if start < end {
            common.push(Span { start, units: (end - start) as u32 });
        }
        if a.end() < b.end() { i += 1 } else { j += 1 }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::layout::GROUP_UNITS;

    fn span(start: u64, units: u32) -> Span {
        Span { start, units }
    }

    #[test]
    fn what_both_have_is_common() {
        let one = [span(10, 10), span(30, 5), span(50, 10)];
        let other = [span(0, 12), span(15, 20), span(55, 1), span(58, 9)];
        let both = [span(10, 2), span(15, 5), span(30, 5), span(55, 1), span(58, 2)];
        assert_eq!(common(&one, &other), both);
        assert_eq!(common(&other, &one), both);
    }

    #[test]
    fn runs_become_holes_that_stay_free() {
        let mut list = Freelist::new();
        let all = list.allocate(3000).unwrap();
        let part = |from: u64, units| span(all.start + from, units);
        for run in [part(0, 300), part(1000, 255), part(2000, 900)] {
            list.release(run);
        }
        let mut holes = Holes::new(1 << 20);
        assert_eq!(holes.choose(&list, 8), []);
        assert_eq!(holes.choose(&list, 9), []);
        let taken = part(0, 270);
        list.take_free(taken);
        let chosen = holes.choose(&list, 16);
        assert_eq!(chosen, [part(2000, 900)]);
        holes.note_chosen(chosen);
        assert!(holes.groups(&[])(0) && !holes.has(0));
        assert_eq!(holes.choose(&list, 24), [], "there is enough to do");
        let pieces = std::iter::from_fn(|| holes.next_chosen(500)).collect::<Vec<_>>();
        assert_eq!(pieces, [part(2000, 500), part(2500, 400)]);
        pieces.into_iter().for_each(|piece| holes.add(piece));
        assert_eq!((holes.count(), holes.groups(&[])(0), holes.has(1)), (900, true, false));
        assert_eq!(holes.choose(&list, 32), []);
        holes.give_out(taken);
        assert!(!holes.are_unreserved());
        holes.give_out(part(1999, 2));
        assert_eq!((holes.count(), holes.unreserved_before(u64::MAX)), (899, &[part(1999, 2)][..]));
        holes.give_out(part(2500, 10));
        let end = all.start + 2504;
        assert_eq!(holes.unreserved_before(end), [part(1999, 2), part(2500, 4)]);
        holes.note_reserved();
        assert_eq!(holes.unreserved_before(all.start + 2500), []);
        assert!(!holes.are_unreserved());
    }

    #[test]
    fn large_file_is_looked_at_in_parts() {
        let mut list = Freelist::new();
        let per_region = GROUP_UNITS as u32 - 2;
        let groups = (0..2 * GROUPS_MAX + 3).map(|_| list.allocate(per_region).unwrap());
        let runs = groups.map(|all| span(all.start + 1000, 300)).collect::<Vec<_>>();
        runs.iter().for_each(|&run| list.release(run));
        let mut holes = Holes::new(1 << 20);
        assert!((1..8).all(|number| holes.choose(&list, number).is_empty()));
        assert!(
            (8..16).all(|number| holes.choose(&list, number).is_empty()),
            "seen for the first time"
        );
        let gone = runs[GROUPS_MAX + 1];
        list.take_free(gone);
        let parts = (16..24).map(|number| holes.choose(&list, number)).collect::<Vec<_>>();
        let counts = parts.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts, [GROUPS_MAX, GROUPS_MAX - 1, 3, 0, 0, 0, 0, 0]);
        let kept = runs.into_iter().filter(|&run| run != gone).collect::<Vec<_>>();
        assert_eq!(parts.concat(), kept);
        let groups = holes.groups(&kept[..1]);
        assert!(groups(0) && !groups(1));
    }
}
