//! Random calls against a model that keeps a row for each entry.

use super::*;
use crate::index::item_chunk::ITEMS_MAX;
use std::collections::BTreeMap;

/// Of an entry: segment, offset of its item, term.
type EntryRow = (u64, u32, u64);

#[derive(Default)]
struct Model {
    rows: BTreeMap<u64, EntryRow>,
}

impl Model {
    fn insert(&mut self, run: &EntryRun, terms: &[TermRun]) {
        let terms = terms.iter().flat_map(|(count, term)| vec![*term; *count as usize]);
        for (index, term) in (run.first..).zip(terms) {
            self.rows.insert(index, (run.segment, run.offset, term));
        }
    }

    /// The live part of each item.
    fn runs(&self) -> Vec<EntryRun> {
        let mut runs: Vec<EntryRun> = Vec::new();
        for (index, (segment, offset, _)) in &self.rows {
            match runs.last_mut() {
                Some(run) if (run.segment, run.offset) == (*segment, *offset) => run.end += 1,
                _ => runs.push(run(*index, 1, *segment, *offset)),
            }
        }
        runs
    }

    fn held(&self) -> BTreeMap<u64, LiveUsage> {
        let mut held = BTreeMap::<u64, LiveUsage>::new();
        for run in self.runs() {
            let (entries, bytes) = (run.end - run.first, u64::from(run.item_bytes));
            held.entry(run.segment).or_default().add(LiveUsage { entries, keys: 0, bytes });
        }
        held
    }

    /// The first index and the term of each stretch of one term, as far as there are no holes.
    fn terms(&self) -> Vec<(u64, u64)> {
        let mut terms: Vec<(u64, u64)> = Vec::new();
        for (index, (_, _, term)) in &self.rows {
            if terms.last().is_none_or(|(_, last)| last != term) {
                terms.push((*index, *term));
            }
        }
        terms
    }
}

fn run(first: u64, count: u64, segment: u64, offset: u32) -> EntryRun {
    // Each item has a size of its own, so that no sum is right by chance.
    EntryRun { first, end: first + count, segment, offset, item_bytes: offset * 7 % 97 + 1 }
}

fn held(extents: &Extents) -> BTreeMap<u64, LiveUsage> {
    let mut held = BTreeMap::<u64, LiveUsage>::new();
    extents.live().for_each(|(segment, live)| held.entry(segment).or_default().add(live));
    held
}

fn check(extents: &Extents, model: &Model, freed: &BTreeMap<u64, LiveUsage>) {
    let runs = model.runs();
    assert!(extents.runs_from(0).eq(runs.iter().copied()), "{extents:?}\n{runs:?}");
    assert_eq!(extents.first(), model.rows.keys().next().copied());
    assert_eq!(extents.end(), model.rows.keys().next_back().map(|last| last + 1));
    assert_eq!(extents.is_empty(), model.rows.is_empty());
    assert_eq!(extents.term_runs(), model.terms());
    assert_eq!(held(extents), model.held());
    assert_eq!(freed, &model.held(), "what was told to be freed");
    let is_hole = |pair: &[EntryRun]| pair[0].end < pair[1].first;
    assert_eq!(extents.has_hole(), runs.windows(2).any(is_hole));
    assert_eq!(extents.bytes(), runs.iter().map(|run| u64::from(run.item_bytes)).sum::<u64>());
    if let (Some(first), Some(end)) = (extents.first(), extents.end()) {
        for index in [first, first + 1, (first + end) / 2, end - 1, end] {
            let from = runs.iter().position(|run| run.end > index).unwrap_or(runs.len());
            assert!(extents.runs_from(index).eq(runs[from..].iter().copied()));
            if let Some((_, _, term)) = model.rows.get(&index) {
                assert_eq!(extents.term(index), *term);
            }
        }
    }
}

/// Terms for `count` entries, none below `term`.
fn terms(rng: &mut fastrand::Rng, count: u64, term: &mut u64) -> Vec<TermRun> {
    let first = rng.u64(1..=count);
    *term += u64::from(rng.u8(..40) == 0);
    let mut terms = vec![(first, *term)];
    if first < count {
        *term += 1;
        terms.push((count - first, *term));
    }
    terms
}

/// Moves the items of `from .. end` that are there to new places, each for itself.
fn moved(
    extents: &Extents,
    from: u64,
    end: u64,
    model: &Model,
    offset: &mut u32,
) -> Vec<(EntryRun, Vec<TermRun>)> {
    let within = |run: &EntryRun| from <= run.first && run.end <= end;
    let moved = extents.runs_from(from).filter(within).map(|old| {
        *offset += 1;
        let terms = (old.first..old.end).map(|index| (1, model.rows[&index].2)).collect();
        (run(old.first, old.end - old.first, 99, *offset), terms)
    });
    moved.collect()
}

/// Takes it apart at its holes and puts it together again: it is the same.
fn put_together(mut extents: Extents) -> Extents {
    let mut whole = Extents::default();
    while !extents.is_empty() {
        let stretch = extents.take_stretch();
        assert!(!stretch.has_hole());
        whole.join(stretch);
    }
    whole
}

#[test]
fn random_calls_agree_with_the_model() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut extents, mut model) = (Extents::default(), Model::default());
        let (mut usage, mut offset, mut term) = (BTreeMap::<u64, LiveUsage>::new(), 0, 1);
        let wide = rng.bool();
        for step in 0..if wide { 400 } else { 3000 } {
            let (first, end) = (extents.first().unwrap_or(1), extents.end().unwrap_or(50));
            let mut freed = Vec::new();
            let mut held = Vec::new();
            match rng.u8(..100) {
                0..90 => {
                    let count = if wide { rng.u64(1..9) } else { 1 };
                    let hole = if rng.u8(..100) == 0 { rng.u64(..5) } else { 0 };
                    offset += 1;
                    let new = run(end + hole, count, 1 + step / 150, offset);
                    let terms = terms(&mut rng, count, &mut term);
                    extents.push(new, &terms);
                    model.insert(&new, &terms);
                    held.push((new.segment, new.end - new.first, new.item_bytes));
                }
                90..94 => {
                    let from = end.saturating_sub(rng.u64(..20));
                    extents.truncate(from, |segment, live| freed.push((segment, live)));
                    model.rows.retain(|index, _| *index < from);
                }
                94..96 => {
                    let most = if rng.u8(..20) == 0 { 2000 } else { 30 };
                    let below = first + rng.u64(..most);
                    extents.drop_prefix(below, |segment, live| freed.push((segment, live)));
                    model.rows.retain(|index, _| *index >= below);
                }
                96..99 => {
                    let from = rng.u64(first..=end);
                    let new = moved(&extents, from, from + 40, &model, &mut offset);
                    let mut stretches = Extents::default();
                    for (run, terms) in &new {
                        held.push((run.segment, run.end - run.first, run.item_bytes));
                        stretches.push(*run, terms);
                        model.insert(run, terms);
                    }
                    while !stretches.is_empty() {
                        let free = |segment, live| freed.push((segment, live));
                        extents.relocate(stretches.take_stretch(), free).expect("no item is cut");
                    }
                }
                _ => extents = put_together(extents),
            }
            for (segment, entries, bytes) in held {
                let live = LiveUsage { entries, keys: 0, bytes: bytes.into() };
                usage.entry(segment).or_default().add(live);
            }
            for (segment, live) in freed {
                let row = usage.get_mut(&segment).expect("it was held");
                row.entries -= live.entries;
                row.bytes -= live.bytes;
            }
            usage.retain(|_, live| !live.is_empty());
            if step % if wide { 7 } else { 41 } == 0 {
                check(&extents, &model, &usage);
            }
        }
    }
}

#[test]
fn an_item_is_never_moved_in_part() {
    let mut extents = Extents::default();
    extents.push(run(5, 4, 1, 1), &[(4, 1)]);
    for (first, count) in [(5, 2), (6, 2), (7, 2), (3, 4)] {
        let mut part = Extents::default();
        part.push(run(first, count, 2, 2), &[(count, 1)]);
        assert!(extents.relocate(part, |_, _| panic!("nothing is freed")).is_err());
    }
    assert_eq!(extents.runs_from(0).collect::<Vec<_>>(), [run(5, 4, 1, 1)]);
}

#[test]
fn memory_is_about_eight_bytes_an_entry_and_is_given_back() {
    let mut extents = Extents::default();
    for index in 1..=100_000 {
        extents.push(run(index, 1, 1 + index / 10_000, index as u32), &[(1, 1)]);
    }
    let bytes = extents.memory_bytes();
    assert!(bytes < 850_000, "{bytes} bytes");
    extents.drop_prefix(99_000, |_, _| ());
    assert!(extents.memory_bytes() < 20_000, "{} bytes", extents.memory_bytes());
    extents.drop_prefix(200_000, |_, _| ());
    assert_eq!(extents.memory_bytes(), 0);

    let mut idle = Extents::default();
    idle.push(run(1, 1, 1, 1), &[(1, 1)]);
    assert!(size_of::<Extents>() as u64 + idle.memory_bytes() <= 250, "{}", idle.memory_bytes());
}

#[test]
fn chunks_are_full_however_the_log_came_together() {
    let mut extents = Extents::default();
    for first in (1..20_000).step_by(7) {
        let mut more = Extents::default();
        (first..first + 7).for_each(|i| more.push(run(i, 1, 1, i as u32), &[(1, 1)]));
        extents.join(more);
    }
    let mut counts: Vec<usize> = extents.chunks.iter().map(ItemChunk::item_count).collect();
    counts.pop();
    assert!(counts.len() > 30 && counts.iter().all(|c| *c > ITEMS_MAX - 7), "{counts:?}");
}
