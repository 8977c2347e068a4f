//! The freelist against a bitmap that is searched unit by unit.

use std::collections::BTreeSet;

use super::*;

/// Free units, found by looking.
#[derive(Default)]
struct Model {
    free: BTreeSet<u64>,
    end: u64,
}

fn check(list: &Freelist, model: &Model) {
    let mut seen = BTreeSet::new();
    for span in list.spans() {
        assert!(span.units > 0);
        for unit in span.start..span.end() {
            assert!(seen.insert(unit), "unit {unit} is in two spans");
        }
    }
    assert_eq!(seen, model.free);
    assert_eq!(list.free_units(), model.free.len() as u64);
    let mut spans: Vec<Span> = list.spans().collect();
    spans.sort();
    for pair in spans.windows(2) {
        let apart = pair[0].end() < pair[1].start;
        assert!(apart || group_of(pair[0].start) != group_of(pair[1].start), "{pair:?} touch");
    }
}

fn allocate(list: &mut Freelist, model: &mut Model, units: u32) -> Span {
    let span = list.allocate(units).expect("far below 16 TiB");
    assert_eq!(span.units, units);
    assert_eq!(group_of(span.start), group_of(span.end() - 1), "{span:?} crosses a border");
    let head = group_start(group_of(span.start)) + HEAD_UNITS;
    assert!(span.start >= head, "{span:?} lies on a bitmap");
    enter(list, model, span);
    span
}

/// Notes what was given out.
fn enter(list: &Freelist, model: &mut Model, span: Span) {
    let old_end = model.end;
    model.end = list.end();
    for unit in old_end..model.end {
        if unit >= group_start(group_of(unit)) + HEAD_UNITS {
            model.free.insert(unit);
        }
    }
    for unit in span.start..span.end() {
        assert!(model.free.remove(&unit), "unit {unit} was not free");
    }
}

/// Gives up the free tail, and finds it by looking.
fn trim(list: &mut Freelist, model: &mut Model) {
    let mut end = model.end;
    while end > META_UNITS {
        let start = group_start(group_of(end - 1));
        if !model.free.contains(&(end - 1)) && end > start + HEAD_UNITS {
            break;
        }
        end -= 1;
    }
    assert_eq!(list.used_end(), end);
    assert!(!list.trim(model.end - end + 1));
    assert_eq!(list.trim(1), end < model.end);
    model.free.split_off(&end);
    model.end = end;
    assert_eq!(list.end(), end);
}

#[test]
fn free_tail_is_given_up() {
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut list = Freelist::new();
        let mut model = Model { end: META_UNITS, ..Model::default() };
        let mut held: Vec<Span> = Vec::new();
        for step in 0..200 {
            if rng.bool() || held.is_empty() {
                held.push(allocate(
                    &mut list,
                    &mut model,
                    rng.u32(1..=[9, 3000][seed as usize % 2]),
                ));
            } else {
                // The last ones mostly, so that there is a tail.
                held.sort();
                let from = if rng.u32(..4) == 0 { 0 } else { held.len() - 1 };
                let span = held.swap_remove(rng.usize(from..held.len()));
                model.free.extend(span.start..span.end());
                list.release(span);
            }
            if step % 10 == 0 {
                trim(&mut list, &mut model);
                check(&list, &model);
            }
        }
        for span in held.drain(..) {
            model.free.extend(span.start..span.end());
            list.release(span);
        }
        trim(&mut list, &mut model);
        assert_eq!((list.end(), list.free_units()), (META_UNITS, 0));
    }
}

#[test]
fn units_beyond_the_limit_come_last() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut list = Freelist::new();
        let mut model = Model { end: META_UNITS, ..Model::default() };
        let mut held: Vec<Span> =
            (0..400).map(|_| allocate(&mut list, &mut model, rng.u32(1..=300))).collect();
        let limit = rng.u64(META_UNITS..list.end() + 9);
        for step in 0..600 {
            if step == 100 {
                list.set_limit(Some(limit));
            } else if step == 500 {
                list.set_limit(None);
            }
            if rng.bool() && !held.is_empty() {
                let span = held.swap_remove(rng.usize(..held.len()));
                model.free.extend(span.start..span.end());
                list.release(span);
            } else {
                let units = rng.u32(1..=30);
                if (100..500).contains(&step) && rng.bool() {
                    let Some(span) = list.allocate_below(units) else { continue };
                    assert!(span.end() <= limit, "{span:?} {limit}");
                    enter(&list, &mut model, span);
                    held.push(span);
                } else {
                    let free = list.free_units();
                    let span = allocate(&mut list, &mut model, units);
                    held.push(span);
                    // One unit always fits below if there is one.
                    let below = model.free.range(..limit).next().is_some();
                    let forced = !(100..500).contains(&step) || span.start < limit || units > 1;
                    assert!(forced || !below, "{span:?} {limit} {free}");
                }
            }
            if step % 100 == 50 {
                check(&list, &model);
            }
        }
    }
}

#[test]
fn agrees_with_a_bitmap() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut list = Freelist::new();
        let mut model = Model { end: META_UNITS, ..Model::default() };
        let mut held = Vec::new();
        let units_max = [3, 40, 300, 2000][seed as usize % 4];
        for step in 0..600 {
            if held.is_empty() || rng.u32(..100) < 55 {
                held.push(allocate(&mut list, &mut model, rng.u32(1..=units_max)));
            } else {
                let span = held.swap_remove(rng.usize(..held.len()));
                model.free.extend(span.start..span.end());
                list.release(span);
            }
            if step % 200 == 0 && units_max < 2000 {
                check(&list, &model);
            }
        }
        check(&list, &model);
        let mut used = UnitSet::default();
        for span in &held {
            for unit in span.start..span.end() {
                used.insert(unit - META_UNITS);
            }
        }
        check(&Freelist::restore(&used, list.end()), &model);
        for span in held.drain(..) {
            model.free.extend(span.start..span.end());
            list.release(span);
        }
        check(&list, &model);
        assert_eq!(list.spans().count(), group_of(list.end() - 1) + 1, "all merged again");
    }
}

#[test]
fn takes_the_best_fit_and_the_lowest_region() {
    let mut list = Freelist::new();
    let big = list.allocate(4000).unwrap();
    let part = |from: u64, units| Span { start: big.start + from, units };
    list.release(part(0, 9));
    list.release(part(20, 5));
    list.release(part(40, 6));
    assert_eq!(list.allocate(5).unwrap(), part(20, 5));
    assert_eq!(list.allocate(5).unwrap(), part(40, 5));
    assert_eq!(list.allocate(1).unwrap(), part(45, 1));
    assert_eq!(list.allocate(8).unwrap(), part(0, 8));
    let end = list.end();
    let far = list.allocate(u32::try_from(GROUP_UNITS).unwrap() - 10).unwrap();
    assert!(group_of(far.start) == 1 && end < far.start);
    list.release(Span { start: far.start, units: 1 });
    assert_eq!(list.allocate(1).unwrap(), part(8, 1));
}

#[test]
fn grows_together_with_the_free_tail() {
    let mut list = Freelist::new();
    let first = list.allocate(10).unwrap();
    list.release(Span { start: first.start + 6, units: 4 });
    let end = list.end();
    let second = list.allocate(7).unwrap();
    assert_eq!((second.start, list.end()), (first.start + 6, end + 3));
    assert_eq!(list.free_units(), 0);
}

#[test]
#[should_panic(expected = "freed twice")]
fn double_release_is_noticed() {
    let mut list = Freelist::new();
    let span = list.allocate(3).unwrap();
    list.allocate(1).unwrap();
    list.release(span);
    list.release(span);
}
