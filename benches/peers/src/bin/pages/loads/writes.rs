//! Puts and deletes: filling a store, commits with and without a sync.

use crate::keys::{Chance, Values, key, key_in_order};
use crate::load::Outcome;
use crate::store::{Store, Writer};
use peers::{Error, Result, measure};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Puts in one commit where nothing is measured.
const AT_A_TIME: u64 = 1000;

/// Puts all keys of these numbers and makes them durable.
///
/// # Errors
///
/// Errors of the store.
pub fn fill<S: Store>(
    store: &S,
    numbers: Range<u64>,
    value_bytes: usize,
    in_order: bool,
) -> Result<Outcome> {
    let begin = Instant::now();
    let mut values = Values::new();
    for first in numbers.clone().step_by(AT_A_TIME as usize) {
        store.write(false, |writer| {
            for number in first..(first + AT_A_TIME).min(numbers.end) {
                let key = if in_order { key_in_order(number) } else { key(number) };
                writer.put(&key, values.value(number, 0, value_bytes))?;
            }
            Ok(())
        })?;
    }
    store.settle()?;
    let mut outcome = Outcome::default();
    outcome.add("seconds", begin.elapsed().as_secs_f64());
    outcome.add("file MiB", store.file_bytes()? as f64 / f64::from(1 << 20));
    Ok(outcome)
}

/// Commits of random puts without a sync, and at the end all durable: the CPU time of all of it.
///
/// # Errors
///
/// Errors of the store.
pub fn commits<S: Store>(
    store: &S,
    keys: u64,
    value_bytes: usize,
    (commits, ms): (u64, u64),
    (puts, reads_ahead): (u64, bool),
    seed: u64,
) -> Result<Outcome> {
    let (mut chance, mut values) = (Chance::new(seed), Values::new());
    let mut times = Vec::with_capacity(commits.min(1 << 20) as usize);
    let longest = if ms == 0 { Duration::MAX } else { Duration::from_millis(ms) };
    let (cpu, begin) = (measure::cpu(), Instant::now());
    for commit in 0..commits {
        let one = Instant::now();
        if one - begin > longest {
            break;
        }
        let numbers: Vec<u64> = (0..puts).map(|_| chance.below(keys)).collect();
        store.write(false, |writer| {
            if reads_ahead {
                writer.read_ahead(&numbers.iter().map(|&number| key(number)).collect::<Vec<_>>());
            }
            for &number in &numbers {
                writer.put(&key(number), values.value(number, seed << 32 | commit, value_bytes))?;
            }
            Ok(())
        })?;
        times.push(one.elapsed().as_nanos() as u64);
    }
    let (unsettled, unsettled_cpu) = (begin.elapsed(), measure::cpu() - cpu);
    store.settle()?;
    let (elapsed, cpu) = (begin.elapsed(), measure::cpu() - cpu);
    let all = times.len() as f64 * puts as f64;
    let mut outcome = Outcome::default();
    outcome.add("cpu us/put", cpu.as_secs_f64() * 1e6 / all);
    outcome.add("cpu us/put, before the last sync", unsettled_cpu.as_secs_f64() * 1e6 / all);
    outcome.add("puts/s", all / elapsed.as_secs_f64());
    outcome.add("puts/s, before the last sync", all / unsettled.as_secs_f64());
    outcome.add_times("commit", &mut times);
    Ok(outcome)
}

/// Durable commits of one random put, by some threads.
///
/// # Errors
///
/// Errors of the store.
pub fn durable<S: Store>(
    store: &S,
    keys: u64,
    value_bytes: usize,
    threads: u64,
    ms: u64,
    seed: u64,
) -> Result<Outcome> {
    let begin = Instant::now();
    let end = begin + Duration::from_millis(ms);
    let one = |thread: u64| -> Result<Vec<u64>> {
        let (mut chance, mut values) = (Chance::new(seed << 8 | thread), Values::new());
        let mut times = Vec::new();
        while Instant::now() < end {
            let number = chance.below(keys);
            let version = (seed << 8 | thread) << 24 | times.len() as u64;
            let value = values.value(number, version, value_bytes);
            let one = Instant::now();
            store.write(true, |writer| writer.put(&key(number), value))?;
            times.push(one.elapsed().as_nanos() as u64);
        }
        Ok(times)
    };
    let mut times = in_threads(threads, one)?.concat();
    let mut outcome = Outcome::default();
    outcome.add("commits/s", times.len() as f64 / begin.elapsed().as_secs_f64());
    outcome.add_times("commit", &mut times);
    Ok(outcome)
}

/// Deletes every second key and makes that durable.
///
/// # Errors
///
/// Errors of the store.
pub fn delete_half<S: Store>(store: &S, keys: u64) -> Result<Outcome> {
    for first in (0..keys).step_by(2 * AT_A_TIME as usize) {
        let last = (first + 2 * AT_A_TIME).min(keys);
        store.write(false, |writer| {
            (first..last).step_by(2).try_for_each(|number| writer.delete(&key(number)))
        })?;
    }
    store.settle()?;
    Ok(Outcome::default())
}

/// Replaces random keys, a hundred a commit without a sync, until the process is killed. Prints a
/// line after each thousand commits.
///
/// # Errors
///
/// Errors of the store.
pub fn write_on<S: Store>(store: &S, keys: u64, value_bytes: usize) -> Result<()> {
    for round in 1.. {
        commits_of_round(store, keys, value_bytes, round)?;
        println!("{{}}");
    }
    Ok(())
}

fn commits_of_round<S: Store>(store: &S, keys: u64, value_bytes: usize, round: u64) -> Result<()> {
    let (mut chance, mut values) = (Chance::new(round), Values::new());
    for commit in 0..1000 {
        store.write(false, |writer| {
            for _ in 0..100 {
                let number = chance.below(keys);
                let value = values.value(number, round << 32 | commit, value_bytes);
                writer.put(&key_in_order(number), value)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Runs the same in so many threads, and returns what each has returned.
///
/// # Errors
///
/// The first error of a thread.
pub fn in_threads<T: Send>(threads: u64, work: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let ended = running.into_iter().map(|one| match one.join() {
            Ok(result) => result,
            Err(_) => Err(Error::from("a thread of the load has panicked")),
        });
        ended.collect()
    })
}
