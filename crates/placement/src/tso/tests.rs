//! The clock, alone and in the hands of many leaders.

use super::*;
use crate::rows::encode;
use std::collections::BTreeMap;
use std::ops::Range;

fn ready(now_ms: u64) -> Tso {
    let mut tso = Tso::recover(None).unwrap();
    tso.wants(now_ms).unwrap();
    tso.complete(SwapResult::Done).unwrap();
    tso
}

#[test]
fn nothing_before_the_window_is_written() {
    let mut tso = Tso::recover(None).unwrap();
    assert_eq!(tso.take(1_000, 1), Err(TsoError::NotYet));
    let swap = tso.wants(1_000).unwrap();
    assert_eq!(swap, RowSwap { key: TSO_KEY, expected: None, value: encode(1_000 + WINDOW_MS) });
    assert_eq!(tso.take(1_000, 1), Err(TsoError::NotYet));
    tso.complete(SwapResult::Done).unwrap();
    assert_eq!(tso.take(1_000, 1), Ok(Timestamp { physical_ms: 1_000, logical: 1 }));
}

#[test]
fn a_batch_ends_at_its_last_member() {
    let mut tso = ready(50);
    assert_eq!(tso.take(50, 10).unwrap().logical, 10);
    assert_eq!(tso.take(50, 5).unwrap().logical, 15);
    assert_eq!(tso.take(51, 5), Ok(Timestamp { physical_ms: 51, logical: 5 }));
}

#[test]
fn a_full_millisecond_borrows_the_next() {
    let mut tso = ready(50);
    let most = LOGICAL_END - 1;
    assert_eq!(tso.take(50, most), Ok(Timestamp { physical_ms: 50, logical: most }));
    assert_eq!(tso.take(50, 1), Ok(Timestamp { physical_ms: 51, logical: 1 }));
    assert_eq!(tso.take(50, most), Ok(Timestamp { physical_ms: 52, logical: most }));
    for count in [0, LOGICAL_END, u64::MAX] {
        assert_eq!(tso.take(50, count), Err(TsoError::Count(count)));
    }
}

#[test]
fn a_clock_that_goes_back_is_not_followed() {
    let mut tso = ready(10_000);
    let before = tso.take(10_000, 3).unwrap();
    let after = tso.take(1, 1).unwrap();
    assert_eq!(after, Timestamp { physical_ms: 10_000, logical: 4 });
    assert!(after > before);
}

#[test]
fn the_window_is_written_again_before_it_runs_out() {
    let mut tso = ready(0);
    assert_eq!(tso.wants(WINDOW_MS / 2 - 1), None);
    assert!(tso.wants(WINDOW_MS / 2).is_some());
    // Until then the old one serves, and no longer.
    assert!(tso.take(WINDOW_MS - 1, 1).is_ok());
    assert_eq!(tso.take(WINDOW_MS, 1), Err(TsoError::NotYet));
}

#[test]
fn a_new_leader_starts_where_the_window_of_the_old_ends() {
    let mut tso = Tso::recover(Some(&encode(9_000))).unwrap();
    let swap = tso.wants(100).unwrap();
    assert_eq!(swap.value, encode(9_000 + WINDOW_MS));
    tso.complete(SwapResult::Done).unwrap();
    assert_eq!(tso.take(100, 1), Ok(Timestamp { physical_ms: 9_000, logical: 1 }));
}

/// A cluster whose leader changes at random, with clocks that disagree and jump, writes that are
/// late, and answers that are lost. Timestamps of a leader in office never go back, and
/// nothing is handed out twice, not even by leaders that are no longer in office.
#[test]
fn time_never_goes_back_whoever_leads() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world =
            World { row: None, leaders: vec![(Tso::recover(None).unwrap(), 1_000)], late: vec![] };
        let mut last = Timestamp { physical_ms: 0, logical: 0 };
        let mut given: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for _ in 0..400 {
            let in_office = world.leaders.len() - 1;
            let at = if random.u8(..4) == 0 { random.usize(..=in_office) } else { in_office };
            world.step(&mut random, at);
            let (tso, now_ms) = &mut world.leaders[at];
            let count = random.u64(1..100_000);
            let Ok(taken) = tso.take(*now_ms, count) else { continue };
            assert!(taken.logical < LOGICAL_END);
            let batch = taken.logical + 1 - count..taken.logical + 1;
            let others = given.entry(taken.physical_ms).or_default();
            for other in others.iter() {
                let apart = batch.end <= other.start || other.end <= batch.start;
                assert!(apart, "seed {seed}: {batch:?} of {} twice", taken.physical_ms);
            }
            others.push(batch);
            if at == in_office {
                assert!(taken > last, "seed {seed}: {taken:?} after {last:?}");
                last = taken;
            }
        }
        assert!(given.len() > 10, "seed {seed}: the test hands out nothing");
    }
}

struct World {
    row: Option<Vec<u8>>,
    leaders: Vec<(Tso, u64)>,
    late: Vec<RowSwap>,
}

impl World {
    fn step(&mut self, random: &mut fastrand::Rng, at: usize) {
        let (tso, now_ms) = &mut self.leaders[at];
        match random.u8(..10) {
            0 => {
                let now_ms = random.u64(..40) * 500;
                let tso = Tso::recover(self.row.as_deref()).unwrap();
                self.leaders.push((tso, now_ms));
            }
            1 => *now_ms = random.u64(..60) * 500,
            2 => self.late.extend(tso.wants(*now_ms)),
            3 => tso.complete(SwapResult::Unknown).unwrap(),
            4 if !self.late.is_empty() => {
                let swap = self.late.swap_remove(random.usize(..self.late.len()));
                self.swap(swap);
            }
            _ => {
                *now_ms += random.u64(..3) * 100;
                if let Some(swap) = tso.wants(*now_ms) {
                    let result = self.swap(swap);
                    self.leaders[at].0.complete(result).unwrap();
                }
            }
        }
    }

    fn swap(&mut self, swap: RowSwap) -> SwapResult {
        if self.row != swap.expected {
            return SwapResult::Refused { current: self.row.clone() };
        }
        self.row = Some(swap.value);
        SwapResult::Done
    }
}

#[test]
fn nothing_below_a_raised_floor_is_handed_out() {
    for is_raising in [false, true] {
        let mut tso = ready(50);
        tso.take(50, 1).unwrap();
        // A window that is being written may lie below the floor.
        let under_way = is_raising.then(|| tso.wants(50 + WINDOW_MS).unwrap());
        tso.raise_floor(1_000_000);
        if under_way.is_some() {
            tso.complete(SwapResult::Done).unwrap();
        }
        assert_eq!(tso.take(60, 1), Err(TsoError::NotYet));
        let swap = tso.wants(60).unwrap();
        assert_eq!(swap.value, encode(1_000_000 + WINDOW_MS));
        tso.complete(SwapResult::Done).unwrap();
        let taken = tso.take(60, 1).unwrap();
        assert_eq!(taken, Timestamp { physical_ms: 1_000_000, logical: 1 });
        tso.raise_floor(1_000_000);
        assert_eq!(tso.take(60, 1).unwrap().logical, 2, "again");
    }
}
