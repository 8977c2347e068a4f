//! Gets, scans, and the proof that what is stored is what was put.

use super::writes::in_threads;
use crate::keys::{Chance, Values, key, number_of};
use crate::load::Outcome;
use crate::store::{Reader, Store};
use peers::{Result, measure};
use std::time::{Duration, Instant};

/// Gets in one read transaction.
const GETS_EACH: u64 = 1000;

/// Random gets by some threads. Each looks at the beginning of the value.
///
/// # Errors
///
/// Errors of the store, and if a key or its value is not there.
pub fn gets<S: Store>(store: &S, keys: u64, threads: u64, ms: u64, seed: u64) -> Result<Outcome> {
    let (begin, cpu) = (Instant::now(), measure::cpu());
    let end = begin + Duration::from_millis(ms);
    let counts = in_threads(threads, |thread| {
        let mut chance = Chance::new(seed << 8 | thread);
        let (mut count, mut right) = (0, 0);
        while Instant::now() < end {
            store.read(|reader| {
                for _ in 0..GETS_EACH {
                    let number = chance.below(keys);
                    let head = number.to_le_bytes();
                    reader.get(&key(number), |value| right += u64::from(value[..8] == head))?;
                }
                Ok(())
            })?;
            count += GETS_EACH;
        }
        if right == count { Ok(count) } else { Err("a key has not its value".into()) }
    })?;
    let count = counts.iter().sum::<u64>() as f64;
    let mut outcome = Outcome::default();
    outcome.add("gets/s", count / begin.elapsed().as_secs_f64());
    outcome.add("cpu ns/get", (measure::cpu() - cpu).as_nanos() as f64 / count);
    Ok(outcome)
}

/// Batches of random gets, each in a read transaction of its own.
///
/// # Errors
///
/// As [`gets`].
pub fn get_batches<S: Store>(
    store: &S,
    keys: u64,
    length: u64,
    ms: u64,
    seed: u64,
) -> Result<Outcome> {
    let mut chance = Chance::new(seed);
    let (begin, cpu) = (Instant::now(), measure::cpu());
    let end = begin + Duration::from_millis(ms);
    let (mut count, mut right) = (0, 0);
    while Instant::now() < end {
        let numbers: Vec<u64> = (0..length).map(|_| chance.below(keys)).collect();
        let batch: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let see = |n: usize, value: &[u8]| {
            right += u64::from(value[..8] == numbers[n].to_le_bytes());
        };
        store.read(|reader| reader.get_batch(&batch, see))?;
        count += length;
    }
    if right != count {
        return Err("a key has not its value".into());
    }
    let mut outcome = Outcome::default();
    outcome.add("gets/s", count as f64 / begin.elapsed().as_secs_f64());
    outcome.add("cpu ns/get", (measure::cpu() - cpu).as_nanos() as f64 / count as f64);
    Ok(outcome)
}

/// Scans from random keys on. Each entry's key and value are looked at.
///
/// # Errors
///
/// Errors of the store, and if a key has not its value.
pub fn scans<S: Store>(store: &S, keys: u64, length: u64, ms: u64, seed: u64) -> Result<Outcome> {
    let mut chance = Chance::new(seed);
    let (begin, cpu) = (Instant::now(), measure::cpu());
    let end = begin + Duration::from_millis(ms);
    let mut count = 0;
    while Instant::now() < end {
        store.read(|reader| {
            count += scan(reader, chance.below(keys), length)?;
            Ok(())
        })?;
    }
    let mut outcome = Outcome::default();
    outcome.add("keys/s", count as f64 / begin.elapsed().as_secs_f64());
    outcome.add("cpu ns/key", (measure::cpu() - cpu).as_nanos() as f64 / count as f64);
    Ok(outcome)
}

/// One scan from the key with this number on.
///
/// # Errors
///
/// Errors of the store, and if a key has not its value.
pub fn scan(reader: &impl Reader, from: u64, length: u64) -> Result<u64> {
    let mut right = 0;
    let seen = reader.scan(&key(from), length, |key, value| {
        // The last byte of the key is the first of the value: see `keys`.
        right += u64::from(key[23] == value[0]);
    })?;
    if right == seen { Ok(seen) } else { Err("a key of a scan has not its value".into()) }
}

/// Reads all keys and compares all values with what was put.
///
/// # Errors
///
/// Errors of the store, and if anything is missing or wrong.
pub fn prove<S: Store>(store: &S, keys: u64) -> Result<Outcome> {
    let mut values = Values::new();
    store.read(|reader| {
        let mut wrong = None;
        let seen = reader.scan(&[], u64::MAX >> 1, |key, value| {
            let number = number_of(key).unwrap_or(u64::MAX);
            if let Err(error) = values.prove(number, value) {
                wrong.get_or_insert(error);
            }
        })?;
        match wrong {
            Some(error) => Err(error),
            None if seen != keys => Err(format!("{seen} keys of {keys} are there").into()),
            None => Ok(()),
        }
    })?;
    Ok(Outcome::default())
}
