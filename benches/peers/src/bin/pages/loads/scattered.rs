//! A file with many free pages that lie apart, and what is put into it.

use super::writes::fill;
use crate::keys::{Chance, Values, key_in_order};
use crate::load::Outcome;
use crate::store::{Store, Writer};
use peers::{Result, measure};
use std::time::{Duration, Instant};

const AT_A_TIME: u64 = 1000;
/// New keys come behind all others.
const BEHIND: u64 = 1 << 40;
/// Values that are replaced again and again.
const CHURNED: u64 = 1000;

/// Puts twice as many values of a page each as pages are asked for, and deletes every second one.
///
/// # Errors
///
/// Errors of the store.
pub fn scatter<S: Store>(store: &S, pages: u64) -> Result<Outcome> {
    let begin = Instant::now();
    fill(store, 0..2 * pages, S::LONE_VALUE_BYTES, true)?;
    for first in (0..2 * pages).step_by(2 * AT_A_TIME as usize) {
        let last = (first + 2 * AT_A_TIME).min(2 * pages);
        store.write(false, |writer| {
            (first..last).step_by(2).try_for_each(|n| writer.delete(&key_in_order(n)))
        })?;
    }
    store.settle()?;
    let mut outcome = Outcome::default();
    outcome.add("seconds", begin.elapsed().as_secs_f64());
    outcome.add("file MiB", store.file_bytes()? as f64 / f64::from(1 << 20));
    if let Some(pages) = store.free_pages()? {
        outcome.add("free pages", pages as f64);
    }
    Ok(outcome)
}

/// Puts new values, one a commit, for some time or so many.
///
/// # Errors
///
/// Errors of the store.
pub fn large<S: Store>(
    store: &S,
    value_bytes: usize,
    ms: u64,
    puts: u64,
    first: u64,
) -> Result<Outcome> {
    let mut values = Values::new();
    let mut times = Vec::new();
    let (cpu, begin) = (measure::cpu(), Instant::now());
    let end = begin + Duration::from_millis(ms);
    while Instant::now() < end && (times.len() as u64) < puts {
        let number = BEHIND + first + times.len() as u64;
        let value = values.value(number, 0, value_bytes);
        let one = Instant::now();
        store.write(false, |writer| writer.put(&key_in_order(number), value))?;
        times.push(one.elapsed().as_nanos() as u64);
    }
    let elapsed = begin.elapsed();
    let count = times.len() as f64;
    store.settle()?;
    let cpu = measure::cpu() - cpu;
    let mut outcome = Outcome::default();
    outcome.add("puts", count);
    outcome.add("puts/s", count / elapsed.as_secs_f64());
    outcome.add("puts/s with the last sync", count / begin.elapsed().as_secs_f64());
    outcome.add("cpu us/put", cpu.as_secs_f64() * 1e6 / count);
    outcome.add_times("commit", &mut times);
    Ok(outcome)
}

/// Replaces values of one to eight pages, one a commit, so that spans of all these sizes are taken
/// and given back.
///
/// # Errors
///
/// Errors of the store.
pub fn churn<S: Store>(store: &S, commits: u64, seed: u64) -> Result<Outcome> {
    let (mut chance, mut values) = (Chance::new(seed), Values::new());
    let mut one = |number: u64| {
        let bytes = 4096 * (1 + chance.below(8)) as usize;
        let number = 2 * BEHIND + number;
        let value = values.value(number, seed, bytes);
        store.write(false, |writer| writer.put(&key_in_order(number), value))
    };
    (0..CHURNED).try_for_each(&mut one)?;
    let mut which = Chance::new(seed + 1);
    let cpu = measure::cpu();
    for _ in 0..commits {
        one(which.below(CHURNED))?;
    }
    let mut outcome = Outcome::default();
    let cpu = (measure::cpu() - cpu).as_nanos() as f64;
    outcome.add("cpu ns/put of 1 to 8 pages", cpu / commits as f64);
    Ok(outcome)
}

/// Commits of a few puts, each made durable, and what they write for free space alone.
///
/// # Errors
///
/// Errors of the store.
pub fn free_space<S: Store>(
    store: &S,
    keys: u64,
    value_bytes: usize,
    commits: u64,
    puts: u64,
    seed: u64,
) -> Result<Outcome> {
    let Some(before) = store.free_space_bytes() else {
        let missing = Some("the engine does not count it".to_owned());
        return Ok(Outcome { missing, ..Outcome::default() });
    };
    let (mut chance, mut values) = (Chance::new(seed), Values::new());
    for commit in 0..commits {
        store.write(true, |writer| {
            for _ in 0..puts {
                // Of four keys in a row the last is there in every engine.
                let number = 4 * chance.below(keys / 4) + 3;
                writer.put(&key_in_order(number), values.value(number, commit, value_bytes))?;
            }
            Ok(())
        })?;
    }
    store.settle()?;
    let bytes = store.free_space_bytes().unwrap_or_default() - before;
    let mut outcome = Outcome::default();
    outcome.add("bytes for free space a commit", bytes as f64 / commits as f64);
    Ok(outcome)
}
