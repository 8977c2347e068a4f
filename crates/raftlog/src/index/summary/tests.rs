//! Random histories over random segments: merged summaries make the index that the changes made.

use super::*;
use crate::batch::frame::EntryRun;
use crate::format::item::TermRuns;
use crate::index::groups::{FrameLocation, Groups};
use crate::index::segment_usage::{LiveUsage, SegmentUsage};
use bytes::Bytes;

/// All that can be seen of one group.
#[derive(Debug, PartialEq)]
struct Seen {
    group: u64,
    log: (bool, bool, u64, u64),
    term_before: Option<u64>,
    terms: Vec<(u64, u64)>,
    runs: Vec<EntryRun>,
    keys: Vec<(Bytes, Bytes)>,
}

fn seen(groups: &Groups) -> Vec<Seen> {
    let mut all = Vec::new();
    groups.each(|group, index| {
        let (first, next) = (index.first(), index.next());
        all.push(Seen {
            group,
            log: (index.has_begun(), index.is_compacted(), first, next),
            term_before: index.term(first - 1).ok(),
            terms: index.term_runs(),
            runs: index.runs_from(0).collect(),
            keys: index.scan(),
        });
    });
    all
}

/// A log in the making: what is in memory, and the summary of each segment.
struct History {
    rng: fastrand::Rng,
    groups: Groups,
    usage: SegmentUsage,
    /// Of segment 1 and so on.
    summaries: Vec<SegmentSummary>,
    lsn: u64,
    offset: u32,
    term: u64,
    /// Ids of the groups, and about where their logs begin. Some are large, for long varints.
    ids: Vec<u64>,
    base: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = if rng.bool() { 4 } else { 30 };
        let id = |rng: &mut fastrand::Rng| rng.u64(..) >> rng.u32(..64);
        History {
            ids: (0..count).map(|_| id(&mut rng)).collect(),
            base: rng.u64(..) >> rng.u32(2..64),
            rng,
            groups: Groups::default(),
            usage: SegmentUsage::default(),
            summaries: vec![SegmentSummary::default()],
            lsn: 0,
            offset: 64,
            term: 1 << (seed % 40),
        }
    }

    fn segment(&self) -> u64 {
        self.summaries.len() as u64
    }

    /// Writes a frame; each change is valid after those before it.
    fn frame(&mut self) {
        self.lsn += 1;
        let summary = self.summaries.last_mut().expect("there is a segment");
        summary.begin_frame(self.lsn);
        let frame = self.offset;
        self.offset += 40;
        let rewrite = self.rng.u8(..8) == 0;
        let changes = if rewrite { self.rewrite() } else { Vec::new() };
        for change in changes {
            self.apply(change, frame);
        }
        for _ in 0..self.rng.usize(..self.ids.len()) {
            let change = self.change(frame);
            self.apply(change, frame);
        }
        self.offset += self.rng.u32(1..9);
    }

    fn apply(&mut self, change: Change, frame: u32) {
        let place = FrameLocation { segment: self.segment(), offset: frame, lsn: self.lsn };
        let summary = self.summaries.last_mut().expect("there is a segment");
        summary.apply(&change, frame).unwrap_or_else(|what| panic!("{what}: {change:?}"));
        self.groups.apply(&change, place, &mut self.usage).expect("it was valid");
    }

    fn begin_segment(&mut self) {
        self.summaries.push(SegmentSummary::default());
        self.offset = 64;
    }

    fn change(&mut self, frame: u32) -> Change {
        let group = self.ids[self.rng.usize(..self.ids.len())];
        let log = self.groups.get(group);
        let log = log.as_ref().map(|index| index.read()).filter(|index| index.has_begun());
        let log = log.map(|index| (index.first(), index.next()));
        let (first, next) = log.unwrap_or((1, 1));
        let rng = &mut self.rng;
        let key = Bytes::copy_from_slice(&[b'k', rng.u8(..3)]);
        match rng.u8(..100) {
            0..50 => {
                let begin = match (log, rng.u8(..10)) {
                    (None, _) => self.base + rng.u64(1..60),
                    (Some(_), 0) => rng.u64(first..=next),
                    _ => next,
                };
                self.append(group, begin, frame)
            }
            50..58 => {
                Change::Truncate { group, from: rng.u64(first.max(next.saturating_sub(5))..=next) }
            }
            58..75 => {
                let far = if rng.u8(..8) == 0 { next + 5 } else { next };
                Change::Compact { group, first: rng.u64(first..=far), term_before: self.term }
            }
            75..88 => Change::Put { group, key, value: vec![7; rng.usize(..9)].into() },
            88..94 => Change::Delete { group, key },
            94..96 => Change::Remove { group },
            96..98 => Change::Stale,
            _ => Change::Discard { below_segment: 1 + self.segment() / 2 },
        }
    }

    fn append(&mut self, group: u64, first: u64, frame: u32) -> Change {
        let mut terms = TermRuns::new();
        for _ in 0..self.rng.u8(1..3) {
            let count = if self.rng.u8(..3) == 0 { self.rng.u64(2..5) } else { 1 };
            self.term += u64::from(self.rng.u8(..6) == 0);
            match terms.last_mut() {
                Some((before, term)) if *term == self.term => *before += count,
                _ => terms.push((count, self.term)),
            }
        }
        let count = terms.iter().map(|(count, _)| count).sum();
        let item_bytes = self.rng.u32(1..3000);
        let offset = self.offset - frame;
        self.offset += item_bytes;
        Change::Append(Append { group, first, count, terms, offset, item_bytes })
    }

    /// Moves some of what the oldest segment holds: entries, keys, marks.
    fn rewrite(&mut self) -> Vec<Change> {
        let Some(oldest) = (1..self.segment()).find(|segment| !self.usage.is_dead(*segment)) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        let frame = self.offset - 40;
        for (group, held) in self.groups.groups_in(oldest) {
            let index = self.groups.get(group).expect("it holds something");
            let index = index.read();
            for run in index.runs_from(0) {
                if run.segment != oldest || self.rng.u8(..4) == 0 {
                    continue;
                }
                let terms =
                    (run.first..run.end).map(|at| (1, index.term(at).expect("it is there")));
                changes.push(Change::Move(Append {
                    group,
                    first: run.first,
                    count: run.end - run.first,
                    terms: terms.collect(),
                    offset: self.offset - frame,
                    item_bytes: run.item_bytes,
                }));
                self.offset += run.item_bytes;
            }
            if held.keys > 0 && self.rng.bool() {
                let put = |(key, value)| Change::Put { group, key, value };
                changes.extend(index.scan().into_iter().map(put));
                let first = index.first();
                if let Ok(term_before) = index.term(first - 1)
                    && index.is_compacted()
                {
                    changes.push(Change::Compact { group, first, term_before });
                }
            }
        }
        changes
    }

    /// The index that a restart makes if the segments below `from` are gone.
    fn merged(&self, from: u64) -> (Groups, SegmentUsage) {
        let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
        for (segment, summary) in (1..).zip(&self.summaries).filter(|(segment, _)| *segment >= from)
        {
            let mut bytes = Vec::new();
            summary.encode(&mut bytes);
            let max = summary.encoded_bytes_max();
            assert!(bytes.len() as u64 <= max, "{} bytes, at most {max} were said", bytes.len());
            let read = SegmentSummary::decode(&bytes).expect("it was written so");
            let counts = |s: &SegmentSummary| {
                (
                    s.first_lsn(),
                    s.last_lsn(),
                    s.frames(),
                    s.entries(),
                    s.discarded_below(),
                    s.items_end(),
                )
            };
            assert_eq!(counts(&read), counts(summary));
            let mut again = Vec::new();
            read.encode(&mut again);
            assert_eq!(again, bytes);
            let merged = groups.merge(read, segment, &mut usage);
            merged.unwrap_or_else(|what| panic!("segment {segment}: {what}"));
        }

        groups.check_replayed().expect("nothing is missing");
        (groups, usage)
    }

    fn check(&mut self) {
        let last = self.segment();
        let oldest = (1..=last).find(|segment| !self.usage.is_dead(*segment)).unwrap_or(last);
        let expected = seen(&self.groups);
        for from in [1, oldest, self.rng.u64(1..=oldest)] {
            let (groups, usage) = self.merged(from);
            assert_eq!(seen(&groups), expected, "from segment {from} of {last} on");
            for segment in 1..=last {
                assert_eq!(usage.live(segment), self.usage.live(segment), "segment {segment}");
                let held = |groups: &Groups| {
                    let mut sum = LiveUsage::default();
                    groups.groups_in(segment).into_iter().for_each(|(_, live)| sum.add(live));
                    sum
                };
                assert_eq!(held(&groups), usage.live(segment), "segment {segment}");
            }
        }
    }
}

#[test]
fn merged_summaries_make_the_index_that_the_changes_made() {
    let mut purged = 0;
    for seed in 0..150 {
        let mut history = History::new(seed);
        let frames_a_segment = history.rng.u32(1..30);
        for _ in 0..120 {
            history.frame();
            if history.rng.u32(..frames_a_segment) == 0 {
                history.begin_segment();
            }
            if history.rng.u8(..12) == 0 {
                history.check();
            }
        }
        history.check();
        purged += u32::from(history.usage.is_dead(1) && history.segment() > 3);
    }
    assert!(purged > 40, "only {purged} histories let go of their first segment");
}

#[test]
fn what_a_summary_takes_is_known_before() {
    // All groups alike, so that nothing is made up for by the others.
    type Build = fn(u64) -> Vec<Change>;
    let histories: [Build; 9] = [
        |group| vec![append(group, BASE, 1, BIG, 1)],
        |group| vec![append(group, BASE, 5, 1, BIG), append(group, BASE + 5, 1, 2, 1)],
        |group| vec![append(group, BASE, 1, BIG, 1), append(group, BASE - 1, 1, BIG, 1)],
        |group| vec![moved(group, 1, BIG), append(group, BASE, 1, 1, BIG), moved(group, 9, 7)],
        |group| vec![moved(group, BASE, 1), moved(group, BASE + 1, BIG), moved(group, 2, 1)],
        |group| {
            vec![
                append(group, 1, 1, 1, 1),
                Change::Compact { group, first: BASE, term_before: BIG },
            ]
        },
        |group| {
            vec![
                append(group, BASE, 1, 1, BIG),
                append(group, BASE + 1, 9, 1, BIG),
                Change::Compact { group, first: BASE + 1, term_before: BIG },
                Change::Compact { group, first: BASE + 7, term_before: BIG },
            ]
        },
        |group| {
            vec![Change::Truncate { group, from: BASE }, Change::Delete { group, key: "k".into() }]
        },
        |group| {
            vec![
                Change::Put { group, key: "k".into(), value: vec![1; 200].into() },
                Change::Delete { group, key: "k".into() },
                Change::Remove { group },
            ]
        },
    ];
    for (at, history) in histories.into_iter().enumerate() {
        let mut summary = SegmentSummary::default();
        for group in 0..500 {
            for (frame, change) in (0..).zip(history(group)) {
                summary.apply(&change, 64 + frame * 5000).expect("it is right");
            }
        }
        let mut bytes = Vec::new();
        summary.encode(&mut bytes);
        let (bytes, max) = (bytes.len() as u64, summary.encoded_bytes_max());
        assert!(bytes <= max, "history {at}: {bytes} bytes, at most {max} were said");
    }
}

const BASE: u64 = 1 << 62;
const BIG: u64 = 1 << 60;

/// `count` entries, each with a term of its own, from `term` on; of much or of little data.
fn append(group: u64, first: u64, count: u64, term: u64, bytes: u64) -> Change {
    let (offset, item_bytes) = if bytes == BIG { (4 << 20, 8 << 20) } else { (40, 9) };
    let terms = (term..term + count).map(|term| (1, term)).collect();
    Change::Append(Append { group, first, count, terms, offset, item_bytes })
}

fn moved(group: u64, first: u64, term: u64) -> Change {
    let Change::Append(append) = append(group, first, 1, term, BIG) else { unreachable!() };
    Change::Move(append)
}

#[test]
fn changes_that_do_not_fit_are_refused() {
    let compact = |group, first| Change::Compact { group, first, term_before: 1 };
    for change in [append(1, 9, 1, 1, 1), moved(1, 9, 1), compact(1, 9)] {
        let mut summary = SegmentSummary::default();
        summary.apply(&compact(1, 10), 64).expect("it is right");
        assert!(summary.apply(&change, 90).is_err(), "{change:?}");

        let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
        let (mut before, mut behind) = (SegmentSummary::default(), SegmentSummary::default());
        before.apply(&compact(1, 10), 64).expect("it is right");
        behind.apply(&change, 64).expect("it does not know what was before");
        groups.merge(before, 1, &mut usage).expect("it is right");
        assert!(groups.merge(behind, 2, &mut usage).is_err(), "{change:?}");
    }
    // A hole that nothing fills.
    let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
    let mut summary = SegmentSummary::default();
    for first in [5, 7] {
        summary.apply(&append(1, first, 1, 1, 1), 64).expect("the rest may lie elsewhere");
    }
    groups.merge(summary, 1, &mut usage).expect("the rest may come later");
    assert!(groups.check_replayed().is_err());
}

#[test]
fn no_bytes_whatever_make_reading_panic() {
    let mut history = History::new(7);
    for _ in 0..60 {
        history.frame();
    }
    let mut whole = Vec::new();
    history.summaries[0].encode(&mut whole);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        if rng.bool() {
            bytes.truncate(rng.usize(..=bytes.len()));
        }
        let Ok(summary) = SegmentSummary::decode(&bytes) else { continue };
        read += 1;
        let mut again = Vec::new();
        summary.encode(&mut again);
        assert!(SegmentSummary::decode(&again).is_ok());
        let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
        if groups.merge(summary, 1, &mut usage).is_ok() {
            let _ = groups.check_replayed();
            seen(&groups);
        }
    }
    assert!(read > 500, "only {read} were summaries");
}

#[test]
fn golden_bytes_of_a_summary() {
    let mut summary = SegmentSummary::default();
    summary.begin_frame(300);
    let changes = [
        append(7, 5, 2, 3, 1),
        Change::Put { group: 7, key: "k".into(), value: "vw".into() },
        Change::Delete { group: 7, key: "gone".into() },
        Change::Remove { group: 9 },
        Change::Discard { below_segment: 2 },
    ];
    for (frame, change) in (0..).zip(&changes) {
        summary.apply(change, 64 + frame).expect("it is right");
    }
    let compact = Change::Compact { group: 7, first: 6, term_before: 3 };
    summary.apply(&compact, 100).expect("it is right");
    summary.apply(&moved(9, 4, 8), 64).expect("it is right");
    let mut bytes = Vec::new();
    summary.encode(&mut bytes);
    let golden: [&[u8]; 11] = [
        &[1],                               // version
        &[0xac, 2, 1, 3, 2],                // first lsn, frames, entries, discarded below
        &[0xc0, 0x80, 0x80, 6, 2],          // end of the items, groups
        &[7, 2 | 8 | 16 | 32, 5, 6, 3],     // group, flags, cut from, mark
        &[1, 6, 1, 1, 4],                   // stretches, first; terms: rows, count and term
        &[1, 0xd0, 1, 18],                  // items, distance, length
        &[2, 4, b'g', b'o', b'n', b'e', 0], // keys
        &[1, b'k', 3, b'v', b'w'],
        &[2, 1 | 16],                                   // group, flags
        &[1, 4, 1, 1, 8], // stretches, first; terms: rows, count and term
        &[1, 0x80, 0x81, 0x80, 4, 0x80, 0x80, 0x80, 8], // items, distance, length
    ];
    assert_eq!(bytes, golden.concat());
}
