//! A writer and a reader at a steady pace, beside threads that scan without pause.
//!
//! A thread that is held up starts its next few later; their wait counts from when they should have
//! begun, so a stall is seen in the percentiles by its length.

use super::reads::scan;
use crate::keys::{Chance, Values, key, key_in_order};
use crate::load::{Beside, Outcome};
use crate::store::{Store, Writer};
use peers::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Between two steps of defragmentation, for each microsecond that a step took.
const PAUSE: Duration = Duration::from_micros(3);

/// Runs all of it.
///
/// # Errors
///
/// Errors of the store, and if a key has not its value.
pub fn run<S: Store>(store: &S, load: Beside) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let ended = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let ended = &ended;
        let (end_writer, writer_ends) = channel();
        let (end_reader, reader_ends) = channel();
        let scanners: Vec<_> = (0..load.scanners)
            .map(|one| scope.spawn(move || scan_on(store, &load, one, ended)))
            .collect();
        let writer = scope.spawn(move || write_paced(store, &load, &writer_ends));
        let reader = scope.spawn(move || read_paced(store, &load, &reader_ends));
        let defragmented = wait(store, &load, &mut outcome);
        ended.store(true, Ordering::Relaxed);
        drop::<(Sender<()>, Sender<()>)>((end_writer, end_reader));
        let panicked = || Error::from("a thread of the load has panicked");
        let mut writes = writer.join().map_err(|_| panicked())??;
        let mut reads = reader.join().map_err(|_| panicked())??;
        let mut scans = 0;
        for scanner in scanners {
            scans += scanner.join().map_err(|_| panicked())??;
        }
        outcome.add("scans", scans as f64);
        outcome.add("writes", writes.len() as f64);
        outcome.add_times("write", &mut writes);
        outcome.add_times("read", &mut reads);
        defragmented
    });
    result?;
    if outcome.missing.is_some() {
        // Figures taken meanwhile mean nothing.
        outcome.figures.clear();
    }
    Ok(outcome)
}

/// Waits for the end of the load, or defragments.
fn wait<S: Store>(store: &S, load: &Beside, outcome: &mut Outcome) -> Result<()> {
    // No thread sends: these are waits that an end of the other side would cut short.
    let (_held, never) = channel::<()>();
    if !load.defragment {
        let _ = never.recv_timeout(Duration::from_millis(load.ms));
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        let step = Instant::now();
        match store.defragment()? {
            Some(true) => {}
            Some(false) => break,
            None => {
                outcome.missing = Some("it cannot defragment while others write".to_owned());
                return Ok(());
            }
        }
        // Most of the time is for the others.
        let _ = never.recv_timeout(PAUSE * step.elapsed().as_micros().min(1_000_000) as u32);
    }
    outcome.add("defragment s", begin.elapsed().as_secs_f64());
    // The old places of moved pages are free after the second checkpoint.
    store.settle()?;
    let _ = never.recv_timeout(Duration::from_millis(100));
    store.settle()?;
    outcome.add("file MiB", store.file_bytes()? as f64 / f64::from(1 << 20));
    Ok(())
}

fn scan_on<S: Store>(store: &S, load: &Beside, one: u64, ended: &AtomicBool) -> Result<u64> {
    let mut chance = Chance::new(load.seed << 8 | one);
    let mut scans = 0;
    while !ended.load(Ordering::Relaxed) {
        store.read(|reader| {
            for _ in 0..load.scans_each {
                scan(reader, chance.below(load.keys), load.length)?;
                scans += 1;
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        })?;
    }
    Ok(scans)
}

fn write_paced<S: Store>(store: &S, load: &Beside, ends: &Receiver<()>) -> Result<Vec<u64>> {
    let (mut chance, mut values) = (Chance::new(load.seed), Values::new());
    let mut count = 0;
    paced(load.writes_per_second, ends, || {
        let (number, place) = if load.grow {
            let number = load.first + count;
            (number, key_in_order(number))
        } else {
            let number = chance.below(load.keys);
            (number, key(number))
        };
        count += 1;
        let value = values.value(number, load.seed << 32 | count, load.value_bytes);
        let begin = Instant::now();
        store.write(false, |writer| writer.put(&place, value))?;
        Ok(begin.elapsed())
    })
}

fn read_paced<S: Store>(store: &S, load: &Beside, ends: &Receiver<()>) -> Result<Vec<u64>> {
    let mut chance = Chance::new(load.seed + 1);
    paced(load.reads_per_second, ends, || {
        let begin = Instant::now();
        store.read(|reader| scan(reader, chance.below(load.keys), 10).map(drop))?;
        Ok(begin.elapsed())
    })
}

/// Calls `one` `per_second` times a second until the other side of the channel is gone. Returns the
/// times in ns.
fn paced(
    per_second: u64,
    ends: &Receiver<()>,
    mut one: impl FnMut() -> Result<Duration>,
) -> Result<Vec<u64>> {
    let pause = Duration::from_secs(1) / per_second.max(1) as u32;
    let mut times = Vec::new();
    let mut next = Instant::now();
    loop {
        next = (next + pause).max(Instant::now());
        match ends.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(times),
        }
        let took = one()?;
        add_with_missed(&mut times, took, pause);
    }
}

/// Adds a time, and those of the ones that should have begun while it lasted.
fn add_with_missed(times: &mut Vec<u64>, took: Duration, pause: Duration) {
    let mut left = took;
    loop {
        times.push(left.as_nanos() as u64);
        match left.checked_sub(pause) {
            Some(rest) if !rest.is_zero() => left = rest,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_for_all_that_waited() {
        let mut times = Vec::new();
        add_with_missed(&mut times, Duration::from_nanos(9), Duration::from_nanos(10));
        assert_eq!(times, [9]);
        add_with_missed(&mut times, Duration::from_nanos(25), Duration::from_nanos(10));
        assert_eq!(times, [9, 25, 15, 5]);
    }
}
