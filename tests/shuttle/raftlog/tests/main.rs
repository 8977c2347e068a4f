//! Threads that write, wait, flush, maintain and close, in many orders: a model checker decides at
//! each lock, condition variable, atomic and disk operation which thread runs next. It finds hangs
//! by itself; the rest is checked here.
//!
//! `RAFTLOG_SCHEDULES` is the count of orders that each scenario is tried in.

mod disk;

use disk::SharedDisk;
use flotilla_raftlog::{Config, Durability, Entry, Error, LogBatch, LogEngine, Receipt};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::mpsc::{Receiver, channel};
use shuttle::thread::{self, JoinHandle};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The writes of each scenario to a group.
const WRITES: u64 = 2;

type Outcome = Result<Receipt, Error>;

/// A log that threads use, and what they were told.
#[derive(Clone)]
struct World {
    disk: SharedDisk,
    log: LogEngine,
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
struct Told {
    /// Last entry of each group that was acknowledged as synced, and as written at all.
    synced: Vec<(u64, u64)>,
    written: Vec<(u64, u64)>,
    /// The outcomes of writes with callbacks, as they came in, and how many there should be.
    called_back: Vec<Outcome>,
    callback_count: usize,
    lsns: Vec<u64>,
    /// A failure was reported to a thread.
    is_poisoned: bool,
}

fn config() -> Config {
    let compress_above_bytes = u64::MAX;
    // The model knows only the threads that it made itself.
    let (salt, recovery_threads) = (Some(42), 1);
    Config::default()
        .segment_bytes(4096)
        .compress_above_bytes(compress_above_bytes)
        .salt(salt)
        .recovery_threads(recovery_threads)
}

fn open(disk: &SharedDisk) -> LogEngine {
    LogEngine::open_with(Arc::new(disk.clone()), Path::new("/log"), config()).expect("it opens").0
}

/// The `index`-th entry of a group. Two of them fill a segment.
fn batch(group: u64, index: u64) -> LogBatch {
    let mut batch = LogBatch::new();
    let data = vec![index as u8 | 1; 1500].into();
    batch.append(group, &[Entry { index, term: 1, kind: 0, data }]);
    batch
}

impl World {
    fn new() -> World {
        let disk = SharedDisk::new(1);
        let log = open(&disk);
        World { disk, log, told: Arc::default() }
    }

    fn spawn(&self, act: impl FnOnce(World) + Send + 'static) -> JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || act(world))
    }

    fn heard(&self, group: u64, index: u64, durability: Durability, outcome: &Outcome) -> bool {
        self.told.lock().expect("whole").hear(group, index, durability, outcome)
    }

    fn wait_for_writes(self, group: u64, durability: Durability) {
        let mut goes_on = true;
        for index in 1..=WRITES {
            let outcome = self.log.write(batch(group, index), durability).wait();
            let is_written = self.heard(group, index, durability, &outcome);
            assert!(goes_on || !is_written, "a log that takes no more took more");
            goes_on = is_written;
            let Ok(receipt) = outcome else { continue };
            assert_eq!(self.log.group(group).expect("written").last_index(), index);
            let is_synced = self.log.durable_lsn() >= receipt.lsn;
            assert!(is_synced || durability == Durability::Buffered, "told too early");
        }
    }

    /// Reports the outcomes by callbacks. Another thread has to flush.
    fn write_with_callbacks(&self, group: u64, durability: Durability) {
        let write = |index| (index, self.log.write(batch(group, index), durability));
        let commits: Vec<_> = (1..=WRITES).map(write).collect();
        for (index, commit) in commits {
            self.told.lock().expect("whole").callback_count += 1;
            let told = self.told.clone();
            commit.on_done(move |outcome| {
                let mut told = told.lock().expect("whole");
                told.hear(group, index, durability, &outcome);
                told.called_back.push(outcome);
            });
        }
    }

    /// Awaits its writes: no thread that it knows of carries them out.
    fn await_writes(self, group: u64) {
        for index in 1..=WRITES {
            let commit = self.log.write(batch(group, index), Durability::Synced);
            let outcome = shuttle::future::block_on(commit);
            self.heard(group, index, Durability::Synced, &outcome);
        }
    }

    /// The thread of the log that carries out what is awaited may still have some to run.
    fn wait_for_callbacks(&self) {
        let is_left = |told: &Told| told.called_back.len() < told.callback_count;
        while is_left(&self.told.lock().expect("whole")) {
            thread::yield_now();
        }
    }

    fn flush_when_told(self, calls: Receiver<()>) {
        while calls.recv().is_ok() {
            self.log.flush();
        }
    }

    fn sync(self) {
        if let Ok(receipt) = self.log.sync().wait() {
            assert!(self.log.durable_lsn() >= receipt.lsn);
        }
    }

    fn maintain(self) {
        for _ in 0..3 {
            match self.log.maintain() {
                Ok(_) | Err(Error::Poisoned(_) | Error::Closed) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn close(self) {
        match self.log.close() {
            // All that is told as written is durable now, however it was asked for.
            Ok(()) => {
                let mut told = self.told.lock().expect("whole");
                let written = told.written.clone();
                told.synced.extend(written);
            }
            Err(Error::Poisoned(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// The invariants at the end, when all threads are done and the queue is empty.
    fn check_told(&self) {
        assert_eq!(self.log.stats().queued_bytes, 0);
        let mut told = self.told.lock().expect("whole");
        let (called, count) = (told.called_back.len(), told.callback_count);
        assert_eq!(called, count, "a callback ran not at all or twice");
        let lsns: Vec<u64> =
            told.called_back.iter().filter_map(|o| o.as_ref().ok()).map(|r| r.lsn).collect();
        assert!(lsns.is_sorted_by(|a, b| a < b), "callbacks out of order: {lsns:?}");
        let written = told.lsns.len();
        told.lsns.sort_unstable();
        told.lsns.dedup();
        assert_eq!(told.lsns.len(), written, "two writes have one place");
    }

    /// After the power has gone, now if not before, all that was told to be synced is there.
    fn check_durable(self, seed: u64) {
        let World { disk, log, told } = self;
        drop(log);
        disk.disk.fail_syncs(false);
        disk.disk.fail_writes(false);
        disk.disk.power_loss(seed);
        let log = open(&disk);
        for (group, index) in &told.lock().expect("whole").synced {
            let found = log.group(*group).map_or(0, |group| group.last_index());
            assert!(found >= *index, "group {group}: {index} was synced, {found} is the last");
            let entries = log.group(*group).expect("there").entries(*index..*index + 1, u64::MAX);
            assert_eq!(entries.expect("it can be read")[0].data[..], [*index as u8 | 1; 1500]);
        }
    }
}

impl Told {
    /// Takes down an outcome. Whether the log can take more.
    fn hear(&mut self, group: u64, index: u64, durability: Durability, outcome: &Outcome) -> bool {
        match outcome {
            Ok(receipt) => {
                self.written.push((group, index));
                self.lsns.push(receipt.lsn);
                if durability == Durability::Synced {
                    self.synced.push((group, index));
                }
                true
            }
            Err(Error::Closed) => false,
            Err(Error::Poisoned(_)) => {
                self.is_poisoned = true;
                false
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("no check of the thread failed");
    }
}

/// Tries a scenario in many orders: any order, and those with few changes of threads.
fn check(name: &str, scenario: fn()) {
    let schedules = std::env::var("RAFTLOG_SCHEDULES");
    let schedules = schedules.map_or(4000, |count| count.parse().expect("a number"));
    let seed = std::env::var("RAFTLOG_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let started = std::time::Instant::now();
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(RandomScheduler::new_from_seed(seed, schedules / 2)),
        Box::new(PctScheduler::new_from_seed(seed, 3, schedules / 2)),
    ];
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    let mut count = 0;
    for scheduler in schedulers {
        count += shuttle::Runner::new(scheduler, config.clone()).run(scenario);
    }
    println!("{name}: {count} orders in {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(count, schedules / 2 * 2);
}

#[test]
fn those_who_wait_lead_for_each_other() {
    check("waiting", || {
        let world = World::new();
        let threads = [
            world.spawn(|w| w.wait_for_writes(1, Durability::Synced)),
            world.spawn(|w| w.wait_for_writes(2, Durability::Buffered)),
            world.spawn(|w| w.wait_for_writes(3, Durability::Synced)),
            world.spawn(World::sync),
        ];
        join(threads);
        world.check_told();
        world.check_durable(1);
    });
}

#[test]
fn each_way_to_learn_an_outcome_tells_it_once() {
    check("ways to learn", || {
        let world = World::new();
        let (sender, receiver) = channel();
        let threads = [
            world.spawn(|w| w.wait_for_writes(1, Durability::Synced)),
            world.spawn(|w| w.await_writes(2)),
            world.spawn(move |w| {
                w.write_with_callbacks(3, Durability::Buffered);
                sender.send(()).expect("the flusher is there");
            }),
            world.spawn(move |w| w.flush_when_told(receiver)),
            world.spawn(World::maintain),
        ];
        join(threads);
        world.wait_for_callbacks();
        world.check_told();
        assert_eq!(world.told.lock().expect("whole").written.len() as u64, 3 * WRITES);
        world.check_durable(2);
    });
}

#[test]
fn callbacks_that_are_set_late_keep_the_order() {
    check("late callbacks", || {
        let world = World::new();
        let flusher = world.spawn(|w| while w.log.flush() {});
        world.write_with_callbacks(1, Durability::Buffered);
        while world.log.flush() {}
        join([flusher]);
        world.check_told();
    });
}

#[test]
fn callbacks_may_write_wait_and_flush() {
    check("callbacks", || {
        let world = World::new();
        let threads = [
            world.spawn(|w| {
                let inner = w.clone();
                let commit = w.log.write(batch(1, 1), Durability::Buffered);
                commit.on_done(move |outcome| {
                    outcome.expect("written");
                    inner.clone().wait_for_writes(2, Durability::Synced);
                    inner.log.flush();
                });
                w.log.flush();
            }),
            world.spawn(|w| {
                w.write_with_callbacks(3, Durability::Synced);
                w.log.flush();
            }),
            world.spawn(|w| w.wait_for_writes(4, Durability::Synced)),
        ];
        join(threads);
        world.check_told();
        assert_eq!(world.told.lock().expect("whole").written.len() as u64, 3 * WRITES);
        world.check_durable(3);
    });
}

/// Writers while something happens to the disk, and to the log.
fn under_fault(fault: fn(World), seed: u64) {
    let world = World::new();
    let threads = [
        world.spawn(|w| w.wait_for_writes(1, Durability::Synced)),
        world.spawn(|w| w.wait_for_writes(2, Durability::Buffered)),
        world.spawn(|w| {
            w.write_with_callbacks(3, Durability::Synced);
            w.log.flush();
        }),
        world.spawn(|w| w.await_writes(4)),
        world.spawn(World::maintain),
        world.spawn(fault),
    ];
    join(threads);
    while world.log.flush() {}
    world.wait_for_callbacks();
    world.check_told();
    let is_poisoned = world.told.lock().expect("whole").is_poisoned;
    if is_poisoned {
        // A disk that is well again changes nothing.
        world.disk.disk.fail_syncs(false);
        world.disk.disk.fail_writes(false);
        let later = world.log.write(batch(9, 1), Durability::Buffered).wait();
        assert!(matches!(later, Err(Error::Poisoned(_))), "after a failure {later:?}");
        assert!(matches!(world.log.sync().wait(), Err(Error::Poisoned(_))));
        assert!(matches!(world.log.close(), Err(Error::Poisoned(_))));
    }
    world.check_durable(seed);
}

#[test]
fn failed_syncs_are_told_to_all() {
    check("failed syncs", || under_fault(|w| w.disk.disk.fail_syncs(true), 4));
}

#[test]
fn failed_writes_are_told_to_all() {
    check("failed writes", || under_fault(|w| w.disk.disk.fail_writes(true), 5));
}

#[test]
fn what_was_synced_when_the_power_went_is_there() {
    check("power loss", || under_fault(|w| w.disk.disk.power_loss(7), 6));
}

#[test]
fn closing_ends_all_waiting() {
    check("close", || under_fault(World::close, 7));
}

#[test]
fn tasks_that_await_are_all_told_and_no_dropped_one_is_lost() {
    check("awaits", || {
        let world = World::new();
        let threads = [
            world.spawn(|w| w.await_writes(1)),
            world.spawn(|w| w.await_writes(2)),
            world.spawn(|w| drop(w.log.write(batch(3, 1), Durability::Synced))),
        ];
        join(threads);
        shuttle::future::block_on(world.log.sync()).expect("synced");
        assert_eq!(world.log.group(3).expect("it stayed queued").last_index(), 1);
        world.check_told();
        world.check_durable(1);
    });
}

#[test]
fn what_is_queued_when_the_log_goes_is_told() {
    check("drop", || {
        let world = World::new();
        let threads = [
            world.spawn(|w| w.write_with_callbacks(1, Durability::Synced)),
            world.spawn(|w| w.write_with_callbacks(2, Durability::Buffered)),
            world.spawn(|w| {
                w.log.flush();
            }),
        ];
        join(threads);
        let World { log, told, .. } = world;
        drop(log);
        let told = told.lock().expect("whole");
        assert_eq!((told.called_back.len(), told.callback_count), (4, 4));
        let refused = |o: &&Outcome| matches!(o, Err(Error::Closed));
        let refused = told.called_back.iter().filter(refused).count();
        assert_eq!(refused + told.written.len(), 4);
    });
}

/// An entry of a log that is overwritten: its data tells the term.
fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, kind: 0, data: vec![(index * 16 + term) as u8; 700].into() }
}

/// Writes entries and drops the first ones, durably.
fn rewrite(log: &LogEngine, first: u64, entries: &[Entry]) {
    let mut batch = LogBatch::new();
    batch.compact_to(1, first, 1);
    if !entries.is_empty() {
        batch.append(1, entries);
    }
    log.write(batch, Durability::Synced).wait().expect("written");
}

/// First and last index, and the entries, of the group that is rewritten.
fn seen(log: &LogEngine) -> (u64, u64, Vec<Entry>) {
    let group = log.group(1).expect("it is there");
    let (first, last) = (group.first_index(), group.last_index());
    (first, last, group.entries(first..last + 1, u64::MAX).expect("they can be read"))
}

#[test]
fn purge_moves_what_is_needed_when_it_writes() {
    check("purge", || {
        let disk = SharedDisk::new(1);
        let (purge_above_bytes, move_live_ratio_max) = (4096, 1.0);
        let config =
            config().purge_above_bytes(purge_above_bytes).move_live_ratio_max(move_live_ratio_max);
        let open = move |disk: &SharedDisk| {
            let opened =
                LogEngine::open_with(Arc::new(disk.clone()), Path::new("/log"), config.clone());
            opened.expect("it opens").0
        };
        let log = open(&disk);
        (1..=10).for_each(|index| rewrite(&log, 1, &[entry(index, 1)]));
        let purger = log.clone();
        let purger = thread::spawn(move || {
            for _ in 0..2 {
                purger.purge_expired_files().expect("purged");
            }
        });
        let reader = log.clone();
        let reader = thread::spawn(move || {
            let group = reader.group(1).expect("it is there");
            for found in group.entries(5..7, u64::MAX).expect("nobody drops them") {
                assert!(found == entry(found.index, 1) || found == entry(found.index, 2));
            }
        });
        rewrite(&log, 3, &[entry(6, 2), entry(7, 2)]);
        rewrite(&log, 4, &[]);
        join([purger, reader]);
        let expected: Vec<_> = (4..6).map(|index| entry(index, 1)).collect();
        let expected: Vec<_> = expected.into_iter().chain([entry(6, 2), entry(7, 2)]).collect();
        let expected = (4, 7, expected);
        assert_eq!(seen(&log), expected);
        let purge = log.stats().purge;
        assert!(purge.segments > 0 && purge.rewritten_records > 0, "nothing was purged");
        drop(log);
        disk.disk.power_loss(9);
        assert_eq!(seen(&open(&disk)), expected);
    });
}

#[test]
fn the_thread_that_maintains_ends_when_told_or_with_the_log() {
    check("maintenance", || {
        let world = World::new();
        let maintenance = world.log.maintain_in_background().expect("it starts");
        let writer = world.spawn(|w| w.wait_for_writes(1, Durability::Synced));
        if shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng()) {
            drop(maintenance);
            join([writer]);
            world.check_told();
            world.check_durable(8);
        } else {
            join([writer]);
            drop(world);
            drop(maintenance);
        }
    });
}
